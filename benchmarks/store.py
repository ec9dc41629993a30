"""The store's path against the bare ``minio`` client (and bare files) doing the same work, in one run side by side.

``python benchmarks/store.py [--repeat 60] [--large-mib 200]`` starts an S3 server and prints a table. Ours and the bare client take turns,
operation by operation, on the same server; figures are medians, and the ratio says how many times as long ours takes. The same
work: a put computes the SHA-256 that a reference carries, a read verifies it, content is looked for before it is put.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from minio import Minio
from minio.commonconfig import REPLACE, CopySource
from minio.error import S3Error

sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

from seaweedfs import start_s3

from distrl.connectors.folder import FolderStore
from distrl.connectors.s3 import S3Store
from distrl.core.contracts.store import BlobStore

BUCKET = "bench"
TYPE = "image/png"
SIZES = (10_000, 100_000, 1_000_000)
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; seconds are medians."""

    name: str
    bare_s: float
    ours_s: float


class BareS3:
    """What one would write with the client alone."""

    def __init__(self, client: Minio) -> None:
        self.client = client

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(BUCKET, key, BytesIO(data), len(data), content_type=TYPE)
        return hashlib.sha256(data).hexdigest()

    def get(self, key: str, sha256: str) -> bytes:
        response = self.client.get_object(BUCKET, key)
        try:
            data = response.read()
        finally:
            response.close()
            response.release_conn()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RuntimeError("corrupt")
        return data

    def put_content(self, prefix: str, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        key = f"{prefix}/{sha256}"
        try:
            self.client.stat_object(BUCKET, key)
        except S3Error as error:
            if error.code != "NoSuchKey":
                raise
            self.client.put_object(BUCKET, key, BytesIO(data), len(data), content_type=TYPE)
        else:
            source = CopySource(BUCKET, key)
            self.client.copy_object(BUCKET, key, source, metadata={"Content-Type": TYPE}, metadata_directive=REPLACE)
        return key

    def put_file(self, key: str, path: Path) -> str:
        self.client.fput_object(BUCKET, key, str(path), content_type=TYPE, part_size=16 * MIB, num_parallel_uploads=1)
        return hash_file(path)

    def get_file(self, key: str, path: Path, sha256: str) -> None:
        self.client.fget_object(BUCKET, key, str(path))
        if hash_file(path) != sha256:
            raise RuntimeError("corrupt")


class BareFiles:
    """What one would write with files alone: beside its place, then moved there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, data: bytes) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_bytes(data)
        os.replace(temporary, path)
        return hashlib.sha256(data).hexdigest()

    def get(self, key: str, sha256: str) -> bytes:
        data = (self.root / key).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise RuntimeError("corrupt")
        return data


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def side_by_side(
    name: str, repeat: int, operations: Callable[[int], tuple[Callable[[], object], Callable[[], object]]]
) -> Row:
    """Median seconds of both, which take turns at going first; ``operations`` prepares the two for one repetition."""
    bare: list[float] = []
    ours: list[float] = []
    for number in range(repeat):
        pair = list(zip((bare, ours), operations(number), strict=True))
        for times, operation in pair if number % 2 else reversed(pair):
            began = time.perf_counter()
            operation()
            times.append(time.perf_counter() - began)
    return Row(name, statistics.median(bare), statistics.median(ours))


def small_objects(kind: str, store: BlobStore, bare: BareS3 | BareFiles, repeat: int) -> Iterator[Row]:
    rng = random.Random(0)
    for size in SIZES:
        data = [rng.randbytes(size) for _ in range(repeat)]
        label = f"{kind}, {size // 1000} kB"
        refs = [store.put(f"ours/{size}/{n}", content, media_type=TYPE) for n, content in enumerate(data)]
        yield side_by_side(
            f"{label}: put",
            repeat,
            lambda n: (
                lambda: bare.put(f"bare/{size}/{n}", data[n]),  # noqa: B023 - called before the loop goes on
                lambda: store.put(f"again/{size}/{n}", data[n], media_type=TYPE),  # noqa: B023
            ),
        )
        yield side_by_side(
            f"{label}: get, verified",
            repeat,
            lambda n: (
                lambda: bare.get(f"bare/{size}/{n}", refs[n].sha256),  # noqa: B023
                lambda: store.get(refs[n]),  # noqa: B023
            ),
        )
        if isinstance(bare, BareS3):
            for state in ("new", "known"):
                yield side_by_side(
                    f"{label}: put content, {state}",
                    repeat,
                    lambda n: (
                        lambda: bare.put_content("bare-content", data[n]),  # noqa: B023
                        lambda: store.put_content("our-content", data[n], media_type=TYPE),  # noqa: B023
                    ),
                )


def large_files(store: BlobStore, bare: BareS3, mebibytes: int, folder: Path) -> Iterator[Row]:
    source = folder / "source"
    with source.open("wb") as file:
        for number in range(mebibytes):
            file.write(random.Random(number).randbytes(1024) * 1024)
    ref = store.put_file("large", source, media_type=TYPE)
    yield side_by_side(
        f"S3, file of {mebibytes} MiB: put",
        3,
        lambda n: (
            lambda: bare.put_file("bare-large", source),
            lambda: store.put_file("large", source, media_type=TYPE),
        ),
    )
    yield side_by_side(
        f"S3, file of {mebibytes} MiB: get, verified",
        3,
        lambda n: (
            lambda: bare.get_file("bare-large", folder / "bare-copy", ref.sha256),
            lambda: store.get_file(ref, folder / "our-copy"),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=60, help="of each operation on small objects")
    parser.add_argument("--large-mib", type=int, default=200, help="size of the large file")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows += small_objects(
            "folder", FolderStore(folder / "ours"), BareFiles(folder / "bare-files"), arguments.repeat
        )
        with start_s3(folder / "s3") as server:
            client = Minio(server.endpoint, server.access_key, server.secret_key, secure=False, region="us-east-1")
            client.make_bucket(BUCKET)
            with S3Store(
                server.endpoint, access_key=server.access_key, secret_key=server.secret_key, bucket=BUCKET
            ) as store:
                rows += small_objects("S3", store, BareS3(client), arguments.repeat)
                rows += large_files(store, BareS3(client), arguments.large_mib, folder)
    print("| operation | bare, ms | ours, ms | ratio |\n| --- | --- | --- | --- |")  # noqa: T201
    for row in rows:
        print(  # noqa: T201
            f"| {row.name} | {row.bare_s * 1000:.2f} | {row.ours_s * 1000:.2f} | {row.ours_s / row.bare_s:.2f} |"
        )


if __name__ == "__main__":
    main()
