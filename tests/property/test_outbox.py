"""The outbox against a list, through deaths of its process: what was put is there, in its order, until it is removed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from distrl.core.runtime.outbox import Outbox

NAMES = st.sampled_from([f"t{number}" for number in range(8)])
SOME = st.lists(NAMES, max_size=4)


class Box(RuleBasedStateMachine):
    """Every operation is durable when it returns: a copy of the files at any such moment is what a killed process leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.lives = 0
        self.box = Outbox(self.path)
        self.model: dict[str, tuple[bytes, bool]] = {}
        self.done: set[int] = set()

    @property
    def path(self) -> Path:
        return self.folder / str(self.lives) / "outbox.sqlite"

    @rule(
        entries=st.lists(st.tuples(NAMES, st.binary(max_size=30)), max_size=4),
        done=st.sets(st.integers(0, 5), max_size=2),
    )
    def put(self, entries: list[tuple[str, bytes]], done: set[int]) -> None:
        self.box.put(entries, done=sorted(done))
        for name, value in entries:
            self.model.setdefault(name, (value, False))
        self.done |= done

    @rule(names=SOME)
    def confirm(self, names: list[str]) -> None:
        self.box.confirm(names)
        self.model.update({name: (self.model[name][0], True) for name in names if name in self.model})

    @rule(names=SOME)
    def remove(self, names: list[str]) -> None:
        self.box.remove(names)
        self.model = {name: entry for name, entry in self.model.items() if name not in names}

    @rule()
    def restart(self) -> None:
        self.box.close()
        self.box = Outbox(self.path)

    @rule()
    def kill(self) -> None:
        """The files as they lie, write-ahead log and all; what the dead process had in memory is gone."""
        dead, place = self.box, self.path.parent
        self.lives += 1
        shutil.copytree(place, self.path.parent)
        dead.close()
        shutil.rmtree(place)
        self.box = Outbox(self.path)

    @invariant()
    def both_hold_the_same(self) -> None:
        assert len(self.box) == len(self.model)
        assert [(each.trajectory_id, each.value, each.confirmed) for each in self.box.entries()] == [
            (name, *entry) for name, entry in self.model.items()
        ]
        for told in (True, False):
            held = [each.trajectory_id for each in self.box.entries(confirmed=told, limit=3)]
            assert held == [name for name, entry in self.model.items() if entry[1] is told][:3]
        assert self.box.done() == self.done

    def teardown(self) -> None:
        self.box.close()
        shutil.rmtree(self.folder)


Box.TestCase.settings = settings(settings.get_profile("same"), max_examples=25, stateful_step_count=25)
TestBox = Box.TestCase
