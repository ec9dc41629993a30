"""A machine whose clock is wrong cannot sign for the S3 server: it waits until the clock is set right, and is not taken for an intruder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import minio.time
import pytest

from distrl.connectors.s3 import S3Store
from distrl.core.errors import StoreUnavailableError

if TYPE_CHECKING:
    from seaweedfs import S3Server

pytestmark = pytest.mark.s3


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wrong_clock_is_waited_out(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now: Callable[[], datetime] = minio.time.utcnow
    with S3Store(
        s3_server.endpoint,
        access_key=s3_server.access_key,
        secret_key=s3_server.credentials.secret_key,
        bucket="clock",
    ) as store:
        ref = store.put_content("kept", b"content", media_type="text/plain")
        file = tmp_path / "file"
        file.write_bytes(b"more")
        monkeypatch.setattr(minio.time, "utcnow", lambda: now() + timedelta(hours=hours))
        refused: list[Callable[[], object]] = [
            lambda: store.get(ref),
            lambda: store.put_content("kept", b"content", media_type="text/plain"),
            lambda: store.stat(ref.key),
            lambda: list(store.list("kept/")),
            store.ping,
        ]
        if hours < 0:  # what was signed ahead of time is valid already
            refused.append(lambda: store.put("other", b"x", media_type="text/plain"))
            refused.append(lambda: store.put_file("file", file, media_type="text/plain"))
        for action in refused:
            with pytest.raises(
                StoreUnavailableError, match=f"10[78][0-9]+ s {'behind' if hours < 0 else 'ahead'}"
            ) as caught:
                action()
            assert caught.value.retriable
        monkeypatch.undo()
        assert store.get(ref) == b"content"
