"""The phone's ledger: it outlives crashes, counts an episode once, and says so when it cannot be written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from distrl.connectors import ledger as ledger_module
from distrl.connectors.ledger import Ledger, LedgerFile, read_ledger
from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.option import PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.errors import DeviceError, StoreFullError
from distrl.testing import make_context


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_phone_writes_what_it_started_and_what_was_kept(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    phone = SimulatedPhone(PhoneOptions(), context, 3)
    tasks = SimulatedTasks(TaskOptions(), context)
    phone.reset(tasks.sample("train", 1), episode="a")
    phone.finish("a", "horizon")
    phone.reset(tasks.sample("train", 2), episode="b")
    phone.close()
    phone.close()
    assert read_ledger(tmp_path) == Ledger(started={"a", "b"}, finished={"a"})
    started, finished, _ = lines(tmp_path / f"ledger-{phone.device_id}.jsonl")
    assert (started["entry"], started["device"]) == ("started", f"{context.node}-phone-3")
    assert (finished["entry"], finished["episode"], finished["outcome"]) == ("finished", "a", "horizon")
    assert finished["time_ms"]


def test_an_episode_is_finished_once_also_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        ledger = LedgerFile(tmp_path, "d")
        for _ in range(2):
            ledger.append("finished", "a", time_ms=1, outcome="finished")
        ledger.close()
    assert len(lines(ledger.path)) == 1


def test_only_so_many_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "REMEMBERED", 2)
    ledger = LedgerFile(tmp_path, "d")
    for episode in ("a", "b", "c", "c", "a"):
        ledger.append("finished", episode, time_ms=1)
    ledger.close()
    assert [line["episode"] for line in lines(ledger.path)] == ["a", "b", "c", "a"]
    assert read_ledger(tmp_path).finished == {"a", "b", "c"}


@pytest.mark.parametrize("torn", [b'{"entry": "finished", "epis', b"{", b'"text"', b"\xff\xfe"])
def test_a_torn_line_is_skipped_and_closed_off(tmp_path: Path, torn: bytes) -> None:
    ledger = LedgerFile(tmp_path, "d")
    ledger.append("started", "a", time_ms=1)
    ledger.close()
    with ledger.path.open("ab") as file:
        file.write(torn)
    assert read_ledger(tmp_path) == Ledger(started={"a"})
    again = LedgerFile(tmp_path, "d")
    again.append("finished", "a", time_ms=2)
    again.close()
    assert read_ledger(tmp_path) == Ledger(started={"a"}, finished={"a"})


def test_ledgers_of_all_devices_and_nodes_are_read(tmp_path: Path) -> None:
    for node, episode in (("n1", "a"), ("n2", "b")):
        ledger = LedgerFile(tmp_path / node, "phone-0")
        ledger.append("finished", episode, time_ms=1)
        ledger.close()
    assert read_ledger(tmp_path).finished == {"a", "b"}
    assert read_ledger(tmp_path / "nowhere") == Ledger()


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StoreFullError), (errno.EIO, DeviceError)])
def test_a_ledger_that_cannot_be_written_says_so_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    ledger = LedgerFile(tmp_path, "d")
    with monkeypatch.context() as patch:

        def refuse(descriptor: int) -> None:
            raise OSError(number, os.strerror(number))

        patch.setattr(os, "fsync", refuse)
        with pytest.raises(error, match="ledger"):
            ledger.append("finished", "a", time_ms=1)
    ledger.append("finished", "b", time_ms=1)
    ledger.close()
    assert "b" in read_ledger(tmp_path).finished


def test_a_folder_in_the_way_is_a_device_error(tmp_path: Path) -> None:
    (tmp_path / "ledger-d.jsonl").mkdir()
    with pytest.raises(DeviceError, match="ledger"):
        LedgerFile(tmp_path, "d").append("started", "a", time_ms=1)
