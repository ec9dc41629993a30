"""Collecting garbage: what anything needs stays, whoever is at work meanwhile; on a folder and on a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrl.connectors.embedded import EmbeddedBus
from distrl.connectors.folder import FolderStore
from distrl.connectors.s3 import S3Store
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import Codec
from distrl.core.config import Config, parse_config
from distrl.core.contracts.bus import TopicPartition
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import DeadLetter, Envelope, Event, NodeStatus, Trajectory, WeightsUpdate
from distrl.core.contracts.metric import OUTBOX_SINCE
from distrl.core.contracts.store import BlobRef, BlobStat, BlobStore, Leftovers
from distrl.core.contracts.topic import HOUR_MS, TopicName
from distrl.core.errors import BlobNotFoundError, StoreError, UnknownRunError, UnknownSchemaError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.artefact import StoredArtefacts, renewal_s
from distrl.core.runtime.blob import blob_ref, stored_blob, stored_blobs
from distrl.core.runtime.checkpoint import Checkpoints, Covered
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.garbage import Collected, collect, usage
from distrl.core.runtime.health import Health
from distrl.core.runtime.heartbeat import Heartbeat
from distrl.core.runtime.outbox import Outbox, outbox_path
from distrl.core.runtime.topic import declared_topics
from distrl.core.runtime.view import NodeView
from distrl.testing import make_envelope, make_step, make_trajectory

if TYPE_CHECKING:
    from seaweedfs import S3Server

CODEC = Codec()
CLOCK = SystemClock()
OPTIONS = {"learner": {"weights_kept": 4, "max_lag": 2, "checkpoints_kept": 2}, "bus": {"partitions": 2}}


@dataclass
class Run:
    """A run of its own name in a store, with its log and its folder."""

    store: BlobStore
    bus: EmbeddedBus
    directory: Path
    grace_s: float
    name: str = field(default_factory=lambda: f"r{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        table = {**OPTIONS, "run": {"name": self.name, "directory": str(self.directory)}}
        config = parse_config(table)
        # Shorter than a configuration may say, so that what a test puts is old after a while.
        store = config.store.model_copy(update={"grace_hours": self.grace_s / 3600})
        self.config: Config = config.model_copy(update={"store": store})
        self.bus.admin().create(declared_topics(self.config))
        self.producer = self.bus.producer()

    # --- putting --------------------------------------------------------------------------------

    def artefact(self, text: str) -> BlobRef:
        return self.store.put_content(f"{self.name}/artefacts", text.encode(), media_type="image/png")

    def episode(self, identity: str, *screens: BlobRef, **fields: Any) -> Trajectory:
        look = make_step().observation
        steps = [make_step(observation=replace(look, screenshot=stored_blob(ref))) for ref in screens]
        return make_trajectory(
            identity, steps=steps, envelope=make_envelope(identity, run=self.name), final_observation=None, **fields
        )

    def send(
        self, event: Event | bytes, topic: str = "trajectories", *, key: str = "k", time_ms: int | None = None
    ) -> None:
        value = event if isinstance(event, bytes) else CODEC.encode(event)
        name = TopicName(self.name)(topic)
        self.producer.send(name, value, key=key.encode(), timestamp_ms=time_ms).result(timeout=10)

    def weights(self, version: int, *, announced: bool = False) -> BlobRef:
        ref = self.store.put(f"{self.name}/weights/{version:08d}-1.safetensors", b"w", media_type="x/y")
        if announced:
            envelope = Envelope(f"w-{version}", self.name, "learner", 1)
            self.send(WeightsUpdate(envelope, "factored", 1, version, 0, stored_blob(ref)), "weights-latest")
        return ref

    def dead_letter(self, value: bytes) -> None:
        envelope = Envelope(f"d-{uuid.uuid4().hex}", self.name, "evaluator-0", 1)
        topic = TopicName(self.name)("trajectories")
        self.send(DeadLetter(envelope, "DISTRL-200", "poison", "evaluator", topic, 0, 0, None, value), "dead-letters")

    def keep_in_outbox(self, node: str, event: Trajectory) -> None:
        with closing(Outbox(outbox_path(self.config.run_directory / "nodes" / node))) as outbox:
            outbox.put([(event.trajectory_id, CODEC.encode(event))])

    def checkpoint(self, *needed: BlobRef) -> int:
        trajectories = TopicName(self.name)("trajectories")
        covered = Covered(
            epoch=1,
            version=1,
            ingested=1,
            positions={TopicPartition(trajectories, 0): 5},
            buffer={"trimmed": (trajectories, 0, 0)},
            artefacts=[ref.key for ref in needed],
        )
        work = self.directory / "checkpoint"
        checkpoints = Checkpoints(self.store, self.name, kept=2)
        return checkpoints.save(covered, lambda folder: (folder / "state.json").write_text("{}") and None, work)

    # --- looking --------------------------------------------------------------------------------

    def collect(self, **options: Any) -> Collected:
        return collect(self.config, self.bus, self.store, CODEC, CLOCK, **options)

    def has(self, ref: BlobRef) -> bool:
        try:
            self.store.stat(ref.key)
        except BlobNotFoundError:
            return False
        return True

    def stored(self) -> set[str]:
        return {stat.key for stat in self.store.list(f"{self.name}/")}


NewRun = Callable[[], Run]


class Garbage:
    """What holds on every store."""

    @pytest.fixture
    def new_run(self, store: BlobStore, tmp_path: Path) -> Iterator[NewRun]:
        with EmbeddedBus(tmp_path / "log") as bus:
            yield lambda: Run(store, bus, tmp_path / "runs", grace_s=2.0)

    def test_only_what_nothing_needs_goes(self, new_run: NewRun) -> None:
        run, neighbour = new_run(), new_run()
        neighbour.name = f"{run.name}-b"
        needed = {
            name: run.artefact(name) for name in ("sent", "aborted", "letter", "poison", "unsent", "buffer", "young")
        }
        garbage = [run.artefact(f"garbage {number}") for number in range(3)]
        others = [neighbour.artefact("of another run"), run.store.put(f"{run.name}/notes/a", b"1", media_type="x/y")]
        versions = [run.weights(number, announced=number in (2, 9)) for number in range(10)]
        run.send(run.episode("sent", needed["sent"]))
        run.send(run.episode("aborted", needed["aborted"], outcome="aborted", error_class="DeviceLostError"))
        run.dead_letter(CODEC.encode(run.episode("letter", needed["letter"])))
        run.send(b"\2 no event: " + CODEC.encode(run.episode("poison", needed["poison"])))
        run.keep_in_outbox("collector-0", run.episode("unsent", needed["unsent"]))
        checkpoints = [run.checkpoint(needed["buffer"]) for _ in range(3)]
        cut_short = run.store.put(f"{run.name}/checkpoints/{7:014d}/state.json", b"{}", media_type="x/y")
        time.sleep(3.2)
        needed["young"] = run.artefact("young")

        before = run.stored()
        said = run.collect(dry_run=True)
        assert run.stored() == before
        gone = {ref.key for ref in [*garbage, cut_short, *(versions[number] for number in (1, 3, 4, 5))]}
        done = run.collect()
        assert run.stored() == before - gone
        assert all(run.has(ref) for ref in needed.values())
        assert all(run.has(ref) for ref in others)
        assert {int(key.split("/")[2]) for key in run.stored() if "/checkpoints/" in key} == set(checkpoints[1:])
        assert said.removed == done.removed
        assert {kind: tally.objects for kind, tally in done.removed.items()} == {
            "artefacts": 3,
            "weights": 4,
            "checkpoints": 1,
            "other": 0,
            "unfinished": 0,
        }
        assert done.removed["artefacts"].bytes == sum(ref.size for ref in garbage)
        assert done.young["artefacts"].objects == 1
        assert len(done.unreadable) == 1
        assert sum(tally.objects for tally in run.collect().removed.values()) == 0
        assert usage(run.store, run.name)["weights"].objects == 6

    def test_what_is_put_again_while_it_is_collected_stays(self, new_run: NewRun) -> None:
        run = new_run()
        run.weights(0, announced=True)
        artefacts = [run.artefact(str(number)) for number in range(5)]
        time.sleep(3.2)
        delete_older = run.store.delete_older

        def renew_first(key: str, before_ms: int) -> bool:
            for number in range(5):
                run.artefact(str(number))
            return delete_older(key, before_ms)

        run.store.delete_older = renew_first  # type: ignore[method-assign]
        try:
            assert run.collect().removed["artefacts"].objects == 0
        finally:
            run.store.delete_older = delete_older  # type: ignore[method-assign]
        assert all(run.has(ref) for ref in artefacts)

    def test_collectors_at_work_lose_nothing(self, new_run: NewRun) -> None:
        """Screens repeat, fall out of use for longer than the grace age, and come back; garbage is collected all the while."""
        run = new_run()
        run.weights(0, announced=True)
        sent: list[Trajectory] = []
        stop = threading.Event()
        artefacts = StoredArtefacts(
            run.store, prefix=f"{run.name}/artefacts", inline_bytes=0, cache_bytes=0, clock=CLOCK, renew_s=0.2
        )

        def work(worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                screens = [f"{worker} {(number + step) // 8 % 4}" for step in range(3)]
                refs = [blob_ref(artefacts.put(screen.encode(), "image/png")) for screen in screens]
                event = run.episode(f"{worker}-{number}", *refs)
                if number % 3:  # the others are aborted before anybody hears of them
                    run.send(event)
                    sent.append(event)
                stop.wait(0.1)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
        for thread in threads:
            thread.start()
        removed, ends = 0, time.monotonic() + 8.0
        try:
            while time.monotonic() < ends:
                removed += run.collect().removed["artefacts"].objects
                # What was sent a while ago is no longer retained, so what it alone needed becomes garbage.
                ends_now = run.bus.admin().end_offsets([TopicName(run.name)("trajectories")])
                run.bus.admin().delete_records({place: max(0, end - 20) for place, end in ends_now.items()})
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert removed > 0
        with run.bus.consumer([TopicName(run.name)("trajectories")]) as consumer:
            retained = [CODEC.decode(record.value or b"", Trajectory) for record in consumer.poll(1.0, 5000)]
        assert retained
        for event in [*retained, *sent[-20:]]:
            for blob in stored_blobs(event):
                assert run.store.get(blob_ref(blob))


class TestOnAFolder(Garbage):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(tmp_path / "store")


@pytest.mark.s3
class TestOnS3(Garbage):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> Iterator[S3Store]:
        with S3Store(
            s3_server.endpoint, access_key=s3_server.access_key, secret_key=s3_server.secret_key, bucket="garbage"
        ) as store:
            yield store


# --- what holds it up ---------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run with one old artefact that nothing needs."""
    with EmbeddedBus(tmp_path / "log") as bus:
        run = Run(FolderStore(tmp_path / "store"), bus, tmp_path / "runs", grace_s=3600.0)
        run.weights(0, announced=True)
        age(run, run.artefact("old"), hours=50)
        yield run


def age(run: Run, ref: BlobRef, *, hours: float) -> None:
    assert isinstance(run.store, FolderStore)
    modified = time.time() - hours * 3600
    os.utime(run.store._root / ref.key, (modified, modified))


def removed(result: Collected) -> int:
    return result.removed["artefacts"].objects


def test_a_run_that_the_log_does_not_know_loses_nothing(run: Run, tmp_path: Path) -> None:
    before = run.stored()
    with EmbeddedBus(tmp_path / "elsewhere") as other:
        with pytest.raises(UnknownRunError, match="no topics"):
            collect(run.config, other, run.store, CODEC, CLOCK)
        other.admin().create(declared_topics(run.config))
        with pytest.raises(UnknownRunError, match="names none"):
            collect(run.config, other, run.store, CODEC, CLOCK)
    assert run.stored() == before


def test_events_of_a_newer_release_are_not_guessed_at(run: Run) -> None:
    named = run.artefact("named")
    age(run, named, hours=50)
    run.send(b"\0\x7f\xff\xff\xff" + named.key.encode())
    before = run.stored()
    with pytest.raises(UnknownSchemaError, match="--unknown-schemas"):
        run.collect()
    assert run.stored() == before
    assert removed(run.collect(unknown_schemas=True)) == 1
    assert run.has(named)


def test_an_outbox_that_cannot_be_read_is_not_taken_for_empty(run: Run) -> None:
    path = outbox_path(run.config.run_directory / "nodes" / "collector-0")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged" * 1000)
    before = run.stored()
    with pytest.raises(StoreError, match="outbox"):
        run.collect()
    assert run.stored() == before


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_collector_far_away_that_has_not_sent_all_holds_what_it_may_need(run: Run, state: Any) -> None:
    recent = run.artefact("recent")
    age(run, recent, hours=5)
    since = CLOCK.time_ms() - 6 * HOUR_MS
    run.send(sign("far", state=state, counters={OUTBOX_SINCE: since}), "nodes", key="far")
    result = run.collect()
    assert removed(result) == 1  # of 50 hours ago
    assert run.has(recent)
    assert list(result.held_by) == ["far"]
    run.send(sign("far", state=state), "nodes", key="far")
    result = run.collect()
    assert (removed(result), result.held_by) == (1, {})


def test_a_collector_that_died_far_away_holds_until_it_is_forgotten(run: Run) -> None:
    recent = run.artefact("recent")
    age(run, recent, hours=5)
    run.send(sign("far"), "nodes", key="far", time_ms=CLOCK.time_ms() - 5 * HOUR_MS)
    result = run.collect()
    assert (removed(result), run.has(recent)) == (1, True)
    assert "silent for 5.0 h" in result.held_by["far"]
    assert removed(run.collect(forget=["far"])) == 1


def test_one_that_has_left_or_was_silent_for_longer_than_the_log_goes_back_holds_nothing(run: Run) -> None:
    run.send(sign("far"), "nodes", key="far", time_ms=CLOCK.time_ms() - 200 * HOUR_MS)
    run.send(sign("left"), "nodes", key="left", time_ms=CLOCK.time_ms() - 60 * HOUR_MS)
    run.producer.send(TopicName(run.name)("nodes"), None, key=b"left").result(timeout=10)
    result = run.collect()
    assert (removed(result), result.held_by) == (1, {})


def test_one_of_this_machine_is_asked_itself(run: Run) -> None:
    needed = run.artefact("needed")
    age(run, needed, hours=50)
    run.keep_in_outbox("near", run.episode("unsent", needed))
    run.send(sign("near", host=socket.gethostname()), "nodes", key="near", time_ms=CLOCK.time_ms() - 60 * HOUR_MS)
    result = run.collect()
    assert (removed(result), run.has(needed), result.held_by) == (1, True, {})


@pytest.mark.parametrize("since", [0, 7])
def test_a_collector_that_leaves_episodes_behind_says_so(run: Run, since: int) -> None:
    activity, view = Activity(CLOCK), NodeView(state="stopped", outbox_since_ms=since)
    health = Health(CLOCK, activity, view, hang_s=60.0, queue_age_s=60.0, heartbeat_s=60.0)
    writer = EventWriter(
        run.producer,
        CODEC,
        run=run.name,
        node="n",
        role="collector",
        clock=CLOCK,
        activity=activity,
        stop=threading.Event(),
        patience_s=5.0,
    )
    heartbeat = Heartbeat(
        writer,
        activity,
        view,
        health,
        node="n",
        role="collector",
        plugin="episodes",
        incarnation="i",
        clock=CLOCK,
        interval_s=60.0,
        http="",
        on_beat=lambda: None,
    )
    heartbeat.start()
    heartbeat.close(leaving=True)
    run.producer.flush(10.0)
    with run.bus.consumer([TopicName(run.name)("nodes")]) as consumer:
        last = consumer.poll(1.0)[-1].value
    if since:
        assert last is not None
        assert CODEC.decode(last, NodeStatus).counters[OUTBOX_SINCE] == 7
    else:
        assert last is None


def sign(
    node: str, *, host: str = "far-away", state: Any = "running", counters: dict[str, int] | None = None
) -> NodeStatus:
    return NodeStatus(
        Envelope(uuid.uuid4().hex, "r", node, 1),
        "collector",
        "episodes",
        state,
        "i",
        host,
        1,
        1,
        2000,
        counters=counters or {},
    )


def test_what_is_remembered_is_renewed_long_before_it_is_old() -> None:
    assert renewal_s(24.0) == 900.0
    assert renewal_s(0.51) * 8 <= 0.51 * 3600


# --- cut short ----------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_harms_nothing(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[run]\nname = "{run.name}"\ndirectory = "{tmp_path}/runs"\n[bus]\npath = "{tmp_path}/log"\n[store]\npath = "{tmp_path}/store"\n'
    )
    needed = [run.artefact(f"needed {number}") for number in range(20)]
    for ref in needed:
        age(run, ref, hours=50)
    run.send(run.episode("sent", *needed))
    assert isinstance(run.store, FolderStore)
    for number in range(1500):
        path = run.store._root / run.name / "artefacts" / f"{number:064x}"
        path.touch()
        os.utime(path, (1_000_000_000, 1_000_000_000))
    before = len(run.stored())
    process = subprocess.Popen(
        [sys.executable, "-m", "distrl.core.cli.main", "store", "gc", "--config", str(file)], stdout=subprocess.DEVNULL
    )
    while len(run.stored()) == before:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 20 < len(run.stored()) < before
    assert all(run.has(ref) for ref in needed)
    run.collect()
    assert {key for key in run.stored() if "/artefacts/" in key} == {ref.key for ref in needed}


def test_the_command_says_what_it_did(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--config", str(tmp_path / "config.toml"), "--name", run.name, "--json",
    ]  # fmt: skip
    (tmp_path / "config.toml").write_text(
        f'[run]\ndirectory = "{tmp_path}/runs"\n[bus]\npath = "{tmp_path}/log"\n[store]\npath = "{tmp_path}/store"\n'
    )
    assert exit.run(command, ["store", "gc", "--dry-run", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["dry_run"], said["removed"]["artefacts"]) == (True, {"objects": 1, "bytes": 3})
    assert exit.run(command, ["store", "gc", *options[:-1]]) == 0
    assert "removed" in capsys.readouterr().out
    assert exit.run(command, ["store", "usage", *options]) == 0
    rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["artefacts"]["objects"], rows["weights"]["objects"]) == (0, 1)
    assert rows[TopicName(run.name)("weights-latest")]["bytes"] > 0


# --- whatever there is --------------------------------------------------------------------------------


class AgedStore:
    """Objects in memory with ages in seconds. Only what a collection asks of a store."""

    bucket = "b"

    def __init__(self, ages: dict[str, int]) -> None:
        self.ages = ages

    def list(self, prefix: str = "") -> Iterator[BlobStat]:
        return iter([BlobStat(key, 1, -age * 1000) for key, age in self.ages.items() if key.startswith(prefix)])

    def time_ms(self) -> int:
        return 0

    def delete_older(self, key: str, before_ms: int) -> bool:
        assert -self.ages[key] * 1000 < before_ms
        del self.ages[key]
        return True

    def leftovers(self, prefix: str, before_ms: int, *, remove: bool) -> Leftovers:
        return Leftovers(0, 0)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose log and outbox each example empties."""
    folder = tmp_path_factory.mktemp("shelf")
    with EmbeddedBus(folder / "log") as bus:
        yield Run(AgedStore({}), bus, folder / "runs", grace_s=60.0)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    ages=st.lists(st.integers(0, 120), min_size=1, max_size=30),
    episodes=st.lists(
        st.tuples(
            st.sampled_from(["log", "letter", "poison", "outbox"]), st.sets(st.integers(0, 29), min_size=1, max_size=5)
        ),
        max_size=8,
    ),
)
def test_what_is_referred_to_or_young_is_never_removed(
    shelf: Run, ages: Sequence[int], episodes: Sequence[tuple[str, set[int]]]
) -> None:
    name = TopicName(shelf.name)
    shelf.bus.admin().delete_records(shelf.bus.admin().end_offsets([name("trajectories"), name("dead-letters")]))
    shutil.rmtree(shelf.config.run_directory, ignore_errors=True)
    digests = [f"{number:064x}" for number in range(len(ages))]
    refs = [BlobRef("b", f"{shelf.name}/artefacts/{digest}", 1, digest, "x/y") for digest in digests]
    store = AgedStore({ref.key: age for ref, age in zip(refs, ages, strict=True)})
    shelf.store = store  # type: ignore[assignment]
    needed: set[str] = set()
    for number, (where, screens) in enumerate(episodes):
        used = [refs[screen] for screen in sorted(screens) if screen < len(refs)]
        needed |= {ref.key for ref in used}
        event = shelf.episode(f"t-{number}", *used)
        match where:
            case "log":
                shelf.send(event)
            case "letter":
                shelf.dead_letter(CODEC.encode(event))
            case "poison":
                shelf.send(CODEC.encode(event) + b"too much")
            case _:
                shelf.keep_in_outbox("collector-0", event)
    shelf.collect()
    assert set(store.ages) == {ref.key for ref, age in zip(refs, ages, strict=True) if ref.key in needed or age <= 60}
