"""A node's artefacts ride out a crash of the S3 server: what is put away meanwhile is there afterwards."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from distrl.connectors.s3 import S3Store
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.observation import Observation
from distrl.core.errors import StoreUnavailableError
from distrl.core.runtime.artefact import StoredArtefacts

pytestmark = pytest.mark.s3


@pytest.mark.timeout(120)
def test_artefacts_outlast_a_crash_of_the_server(tmp_path: Path) -> None:
    from seaweedfs import start_s3

    with start_s3(tmp_path / "state") as server:
        store = S3Store(
            server.endpoint, access_key=server.access_key, secret_key=server.secret_key, bucket="crash", timeout_s=10
        )
        stop = threading.Event()
        artefacts = StoredArtefacts(
            store, prefix="run/artefacts", inline_bytes=0, cache_bytes=0, clock=SystemClock(), stop=stop
        )
        before = artefacts.record(Observation(1, None, "before"))
        server.kill()
        records = []
        recording = threading.Thread(target=lambda: records.append(artefacts.record(Observation(2, None, "meanwhile"))))
        recording.start()
        server.start()
        recording.join(60)
        assert artefacts.observation(records[0]).ui_tree == "meanwhile"
        assert artefacts.observation(before).ui_tree == "before"

        server.kill()
        failed: list[StoreUnavailableError] = []

        def read() -> None:
            try:
                artefacts.observation(before)
            except StoreUnavailableError as error:
                failed.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        stop.set()
        reading.join(60)
        assert len(failed) == 1
