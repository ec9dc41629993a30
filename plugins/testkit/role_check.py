"""Contract checks of the four roles. Each raises ``AssertionError`` that says what is broken. Called by authors' tests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from distrl.core.contracts.events import Feedback, Reward, Trajectory
from distrl.core.contracts.policy import Policy
from distrl.core.contracts.role import Collector, Evaluator, Experience, Learner, Prioritizer, Ticket, Wanted
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.plugins.testkit.pipeline import over_the_log, run_collector
from distrl.plugins.testkit.sample import (
    make_feedback,
    make_policy_trajectory,
    make_priority,
    make_reward,
    make_step,
    make_trajectory,
)


def require(condition: bool, what: str) -> None:
    """Raise ``AssertionError(what)`` unless ``condition`` holds; not skipped by ``python -O``."""
    if not condition:
        raise AssertionError(what)


def sample_trajectories() -> list[Trajectory]:
    """What a role must cope with: success, failure, a reached horizon, one step, invalid actions, no value, a demonstration."""
    return [
        make_trajectory("success"),
        make_trajectory("failure", success=False),
        make_trajectory("horizon", success=False, outcome="horizon", steps=10),
        make_trajectory("short", steps=1),
        make_trajectory("invalid", steps=[make_step("fly", invalid=True, invalid_reason="unknown action 'fly'")]),
        make_trajectory("valueless", steps=[make_step(value=None)]),
        make_trajectory(
            "demonstration",
            origin="demonstration",
            policy="script",
            epoch=0,
            version=0,
            steps=[make_step(action_tokens=(), token_log_probs=(), log_prob=0.0, entropy=0.0, value=None)],
        ),
    ]


def check_evaluator(evaluator: Evaluator, trajectories: Sequence[Trajectory] | None = None) -> None:
    """One verdict a trajectory, in order, from 0 to 1, and the same however the trajectories are batched."""
    batch = list(trajectories) if trajectories is not None else sample_trajectories()
    for part in ("name", "version"):
        value = getattr(evaluator, part)
        require(isinstance(value, str) and value != "", f"{part} is {value!r}; it must be text that is not empty")
    require(list(evaluator.evaluate([])) == [], "an empty batch must give no verdicts")
    verdicts = list(evaluator.evaluate(batch))
    require(len(verdicts) == len(batch), f"{len(verdicts)} verdicts for {len(batch)} trajectories")
    for trajectory, verdict in zip(batch, verdicts, strict=True):
        require(
            0.0 <= verdict.success <= 1.0,
            f"success of {trajectory.trajectory_id} is {verdict.success}; it must be from 0 to 1",
        )
        require(isinstance(verdict.reason, str), f"the reason for {trajectory.trajectory_id} is no text")
        over_the_log(make_reward(trajectory, verdict.success, reason=verdict.reason))
    again = list(evaluator.evaluate(batch))
    require(again == verdicts, "the same batch got other verdicts the second time; an evaluator keeps no state")
    backwards = list(evaluator.evaluate(batch[::-1]))[::-1]
    require(backwards == verdicts, "verdicts depend on the order of the batch")
    single = [verdict for trajectory in batch for verdict in evaluator.evaluate([trajectory])]
    require(single == verdicts, "verdicts depend on what else is in the batch")


def check_prioritizer(prioritizer: Prioritizer, trajectories: Sequence[Trajectory] | None = None) -> None:
    """A finite priority of at least 0 for whatever arrives, and a sound answer to any feedback."""
    batch = (
        list(trajectories) if trajectories is not None else [*sample_trajectories(), make_trajectory("empty", steps=0)]
    )
    name = prioritizer.name
    require(isinstance(name, str) and name != "", f"name is {name!r}; it must be text that is not empty")
    require(list(prioritizer.arrived([])) == [], "an empty batch must give no priorities")
    pairs: list[tuple[Trajectory, Reward]] = [
        (trajectory, make_reward(trajectory, float(index % 2))) for index, trajectory in enumerate(batch)
    ]
    priorities = list(prioritizer.arrived(pairs))
    require(len(priorities) == len(pairs), f"{len(priorities)} priorities for {len(pairs)} trajectories")
    for trajectory, priority in zip(batch, priorities, strict=True):
        _sound(priority, trajectory.trajectory_id)
    require(list(prioritizer.refreshed([])) == [], "no feedback must give no priorities")
    feedback: list[Feedback] = [
        make_feedback(batch[0].trajectory_id),
        make_feedback(batch[0].trajectory_id, kind="rescanned", mean_abs_td=0.0, mean_ratio=0.0, mean_entropy=0.0),
        make_feedback("never seen before", mean_abs_td=None, mean_ratio=None, mean_entropy=None),
    ]
    refreshed = list(prioritizer.refreshed(feedback))
    require(len(refreshed) == len(feedback), f"{len(refreshed)} answers to {len(feedback)} feedback events")
    for item, answer in zip(feedback, refreshed, strict=True):
        if answer is not None:
            _sound(answer, item.trajectory_id)


def _sound(priority: float, trajectory_id: str) -> None:
    require(
        math.isfinite(priority) and priority >= 0,
        f"the priority of {trajectory_id} is {priority}; it must be finite and not negative",
    )


def check_collector(collector: Collector, policy: Policy | None, *, episodes: int = 4, rounds: int = 10_000) -> None:
    """A ticket is one trajectory, under the ticket's id and version, and what is in hand at the end comes back as aborted.

    ``policy`` is ``None`` for a demonstrator. Closes the collector.
    """
    uses_weights = collector.uses_weights
    require(
        uses_weights is (policy is not None), f"uses_weights is {uses_weights}: give a policy exactly if it is True"
    )
    require(collector.in_flight() == 0, "episodes are in flight before any ticket was given")
    require(list(collector.advance(lambda: None)) == [], "an episode ended that no ticket allowed")
    ended = run_collector(collector, policy, episodes, version=3, rounds=rounds)
    kind = "episode" if uses_weights else "demonstration"
    ids = sorted(trajectory.trajectory_id for trajectory in ended)
    require(
        ids == sorted(f"{kind}-{number}" for number in range(episodes)), f"tickets and trajectories do not match: {ids}"
    )
    require(collector.in_flight() == 0, "episodes are in flight although all have ended")
    for trajectory in ended:
        _check_episode(trajectory, uses_weights)
    issued: list[str] = []

    def one_more() -> Ticket | None:
        if issued:
            return None
        issued.append("last")
        return Ticket("last", episodes, policy, 1, 3)

    returned = [*collector.advance(one_more)]
    returned += collector.close()
    require([trajectory.trajectory_id for trajectory in returned] == issued, "an episode in hand was lost at the end")
    require(collector.in_flight() == 0, "episodes are in flight after close")
    require(list(collector.close()) == [], "a second close returned episodes again")


def _check_episode(trajectory: Trajectory, uses_weights: bool) -> None:
    who = trajectory.trajectory_id
    if uses_weights:
        require(trajectory.origin == "policy", f"{who}: origin is {trajectory.origin}")
        require(
            (trajectory.epoch, trajectory.version) == (1, 3), f"{who}: epoch and version are not those of its ticket"
        )
    else:
        require(trajectory.origin == "demonstration", f"{who}: origin is {trajectory.origin}")
    require(len(trajectory.steps) <= trajectory.horizon, f"{who}: more steps than its horizon of {trajectory.horizon}")
    require(trajectory.started_ms <= trajectory.ended_ms, f"{who}: it ended before it started")
    if trajectory.outcome == "aborted":
        require(trajectory.error_class != "", f"{who}: aborted without an error")
        return
    require(trajectory.final_observation is not None, f"{who}: no final observation")
    for step in trajectory.steps:
        require(
            math.isclose(step.log_prob, sum(step.token_log_probs), abs_tol=1e-4),
            f"{who}: log_prob {step.log_prob} is not the sum of token_log_probs",
        )


def check_learner(make: Callable[[], Learner], work_dir: Path, *, most_updates: int = 500) -> None:
    """Takes in what it wants, publishes, forgets nothing over a save and restore, and copes with odd batches.

    ``make`` gives a new learner with a new policy at each call. The learner must not want demonstrations: set its options so.
    ``work_dir`` is an empty folder.
    """
    learner = make()
    require(isinstance(learner.name, str) and learner.name != "", "name must be text that is not empty")
    require(learner.batch >= 1, f"batch is {learner.batch}; it must be at least 1")
    learner.use(StalenessPolicy(max_lag=0, batch=learner.batch))
    learner.ingest([])
    learner.prioritize([])
    learner.prioritize([make_priority("never seen before")])
    require(list(learner.buffered()) == [], "something is buffered before anything came")
    wanted = learner.wanted()
    require(wanted.demonstrations == 0, "it wants demonstrations: check it with options that need none")
    require(wanted.policy >= 1, "a learner without data must want some, or it would train on nothing")
    experiences: list[Experience] = []
    _feed(learner, experiences)
    known = {experience.trajectory.trajectory_id for experience in experiences}
    gone: set[str] = set()
    for _ in range(most_updates):
        result = learner.update(0)
        gone |= set(learner.evictions())
        for numbers in [*result.trained, *result.rescanned]:
            require(numbers.trajectory_id in known, f"numbers of {numbers.trajectory_id!r}, which it was never given")
        for name, value in result.metrics.items():
            require(isinstance(value, float | int), f"metric {name} is no number")
        if result.publish:
            break
        if learner.wanted() != Wanted():
            _feed(learner, experiences)
            known = {experience.trajectory.trajectory_id for experience in experiences}
    else:
        raise AssertionError(f"nothing was published in {most_updates} updates")
    buffered = set(learner.buffered())
    require(buffered <= known, f"ids are buffered that it was never given: {sorted(buffered - known)}")
    require(not buffered & gone, f"ids are buffered that it reported as evicted: {sorted(buffered & gone)}")
    _check_restore(make, learner, experiences, work_dir)


def _feed(learner: Learner, experiences: list[Experience]) -> None:
    """Give it what it wants, one by one and in a batch, long and short."""
    lacking = learner.wanted().policy
    new = []
    for number in range(len(experiences), len(experiences) + lacking):
        name, good = f"trajectory-{number}", number % 2 == 0
        trajectory = make_policy_trajectory(learner.policy, name, steps=1 + number % 3, success=good)
        new.append(Experience(over_the_log(trajectory), make_reward(trajectory, float(good))))
    learner.ingest(new[:1])
    learner.ingest(new[1:])
    learner.prioritize([make_priority(item.trajectory.trajectory_id, 1.0) for item in new])
    experiences += new
    after = learner.wanted()
    require(
        after.policy < max(lacking, 1),
        f"it was given the {lacking} trajectories that it wanted and wants {after.policy}",
    )


def _check_restore(
    make: Callable[[], Learner], learner: Learner, experiences: list[Experience], work_dir: Path
) -> None:
    state, before, after = work_dir / "state", work_dir / "before.safetensors", work_dir / "after.safetensors"
    state.mkdir(parents=True)
    learner.save(state)
    odd = [path.name for path in state.rglob("*") if path.is_file() and path.suffix not in (".safetensors", ".json")]
    require(not odd, f"a checkpoint is safetensors and JSON; it wrote {odd}")
    buffered = set(learner.buffered())
    other = make()
    other.use(StalenessPolicy(max_lag=0, batch=other.batch))
    other.restore(state, [item for item in experiences if item.trajectory.trajectory_id in buffered])
    require(set(other.buffered()) == buffered, "the buffer is not the same after save and restore")
    require(other.wanted() == learner.wanted(), "it wants something else after save and restore")
    learner.policy.save(before)
    other.policy.save(after)
    require(_tensors(before) == _tensors(after), "the policy's weights are not the same after save and restore")


def _tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes of each tensor in a safetensors file, whose header may name them in any order.

    Format: 8 bytes little-endian length, that many bytes of JSON, then the data that the JSON's offsets count from.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }
