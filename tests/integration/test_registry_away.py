"""Readers that meet a schema which the registry alone knows, while it is away: they hold the record and read it when it is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from distrl.connectors import open_bus, open_store
from distrl.core.codec import HEADER, Codec
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import Bus, Headers, Start
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Event, NodeStatus, Reward, WeightsUpdate
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import RegistryUnavailableError
from distrl.core.runtime import scan as scan_module
from distrl.core.runtime.blob import stored_blob
from distrl.core.runtime.liveness import LiveNodes
from distrl.core.runtime.scan import scan
from distrl.core.runtime.tail import RunTail
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.weights import WeightsFollower
from distrl.schemas import latest, load_schema

RUN = "r"
GOLDEN = Path(__file__).resolve().parents[1] / "unit" / "golden"
COMMITTED = Codec()


class Registry:
    """Knows id 7 as the schema of one record, when it is there."""

    def __init__(self, record: str) -> None:
        self.definition = latest(record).definition
        self.away = True
        self.back_after = -1
        """It answers when it has been asked so often."""
        self.asked = 0

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        assert schema_id == 7
        self.asked += 1
        if self.away and self.asked - 1 != self.back_after:
            raise RegistryUnavailableError("away")
        return self.definition


@dataclass
class Place:
    config: Config
    bus: Bus

    def send(self, topic: str, event: Event, *, foreign: bool = True, headers: bool = False, key: bytes = b"k") -> None:
        """Write an event as a node would whose id for its schema is 7; with ``headers``, with the id there."""
        data = COMMITTED.encode(event)
        frame = HEADER.pack(0, 7) if foreign else data[:5]
        extra: Headers = (("__value_schema_id", frame),) if headers else ()
        value = data[5:] if headers else frame + data[5:]
        with self.bus.producer() as producer:
            producer.send(TopicName(RUN)(topic), value, key=key, headers=extra).result(timeout=10)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    config = parse_config(
        {
            "run": {"name": RUN, "directory": str(tmp_path / "runs")},
            "bus": {"path": str(tmp_path / "log"), "partitions": 1},
            "store": {"path": str(tmp_path / "store")},
        }
    )
    with open_bus(config.bus, clock=SystemClock(), client_id="test") as bus:
        bus.admin().create(declared_topics(config))
        yield Place(config, bus)


def golden(record: str, kind: type[Any]) -> Any:
    event = COMMITTED.decode((GOLDEN / f"{record}_v{latest(record).version}.bin").read_bytes(), kind)
    return replace(event, envelope=replace(event.envelope, run=RUN, time_ms=SystemClock().time_ms()))


REWARD: Reward = golden("reward", Reward)


def codec_with(registry: Registry) -> Codec:
    return Codec(registry)  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [False, True], ids=["frame", "headers"])
def test_the_tail_reads_on_where_it_was(place: Place, headers: bool) -> None:
    registry = Registry("reward")
    place.send("rewards", REWARD, foreign=False)
    place.send("rewards", replace(REWARD, trajectory_id="second"), headers=headers)
    place.send("rewards", replace(REWARD, trajectory_id="third"), foreign=False)
    with RunTail(place.bus, codec_with(registry), RUN, topics=("rewards",)) as tail:
        for _ in range(3):
            with pytest.raises(RegistryUnavailableError):
                tail.catch_up()
            assert tail.behind()
        registry.away = False
        tail.catch_up()
        assert not tail.behind()
        assert tail.history.undecodable == 0
        assert registry.asked == 4


def test_a_scan_waits_and_misses_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry("reward")
    registry.back_after = 3
    monkeypatch.setattr(scan_module, "RETRY_S", 0.01)
    place.send("rewards", REWARD, foreign=False)
    place.send("rewards", replace(REWARD, trajectory_id="second"))
    place.send("rewards", replace(REWARD, trajectory_id="third"), headers=True)
    with place.bus.consumer([TopicName(RUN)("rewards")], start=Start.earliest()) as consumer:
        read = [event for _, event in scan(consumer, codec_with(registry))]
    assert [event.trajectory_id for event in read if isinstance(event, Reward)] == [
        REWARD.trajectory_id,
        "second",
        "third",
    ]
    assert registry.asked == 4


def test_a_scan_gives_up_in_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "STALL_S", 0.0)
    place.send("rewards", REWARD)
    with (
        place.bus.consumer([TopicName(RUN)("rewards")], start=Start.earliest()) as consumer,
        pytest.raises(RegistryUnavailableError),
    ):
        list(scan(consumer, codec_with(Registry("reward"))))


def test_a_collector_takes_up_the_weights_when_it_can_read_of_them(place: Place, tmp_path: Path) -> None:
    registry = Registry("weights")
    store = open_store(place.config.store)
    update: WeightsUpdate = golden("weights", WeightsUpdate)
    first = replace(update, version=1, blob=stored_blob(store.put("one", b"one", media_type="x/y")))
    second = replace(update, version=2, blob=stored_blob(store.put("two", b"two", media_type="x/y")))
    place.send("weights-latest", first, foreign=False, key=b"one")  # of a key of its own: the topic is compacted
    place.send("weights-latest", second)
    follower = WeightsFollower(
        place.bus, codec_with(registry), store, RUN, work_dir=tmp_path / "work", clock=SystemClock()
    )
    try:
        assert poll(follower.poll)
        assert follower.update == first, "what can be read is not held up by what cannot"
        assert not follower.poll()
        registry.away = False
        assert poll(follower.poll)
        assert follower.update == second
        assert follower.path.read_bytes() == b"two"
    finally:
        follower.close()


def poll(look: Callable[[], bool]) -> bool:
    return any(look() for _ in range(50))


def test_a_sign_of_life_that_cannot_be_read_is_made_up_for_by_the_next(place: Place) -> None:
    registry = Registry("node")
    status: NodeStatus = replace(golden("node", NodeStatus), role="collector", state="running", heartbeat_ms=60_000)
    nodes = LiveNodes(place.bus, codec_with(registry), RUN, SystemClock())
    try:
        place.send("nodes", status)
        nodes.poll()
        assert nodes.alive("collector") == []
        registry.away = False
        place.send("nodes", status, headers=True)
        nodes.poll()
        assert nodes.alive("collector") == [status]
    finally:
        nodes.close()


def test_a_newer_version_from_the_registry_is_read(place: Place) -> None:
    """A writer that is ahead of this package."""
    registry = Registry("reward")
    registry.away = False
    registry.definition = load_schema("reward", 1).definition
    registry.definition["fields"].append({"name": "mood", "type": "string", "default": "", "doc": "x"})
    value = HEADER.pack(0, 7) + COMMITTED.encode(REWARD)[5:] + b"\x0asunny"
    assert codec_with(registry).decode(value) == REWARD
