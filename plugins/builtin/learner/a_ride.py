"""The learner ``a-ride``: Retrace on state values over prioritized replay, after a warm start by cloning. Runs in the learner node.

One call of ``update`` is one bounded piece of work: a few cloning steps, or one gradient step on sampled trajectories. The warm
start's end makes a version, and so does every ``replay_ratio * batch / samples`` gradient steps on ``batch`` new trajectories.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from distrl.core.contracts.events import Priority
from distrl.core.contracts.policy import PolicyEvaluation, PolicyInput, TrainablePolicy
from distrl.core.contracts.role import Experience, Numbers, RoleContext, UpdateResult, Wanted
from distrl.core.contracts.staleness import StalenessPolicy
from distrl.core.errors import CheckpointError, ConfigError, InvalidEventError, PolicyError, SplitViolationError
from distrl.plugins.builtin.learner import learner_state
from distrl.plugins.builtin.learner.a_ride_options import ARideOptions
from distrl.plugins.builtin.learner.demonstration import DemonstrationSet
from distrl.plugins.builtin.learner.loss import StepBatch, a_ride_loss, clipped_ratios, clone_loss
from distrl.plugins.builtin.learner.replay_buffer import ReplayBuffer
from distrl.plugins.builtin.learner.screen_cache import ScreenCache
from distrl.plugins.builtin.learner.target import Target, trajectory_target
from distrl.plugins.builtin.learner.transition import final_input, penalties, policy_input, rewards


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Some trajectories under the present policy."""

    experiences: Sequence[Experience]
    evaluation: PolicyEvaluation
    """Over the N steps of all of them, one after another."""
    behaviour_log_probs: Tensor
    """[N]."""
    targets: Sequence[Target]
    """One a trajectory."""
    numbers: Sequence[Numbers]
    """One a trajectory."""


class ARide:
    """See the module and ``Learner``."""

    name = "a-ride"

    def __init__(self, options: ARideOptions, context: RoleContext, policy: TrainablePolicy) -> None:
        if not hasattr(policy, "evaluate"):
            raise ConfigError(f"the learner a-ride needs a policy that can be trained; {policy.name} only acts")
        self._options = options
        self._policy = policy
        self._random = random.Random(context.random.getrandbits(64))
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=options.learning_rate)
        self._screens = ScreenCache(context.artefacts, policy, options.screen_bytes)
        self._demonstrations = DemonstrationSet(options.demonstrations, policy, self._screens)
        self._buffer = self._new_buffer(StalenessPolicy(max_lag=0, batch=options.batch))
        self._refused: dict[str, str] = {}
        self._recent: deque[float] = deque(maxlen=options.batch)
        self._cloned = 0
        self._new = 0
        """Trajectories of the policy that no version has consumed yet."""
        self._left = 0
        """Gradient steps left of the version in hand."""
        self._trained = False
        """Whether the version in hand has changed the weights."""
        self._versions = 0
        """Versions made from trajectories of the policy."""
        self._ingested = 0
        self._sampled = 0

    @property
    def policy(self) -> TrainablePolicy:
        return self._policy

    @property
    def batch(self) -> int:
        return self._options.batch

    def use(self, staleness: StalenessPolicy) -> None:
        """See ``Learner``; raises ``ValueError`` once something is in the buffer."""
        if len(self._buffer):
            raise ValueError("the staleness policy is set before anything is ingested")
        self._buffer = self._new_buffer(staleness)

    # --- data -----------------------------------------------------------------------------------

    def ingest(self, batch: Sequence[Experience]) -> None:
        """See ``Learner``. Raises ``SplitViolationError`` and ``InvalidEventError`` for what must never train."""
        for experience in batch:
            trajectory = experience.trajectory
            if trajectory.split == "test":
                raise SplitViolationError(f"trajectory {trajectory.trajectory_id} is of the test split")
            if trajectory.outcome == "aborted":
                raise InvalidEventError(f"trajectory {trajectory.trajectory_id} was aborted: {trajectory.error}")
            self._check(experience)
            if trajectory.origin != "policy":
                refusal = self._demonstrations.add(experience)
                if refusal:
                    self._refused[trajectory.trajectory_id] = refusal
                continue
            # An empty one counts as consumed, or a batch of them would be waited for twice.
            self._new += 1
            self._ingested += 1
            self._recent.append(experience.reward.success)
            if trajectory.steps:
                self._buffer.add(experience)
            else:
                self._refused[trajectory.trajectory_id] = "empty"

    def _check(self, experience: Experience) -> None:
        """Find out now whether the policy can look at an experience: one that it cannot must not be sampled ever after."""
        trajectory = experience.trajectory
        if not trajectory.steps:
            return
        try:
            if trajectory.origin == "policy":
                with torch.no_grad():
                    self._evaluate([experience])
            else:
                for place in range(len(trajectory.steps)):
                    policy_input(trajectory, place, self._screens)
        except PolicyError as error:
            raise InvalidEventError(f"trajectory {trajectory.trajectory_id} cannot be learned from: {error}") from error

    def prioritize(self, batch: Sequence[Priority]) -> None:
        for priority in batch:
            self._buffer.prioritize(priority.trajectory_id, priority.priority)

    def evictions(self) -> Mapping[str, str]:
        """See ``Learner``; besides the buffer's reasons: empty, unsuccessful and surplus (demonstrations)."""
        refused, self._refused = self._refused, {}
        return {**refused, **self._buffer.evictions()}

    def buffered(self) -> Sequence[str]:
        return [*self._demonstrations.ids, *self._buffer.ids]

    def wanted(self) -> Wanted:
        if self._cloning and self._demonstrations.lacking > 0:
            return Wanted(demonstrations=self._demonstrations.lacking)
        if self._cloning or self._left > 0:
            return Wanted()
        return Wanted(policy=max(self._options.batch - self._new, 0))

    # --- training -------------------------------------------------------------------------------

    def update(self, version: int) -> UpdateResult:
        """See ``Learner``; does nothing while ``wanted`` says that something is missing."""
        self._buffer.advance(version)
        if self.wanted() != Wanted():
            return UpdateResult(publish=False)
        if self._cloning:
            return self._clone()
        if self._left == 0:
            self._new -= self._options.batch
            self._left = self._options.updates
            self._trained = False
        trained, metrics = self._improve()
        self._left -= 1
        if self._left > 0 or not self._trained:
            return UpdateResult(publish=False, trained=trained, metrics=metrics)
        self._versions += 1
        return UpdateResult(publish=True, trained=trained, rescanned=self._rescan(), metrics=metrics)

    @property
    def _cloning(self) -> bool:
        return self._options.demonstrations > 0 and self._cloned < self._options.clone_updates

    def _clone(self) -> UpdateResult:
        options = self._options
        losses = []
        for _ in range(min(options.clone_chunk, options.clone_updates - self._cloned)):
            loss = self._clone_loss()
            if loss is None:
                raise PolicyError(
                    f"not one step of {len(self._demonstrations)} demonstrations can be said by the policy {self._policy.name}: "
                    "nothing to clone; give the policy the action types that the demonstrator uses, or set demonstrations to 0"
                )
            self._descend(loss, options.clone_learning_rate)
            losses.append(float(loss.detach()))
            self._cloned += 1
        metrics = {"loss.clone": fmean(losses), "clone.updates": float(self._cloned)}
        if self._demonstrations.unsayable:
            metrics["clone.unsayable_steps"] = float(self._demonstrations.unsayable)
        return UpdateResult(publish=not self._cloning, metrics=metrics)

    def _clone_loss(self) -> Tensor | None:
        chosen = self._demonstrations.sample(self._options.clone_steps, self._random)
        if not chosen:
            return None
        return clone_loss(self._policy.evaluate([item for item, _ in chosen], [tokens for _, tokens in chosen]))

    def _improve(self) -> tuple[Sequence[Numbers], dict[str, float]]:
        """One gradient step on sampled trajectories; none if all that is buffered is withheld."""
        options = self._options
        samples = self._buffer.sample(options.samples, self._random)
        self._sampled += len(samples)
        metrics = self._buffer_metrics()
        if not samples:
            return (), metrics
        evaluated = self._evaluate([sample.experience for sample in samples])
        loss = a_ride_loss(
            evaluated.evaluation, self._step_batch(evaluated, [sample.weight for sample in samples]), options
        )
        total = loss.total
        metrics |= loss.metrics
        if options.clone_weight > 0.0:
            clone = self._clone_loss()
            if clone is not None:
                total = total + options.clone_weight * clone
                metrics["loss.clone"] = float(clone.detach())
        metrics["gradient_norm"] = self._descend(total, options.learning_rate)
        self._trained = True
        metrics["td.mean_abs"] = fmean(number.mean_abs_td or 0.0 for number in evaluated.numbers)
        # The same trajectory may have been drawn twice; its numbers are the same.
        return list({number.trajectory_id: number for number in evaluated.numbers}.values()), metrics

    def _evaluate(self, experiences: Sequence[Experience]) -> Evaluated:
        options = self._options
        inputs: list[PolicyInput] = []
        tokens: list[Sequence[int]] = []
        cut: dict[int, int] = {}
        for experience in experiences:
            trajectory = experience.trajectory
            for place, step in enumerate(trajectory.steps):
                inputs.append(policy_input(trajectory, place, self._screens))
                tokens.append(step.action_tokens)
        count = len(inputs)
        if options.bootstrap_horizon:
            for index, experience in enumerate(experiences):
                last = final_input(experience.trajectory, self._screens)
                if experience.trajectory.outcome == "horizon" and last is not None:
                    cut[index] = len(inputs)
                    inputs.append(last)
                    # Only the value of this row is used; any action that the goal allows will do.
                    tokens.append(experience.trajectory.steps[-1].action_tokens)
        full = self._policy.evaluate(inputs, tokens)
        values: list[float] = full.values.detach().amin(dim=1).sigmoid().tolist()
        evaluation = PolicyEvaluation(
            full.log_probs[:count], full.entropies[:count], full.values[:count], full.trajectory_values[:count]
        )
        behaviour = torch.tensor([step.log_prob for item in experiences for step in item.trajectory.steps])
        raw, _ = clipped_ratios(evaluation.log_probs, behaviour, float("inf"))
        ratios: list[float] = raw.tolist()
        entropies: list[float] = evaluation.entropies.detach().tolist()
        targets, numbers = [], []
        start = 0
        for index, experience in enumerate(experiences):
            end = start + len(experience.trajectory.steps)
            target = trajectory_target(
                rewards(experience.trajectory, experience.reward.success),
                values[start:end],
                ratios[start:end],
                gamma=options.gamma,
                trace_lambda=options.trace_lambda,
                trace=options.trace,
                advantage=options.advantage,
                bootstrap=values[cut[index]] if index in cut else None,
            )
            targets.append(target)
            numbers.append(
                Numbers(
                    experience.trajectory.trajectory_id,
                    mean_abs_td=fmean(abs(td) for td in target.td),
                    mean_ratio=fmean(min(ratio, options.ratio_max) for ratio in ratios[start:end]),
                    mean_entropy=fmean(entropies[start:end]),
                )
            )
            start = end
        return Evaluated(experiences, evaluation, behaviour, targets, numbers)

    def _step_batch(self, evaluated: Evaluated, weights: Sequence[float]) -> StepBatch:
        options = self._options
        counts = [len(experience.trajectory.steps) for experience in evaluated.experiences]
        expected = evaluated.evaluation.trajectory_values.detach().sigmoid().tolist()
        firsts = itertools.accumulate(counts[:-1], initial=0)
        keep = [
            options.keep == "all" or experience.reward.success > expected[first]
            for experience, first in zip(evaluated.experiences, firsts, strict=True)
        ]
        repeats = torch.tensor(counts)

        def spread(numbers: Sequence[float]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.float32).repeat_interleave(repeats)

        def joined(rows: Sequence[Sequence[float]]) -> Tensor:
            return torch.tensor(list(itertools.chain.from_iterable(rows)), dtype=torch.float32)

        return StepBatch(
            behaviour_log_probs=evaluated.behaviour_log_probs,
            advantages=joined([target.advantages for target in evaluated.targets])
            - joined([penalties(experience.trajectory, options) for experience in evaluated.experiences]),
            actor=torch.tensor(keep).repeat_interleave(repeats),
            invalid=torch.tensor([step.invalid for item in evaluated.experiences for step in item.trajectory.steps]),
            value_targets=joined([target.values for target in evaluated.targets]),
            successes=(joined([target.returns for target in evaluated.targets]) > 0.0).to(torch.float32),
            trajectory_successes=spread([experience.reward.success for experience in evaluated.experiences]),
            weights=spread(weights),
        )

    def _descend(self, loss: Tensor, learning_rate: float) -> float:
        """One optimizer step; returns the gradient's norm before it was scaled down. Raises ``PolicyError`` if it is not finite."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._options.gradient_norm))
        if not norm < float("inf"):
            raise PolicyError(
                "the gradient is not finite: lower learning_rate; the weights are as they were before this step"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return norm

    def _rescan(self) -> Sequence[Numbers]:
        """Fresh numbers of what was long not sampled, so that an outdated priority starves nothing."""
        options = self._options
        if options.rescan_versions == 0 or self._versions % options.rescan_versions:
            return ()
        waiting = self._buffer.neglected(options.rescan_trajectories, options.rescan_versions)
        if not waiting:
            return ()
        with torch.no_grad():
            return self._evaluate(waiting).numbers

    def _buffer_metrics(self) -> dict[str, float]:
        buffer = self._buffer
        metrics = {
            "buffer.trajectories": float(len(buffer)),
            "buffer.bytes": float(buffer.bytes),
            "buffer.withheld": float(buffer.withheld),
            "withheld": float(buffer.withheld_total),
            "replay_ratio": self._sampled / max(self._ingested, 1),
            "success.batch": fmean(self._recent) if self._recent else 0.0,
        }
        return metrics | {f"evicted.{reason}": float(count) for reason, count in buffer.evicted_by.items()}

    # --- state ----------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        self._policy.save(directory / learner_state.POLICY)
        learner_state.save_optimizer(self._optimizer, directory)
        state = {
            "learner": self.name,
            "cloned": self._cloned,
            "new": self._new,
            "left": self._left,
            "trained": self._trained,
            "versions": self._versions,
            "ingested": self._ingested,
            "sampled": self._sampled,
            "recent": list(self._recent),
            "demonstrations": self._demonstrations.ids,
            "buffer": self._buffer.state(),
        }
        learner_state.save_state(state, self._random, directory)

    def restore(self, directory: Path, buffered: Sequence[Experience]) -> None:
        """See ``Learner``; before anything is ingested. Raises ``CheckpointError`` and ``WeightsError``."""
        state = learner_state.restore_state(self._random, directory)
        if state.get("learner") != self.name:
            raise CheckpointError(
                f"the checkpoint in {directory} is of the learner {state.get('learner')!r}, not of {self.name}"
            )
        self._policy.load(directory / learner_state.POLICY)
        learner_state.restore_optimizer(self._optimizer, directory)
        by_id = {experience.trajectory.trajectory_id: experience for experience in buffered}
        try:
            self._cloned = int(state["cloned"])
            self._new = int(state["new"])
            self._left = int(state["left"])
            self._trained = bool(state["trained"])
            self._versions = int(state["versions"])
            self._ingested = int(state["ingested"])
            self._sampled = int(state["sampled"])
            self._recent.extend(float(success) for success in state["recent"])
            for identity in state["demonstrations"]:
                if identity in by_id:
                    self._demonstrations.add(by_id[identity])
            self._buffer.restore(state["buffer"], buffered)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint in {directory} lacks or garbles a part: {error!r}") from error

    def _new_buffer(self, staleness: StalenessPolicy) -> ReplayBuffer:
        options = self._options
        return ReplayBuffer(
            staleness,
            max_trajectories=options.buffer_trajectories,
            max_bytes=options.buffer_bytes,
            alpha=options.alpha,
            beta=options.importance_beta,
        )
