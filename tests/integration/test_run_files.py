"""Files that a run leaves: written whole or not at all, logs readable by programs and free of secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from distrl.core.errors import ConfigError
from distrl.core.runtime.log import configure_logging
from distrl.core.runtime.summary import write_atomically, write_summary


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_summary_replaces_the_last_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, {"run": "ä", "success_first": None})
    assert json.loads(path.read_text(encoding="utf-8")) == {"run": "ä", "success_first": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(path, {"run": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8"))["run"] == "ä"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half\ud800")
    assert json.loads(path.read_text(encoding="utf-8"))["run"] == "ä"
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]


def test_logs_are_json_lines_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "logs" / "node.log"
    configure_logging("info", file=file, node="learner-0", role="learner")
    configure_logging("info", file=file, node="learner-0", role="learner")
    log = structlog.get_logger("distrl.test")
    log.info("opened", endpoint="h:1", password="correct-horse", nested={"secret_key": "battery"})
    log.debug("too quiet")
    logging.getLogger("kafka.producer").error("a whole batch of records")
    logging.getLogger("somebody").warning("disk at %d %%", 90)
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("failed")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["opened", "disk at 90 %", "failed"]
    assert all(line["node"] == "learner-0" and line["role"] == "learner" and line["timestamp"] for line in lines)
    assert lines[0]["endpoint"] == "h:1"
    assert "ValueError: x" in lines[2]["exception"]
    shown = capsys.readouterr().err
    assert shown.count("opened") == 1
    for secret in ("correct-horse", "battery"):
        assert secret not in shown
        assert secret not in file.read_text(encoding="utf-8")


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder is due")
    with pytest.raises(ConfigError, match="cannot write the log file"):
        configure_logging("info", file=tmp_path / "logs" / "node.log", node="n", role="learner")
