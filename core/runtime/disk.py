"""Writing files where the disk may be full: one error for it, whoever writes. Used wherever plugins' own libraries write."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distrl.core.errors import DistrlError, StoreFullError

FULL_BYTES = 1_000_000
"""Libraries say in ways of their own that a disk is full; with less than this free, what they say is taken for it."""


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Raise ``StoreFullError`` for whatever goes wrong while ``what`` is written to ``folder`` because its disk is full."""
    try:
        yield
    except DistrlError:
        raise
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or shutil.disk_usage(folder).free < FULL_BYTES:
            raise StoreFullError(f"no space is left to write {what} in {folder}; make space on the disk") from error
        raise
