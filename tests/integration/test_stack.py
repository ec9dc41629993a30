"""The stack without docker, as a user starts and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.connectors import open_bus, open_store
from distrl.core.config import load_config
from distrl.core.contracts.clock import SystemClock

SCRIPT = Path(__file__).resolve().parents[2] / "compose" / "stack.py"

pytestmark = [pytest.mark.kafka, pytest.mark.s3]


def stack(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments, "--state", str(state)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.timeout(300)
def test_up_serves_a_configuration_and_down_leaves_nothing(tmp_path: Path) -> None:
    from stack import read

    state = tmp_path / "state"
    try:
        done = stack(state, "up")
        assert done.returncode == 0, done.stderr
        servers = read(state)
        assert [server.kind for server in servers] == ["kafka", "s3"]
        config = load_config(state / "stack.toml", environment={})
        with open_bus(config.bus, clock=SystemClock(), client_id="test") as bus:
            bus.ping(10.0)
        open_store(config.store).put("key", b"value", media_type="text/plain")
        assert (state / "stack.toml").stat().st_mode & 0o077 == 0

        again = stack(state, "up")
        assert again.returncode == 0, again.stderr
        assert read(state) == servers
        assert stack(state, "status").returncode == 0
    finally:
        done = stack(state, "down")
    assert done.returncode == 0, done.stderr
    assert not any(server.alive for server in servers)
    assert not state.exists()
    assert stack(state, "down").returncode == 0
    assert stack(state, "status").returncode == 3


def test_environment_file_says_the_same(tmp_path: Path) -> None:
    from stack import Running, write

    server = Running("s3", 1, "x", "h:1", {"store": {"kind": "s3", "endpoint": "h:1", "secret_key": "12345"}})
    bus = Running("kafka", 1, "x", "h:2", {"bus": {"kind": "kafka", "bootstrap": ["h:2"]}})
    write(tmp_path, [bus, server])
    shell = (
        f'. "{tmp_path}/stack.env" && exec "{sys.executable}" -c "import os, json; print(json.dumps(dict(os.environ)))"'
    )
    printed = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=True, env=dict(os.environ))
    environment: dict[str, str] = json.loads(printed.stdout)
    assert load_config(None, environment=environment) == load_config(tmp_path / "stack.toml", environment={})


def test_a_missing_tool_is_named_with_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafka_broker import KafkaServer
    from server import ServerError

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=r"java is missing.*apt-get install"):
        KafkaServer(tmp_path / "state").start()
