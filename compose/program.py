"""Programs that a server is made of: found on this machine, or fetched once into a folder of the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from server import ServerError

_FETCH_SECONDS = 600


def find_program(name: str, *, needed_by: str, command: str) -> str:
    """The full path of a program. Raises ``ServerError`` with ``command``, which brings it."""
    path = shutil.which(name)
    if path is None:
        raise ServerError(f"{name} is missing, {needed_by} needs it: {command}")
    return path


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
