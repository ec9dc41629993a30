"""An episode that is too large for the log is checked in, and never holds up the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from distrl.connectors.folder import FolderStore
from distrl.core.codec import Codec
from distrl.core.config import parse_config
from distrl.core.contracts.events import Trajectory
from distrl.core.runtime.artefact import StoredArtefacts
from distrl.core.runtime.collector import CollectorLoop
from distrl.testing import ManualClock, make_blob, make_step, make_trajectory

LIMIT = 65_536


@pytest.fixture
def loop(tmp_path: Path) -> CollectorLoop:
    """Only what framing needs of a collector's loop."""
    artefacts = StoredArtefacts(
        FolderStore(tmp_path), prefix="run/artefacts", inline_bytes=1 << 30, cache_bytes=0, clock=ManualClock()
    )
    current = CollectorLoop.__new__(CollectorLoop)
    current._node = SimpleNamespace(  # type: ignore[assignment]
        writer=SimpleNamespace(frame=Codec().encode),
        config=parse_config({"bus": {"max_record_bytes": LIMIT}}),
        artefacts=artefacts,
        incarnation="start-1",
    )
    return current


def with_screens(size: int) -> Trajectory:
    step = make_step()
    look = replace(step.observation, screenshot=make_blob(bytes(size), "image/png"))
    return make_trajectory("large", steps=[replace(step, observation=look)] * 4)


def test_a_small_one_stays_as_it_is_and_says_which_start_recorded_it(loop: CollectorLoop) -> None:
    small = replace(make_trajectory("small", steps=[]), incarnation="start-1")
    assert loop._framed(replace(small, incarnation="")) == (small, Codec().encode(small))


def test_a_large_one_is_checked_in(loop: CollectorLoop) -> None:
    large = with_screens(LIMIT)
    item, value = loop._framed(large)
    assert len(value) < LIMIT
    assert item.outcome == "finished"
    blob = item.steps[0].observation.screenshot
    assert blob is not None
    assert (blob.inline, bool(blob.key)) == (None, True)
    assert loop._node.artefacts.read(blob) == bytes(LIMIT)


def test_one_that_cannot_be_made_to_fit_ends_as_aborted(loop: CollectorLoop) -> None:
    item, value = loop._framed(replace(make_trajectory("long"), attributes={"note": "n" * LIMIT * 2}))
    assert len(value) < LIMIT
    assert (item.outcome, item.error_class) == ("aborted", "RecordTooLargeError")


def test_one_that_is_no_valid_event_ends_as_aborted(loop: CollectorLoop) -> None:
    item, _ = loop._framed(replace(make_trajectory("odd"), environment_outcome=7.0))
    assert (item.outcome, item.error_class) == ("aborted", "InvalidEventError")
