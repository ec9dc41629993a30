"""The simulated phone's tasks, split into training and test without a shared instance. Made by collectors and evaluation.

An instance is its kind, goal and start layout. It is a test instance if its *combination* is held out (app and phrasing;
switch, state and phrasing; the two words of a search), or else if its own hash says so: so unseen tasks are unseen combinations of
known parts, and known combinations on unseen layouts.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import islice

from distrl.connectors.simulated_phone.catalogue import (
    APPS,
    MODIFIERS,
    NOUNS,
    OPEN_PHRASES,
    SEARCH_PHRASES,
    SEARCHABLE,
    SWITCHES,
    TOGGLE_PHRASES,
)
from distrl.connectors.simulated_phone.layout import centre, draw_layout
from distrl.connectors.simulated_phone.option import Kind, TaskOptions
from distrl.connectors.simulated_phone.widget import FOREGROUND, query_id, switch_id
from distrl.core.contracts.action import Action
from distrl.core.contracts.events import Split
from distrl.core.contracts.role import RoleContext
from distrl.core.contracts.task import Check, Task
from distrl.core.errors import TaskError

HORIZONS: dict[Kind, int] = {"open": 5, "toggle": 8, "search": 10}
"""Steps."""
TEST_SHARE = 0.2
"""Of the combinations, and of the instances of the other combinations."""
DRAWS = 1000
"""More than any chance needs to find an instance of a split; a limit so that a mistake ends."""


class SimulatedTasks:
    """A ``TaskSource``. Independent of the run: the same seed is the same task everywhere."""

    def __init__(self, options: TaskOptions, context: RoleContext) -> None:
        del context
        self._kinds = options.kinds

    def kinds(self) -> Sequence[str]:
        return self._kinds

    def sample(self, split: Split, seed: int) -> Task:
        rng = random.Random(f"simulated-phone/{split}/{seed}")
        return _draw(rng.choice(self._kinds), split, rng)

    def instances(self, split: Split, limit: int) -> Sequence[Task]:
        sources = [_distinct(kind, split) for kind in self._kinds]
        return list(islice((task for group in zip(*sources, strict=False) for task in group), max(limit, 0)))

    def demonstrate(self, task: Task) -> Sequence[Action] | None:
        """Taps on cells' middles; always the same cell of a target, so that a clone has one answer to learn."""
        layout = draw_layout(task.seed, task.parameters)

        def launch(app: str) -> Action:
            place = layout.home.index(app)
            return Action("tap", point=centre(2 * (place % 3), 1 + 3 * (place // 3)))

        match task.kind:
            case "open":
                return [launch(task.parameters["app"])]
            case "toggle":
                row = [name for name, _ in layout.switches].index(task.parameters["switch"])
                return [launch("settings"), Action("tap", point=centre(0, 2 + 2 * row))]
            case "search":
                return [
                    launch(task.parameters["app"]),
                    Action("tap", point=centre(0, layout.field_row)),
                    Action("type", text=task.parameters["query"]),
                    Action("press", key="enter"),
                ]
            case _:
                return None


def _draw(kind: Kind, split: Split, rng: random.Random) -> Task:
    for _ in range(DRAWS):
        task = _instance(kind, rng)
        if task.split == split:
            return task
    raise TaskError(f"no task of kind {kind!r} and split {split!r} in {DRAWS} draws")


def _distinct(kind: Kind, split: Split) -> Iterator[Task]:
    rng = random.Random(f"simulated-phone/{split}/{kind}")
    seen: set[str] = set()
    while True:
        task = _draw(kind, split, rng)
        if task.task_id not in seen:
            seen.add(task.task_id)
            yield task


def _instance(kind: Kind, rng: random.Random) -> Task:
    match kind:
        case "open":
            app, phrase = rng.choice(list(APPS)), rng.choice(OPEN_PHRASES)
            parameters = {"app": app}
            goal = phrase.format(app=APPS[app].label)
            combination = f"{app}/{phrase}"
            check = Check(FOREGROUND, "text", app)
        case "toggle":
            switch, state, phrase = rng.choice(list(SWITCHES)), rng.choice(("on", "off")), rng.choice(TOGGLE_PHRASES)
            parameters = {"switch": switch, "state": state}
            goal = phrase.format(switch=switch, state=state)
            combination = f"{switch}/{state}/{phrase}"
            check = Check(switch_id(switch), "checked", "true" if state == "on" else "false")
        case "search":
            app, query = rng.choice(SEARCHABLE), f"{rng.choice(MODIFIERS)} {rng.choice(NOUNS)}"
            parameters = {"app": app, "query": query}
            goal = rng.choice(SEARCH_PHRASES).format(app=APPS[app].label, query=query)
            combination = query
            check = Check(query_id(app), "text", query)
    seed = rng.getrandbits(32)
    identity = f"{kind}|{goal}|{draw_layout(seed, parameters).key}"
    held_out = _fraction(f"{kind}|{combination}") < TEST_SHARE or _fraction(identity) < TEST_SHARE
    return Task(
        task_id=f"{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:20]}",
        kind=kind,
        split="test" if held_out else "train",
        goal=goal,
        seed=seed,
        horizon=HORIZONS[kind],
        checks=(check,),
        parameters=parameters,
    )


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(f"split|{text}".encode()).digest()[:8], "big") / 2.0**64
