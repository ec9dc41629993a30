"""The rights of each part: those of the table of topics, as documented, as lines for Kafka's own tool."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from distrl.connectors.kafka.acl import PARTS, Part, acls, command_line
from distrl.core.config import parse_config
from distrl.core.contracts.topic import ALL
from distrl.core.errors import ConfigError

CONFIG = parse_config({"run": {"name": "r"}, "bus": {"kind": "kafka", "security_protocol": "SSL"}})
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def names(part: Part, operation: str) -> set[str]:
    return {
        a.name.removeprefix("distrl.r.")
        for a in acls(CONFIG, part)
        if (a.operation, a.resource) == (operation, "topic")
    }


@pytest.mark.parametrize("part", PARTS)
def test_the_page_tells_the_rights(part: Part) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {part} |")]
    _, _, write, read, other, _ = (cell.strip() for cell in row.split("|"))
    named = set(re.findall(r"`([a-z-]+)`", read))
    assert set(re.findall(r"`([a-z-]+)`", write)) == names(part, "Write")
    assert (set(ALL) - named if read.startswith("all but") else named) == names(part, "Read")
    for acl in acls(CONFIG, part):
        if acl.resource == "group" and acl.pattern == "literal":
            assert "Read group" in other
        elif acl.resource == "transactional-id":
            assert "Write transactional id" in other
        elif acl.operation not in ("Read", "Write"):
            assert acl.operation in other


@pytest.mark.parametrize("part", PARTS)
def test_no_right_is_said_twice_or_reaches_another_run(part: Part) -> None:
    rights = acls(CONFIG, part)
    assert len(set(rights)) == len(rights)
    assert all(acl.name.startswith("distrl.r.") for acl in rights)
    assert part == "administrator" or {acl.pattern for acl in rights} == {"literal"}


def test_a_line_is_one_for_a_shell() -> None:
    group = next(acl for acl in acls(CONFIG, "evaluator") if acl.resource == "group")
    assert shlex.split(command_line(CONFIG, group, "User:CN=a b,O=c")) == [
        "kafka-acls.sh",
        *("--bootstrap-server", "127.0.0.1:9092", "--command-config", "admin.properties"),
        *("--add", "--allow-principal", "User:CN=a b,O=c", "--operation", "Read"),
        *("--group", "distrl.r.evaluator.state", "--resource-pattern-type", "literal"),
    ]
    for wrong in ("", "User", "User:", ":x"):
        with pytest.raises(ConfigError, match="User:NAME"):
            command_line(CONFIG, group, wrong)
