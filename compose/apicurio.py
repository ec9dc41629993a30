"""The schema registry without docker: Apicurio Registry from Maven, on 127.0.0.1. Used by the tests and ``stack.py``.

It speaks Confluent's API under ``/apis/ccompat/v7``. Schemas lie in a file of its own database (H2) in the state folder, so that ids
outlive a crash as they must: a record on the log names its schema by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from program import fetch, find_java, find_program
from server import HOST, Server

POM = Path(__file__).parent / "apicurio" / "pom.xml"
NEEDED_BY = "the schema registry"
JAVA_AT_LEAST = 21

# A proxy of the environment must never stand between this process and a server on its own machine.
_direct = build_opener(ProxyHandler({}))


def registry_app() -> Path:
    """The folder with the registry's program, fetched through Maven the first time. Raises ``ServerError``."""

    def command(folder: Path) -> list[str]:
        maven = find_program("mvn", needed_by=NEEDED_BY, command="apt-get install -y maven")
        return [
            maven,
            "-q",
            "-B",
            "-f",
            str(folder / "pom.xml"),
            "dependency:unpack",
            f"-DoutputDirectory={folder / 'app'}",
        ]

    return fetch("Apicurio", POM, command) / "app"


class RegistryServer(Server):
    """One registry. Schemas and ids that were acknowledged outlive ``kill`` and ``restart``."""

    name = "Apicurio Registry"
    start_seconds = 120.0

    def __init__(self, state_dir: Path, *, port: int | None = None, detached: bool = False) -> None:
        super().__init__(state_dir, port=port, detached=detached)
        self._app = Path()
        self._java = ""

    @property
    def url(self) -> str:
        """What goes into ``registry.url``."""
        return f"http://{self.address}/apis/ccompat/v7"

    def prepare(self) -> None:
        self._java = find_java(JAVA_AT_LEAST, needed_by=NEEDED_BY)
        self._app = registry_app()

    def command(self) -> Sequence[str]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [self._java, *options, "-jar", str(self._app / "quarkus-run.jar")]

    def environment(self) -> Mapping[str, str]:
        return {
            "QUARKUS_HTTP_HOST": HOST,
            "QUARKUS_HTTP_PORT": str(self.port),
            # A second interface, with metrics, which would take port 9000 of every network that this machine is in.
            "QUARKUS_MANAGEMENT_HOST_ENABLED": "false",
            "APICURIO_STORAGE_KIND": "sql",
            "APICURIO_STORAGE_SQL_KIND": "h2",
            # Without a delay: what is written later than acknowledged is lost with a crash.
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{self.state_dir.resolve() / 'registry'};WRITE_DELAY=0",
            "APICURIO_DATASOURCE_USERNAME": "sa",
            "APICURIO_DATASOURCE_PASSWORD": "sa",
            "QUARKUS_LOG_LEVEL": "WARN",
            "QUARKUS_HTTP_ACCESS_LOG_ENABLED": "false",
        }

    def answers(self) -> bool:
        try:
            with _direct.open(f"{self.url}/subjects", timeout=1.0) as response:
                return isinstance(json.load(response), list)
        except (URLError, OSError, ValueError):
            return False


def start_registry(state_dir: Path, *, port: int | None = None, detached: bool = False) -> RegistryServer:
    """A registry that answers. ``state_dir`` holds all that it keeps. Raises ``ServerError``."""
    return RegistryServer(state_dir, port=port, detached=detached).start()
