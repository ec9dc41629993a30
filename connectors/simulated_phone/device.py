"""The simulated phone: a ``Device`` made of a state, a list of widgets and pre-drawn tiles. Made by collectors and evaluation.

An observation is 96 by 192 raw RGB pixels (``image/x-rgb``) and a UI tree. The environment ends an episode itself once
the goal is reached; from then on the screen stays as it is.
"""

from __future__ import annotations

import random

from distrl.connectors.ledger import LedgerFile
from distrl.connectors.simulated_phone.art import paint
from distrl.connectors.simulated_phone.fault import Condition
from distrl.connectors.simulated_phone.layout import HEIGHT, WIDTH, draw_layout
from distrl.connectors.simulated_phone.option import PhoneOptions
from distrl.connectors.simulated_phone.state import PhoneState
from distrl.connectors.simulated_phone.widget import Widget, target_at, ui_tree, widgets
from distrl.core.contracts.action import Action
from distrl.core.contracts.device import StepResult
from distrl.core.contracts.events import Outcome
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.role import RoleContext
from distrl.core.contracts.task import Task
from distrl.core.errors import DeviceError, TaskError


class SimulatedPhone:
    """A ``Device``. Pixels and transitions depend on the task and the actions alone; slowness and failures on the run's
    seed, the node and the index."""

    def __init__(self, options: PhoneOptions, context: RoleContext, index: int) -> None:
        self._id = f"{context.node}-phone-{index}"
        self._clock = context.clock
        rng = random.Random(f"simulated-phone/{context.seed}/{self._id}")
        self._condition = Condition(options, context.clock, rng)
        self._ledger = LedgerFile(context.work_dir, self._id)
        self._task: Task | None = None
        self._state: PhoneState | None = None
        self._widgets: list[Widget] = []
        self._screen: tuple[Screenshot, str] | None = None

    @property
    def device_id(self) -> str:
        return self._id

    def reset(self, task: Task, *, episode: str) -> Observation:
        """Raises ``TaskError`` for a task that is not this phone's."""
        try:
            self._state = PhoneState(draw_layout(task.seed, task.parameters))
            self._state.reached(task.parameters)
        except (KeyError, ValueError) as error:
            self._state = None
            raise TaskError(f"task {task.task_id!r} is not one of the simulated phone: {error!r}") from error
        self._task = task
        self._draw()
        self._condition.broken = None
        self._condition.delay()
        self._ledger.append("started", episode, time_ms=self._clock.time_ms())
        return self._look()

    def step(self, action: Action) -> StepResult:
        state, task = self._running()
        self._condition.check()
        self._condition.risk()
        self._condition.delay()
        if not state.reached(task.parameters) and self._apply(state, action):
            self._draw()
        done = state.reached(task.parameters)
        return StepResult(self._look(), done, 1.0 if done else None)

    def observe(self) -> Observation:
        self._running()
        self._condition.check()
        self._condition.delay()
        return self._look()

    def outcome(self) -> float | None:
        state, task = self._running()
        return 1.0 if state.reached(task.parameters) else 0.0

    def finish(self, episode: str, outcome: Outcome) -> None:
        self._ledger.append("finished", episode, time_ms=self._clock.time_ms(), outcome=outcome)

    def health(self) -> None:
        self._condition.check()

    def close(self) -> None:
        self._ledger.close()

    def _running(self) -> tuple[PhoneState, Task]:
        if self._state is None or self._task is None:
            raise DeviceError(f"{self._id} has no episode; reset it first")
        return self._state, self._task

    def _apply(self, state: PhoneState, action: Action) -> bool:
        """Whether anything on the screen changed."""
        before = (state.app, state.focused, state.text, state.query, tuple(state.switches.values()))
        match action.kind:
            case "tap":
                state.tap(target_at(self._widgets, *action.point))
            case "type":
                state.type(action.text)
            case "press":
                state.press(action.key)
            case "swipe" | "wait" | "done" | "fail":
                pass  # nothing scrolls, and the collector acts on the agent's own word
        return before != (state.app, state.focused, state.text, state.query, tuple(state.switches.values()))

    def _draw(self) -> None:
        state, _ = self._running()
        self._widgets = widgets(state)
        pixels = paint(state.app, bool(state.query), self._widgets)
        self._screen = Screenshot(WIDTH, HEIGHT, pixels, "image/x-rgb"), ui_tree(state, self._widgets)

    def _look(self) -> Observation:
        if self._screen is None:
            raise DeviceError(f"{self._id} has no screen; reset it first")
        return Observation(self._clock.time_ms(), *self._screen)
