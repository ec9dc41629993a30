"""The Kafka producer's futures behave as those of ``concurrent.futures`` in every way a caller may use one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait

import pytest

from distrl.connectors.kafka.receipt import Receipt, resolve
from distrl.core.contracts.bus import RecordPosition
from distrl.core.errors import DeliveryError

HERE = RecordPosition("topic", 0, 7)


def test_result_and_exception() -> None:
    written, failed = Receipt(), Receipt()
    assert not written.done()
    error = DeliveryError("late")
    resolve([written, failed], [HERE, error])
    assert written.done()
    assert failed.done()
    assert written.result() == written.result(0) == HERE
    assert written.exception(0) is None
    assert failed.exception(0) is error
    with pytest.raises(DeliveryError) as caught:
        failed.result(0)
    assert caught.value is error


def test_waits_no_longer_than_it_is_told() -> None:
    receipt = Receipt()
    with pytest.raises(TimeoutError):
        receipt.result(0.01)
    with pytest.raises(TimeoutError):
        receipt.exception(0.01)
    resolve([receipt], [HERE])  # it has a condition now, and takes the other way
    assert receipt.result(0) == HERE


def test_is_never_cancelled() -> None:
    receipt = Receipt()
    assert not receipt.cancel()
    assert not receipt.cancelled()
    resolve([receipt], [HERE])
    assert not receipt.cancel()
    assert receipt.result(0) == HERE


def test_callbacks_run_once_whenever_they_are_added() -> None:
    early, late = Receipt(), Receipt()
    seen: list[object] = []
    early.add_done_callback(seen.append)
    resolve([early, late], [HERE, HERE])
    late.add_done_callback(seen.append)
    assert seen == [early, late]


def test_a_callback_that_raises_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Receipt(), Receipt()
    seen: list[object] = []

    def broken(_: object) -> None:
        raise ValueError("the sender's own")

    first.add_done_callback(broken)
    first.add_done_callback(seen.append)
    second.add_done_callback(seen.append)
    resolve([first, second], [HERE, HERE])
    assert seen == [first, second]
    assert "exception calling callback" in caplog.text


def test_wait_and_as_completed() -> None:
    receipts = [Receipt() for _ in range(6)]
    resolve(receipts[:2], [HERE, DeliveryError("late")])
    assert wait(receipts, 0.01).done == set(receipts[:2])
    assert wait(receipts, return_when=FIRST_COMPLETED).done == set(receipts[:2])
    with ThreadPoolExecutor(1) as other:
        completed = as_completed(receipts, timeout=30)
        seen = [next(completed), next(completed)]
        other.submit(resolve, receipts[2:], [HERE] * 4)
        seen += completed
    assert set(seen) == set(receipts)
    assert wait(receipts).not_done == set()


@pytest.mark.parametrize(
    "look",
    [
        lambda receipt: receipt.result(30),
        lambda receipt: receipt.exception(30),
        lambda receipt: wait([receipt], 30).not_done and pytest.fail("not done"),
        lambda receipt: list(as_completed([receipt], 30)),
    ],
    ids=["result", "exception", "wait", "as_completed"],
)
def test_no_wait_is_missed(look: Callable[[Receipt], object]) -> None:
    """Resolved and waited for at the same moment, many times."""
    receipts = [Receipt() for _ in range(300)]
    start = threading.Barrier(2)

    def resolve_all() -> None:
        start.wait()
        for receipt in receipts:
            resolve([receipt], [HERE])

    with ThreadPoolExecutor(1) as other:
        done = other.submit(resolve_all)
        start.wait()
        for receipt in receipts:
            look(receipt)
        done.result(30)
