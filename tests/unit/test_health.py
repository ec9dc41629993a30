"""Whether a node lives and takes part, and what its store is asked."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from distrl.connectors.folder import FolderStore
from distrl.connectors.s3 import S3Store
from distrl.core.contracts.bus import Record
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.metric import STORE_ERRORS, STORE_REQUESTS, STORE_RETRIES, STORE_SECONDS
from distrl.core.contracts.store import BlobStore
from distrl.core.errors import BlobNotFoundError, StoreUnavailableError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.health import Health, live_route, ready_route
from distrl.core.runtime.metered_store import metered
from distrl.core.runtime.view import NodeView
from distrl.core.runtime.watchdog import Missing
from distrl.testing import ManualClock


class Node:
    """The parts of a node that its health looks at."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.activity = Activity(self.clock)
        self.view = NodeView(state="running", built=True)
        self.health = Health(self.clock, self.activity, self.view, hang_s=300.0, queue_age_s=60.0, heartbeat_s=2.0)

    def lacking(self) -> set[str]:
        return {name for name, check in self.health.checks().items() if not check.ok}

    def all_is_well(self) -> None:
        self.health.log_answered()
        self.health.store_answered()
        self.activity.came_round()


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_node_takes_part_when_it_has_all_that_it_needs(node: Node) -> None:
    assert node.lacking() == {"log", "store"}
    node.all_is_well()
    assert node.lacking() == set()
    node.view.built = False
    node.view.state = "draining"
    node.view.needs_weights = True
    node.activity.partitions = 0
    assert node.lacking() == {"plugin", "state", "weights", "assignment"}
    status = ready_route(node.health)("")
    assert status.status == 503
    assert not json.loads(status.body)["ready"]


def test_a_log_or_store_that_is_silent_is_missing(node: Node) -> None:
    node.all_is_well()
    node.clock.advance(10.0)
    assert node.lacking() == set()
    assert node.health.missing == ()
    node.clock.advance(1.0)
    assert node.lacking() == {"log"}
    assert [item.side for item in node.health.missing] == ["log"]
    node.clock.advance(20.0)
    assert node.lacking() == {"log", "store"}
    node.health.store_failed(StoreUnavailableError("connection refused"))
    assert [item.side for item in node.health.missing] == ["store", "log"]
    assert "connection refused" in node.health.checks()["store"].detail
    node.all_is_well()
    assert node.health.missing == ()
    node.activity.miss("loop", Missing("log", "the log does not take the 9 episodes in the outbox"))
    node.clock.advance(60.0)
    assert [item.words for item in node.health.missing] == ["the log does not take the 9 episodes in the outbox"]


def test_a_loop_that_waits_lives_and_one_that_hangs_says_where(node: Node) -> None:
    node.activity.enter("weights")
    node.clock.advance(300.0)
    assert node.health.live().detail == "waits for weights"
    node.clock.advance(1.0)
    answer = live_route(node.health)("")
    assert answer.status == 503
    detail = json.loads(answer.body)["detail"]
    assert "has not come round for 301 s, while it waits for weights" in detail
    assert "test_a_loop_that_waits_lives_and_one_that_hangs_says_where" in detail
    assert not node.health.ready
    node.activity.came_round()
    assert live_route(node.health)("").status == 200


def test_a_queue_that_is_too_old_is_told_and_ends_nothing(node: Node) -> None:
    node.all_is_well()
    record = Record("distrl.demo.rewards", 0, 0, node.clock.time_ms(), None, b"")
    node.activity.queues.read([record])
    node.clock.advance(60.0)
    assert node.health.queues_too_old() == {}
    node.clock.advance(1.0)
    node.all_is_well()
    assert node.health.queues_too_old() == {"rewards": 61.0}
    assert node.lacking() == set()


def test_it_asks_a_store_that_does_not_answer_and_warns() -> None:
    clock = SystemClock()
    activity = Activity(clock)
    health = Health(clock, activity, NodeView(), hang_s=0.01, queue_age_s=60.0, heartbeat_s=2.0)
    asked = threading.Event()

    def ping() -> None:
        asked.set()
        raise StoreUnavailableError("nobody is there")

    health.store_failed(StoreUnavailableError("nobody is there"))
    with structlog.testing.capture_logs() as lines:
        health.start(ping)
        try:
            assert asked.wait(60.0)
            until(lambda: {"the role's loop hangs", "the store does not answer"} <= {line["event"] for line in lines})
        finally:
            health.close()


def test_requests_to_a_store_are_counted_and_its_answers_are_no_failures(node: Node, tmp_path: Path) -> None:
    store = metered(FolderStore(tmp_path), node.activity, node.health, node.clock)
    ref = store.put("a/b", b"bytes", media_type="text/plain")
    assert store.get(ref) == b"bytes"
    assert [stat.key for stat in store.list("a/")] == ["a/b"]
    assert list(store.list("nothing/")) == []
    assert store.bucket == ref.bucket
    with pytest.raises(BlobNotFoundError):
        store.stat("c")
    store.ping()
    counts = node.activity.snapshot().counts
    assert {label: count for (name, label), count in counts.items() if name == STORE_REQUESTS} == {
        "put": 1,
        "get": 1,
        "list": 2,
        "stat": 1,
        "ping": 1,
    }
    assert not any(name in (STORE_ERRORS, STORE_RETRIES) for name, _ in counts)
    assert (STORE_SECONDS, "put") in node.activity.snapshot().histograms
    assert node.health.store_age_s == 0.0
    assert node.activity.missing == ()


def test_a_store_that_is_away_is_missing_until_it_answers(node: Node, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # bound, and nobody listens
        away: BlobStore = S3Store(
            endpoint=address, bucket="bucket", access_key="k", secret_key="s", secure=False, ca_file=None,
            region="us-east-1", timeout_s=5.0,
        )  # fmt: skip
        store = metered(away, node.activity, node.health, node.clock)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                store.put("a", b"x", media_type="text/plain")
        away.close()
    counts = node.activity.snapshot().counts
    assert (counts[STORE_ERRORS, "put"], counts[STORE_RETRIES, "put"]) == (2, 1)
    assert [item.side for item in node.activity.missing] == ["store"]
    assert "store" in node.lacking()
    metered(FolderStore(tmp_path), node.activity, node.health, node.clock).ping()
    assert node.activity.missing == ()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
