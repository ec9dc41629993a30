"""The summary and the report: right keys, hostile text harmless, secrets hidden, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from typing import get_type_hints

from distrl.core.config import parse_config
from distrl.core.contracts.events import Blob, Envelope, Metrics, NodeStatus, Reward, Trajectory, WeightsUpdate
from distrl.core.runtime.chart import ticks
from distrl.core.runtime.history import RunHistory
from distrl.core.runtime.rate import EvaluationResult, Rate
from distrl.core.runtime.redaction import HIDDEN, redact
from distrl.core.runtime.report import render_report
from distrl.core.runtime.summary import Summary, make_summary

EVIL = "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;\x00\x1b[31m\u2028"
SECRET = "correct-horse-battery"
T0 = 1_790_000_000_000


def envelope(event_id: str, time_ms: int = T0) -> Envelope:
    return Envelope(event_id, EVIL, EVIL, time_ms)


def hostile_history() -> RunHistory:
    history = RunHistory("r")
    plain = Trajectory(
        envelope=envelope("t"),
        trajectory_id="id",
        origin="policy",
        task_id="t",
        task_kind=EVIL,
        split="train",
        goal=EVIL,
        checks="[]",
        seed=1,
        horizon=1,
        device=EVIL,
        policy=EVIL,
        epoch=1,
        version=1,
        base_model="",
        sampling="{}",
        outcome="finished",
        started_ms=T0,
        ended_ms=T0,
    )
    history.add("trajectories", plain, T0)
    history.add("rewards", Reward(envelope("r"), "id", "state", "1", 1.0, reason=EVIL), T0)
    broken = replace(plain, trajectory_id="id2", outcome="aborted", error_class=EVIL, error=EVIL)
    history.add("trajectories", broken, T0)
    values = {
        f"learner.{EVIL}": math.inf,
        "learner.loss": math.nan,
        "duplicates": math.nan,
        f"lag.{EVIL}": 3.0,
        "lag.x": math.inf,
        f"wait_share.{EVIL}": 0.5,
    }
    history.add("metrics", Metrics(envelope("m"), "learner", 1000, values), T0)
    history.add("weights", WeightsUpdate(envelope("w"), EVIL, 1, 1, 0, Blob("x", 1, "0" * 64)), T0)
    history.add(
        "nodes", NodeStatus(envelope("n"), "learner", EVIL, "running", "i", EVIL, 1, T0, 1000, counters={EVIL: 1}), T0
    )
    return history


def a_summary(history: RunHistory) -> Summary:
    result = EvaluationResult(3, {EVIL: Rate(3, 4), "open": Rate(4, 4)}, Rate(7, 8))
    config = parse_config({"run": {"name": "r", "seed": 7}})
    return make_summary(history, config, 12.5, None, result)


class Collected(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_summary_has_exactly_the_promised_keys() -> None:
    summary = a_summary(hostile_history())
    promised = [
        "run",
        "seed",
        "seconds",
        "episodes",
        "aborted",
        "success_first",
        "success_last",
        "eval_start",
        "eval_success",
        "eval_by_task",
        "weight_versions",
        "staleness_mean",
        "staleness_max",
        "collected",
        "evaluated",
        "ingested",
        "withheld",
        "duplicates_dropped",
        "dead_letters",
        "learner_busy",
        "collector_busy",
        "log_bytes",
        "store_bytes",
    ]
    assert list(summary) == promised
    assert set(get_type_hints(Summary)) == set(promised)
    assert summary["eval_start"] is None
    assert summary["eval_success"] == 7 / 8
    assert summary["eval_by_task"]["open"] == 1.0
    assert summary["success_first"] == summary["success_last"] == 1.0
    assert summary["duplicates_dropped"] == 0
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_the_report_is_one_harmless_page_without_secrets() -> None:
    history = hostile_history()
    config = parse_config(
        {
            "run": {"name": "r"},
            "bus": {"password": SECRET},
            "store": {"secret_key": SECRET, "access_key": SECRET},
            "policy": {"options": {"nested": [{"api_key": SECRET}]}},
        }
    )
    page = render_report(history, a_summary(history), config)
    assert SECRET not in page
    assert HIDDEN in page
    assert "\x00" not in page
    assert "\x1b" not in page
    collected = Collected()
    collected.feed(page)
    tags = {tag for tag, _ in collected.tags}
    assert {"svg", "table", "style"} <= tags
    assert not tags & {"script", "img", "link", "iframe", "object", "base", "form"}
    for _, attributes in collected.tags:
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name in attributes)
    assert "url(" not in page
    assert "&lt;script&gt;" in page


def test_a_report_of_nothing_is_a_report() -> None:
    history = RunHistory("r")
    config = parse_config({"run": {"name": "r"}})
    page = render_report(history, make_summary(history, config, 0.0, None, None), config)
    assert page.startswith("<!doctype html>")
    assert "nan" not in page.lower().replace("nanum", "")


def test_secrets_are_known_by_name_and_empty_ones_stay() -> None:
    table = {"password": "x", "secret_key": "", "options": {"max_tokens": 5, "list": [{"access_token": "y"}]}}
    assert redact(table) == {
        "password": HIDDEN,
        "secret_key": "",
        "options": {"max_tokens": 5, "list": [{"access_token": HIDDEN}]},
    }


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(0, 4, 6, whole=True) == [0, 1, 2, 3, 4]
    assert ticks(0, 0) == [0]
    for low, high in ((0.0, 37.0), (-3.5, 12.0), (0.0, 1e-6), (5.0, 5.1), (0.0, 3e7)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 12
        assert all(low - 1e-9 <= value <= high * (1 + 1e-9) for value in found)


def test_a_user_in_an_address_is_hidden() -> None:
    table = {"servers": ["http://me:T0PSECRET@farm.example:4723/wd/hub?a=1", "http://127.0.0.1:4723"]}
    shown = redact({"device": {"options": table}})
    assert "T0PSECRET" not in str(shown)
    assert shown["device"]["options"]["servers"][0].endswith("@farm.example:4723/wd/hub?a=1")
    assert shown["device"]["options"]["servers"][1] == "http://127.0.0.1:4723"
