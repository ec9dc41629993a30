"""The collector ``demonstrator`` on the simulated phone, and what it does with demonstrations that do not work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from distrl.connectors.ledger import read_ledger
from distrl.connectors.simulated_phone.device import SimulatedPhone
from distrl.connectors.simulated_phone.option import Faults, PhoneOptions, TaskOptions
from distrl.connectors.simulated_phone.task import SimulatedTasks
from distrl.core.contracts.action import Action
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import Split, Trajectory
from distrl.core.contracts.role import CollectorParts, RoleContext, Ticket
from distrl.core.contracts.task import Task, TaskSource
from distrl.core.errors import TaskError, WeightsError
from distrl.plugins.builtin.collector.demonstrator import Demonstrator, Script
from distrl.plugins.builtin.collector.episode_options import EpisodeOptions
from distrl.plugins.builtin.evaluator.environment import EnvironmentEvaluator
from distrl.plugins.builtin.evaluator.state import StateEvaluator
from distrl.plugins.spec import Options
from distrl.testing import make_context

ROUNDS = 5000


class Changed:
    """The simulated phone's tasks with some demonstrations taken away or made wrong."""

    def __init__(self, tasks: SimulatedTasks, *, known: Sequence[str], wrong: bool = False) -> None:
        self._tasks = tasks
        self._known = known
        self._wrong = wrong

    def kinds(self) -> Sequence[str]:
        return self._tasks.kinds()

    def sample(self, split: Split, seed: int) -> Task:
        return self._tasks.sample(split, seed)

    def instances(self, split: Split, limit: int) -> Sequence[Task]:
        return self._tasks.instances(split, limit)

    def demonstrate(self, task: Task) -> Sequence[Action] | None:
        if task.kind not in self._known:
            return None
        return [Action("wait")] if self._wrong else self._tasks.demonstrate(task)


@pytest.fixture
def context(tmp_path: Path) -> RoleContext:
    return make_context(tmp_path, clock=SystemClock())


@pytest.fixture
def tasks(context: RoleContext) -> SimulatedTasks:
    return SimulatedTasks(TaskOptions(), context)


def tickets(count: int) -> Iterator[Ticket | None]:
    for number in range(count):
        yield Ticket(f"e{number}", number, None, 7, 7)
    while True:
        yield None


def record(
    context: RoleContext, source: TaskSource, count: int, *, phone: PhoneOptions | None = None
) -> list[Trajectory]:
    devices = [SimulatedPhone(phone or PhoneOptions(), context, index) for index in range(4)]
    demonstrator = Demonstrator(EpisodeOptions(wait_ms=50), context, CollectorParts(devices, source, None))
    leave = tickets(count)
    ended: list[Trajectory] = []
    with closing(demonstrator):
        for _ in range(ROUNDS):
            for item in demonstrator.advance(lambda: next(leave)):
                ended.append(item)
                if item.outcome != "aborted":
                    demonstrator.confirm(item)
            if len(ended) == count:
                assert demonstrator.in_flight() == 0
                return ended
    raise AssertionError(f"{len(ended)} of {count} demonstrations ended in {ROUNDS} rounds")


def test_demonstrations_succeed_and_say_what_they_are(context: RoleContext, tasks: SimulatedTasks) -> None:
    assert Demonstrator.uses_weights is False
    ended = record(context, tasks, 60)
    assert {(i.origin, i.outcome, i.environment_outcome) for i in ended} == {("demonstration", "finished", 1.0)}
    assert {(i.policy, i.epoch, i.version, i.base_model, i.sampling) for i in ended} == {("script", 0, 0, "", "{}")}
    assert {(i.task_kind, len(i.steps)) for i in ended} == {("open", 1), ("toggle", 2), ("search", 4)}
    assert {(step.log_prob, step.action_tokens, step.invalid) for i in ended for step in i.steps} == {(0, (), False)}
    assert {i.split for i in ended} == {"train"}
    for evaluator in (StateEvaluator(Options(), context), EnvironmentEvaluator(Options(), context)):
        assert {verdict.success for verdict in evaluator.evaluate(ended)} == {1.0}
    ledger = read_ledger(context.work_dir)
    assert ledger.started == ledger.finished == {i.trajectory_id for i in ended}


def test_the_same_tickets_give_the_same_demonstrations(context: RoleContext, tasks: SimulatedTasks) -> None:
    def actions() -> dict[str, list[str]]:
        return {i.trajectory_id: [step.action for step in i.steps] for i in record(context, tasks, 20)}

    assert actions() == actions()


def test_tasks_without_a_demonstration_are_drawn_again(context: RoleContext, tasks: SimulatedTasks) -> None:
    ended = record(context, Changed(tasks, known=["search"]), 20)
    assert {i.task_kind for i in ended} == {"search"}
    assert len({i.task_id for i in ended}) == 20
    with pytest.raises(TaskError, match="demonstrates none"):
        record(context, Changed(tasks, known=[]), 1)


def test_a_demonstration_that_does_not_solve_its_task_is_aborted(context: RoleContext, tasks: SimulatedTasks) -> None:
    for item in record(context, Changed(tasks, known=["open"], wrong=True), 4):
        assert (item.origin, item.outcome, item.error_class) == ("demonstration", "aborted", "TaskError")
        assert [step.action for step in item.steps] == ["wait", "done"]
        assert "does not solve" in item.error


def test_a_failing_phone_aborts_demonstrations_only_in_part(context: RoleContext, tasks: SimulatedTasks) -> None:
    ended = record(context, tasks, 60, phone=PhoneOptions(faults=Faults(crash_probability=0.1)))
    outcomes = {item.outcome for item in ended}
    assert outcomes == {"finished", "aborted"}
    assert {i.origin for i in ended} == {"demonstration"}
    assert {i.error_class for i in ended if i.outcome == "aborted"} == {"DeviceLostError"}
    kept = {i.trajectory_id for i in ended if i.outcome == "finished"}
    assert read_ledger(context.work_dir).finished == kept


def test_a_script_has_no_weights(tmp_path: Path) -> None:
    script = Script(["wait"])
    for call in (script.load, script.save):
        with pytest.raises(WeightsError):
            call(tmp_path / "weights")


def test_evaluators_agree_on_failures_too(context: RoleContext, tasks: SimulatedTasks) -> None:
    ended = record(context, Changed(tasks, known=["open", "toggle", "search"], wrong=True), 12)
    # As an agent would have left it: the same end, judged as an episode of the policy.
    judged = [replace(item, outcome="finished", final_observation=item.steps[-1].observation) for item in ended]
    for evaluator in (StateEvaluator(Options(), context), EnvironmentEvaluator(Options(), context)):
        assert {verdict.success for verdict in evaluator.evaluate(judged)} == {0.0}
