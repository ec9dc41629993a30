"""Options of the task source ``miniwob``. Read by the registration and by ``MiniWobTasks``."""

from __future__ import annotations

from pydantic import Field

from distrl.plugins.spec import Options


class MiniWobOptions(Options):
    """Which pages, and how long an agent may try."""

    tasks: tuple[str, ...] = Field(
        default=("click-test-2", "focus-text", "click-button"),
        min_length=1,
        description="pages of MiniWoB++, in equal shares; each is a kind of task. click-button words another goal each time",
    )
    horizon: int = Field(default=5, ge=1, description="steps")
