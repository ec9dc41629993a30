"""Marked secrets are nowhere: not in what a run writes, prints and is called by, nor in what a refused login says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

MARK = "MARKED"
ENVIRONMENT = {
    "DISTRL_BUS__PASSWORD": f'{MARK}-bus "quoted"',
    "DISTRL_STORE__ACCESS_KEY": f"{MARK}-access",
    "DISTRL_STORE__SECRET_KEY": f"{MARK}-secret",
    "DISTRL_REGISTRY__PASSWORD": f"{MARK}-registry",
    "DISTRL_REGISTRY__URL": f"https://someone:{MARK}-url@registry.example/v7",
    "PYTHONUNBUFFERED": "1",
}
CONFIG = """
[run]
name = "secrets"
log_level = "debug"
watchdog_seconds = 300
[tasks]
options.kinds = ["open"]
[collector]
nodes = 1
devices = 2
demonstrations = 0
[learner]
options.demonstrations = 0
options.clone_updates = 0
[budget]
episodes = 5
evaluation_tasks = 0
drain_seconds = 200
"""


def command_lines() -> str:
    """Of every process of this machine, as every user of it may read them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode("utf-8", "replace"))
        except OSError:  # it ended meanwhile
            continue
    return "\n".join(found)


def test_a_run_keeps_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG)
    environment = {**os.environ, **ENVIRONMENT}
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "distrl.core.cli.main", "run", "--config", str(file), "--debug"],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                assert MARK not in command_lines()
                time.sleep(1.0)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (tmp_path / "output").read_text()
    for arguments in (["status", "--json"], ["topics", "plan"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, "-m", "distrl.core.cli.main", *arguments, "--config", str(file)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert MARK not in done.stdout + done.stderr, arguments
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    run = tmp_path / "runs" / "secrets"
    assert {run / "config.toml", run / "summary.json", run / "report.html"} <= set(written)
    assert any(path.parent == run / "logs" and path.stat().st_size for path in written)
    assert [path for path in written if MARK.encode() in path.read_bytes()] == []
    assert json.loads((run / "summary.json").read_text())["ingested"] >= 5


@pytest.mark.kafka
@pytest.mark.s3
def test_a_refused_login_says_none(tmp_path: Path) -> None:
    """Both services are there and refuse: what is said of it, with tracebacks, holds nothing of what was tried."""
    from certificate import Authority
    from kafka_broker import ADMIN, Security, start_kafka
    from seaweedfs import start_s3

    authority = Authority(tmp_path / "tls")
    security = Security("SASL_SSL", key_store=authority.issue().both_file, users={ADMIN: "right-password"})
    with start_kafka(tmp_path / "kafka", security=security) as kafka, start_s3(tmp_path / "s3") as s3:
        file = tmp_path / "run.toml"
        login = (
            f'bootstrap = ["{kafka.bootstrap}"]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\n'
            f'username = "{ADMIN}"\nca_file = "{authority.ca_file}"\n'
        )
        store = f'[store]\nkind = "s3"\nendpoint = "{s3.endpoint}"\n'
        said = ""
        for kind, module, arguments in (
            ("kafka", "main", ["doctor"]),
            ("kafka", "main", ["topics", "plan", "--debug"]),
            ("kafka", "node", ["--role", "evaluator", "--debug"]),
            ("embedded", "node", ["--role", "evaluator", "--debug"]),
        ):
            file.write_text(f'[run]\nname = "r"\nlog_level = "debug"\n[bus]\nkind = "{kind}"\n{login}{store}')
            done = subprocess.run(
                [sys.executable, "-m", f"distrl.core.cli.{module}", *arguments, "--config", str(file)],
                cwd=tmp_path,
                env={**os.environ, **ENVIRONMENT},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 3, done.stderr
            said += done.stdout + done.stderr
        assert "DISTRL-308" in said
        assert "DISTRL-407" in said
        assert "Traceback" in said
        assert MARK not in said
        assert [p for p in (tmp_path / "runs").rglob("*") if p.is_file() and MARK.encode() in p.read_bytes()] == []
