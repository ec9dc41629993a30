"""The losses of A-RIDE; one test for each trap that others fell into."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distrl.core.contracts.policy import PolicyEvaluation
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions
from distrl.plugins.builtin.learner.loss import (
    StepBatch,
    a_ride_loss,
    clipped_ratios,
    clone_loss,
    invalid_loss,
    normalized,
    value_loss,
)

pytestmark = pytest.mark.torch

PLAIN = {
    "normalize": False,
    "entropy_weight": 0.0,
    "value_weight": 0.0,
    "trajectory_value_weight": 0.0,
    "invalid_weight": 0.0,
}


def leaf(*numbers: float) -> Tensor:
    return torch.tensor(numbers, requires_grad=True)


def evaluation(log_probs: Tensor) -> PolicyEvaluation:
    count = log_probs.shape[0]
    return PolicyEvaluation(
        log_probs, leaf(*[1.0] * count), torch.zeros(count, 2, requires_grad=True), leaf(*[0.0] * count)
    )


def steps(advantages: list[float], **other: Tensor) -> StepBatch:
    count = len(advantages)
    given: dict[str, Tensor] = {
        "behaviour_log_probs": torch.full((count,), -1.0),
        "actor": torch.ones(count, dtype=torch.bool),
        "invalid": torch.zeros(count, dtype=torch.bool),
        "value_targets": torch.ones(count),
        "successes": torch.ones(count),
        "trajectory_successes": torch.ones(count),
        "weights": torch.ones(count),
    }
    return StepBatch(advantages=torch.tensor(advantages), **{**given, **other})


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(loss, of)
    return [round(number, 6) for number in found.tolist()]


def test_policy_loss_by_hand() -> None:
    log_probs = leaf(-1.0, -1.0)
    loss = a_ride_loss(evaluation(log_probs), steps([1.0, -0.5]), ARideOptions(**PLAIN))
    assert loss.metrics["loss.policy"] == pytest.approx(-(1.0 * -1.0 + -0.5 * -1.0) / 2)
    assert gradient(loss.total, log_probs) == [-0.5, 0.25]


def test_the_ratio_is_clipped_and_carries_no_gradient() -> None:
    log_probs = leaf(-0.5, -2.0)
    ratios, clipped = clipped_ratios(log_probs, torch.tensor([-1.0, -1.0]), 1.0)
    assert not ratios.requires_grad
    assert ratios.tolist() == pytest.approx([1.0, 2.718281828**-1])
    assert clipped.tolist() == [True, False]
    loss = a_ride_loss(evaluation(log_probs), steps([1.0, 1.0]), ARideOptions(**PLAIN))
    assert gradient(loss.total, log_probs) == pytest.approx([-0.5, -0.5 * 2.718281828**-1], abs=1e-5)
    assert loss.metrics["ratio.clipped_share"] == 0.5


def test_an_absurd_ratio_stays_finite() -> None:
    ratios, _ = clipped_ratios(torch.tensor([-1.0]), torch.tensor([-1e9]), float("inf"))
    assert bool(torch.isfinite(ratios).all())


@pytest.mark.parametrize("kind", ["cross-entropy", "squared"])
def test_the_value_loss_has_a_gradient_in_both_heads(kind: str) -> None:
    item = evaluation(leaf(-1.0))
    (found,) = torch.autograd.grad(value_loss(item, steps([0.0]), kind), item.values)
    assert bool((found < 0).all()), "towards success, the logits must rise"
    failed = steps([0.0], successes=torch.zeros(1), value_targets=torch.zeros(1))
    (found,) = torch.autograd.grad(value_loss(item, failed, kind), item.values)
    assert bool((found > 0).all())


def test_every_output_gets_a_gradient() -> None:
    log_probs = leaf(-1.0, -0.5)
    item = evaluation(log_probs)
    batch = steps([1.0, -1.0], invalid=torch.tensor([False, True]))
    loss = a_ride_loss(item, batch, ARideOptions()).total
    for found in torch.autograd.grad(loss, [log_probs, item.entropies, item.values, item.trajectory_values]):
        assert bool((found != 0).all())


def test_more_entropy_is_less_loss() -> None:
    item = evaluation(leaf(-1.0))
    options = ARideOptions(**{**PLAIN, "entropy_weight": 0.5})
    assert gradient(a_ride_loss(item, steps([0.0]), options).total, item.entropies) == [-0.5]


def test_the_invalid_penalty_pushes_down_and_is_bounded() -> None:
    weights, invalid = torch.ones(2), torch.tensor([True, False])
    log_probs = leaf(-0.1, -0.1)
    loss = invalid_loss(log_probs, invalid, weights)
    assert gradient(loss, log_probs)[0] > 0.0
    assert gradient(invalid_loss(log_probs, invalid, weights), log_probs)[1] == 0.0
    impossible = invalid_loss(torch.tensor([-80.0, 0.0]), invalid, weights)
    assert float(impossible) == pytest.approx(0.0, abs=1e-6)
    certain = leaf(0.0, 0.0)
    assert bool(torch.isfinite(invalid_loss(certain, invalid, weights)))
    assert gradient(invalid_loss(log_probs, torch.tensor([False, False]), weights), log_probs) == [0.0, 0.0]


def test_only_the_actors_steps_move_the_policy() -> None:
    log_probs = leaf(-1.0, -1.0)
    batch = steps([1.0, 1.0], actor=torch.tensor([False, True]))
    assert gradient(a_ride_loss(evaluation(log_probs), batch, ARideOptions(**PLAIN)).total, log_probs) == [0.0, -1.0]


def test_normalised_advantages() -> None:
    everyone = torch.tensor([True, True, True, True])
    found = normalized(torch.tensor([0.0, 0.0, 1.0, 1.0]), everyone, 0.2)
    assert found.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found[3].item() == pytest.approx(0.5 / (0.57735 + 0.2), rel=1e-4)
    alike = normalized(torch.tensor([0.5, 0.501, 0.5, 0.499]), everyone, 0.2)
    assert alike.abs().max().item() < 0.01, "nearly equal outcomes are not blown up"
    assert normalized(torch.tensor([0.7]), torch.tensor([True]), 0.2).tolist() == pytest.approx([0.7])


def test_importance_weights_scale_a_step() -> None:
    log_probs = leaf(-1.0, -1.0)
    batch = steps([1.0, 1.0], weights=torch.tensor([1.0, 0.25]))
    assert gradient(a_ride_loss(evaluation(log_probs), batch, ARideOptions(**PLAIN)).total, log_probs) == [-0.5, -0.125]


def test_cloning_raises_the_demonstrated_action() -> None:
    log_probs = leaf(-1.0, -3.0)
    assert gradient(clone_loss(evaluation(log_probs)), log_probs) == [-0.5, -0.5]
