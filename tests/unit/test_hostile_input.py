"""What fuzzing found: inputs that once ended a process with an error that nobody promised. ``make fuzz`` looks for more."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from distrl.connectors.appium.hierarchy import read_hierarchy
from distrl.connectors.embedded.partition import pack_headers, unpack_headers
from distrl.connectors.folder import FolderStore
from distrl.connectors.ledger import read_ledger
from distrl.connectors.registry.confluent import ConfluentRegistry
from distrl.core.config import load_config
from distrl.core.contracts.action import InvalidAction, parse_action
from distrl.core.contracts.clock import SystemClock
from distrl.core.errors import (
    BusError,
    CheckpointError,
    CodecError,
    ConfigError,
    DeviceError,
    RegistryError,
    StoreError,
)
from distrl.core.runtime.checkpoint import Checkpoints, Covered
from distrl.core.runtime.outbox import Outbox

DEEP = "[" * 100_000
DIGITS = "9" * 5000


@pytest.mark.parametrize("text", [f"type {DEEP}", f"type {DIGITS}", f"tap {DIGITS} 0.5", "tap 1e999 0.5"])
def test_an_action_is_refused_as_no_action(text: str) -> None:
    with pytest.raises(InvalidAction):
        parse_action(text)


@pytest.mark.parametrize("text", [f"[run]\nseed = {DIGITS}", f"[run]\nplugins = {DEEP}", "\x00"])
def test_a_configuration_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(path, environment={})


@pytest.mark.parametrize("text", [DIGITS, DEEP])
def test_a_setting_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.seed"):
        load_config(None, overrides=[f"run.seed={text}"], environment={})


def test_a_page_source_that_is_nested_for_ever_is_refused() -> None:
    with pytest.raises(DeviceError, match="nested"):
        read_hierarchy("<hierarchy>" + "<a>" * 5000 + "</a>" * 5000 + "</hierarchy>", (100, 200))


@pytest.mark.parametrize("digits", [DIGITS, "9" * 400])
def test_bounds_of_thousands_of_digits_are_no_bounds(digits: str) -> None:
    assert '"bounds":[0.0,0.0,1.0,1.0]' in read_hierarchy(f'<hierarchy bounds="[0,0][{digits},1]"/>', (100, 200))


def test_damaged_headers_of_the_embedded_log_are_named() -> None:
    data = pack_headers((("name", b"value"), ("other", b"")))
    assert data is not None
    for length in range(1, len(data)):
        if length != 4 + 4 + 4 + 5:  # the first header alone is whole
            with pytest.raises(BusError, match="damaged"):
                unpack_headers(data[:length])
    for damaged in (b"\x00\x00\x00\x01\xff\x00\x00\x00\x00", b"\xff" * 12, b"\x00" * 4):
        with pytest.raises(BusError, match="damaged"):
            unpack_headers(damaged)


@pytest.mark.parametrize(
    ("column", "value"), [("value", "text"), ("value", 7), ("trajectory_id", b"\xff"), ("value", 1.5)]
)
def test_a_row_of_the_outbox_that_is_no_episode_is_named(tmp_path: Path, column: str, value: object) -> None:
    path = tmp_path / "outbox.sqlite"
    box = Outbox(path)
    box.put([("t", b"bytes")])
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE episode SET {column} = ?", (value,))
    database.close()
    with pytest.raises(StoreError, match="damaged"):
        box.entries()
    box.close()


def test_a_line_of_a_ledger_that_is_nested_for_ever_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ledger-d0.jsonl").write_text(f'{DEEP}\n{{"entry": "finished", "episode": "a"}}\n')
    assert read_ledger(tmp_path).finished == {"a"}


@pytest.mark.parametrize("text", [DEEP, '{"format": 1, "run": "run", "files": {}, "epoch": 1e999}', "[]", DIGITS])
def test_a_checkpoint_with_a_broken_manifest_is_passed_over(tmp_path: Path, text: str) -> None:
    store = FolderStore(tmp_path / "store")
    checkpoints = Checkpoints(store, "run", kept=5)
    number = checkpoints.save(Covered(1, 0, 0, {}, {}), lambda folder: None, tmp_path / "work")
    store.put_content(f"run/checkpoints/{number + 1:014d}/manifest", text.encode(), media_type="application/json")
    found = checkpoints.newest()
    assert found is not None
    assert found.number == number


@pytest.mark.torch
@pytest.mark.parametrize(
    "text", [DEEP, '{"random": [3, [1e999], null]}', '{"random": [3, [99999999999999999999999], null]}']
)
def test_a_learners_state_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    from distrl.plugins.builtin.learner.learner_state import STATE, restore_state

    (tmp_path / STATE).write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore_state(random.Random(), tmp_path)


@pytest.mark.torch
def test_an_optimizers_state_without_a_part_is_named(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from distrl.plugins.builtin.learner.learner_state import OPTIMIZER, restore_optimizer

    parameter = torch.nn.Parameter(torch.zeros(3))
    save_file({"0.exp_avg": torch.zeros(3)}, tmp_path / OPTIMIZER)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore_optimizer(torch.optim.Adam([parameter]), tmp_path)


class Odd(BaseHTTPRequestHandler):
    """A server that is no schema registry: every answer is the same."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.mark.parametrize("body", [DEEP, json.dumps({"schema": DEEP}), DIGITS, json.dumps({"schema": "[]"}), "\xff"])
def test_an_answer_that_is_no_schema_is_refused(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr(Odd, "body", body.encode("latin-1"))
    with HTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        registry = ConfluentRegistry(f"http://127.0.0.1:{server.server_port}", clock=SystemClock())
        try:
            with pytest.raises((RegistryError, CodecError)):
                registry.schema(7)
        finally:
            registry.close()
            server.shutdown()
            thread.join()
