"""Options of the collectors ``episodes`` and ``demonstrator``. Read by their registrations."""

from __future__ import annotations

from pydantic import Field

from distrl.core.contracts.events import Split
from distrl.plugins.spec import Options


class EpisodeOptions(Options):
    """How episodes are run on devices."""

    split: Split = Field(default="train", description="whose tasks are drawn; nothing trains on test")
    wait_ms: float = Field(default=1000.0, gt=0, description="longest wait of one round for slow devices, milliseconds")
    settle_ms: float = Field(
        default=1.5,
        ge=0,
        description="wait for more devices once one is ready, so that they act in one batch, milliseconds",
    )
    backoff_first_s: float = Field(
        default=1.0, gt=0, description="rest of a device that failed twice in a row, doubled with each failure, seconds"
    )
    backoff_longest_s: float = Field(default=60.0, gt=0, description="bound of that rest, seconds")
    confirm_s: float = Field(
        default=10.0, gt=0, description="longest wait for a device to take note of a kept episode, seconds"
    )
    close_s: float = Field(default=5.0, gt=0, description="longest wait for all devices to let go at the end, seconds")
