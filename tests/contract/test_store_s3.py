"""The store contract on a real S3 server (SeaweedFS), and what only a server can do to its clients."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from minio import Minio
from minio.versioningconfig import VersioningConfig
from store_suite import MEDIA_TYPE, MIB, PART_BYTES, Corrupt, OpenStore, StoreContract, noise

from distrl.connectors.s3 import S3Store
from distrl.core.contracts.store import BlobRef
from distrl.core.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    StoreCredentialsError,
    StoreError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from seaweedfs import S3Server

pytestmark = pytest.mark.s3
BUCKET = "contract"


def connect(server: S3Server, **changes: object) -> S3Store:
    """A store on ``server``'s bucket; ``changes`` replace arguments."""
    arguments: dict[str, object] = {
        "endpoint": server.endpoint,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "bucket": BUCKET,
        "part_bytes": PART_BYTES,
        **changes,
    }
    return S3Store(**arguments)  # type: ignore[arg-type]


class TestS3Store(StoreContract):
    @pytest.fixture
    def open_store(self, s3_server: S3Server) -> Iterator[OpenStore]:
        with ExitStack() as stack:
            yield lambda: stack.enter_context(connect(s3_server))

    @pytest.fixture
    def store_code(self, s3_server: S3Server) -> str:
        return (
            "from distrl.connectors.s3 import S3Store; "
            f"store = S3Store({s3_server.endpoint!r}, access_key={s3_server.access_key!r}, "
            f"secret_key={s3_server.secret_key!r}, bucket={BUCKET!r})"
        )

    @pytest.fixture
    def corrupt(self, s3_server: S3Server) -> Corrupt:
        client = Minio(s3_server.endpoint, s3_server.access_key, s3_server.secret_key, secure=False, region="us-east-1")

        def put_other(ref: BlobRef, data: bytes) -> None:
            client.put_object(ref.bucket, ref.key, BytesIO(data), len(data))

        return put_other


# --- letting go of what is old ------------------------------------------------------------------------


def test_an_upload_that_was_given_up_is_told_and_aborted(s3_server: S3Server) -> None:
    with connect(s3_server, bucket="uploads") as store:
        store.put("run/k", b"1", media_type=MEDIA_TYPE)
        client = store._client
        for key in ("run/weights/1", "run/weights/2", "run-b/weights/1"):
            upload = client._create_multipart_upload("uploads", key, {})
            client._upload_part("uploads", key, noise(PART_BYTES), None, upload, 1)
        assert store.leftovers("run/", store.time_ms() - 60_000, remove=True).count == 0
        later = store.time_ms() + 60_000
        assert store.leftovers("run/", later, remove=False).count == 2
        assert store.leftovers("run/", later, remove=True).count == 2
        assert store.leftovers("run/", later, remove=False).count == 0
        assert store.leftovers("run-b/", later, remove=True).count == 1
        assert [stat.key for stat in store.list()] == ["run/k"]


def test_a_probe_that_was_left_is_removed(s3_server: S3Server) -> None:
    with connect(s3_server, bucket="probes") as store:
        store.put("probe-of-a-dead-process", b"", media_type=MEDIA_TYPE)
        later = store.time_ms() + 60_000
        assert store.leftovers("run/", later, remove=True).count == 1
        assert list(store.list()) == []


def test_of_a_bucket_with_versions_only_the_one_looked_at_goes(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(s3_server, bucket="versions") as store:
        store.ping()
        store._client.set_bucket_versioning("versions", VersioningConfig("Enabled"))
        ref = store.put_content("run", b"content", media_type=MEDIA_TYPE)
        look = store._client.stat_object

        def renew_after_the_look(*arguments: str) -> object:
            found = look(*arguments)
            monkeypatch.undo()
            store.put_content("run", b"content", media_type=MEDIA_TYPE)
            return found

        time.sleep(1.1)  # S3 tells times by the second
        before = store.time_ms() // 1000 * 1000
        monkeypatch.setattr(store._client, "stat_object", renew_after_the_look)
        store.delete_older(ref.key, before)
        assert store.get(ref) == b"content"
        assert store.delete_older(ref.key, store.time_ms() + 60_000)
        assert list(store.list()) == []


# --- buckets and credentials --------------------------------------------------------------------------


def test_a_missing_bucket_reads_as_empty_and_is_made_by_a_put(s3_server: S3Server, tmp_path: Path) -> None:
    puts: list[Callable[[S3Store], object]] = [
        lambda store: store.put("k", b"1", media_type=MEDIA_TYPE),
        lambda store: store.put("k", b"1", media_type=MEDIA_TYPE, if_absent=True),
        lambda store: store.put_content("p", b"1", media_type=MEDIA_TYPE),
        lambda store: store.put_file("k", tmp_path / "file", media_type=MEDIA_TYPE),
        lambda store: store.ping(),
    ]
    (tmp_path / "file").write_bytes(b"1" * (PART_BYTES + 1))
    for put in puts:
        store = connect(s3_server, bucket=f"fresh-{uuid.uuid4().hex}")
        assert list(store.list()) == []
        store.delete("k")
        with pytest.raises(BlobNotFoundError):
            store.stat("k")
        with pytest.raises(BlobNotFoundError):
            store.get(BlobRef(store.bucket, "k", 1, "0" * 64, MEDIA_TYPE))
        put(store)
        store.ping()
        assert len(list(store.list())) == (0 if put is puts[-1] else 1)  # and the probe of conditions is gone


def test_names_that_are_no_keys_are_not_listed(s3_server: S3Server) -> None:
    store = connect(s3_server, bucket=f"fresh-{uuid.uuid4().hex}")
    store.put("ours/k", b"1", media_type=MEDIA_TYPE)
    client = Minio(s3_server.endpoint, s3_server.access_key, s3_server.secret_key, secure=False, region="us-east-1")
    foreign = {"tab\tname", "ours/\x7f", "marker/"}
    for name in foreign:
        client.put_object(store.bucket, name, BytesIO(b"2"), 1)
    assert foreign <= {found.object_name for found in client.list_objects(store.bucket, recursive=True)}
    assert [stat.key for stat in store.list()] == ["ours/k"]


def test_two_nodes_may_make_the_bucket_at_once(s3_server: S3Server) -> None:
    bucket = f"fresh-{uuid.uuid4().hex}"
    start = threading.Barrier(4)
    errors: list[Exception] = []

    def put(number: int) -> None:
        try:
            store = connect(s3_server, bucket=bucket)
            start.wait(30)
            store.put(f"k{number}", b"1", media_type=MEDIA_TYPE)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(list(connect(s3_server, bucket=bucket).list())) == 4


@pytest.mark.parametrize("wrong", ["secret_key", "access_key"])
def test_wrong_credentials_are_said_and_no_secret_is(s3_server: S3Server, tmp_path: Path, wrong: str) -> None:
    ref = connect(s3_server).put("credentials", b"1", media_type=MEDIA_TYPE)
    secret = "a-secret-that-nobody-may-see"
    store = connect(s3_server, **{wrong: secret, "secret_key": secret})
    (tmp_path / "file").write_bytes(b"1")
    calls: list[Callable[[], object]] = [
        lambda: store.put("k", b"1", media_type=MEDIA_TYPE),
        lambda: store.put("k", b"1", media_type=MEDIA_TYPE, if_absent=True),
        lambda: store.put_content("p", b"1", media_type=MEDIA_TYPE),
        lambda: store.put_file("k", tmp_path / "file", media_type=MEDIA_TYPE),
        lambda: store.get(ref),
        lambda: store.stat("credentials"),
        lambda: list(store.list()),
        lambda: store.delete("credentials"),
        store.ping,
    ]
    for call in calls:
        with pytest.raises(StoreCredentialsError) as refused:
            call()
        assert not refused.value.retriable
        told = "".join(traceback.format_exception(refused.value)) if wrong == "secret_key" else str(refused.value)
        assert secret not in told
        assert "store.secret_key" in refused.value.message
    assert secret not in repr(store)
    assert connect(s3_server).get(ref) == b"1"


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": "http://127.0.0.1:1"},
        {"endpoint": "127.0.0.1:1/path"},
        {"bucket": "x"},
        {"bucket": "a/b"},
        {"ca_file": Path("/none")},
    ],
)
def test_what_cannot_be_an_address_is_refused_at_once(changes: dict[str, object]) -> None:
    arguments: dict[str, object] = {"endpoint": "127.0.0.1:1", "access_key": "a", "secret_key": "b", "bucket": BUCKET}
    with pytest.raises(ConfigError, match="store"):
        S3Store(**{**arguments, **changes})  # type: ignore[arg-type]


# --- servers that are away ----------------------------------------------------------------------------


def calls_of(store: S3Store, file: Path) -> list[Callable[[], object]]:
    """One call of every kind."""
    return [
        lambda: store.put("k", b"1", media_type=MEDIA_TYPE),
        lambda: store.put("k", b"1", media_type=MEDIA_TYPE, if_absent=True),
        lambda: store.put_content("p", b"1", media_type=MEDIA_TYPE),
        lambda: store.put_file("k", file, media_type=MEDIA_TYPE),
        lambda: store.get(BlobRef(store.bucket, "k", 1, "0" * 64, MEDIA_TYPE)),
        lambda: store.stat("k"),
        lambda: list(store.list()),
        lambda: store.delete("k"),
        store.ping,
    ]


@pytest.mark.timeout(60)
def test_a_closed_port_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1" * (PART_BYTES + 1))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it, and it refuses
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        store = S3Store(endpoint, access_key="a", secret_key="s3cret-of-mine", bucket=BUCKET)
        for call in calls_of(store, tmp_path / "file"):
            with pytest.raises(StoreUnavailableError) as away:
                call()
            assert away.value.retriable
            assert endpoint in away.value.message
            told = "".join(traceback.format_exception(away.value))
            assert "Signature=" not in told
            assert "s3cret-of-mine" not in told


@pytest.mark.timeout(60)
def test_a_server_that_never_answers_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1" * (PART_BYTES + 1))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:  # connects, and no word comes
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        store = S3Store(endpoint, access_key="a", secret_key="b", bucket=BUCKET, timeout_s=0.3)
        for call in calls_of(store, tmp_path / "file"):
            with pytest.raises(StoreUnavailableError) as away:
                call()
            assert "Signature=" not in "".join(traceback.format_exception(away.value))


@pytest.mark.timeout(60)
def test_what_is_no_s3_server_is_said(tmp_path: Path) -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"not even HTTP\r\n\r\n",
    ]
    (tmp_path / "file").write_bytes(b"1")
    for answer in answers:
        with answering(answer) as endpoint:
            store = S3Store(endpoint, access_key="a", secret_key="b", bucket=BUCKET, timeout_s=5)
            with pytest.raises(StoreError):
                list(store.list())
            with pytest.raises(StoreError):
                store.get(BlobRef(BUCKET, "k", 1, "0" * 64, MEDIA_TYPE))
    with answering(
        b"HTTP/1.1 503 Busy\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    ) as endpoint:
        store = S3Store(endpoint, access_key="a", secret_key="b", bucket=BUCKET, timeout_s=5)
        for call in calls_of(store, tmp_path / "file"):
            with pytest.raises(StoreUnavailableError):
                call()


@pytest.mark.timeout(120)
def test_no_acknowledged_object_is_lost_when_the_server_is_killed(own_server: S3Server) -> None:
    connect(own_server).ping()
    acknowledged: dict[str, BlobRef] = {}
    tried: dict[str, BlobRef] = {}
    refused: list[StoreError] = []
    enough = threading.Event()

    def put(worker: int) -> None:
        store = connect(own_server, timeout_s=10)
        for number in range(10_000):
            data = noise(300_000, seed=worker * 10_000 + number)
            key = f"w{worker}/{number}"
            tried[key] = BlobRef(BUCKET, key, len(data), hashlib.sha256(data).hexdigest(), MEDIA_TYPE)
            try:
                acknowledged[key] = store.put(key, data, media_type=MEDIA_TYPE, if_absent=bool(number % 2))
            except StoreError as error:
                refused.append(error)
                return
            if len(acknowledged) > 60:
                enough.set()

    workers = [threading.Thread(target=put, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    assert enough.wait(60)
    own_server.kill()
    for worker in workers:
        worker.join(60)
    assert [type(error) for error in refused] == [StoreUnavailableError] * 3
    own_server.start()
    store = connect(own_server)
    for ref in acknowledged.values():
        assert len(store.get(ref)) == ref.size
    for key in tried.keys() - acknowledged.keys():
        with contextlib.suppress(BlobNotFoundError):  # there, whole, or not: never half
            store.get(tried[key])
    assert (
        acknowledged.keys()
        <= {stat.key for stat in store.list()}
        <= tried.keys() | {stat.key for stat in store.list("probe-")}
    )


@pytest.mark.timeout(120)
def test_a_server_that_dies_or_freezes_in_the_middle_is_said(own_server: S3Server, tmp_path: Path) -> None:
    store = connect(own_server, timeout_s=2)
    ref = store.put("large", noise(30 * MIB), media_type=MEDIA_TYPE)
    with store.open(ref) as stream:
        stream.read(MIB)
        own_server.pause()
        with pytest.raises(StoreUnavailableError):
            stream.read()
        with pytest.raises(StoreUnavailableError):
            store.get_file(ref, tmp_path / "copy")
        own_server.resume()
    with store.open(ref) as stream:
        stream.read(MIB)
        own_server.kill()
        with pytest.raises(StoreUnavailableError):
            stream.read()
    with pytest.raises(StoreUnavailableError):
        store.get(ref)
    assert list(tmp_path.glob("**/*copy*")) == []
    own_server.start()
    assert len(store.get(ref)) == ref.size  # the same store goes on


# --- servers and ways to them that are not as they should be ------------------------------------------


def test_a_server_that_ignores_conditions_is_found_out(s3_server: S3Server, tmp_path: Path) -> None:
    ref = connect(s3_server).put("precious", b"first", media_type=MEDIA_TYPE)
    (tmp_path / "file").write_bytes(b"second")
    with Proxy(s3_server, lambda head: drop_header(head, b"if-none-match")) as proxy:
        store = connect(s3_server, endpoint=proxy.endpoint)
        for _ in range(2):
            with pytest.raises(StoreError, match="If-None-Match") as ignored:
                store.put("precious", b"second", media_type=MEDIA_TYPE, if_absent=True)
            assert type(ignored.value) is StoreError
            with pytest.raises(StoreError, match="If-None-Match"):
                store.put_file("precious", tmp_path / "file", media_type=MEDIA_TYPE, if_absent=True)
        assert store.get(ref) == b"first"
        assert list(store.list("probe-")) == []


def test_tls_is_checked_with_the_given_authority(s3_server: S3Server, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing, it makes the certificates")
    ours, other = certificate(tmp_path / "ours"), certificate(tmp_path / "other")
    with Proxy(s3_server, lambda head: head, tls=ours) as proxy:
        store = connect(s3_server, endpoint=proxy.endpoint, secure=True, ca_file=ours[0])
        data = noise(PART_BYTES + 1)
        assert store.get(store.put("tls", data, media_type=MEDIA_TYPE)) == data
        with pytest.raises(BlobExistsError):
            store.put("tls", data, media_type=MEDIA_TYPE, if_absent=True)
        for ca_file in (other[0], None):
            with pytest.raises(StoreError, match="ca_file") as refused:
                connect(s3_server, endpoint=proxy.endpoint, secure=True, ca_file=ca_file).ping()
            assert not refused.value.retriable


def test_bytes_that_are_spoilt_on_the_way_are_noticed(s3_server: S3Server) -> None:
    data = noise(1000)
    whole = connect(s3_server).put("way", data, media_type=MEDIA_TYPE)
    with Proxy(s3_server, lambda head: head, spoil=(data[500:520], b"x" * 20)) as proxy:
        store = connect(s3_server, endpoint=proxy.endpoint)
        with pytest.raises(StoreUnavailableError):  # the server notices, and it may go well the next time
            store.put("way", data, media_type=MEDIA_TYPE)
        with pytest.raises(StoreUnavailableError):
            store.put("way-2", data, media_type=MEDIA_TYPE, if_absent=True)
    assert connect(s3_server).get(whole) == data
    with pytest.raises(BlobNotFoundError):
        connect(s3_server).get(replace(whole, key="way-2"))


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[S3Server]:
    """A server of this test's own, to be broken."""
    from seaweedfs import start_s3

    with start_s3(tmp_path / "state") as server:
        yield server


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Something that gives every request the same answer; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(5)
                        connection.recv(1 << 16)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 16):
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def drop_header(head: bytes, name: bytes) -> bytes:
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(name + b":"))


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    folder.mkdir()
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


class Proxy:
    """Stands between a client and the real server, one request a connection: speaks TLS, changes headers, spoils bytes."""

    def __init__(
        self,
        server: S3Server,
        change: Callable[[bytes], bytes],
        *,
        tls: tuple[Path, Path] | None = None,
        spoil: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._target = ("127.0.0.1", server.port)
        self._change = change
        self._spoil = spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._tls: ssl.SSLContext | None = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*tls)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Proxy:
        self._run(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(20)

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(20)
            client = connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
            with client, socket.create_connection(self._target, 20) as server:
                head, _, body = receive_until(client, b"\r\n\r\n").partition(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                while len(body) < length:
                    body += client.recv(1 << 16)
                if self._spoil is not None:
                    body = body.replace(*self._spoil)
                head = drop_header(self._change(head), b"connection") + b"\r\nConnection: close"
                server.sendall(head + b"\r\n\r\n" + body)
                while data := server.recv(1 << 16):
                    client.sendall(data)


def receive_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        received = connection.recv(1 << 16)
        if not received:
            raise OSError("closed")
        data += received
    return data
