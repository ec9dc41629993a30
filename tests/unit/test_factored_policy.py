"""The factored policy: distribution, tokens, weights, screens of any size."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.policy import PolicyInput
from distrl.core.contracts.role import Artefacts, RoleContext
from distrl.core.errors import PolicyError, WeightsError
from distrl.plugins.builtin.policy.encoding import cell_of, centre_of, read_goal
from distrl.plugins.builtin.policy.factored import FactoredPolicy
from distrl.plugins.builtin.policy.factored_options import FactoredOptions

pytestmark = pytest.mark.torch

SMALL = FactoredOptions(
    columns=2, rows=2, words=3, buckets=64, history=2, width=16, actions=("tap", "type", "press back", "done")
)


def policy(options: FactoredOptions = SMALL, *, seed: int = 0, node: int = 0) -> FactoredPolicy:
    context = RoleContext("r", "n", seed, SystemClock(), random.Random(node), cast(Artefacts, None), Path())
    return FactoredPolicy(options, context)


def screen(seed: int, width: int = 32, height: int = 32) -> Observation:
    data = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8).tobytes()
    return Observation(0, Screenshot(width, height, data, "image/x-rgb"))


ITEM = PolicyInput("find green tea", screen(0), ("tap 0.250 0.750", "nonsense"))


def every_action(words: int) -> list[tuple[int, ...]]:
    spans = [(1, first, last) for first in range(words) for last in range(first, words)]
    return [*((0, cell) for cell in range(4)), *spans, (2,), (3,)]


def test_probabilities_of_all_actions_sum_to_one_and_the_entropy_is_exact() -> None:
    for goal, words in (("find green tea", 3), ("tea", 1), ("", 0)):
        item = PolicyInput(goal, screen(1))
        actions = every_action(words)
        evaluation = policy().evaluate([item] * len(actions), actions)
        log_probs = evaluation.log_probs.detach().to(torch.float64)
        assert float(log_probs.exp().sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(evaluation.entropies[0].detach()) == pytest.approx(
            float(-(log_probs.exp() * log_probs).sum()), abs=1e-5
        )


def test_what_act_records_is_what_evaluate_says() -> None:
    acting, learning = policy(node=1), policy(node=2)
    batch = [PolicyInput(f"find green tea {place}", screen(place), ("done",) * (place % 3)) for place in range(40)]
    actions = acting.act(batch)
    evaluation = learning.evaluate(batch, [action.tokens for action in actions])
    assert len({action.tokens[0] for action in actions}) == 4, "every type occurs"
    for place, action in enumerate(actions):
        assert len(action.tokens) == len(action.token_log_probs) == {0: 2, 1: 3, 2: 1, 3: 1}[action.tokens[0]]
        assert action.log_prob == pytest.approx(float(evaluation.log_probs[place].detach()), abs=1e-4)
        assert action.entropy == pytest.approx(float(evaluation.entropies[place].detach()), abs=1e-4)
        assert action.value == pytest.approx(float(evaluation.values[place].detach().min().sigmoid()), abs=1e-4)


def test_samples_follow_the_distribution() -> None:
    acting = policy()
    actions = every_action(3)
    expected = acting.evaluate([ITEM] * len(actions), actions).log_probs.detach().exp().tolist()
    drawn = [action.tokens for _ in range(8) for action in acting.act([ITEM] * 250)]
    statistic = sum(
        (drawn.count(tokens) - 2000 * share) ** 2 / (2000 * share)
        for tokens, share in zip(actions, expected, strict=True)
    )
    # Chi-squared with 11 degrees of freedom: 31.3 is exceeded once in a thousand seeds, and this seed is fixed.
    assert statistic < 31.3


def test_greedy_is_certain_and_sampling_is_seeded() -> None:
    assert policy(node=1).act([ITEM], greedy=True) == policy(node=2).act([ITEM], greedy=True)
    batch = [ITEM] * 30
    assert [a.tokens for a in policy(node=1).act(batch)] == [a.tokens for a in policy(node=1).act(batch)]
    assert [a.tokens for a in policy(node=1).act(batch)] != [a.tokens for a in policy(node=2).act(batch)]
    assert policy().act([]) == []


def test_gradients_reach_every_parameter() -> None:
    learning = policy()
    batch = [PolicyInput("find green tea", screen(place), ("tap 0.25 0.25", "done")) for place in range(4)]
    evaluation = learning.evaluate(batch, [(0, 3), (1, 0, 1), (2,), (3,)])
    (evaluation.log_probs.sum() + evaluation.values.sum() + evaluation.trajectory_values.sum()).backward()
    for parameter in learning.parameters():
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())
        assert bool((parameter.grad != 0).any())


def test_gradients_stay_finite_without_goal_words() -> None:
    learning = policy()
    evaluation = learning.evaluate([PolicyInput("", screen(0))] * 2, [(0, 1), (3,)])
    (evaluation.log_probs.sum() + evaluation.entropies.sum()).backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in learning.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("action", "tokens"),
    [
        ("tap 0.100 0.900", (0, 2)),
        ("tap 1 1", (0, 3)),
        ('type "green tea"', (1, 1, 2)),
        ('type "find"', (1, 0, 0)),
        ("press back", (2,)),
        ("done", (3,)),
        ('type "coffee"', None),
        ('type "tea green"', None),
        ("press home", None),
        ("swipe 0 0 1 1", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_encoding_actions(action: str, tokens: tuple[int, ...] | None) -> None:
    assert policy().encode_action(ITEM, action) == tokens


def test_the_typed_text_is_the_goals_own() -> None:
    options = FactoredOptions(actions=("type",))
    acting = policy(options)
    for text in ("O'Brien", "Zoë, at 10:30", "me@x.org"):
        item = PolicyInput(f'Write "{text}" now', screen(0, 96, 192))
        tokens = acting.encode_action(item, f'type "{text}"')
        assert tokens is not None
        goal = read_goal(item.goal, options)
        assert goal.between(tokens[1], tokens[2]) == text


@given(st.integers(1, 20), st.integers(1, 20), st.data())
def test_a_cells_centre_is_in_the_cell(columns: int, rows: int, data: st.DataObject) -> None:
    options = FactoredOptions(columns=columns, rows=rows)
    cell = data.draw(st.integers(0, columns * rows - 1))
    x, y = centre_of(cell, options)
    assert cell_of((float(f"{x:.3f}"), float(f"{y:.3f}")), options) == cell


@pytest.mark.parametrize("tokens", [(), (9,), (-1,), (0,), (0, 4), (1, 2, 1), (1, 0, 3), (2, 0)])
def test_refuses_tokens_that_are_no_action(tokens: tuple[int, ...]) -> None:
    with pytest.raises(PolicyError, match="no action"):
        policy().evaluate([ITEM], [tokens])


@pytest.mark.parametrize(("width", "height"), [(32, 32), (160, 210), (7, 5), (1080, 2400)])
def test_screens_of_any_size(width: int, height: int, tmp_path: Path) -> None:
    acting = policy()
    raw = screen(3, width, height).screenshot
    assert raw is not None
    Image.frombytes("RGB", (width, height), raw.data).save(tmp_path / "s.png")
    png = Screenshot(width, height, (tmp_path / "s.png").read_bytes())
    reduced = acting.reduce(raw)
    assert (reduced.width, reduced.height, len(reduced.data)) == (32, 32, 32 * 32 * 3)
    assert acting.reduce(png) == reduced
    assert acting.reduce(reduced) == reduced
    once, again = (acting.act([PolicyInput("tea", Observation(0, shot))], greedy=True) for shot in (png, reduced))
    assert once == again


def test_reducing_averages() -> None:
    pixels = np.zeros((64, 64, 3), dtype=np.uint8)
    pixels[::2] = 200
    reduced = policy().reduce(Screenshot(64, 64, pixels.tobytes(), "image/x-rgb"))
    assert set(reduced.data) == {100}


def test_an_observation_without_a_screenshot_is_an_error() -> None:
    with pytest.raises(PolicyError, match="screenshot"):
        policy().act([PolicyInput("tea", Observation(0, None))])


def test_same_seed_same_weights_everywhere(tmp_path: Path) -> None:
    for name, made in (("a", policy(node=1)), ("b", policy(node=2)), ("c", policy(seed=1))):
        made.save(tmp_path / name)
    a, b, c = (load_file(tmp_path / name) for name in "abc")
    assert all(bool((a[name] == b[name]).all()) for name in a)
    assert any(bool((a[name] != c[name]).any()) for name in a)


def test_weights_go_from_one_to_another(tmp_path: Path) -> None:
    one, other = policy(seed=1), policy(seed=2)
    assert one.act([ITEM], greedy=True) != other.act([ITEM], greedy=True)
    one.save(tmp_path / "w")
    other.load(tmp_path / "w")
    assert one.act([ITEM], greedy=True) == other.act([ITEM], greedy=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing"),
        ("unknown", "unknown"),
        ("shape", "the policy has"),
        ("dtype", "the policy has"),
        ("nan", "not finite"),
        ("options", "other options"),
        ("garbage", "no readable weights"),
        ("absent", "no readable weights"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(change: str, message: str, tmp_path: Path) -> None:
    kept, path = policy(seed=1), tmp_path / "w"
    before = kept.act([ITEM], greedy=True)
    policy(seed=2).save(path)
    weights = load_file(path)
    metadata = {"options": "{}"} if change == "options" else None
    match change:
        case "missing":
            del weights["place"]
        case "unknown":
            weights["more"] = torch.zeros(1)
        case "shape":
            weights["place"] = weights["place"][:1].clone()
        case "dtype":
            weights["place"] = weights["place"].to(torch.float64)
        case "nan":
            weights["place"][0, 0] = math.nan
    save_file(weights, path, metadata=metadata)
    if change == "garbage":
        path.write_bytes(b"\x00" * 40)
    if change == "absent":
        path.unlink()
    with pytest.raises(WeightsError, match=message):
        kept.load(path)
    assert kept.act([ITEM], greedy=True) == before


def test_the_order_of_the_actions_is_part_of_the_weights(tmp_path: Path) -> None:
    turned = SMALL.model_copy(update={"actions": tuple(reversed(SMALL.actions))})
    policy(turned).save(tmp_path / "w")
    with pytest.raises(WeightsError, match="other options"):
        policy().load(tmp_path / "w")
