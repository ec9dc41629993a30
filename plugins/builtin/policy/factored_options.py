"""Options of the policy ``factored``. Read by the registration and by ``FactoredPolicy``; imports no torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from distrl.plugins.spec import Options

ActionType = Literal["tap", "type", "press back", "press home", "press enter", "wait", "done", "fail"]


class FactoredOptions(Options):
    """What the network looks like. All of it is architecture: weights of other options do not load."""

    actions: tuple[ActionType, ...] = Field(
        default=("tap", "type", "press back", "press home", "press enter", "done"),
        min_length=1,
        description="action types it chooses from, in the order of their token ids",
    )
    columns: int = Field(default=6, ge=1, le=64, description="cells from left to right; the input is 16 pixels a cell")
    rows: int = Field(default=12, ge=1, le=64, description="cells from top to bottom")
    words: int = Field(default=24, ge=1, le=256, description="words of the goal it reads; the rest is cut off")
    buckets: int = Field(default=1024, ge=2, description="rows of the hashed word table")
    history: int = Field(default=4, ge=1, le=32, description="previous actions it looks at")
    width: int = Field(default=64, ge=8, description="channels of a cell's features and of the goal")

    @model_validator(mode="after")
    def _actions_differ(self) -> Self:
        if len(set(self.actions)) != len(self.actions):
            raise ValueError("actions: name each type once")
        return self
