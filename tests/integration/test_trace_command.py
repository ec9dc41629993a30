"""``distrl trace`` on what a run leaves behind when not all went well; ``tests/e2e/test_rolling_upgrade.py`` follows real episodes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distrl.connectors import open_bus
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import Codec
from distrl.core.config import load_config
from distrl.core.contracts.bus import Record
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Envelope, Role
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import CodecError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.trace import root_traceparent, trace_id
from distrl.testing import ManualClock, make_feedback, make_priority, make_reward, make_trajectory

EPISODE = "f" * 32
ROOT = root_traceparent(EPISODE)


class Place:
    """A run's log, written to as its nodes would."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "run.toml"
        self.file.write_text(
            f'[run]\nname = "r"\ndirectory = "{folder}/runs"\n[bus]\npath = "{folder}/log"\npartitions = 2\n'
        )
        config = load_config(self.file, environment={})
        self.clock = ManualClock(SystemClock().time_ms())  # older records would be past their retention
        self.bus = open_bus(config.bus, clock=SystemClock(), client_id="test")
        self.bus.admin().create(declared_topics(config))
        self.producer = self.bus.producer()
        self.topic = TopicName("r")

    def writer(self, role: Role) -> EventWriter:
        return EventWriter(
            self.producer, Codec(), run="r", node=f"{role}-0", role=role, clock=self.clock,
            activity=Activity(self.clock), stop=threading.Event(), patience_s=5.0,
        )  # fmt: skip

    def live(self) -> None:
        """One episode: collected, sent twice, judged, trained on nine times, evicted; and another one beside it."""
        collector, evaluator, learner = self.writer("collector"), self.writer("evaluator"), self.writer("learner")
        prioritizer = self.writer("prioritizer")
        now = self.clock.time_ms()
        event = replace(
            make_trajectory(EPISODE),
            envelope=Envelope(EPISODE, "r", "collector-0", now, ROOT),
            started_ms=now - 2500,
            ended_ms=now,
        )
        other = replace(
            make_trajectory("other"), envelope=Envelope("other", "r", "collector-0", now, root_traceparent("other"))
        )
        self.clock.advance(1.5)
        for each in (event, other, event):
            collector.send(each).result(10)
        self.clock.advance(0.25)
        verdict = evaluator.envelope("verdict", parent=ROOT)
        evaluator.send(
            replace(make_reward(event, 0.0, evaluator="state", reason="x\x1b[31m" + "long " * 30), envelope=verdict)
        ).result(10)
        for number in range(9):
            self.clock.advance(1.0)
            envelope = learner.envelope(f"trained-{number}", parent=ROOT)
            learner.send(replace(make_feedback(EPISODE, version=number + 1), envelope=envelope)).result(10)
            envelope = prioritizer.envelope(f"priority-{number}", parent=envelope.traceparent)
            prioritizer.send(replace(make_priority(EPISODE, 0.5), envelope=envelope)).result(10)
        self.clock.advance(1.0)
        evicted = make_feedback(
            EPISODE, kind="evicted", reason="stale", mean_abs_td=None, mean_ratio=None, mean_entropy=None
        )
        learner.send(replace(evicted, envelope=learner.envelope("evicted", parent=ROOT))).result(10)

    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        self.producer.flush(10.0)
        code = exit.run(command, ["trace", *arguments, "--config", str(self.file)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    def told(self, capsys: pytest.CaptureFixture[str], identity: str) -> dict[str, Any]:
        code, out, err = self.run(capsys, identity, "--json")
        assert code == 0, err
        document: dict[str, Any] = json.loads(out)
        return document


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.producer.close()
    place.bus.close()


def test_every_record_is_told_with_its_delay(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.live()
    told = place.told(capsys, EPISODE)
    assert (told["episode"], told["trace"], told["unreadable"]) == (EPISODE, trace_id(ROOT), 0)
    moments = told["moments"]
    whats = [moment["what"] for moment in moments]
    assert whats[:5] == ["started", "ended", "logged", "logged", "evaluated"]
    assert [moment["repeated"] for moment in moments[:5]] == [False, False, False, True, False]
    assert [moment["delay"] for moment in moments[:5]] == [None, 2.5, 1.5, 0.0, 0.25]
    assert whats[5:-1] == ["trained", "prioritized"] * 9
    assert (whats[-1], moments[-1]["text"], moments[-1]["delay"]) == ("evicted", "stale", 1.0)
    assert [moment["version"] for moment in moments if moment["what"] == "trained"] == list(range(1, 10))
    assert len({(moment["topic"], moment["partition"], moment["offset"]) for moment in moments[2:]}) == len(moments) - 2
    assert place.told(capsys, trace_id(ROOT)) == told


def test_people_get_it_in_80_columns_without_what_repeats(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    place.live()
    code, out, _ = place.run(capsys, EPISODE)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.count(" trained ") == out.count(" prioritized ") == 2
    words = " ".join(out.split())
    assert words.count("(the last of 9)") == 2
    assert "(sent again)" in words
    assert "\x1b[31m" not in out


def test_a_dead_letter_and_what_cannot_be_read_are_told(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.live()
    key, topic = EPISODE.encode(), place.topic("rewards")
    position = place.producer.send(topic, b"\x00poison", key=key).result(10)
    record = Record(topic, position.partition, position.offset, 0, key, b"\x00poison")
    place.writer("learner").dead_letter(record, CodecError("no event"))
    told = place.told(capsys, EPISODE)
    assert told["unreadable"] == 1
    (letter,) = (moment for moment in told["moments"] if moment["what"] == "dead letter")
    assert letter["text"] == f"learner on rewards/{position.partition}/{position.offset}: DISTRL-200 no event"
    _, out, _ = place.run(capsys, EPISODE)
    assert "1 records about it cannot be read" in out


def test_an_episode_of_which_the_log_knows_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = place.run(capsys, "a" * 32)
    assert (code, out) == (2, "")
    assert "DISTRL-522" in err
    assert "nothing on the log" in err
