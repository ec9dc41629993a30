"""The built-in evaluators: verdicts from what a trajectory recorded, and an error for what cannot be judged."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Blob, Envelope, ObservationRecord, Trajectory
from distrl.core.contracts.observation import Observation
from distrl.core.contracts.role import RoleContext
from distrl.core.errors import BlobNotFoundError, InvalidEventError
from distrl.plugins.builtin.evaluator.environment import EnvironmentEvaluator
from distrl.plugins.builtin.evaluator.state import StateEvaluator
from distrl.plugins.spec import Options

TREE = {
    "resource_id": "root",
    "text": "home",
    "children": [
        {"resource_id": "wifi", "checked": True, "text": "Wi-Fi"},
        {
            "resource_id": "list",
            "children": [{"resource_id": "item", "text": "tea"}, {"resource_id": "item", "text": "milk"}],
        },
    ],
}


class Stored:
    """Artefacts kept under their key."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def record(self, observation: Observation) -> ObservationRecord:
        raise AssertionError

    def read(self, blob: Blob) -> bytes:
        if blob.key not in self.blobs:
            raise BlobNotFoundError(f"no object {blob.key}")
        return self.blobs[blob.key]

    def observation(self, record: ObservationRecord) -> Observation:
        raise AssertionError


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def context(stored: Stored) -> RoleContext:
    return RoleContext("run", "node", 0, SystemClock(), random.Random(0), stored, Path("unused"))


@pytest.fixture
def evaluator(context: RoleContext) -> StateEvaluator:
    return StateEvaluator(Options(), context)


def trajectory(stored: Stored, checks: object, tree: object = TREE, key: str = "tree") -> Trajectory:
    stored.blobs[key] = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    final = ObservationRecord(0, 1, 1, ui_tree=Blob("application/json", 1, "0" * 64, "bucket", key))
    text = checks if isinstance(checks, str) else json.dumps(checks)
    return Trajectory(
        Envelope("t", "run", "node", 0), "t", "policy", "task", "kind", "train", "Goal", text, 0, 5, "d", "p", 1, 1, "", "{}",
        "finished", 0, 0, final_observation=final,
    )  # fmt: skip


def check(resource_id: str, attribute: str, equals: str) -> dict[str, str]:
    return {"resource_id": resource_id, "attribute": attribute, "equals": equals}


@pytest.mark.parametrize(
    ("checks", "success"),
    [
        ([check("wifi", "checked", "true")], 1.0),
        ([check("wifi", "checked", "false")], 0.0),
        ([check("root", "text", "home")], 1.0),
        ([check("item", "text", "milk")], 1.0),
        ([check("item", "text", "tea"), check("wifi", "checked", "true")], 1.0),
        ([check("item", "text", "tea"), check("wifi", "checked", "false")], 0.0),
        ([check("item", "text", "Tea")], 0.0),
        ([check("absent", "text", "")], 0.0),
        ([check("item", "checked", "false")], 0.0),
    ],
)
def test_all_conditions_must_hold(
    evaluator: StateEvaluator, stored: Stored, checks: list[dict[str, str]], success: float
) -> None:
    (verdict,) = evaluator.evaluate([trajectory(stored, checks)])
    assert verdict.success == success
    assert bool(verdict.reason) == (success == 0.0)


def test_the_reason_names_the_condition_that_fails(evaluator: StateEvaluator, stored: Stored) -> None:
    (verdict,) = evaluator.evaluate([trajectory(stored, [check("wifi", "checked", "false")])])
    assert verdict.reason == "wifi: checked is not 'false'"


def test_verdicts_come_in_order(evaluator: StateEvaluator, stored: Stored) -> None:
    batch = [trajectory(stored, [check("wifi", "checked", value)]) for value in ("true", "false", "true")]
    assert [verdict.success for verdict in evaluator.evaluate(batch)] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "checks",
    ["[]", "not json", "5", '[{"resource_id": "a"}]', '["text"]', json.dumps([check("a", "colour", "red")])],
)
def test_checks_that_judge_nothing_are_an_invalid_event(evaluator: StateEvaluator, stored: Stored, checks: str) -> None:
    with pytest.raises(InvalidEventError, match="trajectory t"):
        evaluator.evaluate([trajectory(stored, checks)])


@pytest.mark.parametrize("tree", [b"", b"\xff\xfe", b"[1]", b'"text"'])
def test_a_malformed_tree_is_an_invalid_event(evaluator: StateEvaluator, stored: Stored, tree: bytes) -> None:
    with pytest.raises(InvalidEventError, match="UI tree"):
        evaluator.evaluate([trajectory(stored, [check("a", "text", "b")], tree)])


def test_odd_nodes_and_deep_trees_are_walked(evaluator: StateEvaluator, stored: Stored) -> None:
    odd: object = {"resource_id": "deep", "text": "found", "children": ["text", None, 5]}
    data = b'{"children":[' * 100 + json.dumps(odd).encode() + b"]}" * 100
    (verdict,) = evaluator.evaluate([trajectory(stored, [check("deep", "text", "found")], data)])
    assert verdict.success == 1.0
    with pytest.raises(InvalidEventError, match="recursion"):
        evaluator.evaluate([trajectory(stored, [check("deep", "text", "found")], b'{"children":[' * 10**6)])
    (verdict,) = evaluator.evaluate([trajectory(stored, [check("deep", "text", "x")], {"children": 5})])
    assert verdict.success == 0.0


def test_a_trajectory_without_a_tree_is_an_invalid_event(evaluator: StateEvaluator, stored: Stored) -> None:
    item = trajectory(stored, [check("wifi", "checked", "true")])
    for final in (None, ObservationRecord(0, 1, 1)):
        with pytest.raises(InvalidEventError, match="no final UI tree"):
            evaluator.evaluate([replace(item, final_observation=final)])


def test_a_missing_artefact_keeps_its_own_error(evaluator: StateEvaluator, stored: Stored) -> None:
    item = trajectory(stored, [check("wifi", "checked", "true")])
    stored.blobs.clear()
    with pytest.raises(BlobNotFoundError):
        evaluator.evaluate([item])


def test_the_environments_word_is_kept_as_it_is(context: RoleContext, stored: Stored) -> None:
    evaluator = EnvironmentEvaluator(Options(), context)
    items = [replace(trajectory(stored, []), environment_outcome=value) for value in (1.0, 0.0, 0.25)]
    verdicts = evaluator.evaluate(items)
    assert [verdict.success for verdict in verdicts] == [1.0, 0.0, 0.25]
    assert [bool(verdict.reason) for verdict in verdicts] == [False, True, False]
    with pytest.raises(InvalidEventError, match="no outcome"):
        evaluator.evaluate([trajectory(stored, [])])


def test_names_and_versions(evaluator: StateEvaluator, context: RoleContext) -> None:
    environment = EnvironmentEvaluator(Options(), context)
    assert [(item.name, item.version) for item in (evaluator, environment)] == [("state", "1"), ("environment", "1")]
