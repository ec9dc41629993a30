"""The task source ``miniwob``. Made by collectors and evaluation, registered in ``connectors.plugin``.

A task is a page and a seed; the page itself words the goal when the episode starts, and the device hands that goal on with
its first observation (``Observation.goal``). The page judges, too: use the evaluator ``environment``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from distrl.connectors.miniwob.option import MiniWobOptions
from distrl.connectors.miniwob.page import PARAMETER, page_file
from distrl.core.contracts.action import Action
from distrl.core.contracts.events import Split
from distrl.core.contracts.role import RoleContext
from distrl.core.contracts.task import Task

_SEED_BITS = 30


class MiniWobTasks:
    """A ``TaskSource``. Training has the even page seeds, the test the odd ones: the two share no instance."""

    def __init__(self, options: MiniWobOptions, context: RoleContext) -> None:
        """Raises ``TaskError`` for an unknown page, ``MissingPackageError`` without MiniWoB++."""
        for name in options.tasks:
            page_file(name)
        self._kinds = tuple(dict.fromkeys(options.tasks))
        self._horizon = options.horizon

    def kinds(self) -> Sequence[str]:
        return self._kinds

    def sample(self, split: Split, seed: int) -> Task:
        rng = random.Random(f"miniwob/{split}/{seed}")
        return self._task(rng.choice(self._kinds), split, rng.getrandbits(_SEED_BITS))

    def instances(self, split: Split, limit: int) -> Sequence[Task]:
        kinds = self._kinds
        return [self._task(kinds[index % len(kinds)], split, index // len(kinds)) for index in range(limit)]

    def demonstrate(self, task: Task) -> Sequence[Action] | None:
        """Nothing: what solves a page is known only to the page, once it is drawn in a browser."""
        return None

    def _task(self, kind: str, split: Split, number: int) -> Task:
        seed = 2 * number + (split == "test")
        return Task(
            task_id=f"miniwob/{kind}/{seed}",
            kind=kind,
            split=split,
            goal=f"Solve the page {kind} of MiniWoB++.",  # until the page has worded its own
            seed=seed,
            horizon=self._horizon,
            parameters={PARAMETER: kind},
        )
