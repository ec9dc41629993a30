"""Targets of A-RIDE against cases worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrl.plugins.builtin.learner.target import Target, Trace, trajectory_target

number = st.floats(0.0, 1.0)
trajectory = st.lists(st.tuples(number, number), min_size=1, max_size=12)


def target(
    rewards: list[float],
    values: list[float],
    ratios: list[float],
    *,
    gamma: float = 1.0,
    trace_lambda: float = 1.0,
    **other: object,
) -> Target:
    return trajectory_target(rewards, values, ratios, gamma=gamma, trace_lambda=trace_lambda, **other)  # type: ignore[arg-type]


def test_two_steps_by_hand() -> None:
    # td = [0.9 * 0.6 - 0.5, 1 - 0.6] = [0.04, 0.4]; c_2 = 0.8 * min(1, 0.5) = 0.4
    # D_2 = 0.4; D_1 = 0.04 + 0.9 * 0.4 * 0.4 = 0.184
    result = target([0.0, 1.0], [0.5, 0.6], [3.0, 0.5], gamma=0.9, trace_lambda=0.8)
    assert result.td == pytest.approx((0.04, 0.4))
    assert result.values == pytest.approx((0.684, 1.0))
    # A_1 = 0.9 * V_target(s_2) - 0.5 = 0.4; A_2 = 1 - 0.6
    assert result.advantages == pytest.approx((0.4, 0.4))
    assert result.returns == pytest.approx((0.9, 1.0))


def test_the_first_term_carries_no_ratio() -> None:
    for ratio in (0.0, 0.3, 1.0, 7.0):
        assert target([1.0], [0.25], [ratio]).values == pytest.approx((1.0,))


def test_v_trace_weighs_the_first_term_by_the_ratio() -> None:
    # D_2 = 0.5 * 0.4 = 0.2; D_1 = 0.5 * 0.1 + 0.5 * 0.2 = 0.15
    result = target([0.0, 1.0], [0.5, 0.6], [0.5, 0.5], trace="v-trace")
    assert result.values == pytest.approx((0.65, 0.8))


def test_retrace_is_not_v_trace_off_policy_and_is_on_policy() -> None:
    rewards, values = [0.0, 0.0, 1.0], [0.2, 0.5, 0.7]
    off = [0.4, 0.9, 0.6]
    assert target(rewards, values, off).values != pytest.approx(target(rewards, values, off, trace="v-trace").values)
    on = [1.0, 1.0, 1.0]
    assert target(rewards, values, on).values == pytest.approx(target(rewards, values, on, trace="v-trace").values)


@given(trajectory)
@pytest.mark.parametrize("trace", ["retrace", "v-trace"])
def test_on_policy_without_decay_is_monte_carlo(trace: Trace, steps: list[tuple[float, float]]) -> None:
    rewards, values = [reward for reward, _ in steps], [value for _, value in steps]
    result = target(rewards, values, [1.0] * len(steps), trace=trace)
    expected = [sum(rewards[place:]) for place in range(len(rewards))]
    assert result.values == pytest.approx(expected)
    assert result.returns == pytest.approx(expected)


@given(trajectory, st.floats(1.0, 50.0))
def test_ratios_above_one_are_cut(steps: list[tuple[float, float]], ratio: float) -> None:
    rewards, values = [reward for reward, _ in steps], [value for _, value in steps]
    assert target(rewards, values, [ratio] * len(steps)) == target(rewards, values, [1.0] * len(steps))


def test_a_zero_ratio_cuts_what_follows() -> None:
    result = target([0.0, 0.0, 1.0], [0.1, 0.2, 0.3], [1.0, 1.0, 0.0])
    assert result.values[1] == pytest.approx(0.2 + (0.3 - 0.2))
    assert result.values[2] == pytest.approx(1.0)


def test_one_step_advantage_is_the_td_error() -> None:
    result = target([0.0, 1.0], [0.5, 0.6], [1.0, 1.0], advantage="one-step")
    assert result.advantages == pytest.approx(result.td)
    assert result.advantages[0] != pytest.approx(target([0.0, 1.0], [0.5, 0.6], [1.0, 1.0]).advantages[0])


def test_the_rewarded_step_has_an_advantage() -> None:
    assert target([0.0, 1.0], [0.5, 0.25], [1.0, 1.0]).advantages[-1] == pytest.approx(0.75)


def test_a_cut_episode_goes_on_at_the_bootstrap() -> None:
    assert target([0.0], [0.5], [1.0]).td == pytest.approx((-0.5,))
    cut = target([0.0], [0.5], [1.0], gamma=0.5, bootstrap=0.8)
    assert cut.td == pytest.approx((-0.1,))
    assert cut.advantages == pytest.approx((-0.1,))
    assert cut.returns == (0.0,)


def test_an_empty_trajectory_has_no_targets() -> None:
    assert target([], [], []) == Target((), (), (), ())


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="one entry a step"):
        target([1.0], [0.5, 0.5], [1.0])
