"""Reads a learner's buffer back from the log after a restart, and checks what trajectories refer to. Called by the learner's loop."""

from __future__ import annotations

import structlog

from distrl.core.codec import Codec
from distrl.core.contracts.bus import Bus, Start, TopicPartition
from distrl.core.contracts.events import Reward, Trajectory
from distrl.core.contracts.role import Artefacts, Experience
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import StoreError
from distrl.core.runtime.checkpoint import Covered
from distrl.core.runtime.join import Join
from distrl.core.runtime.scan import scan

log = structlog.get_logger(__name__)


def read_back(
    covered: Covered, join: Join, bus: Bus, codec: Codec, artefacts: Artefacts, topic: TopicName
) -> list[Experience]:
    """The trajectories of a checkpoint's buffer with their verdicts, oldest first within a partition.

    Missing are those that retention has taken and those whose artefacts are broken now. Raises a retriable ``StoreError``
    when the store is away, ``BusUnavailableError`` when the log is.
    """
    if not covered.buffer:
        return []
    with bus.consumer([topic("rewards")], start=Start.earliest()) as consumer:
        for _, event in scan(consumer, codec):
            if isinstance(event, Reward) and event.trajectory_id in covered.buffer:
                join.reward(event)
    first: dict[TopicPartition, int] = {}
    last: dict[TopicPartition, int] = {}
    for name, partition, offset in covered.buffer.values():
        place = TopicPartition(name, partition)
        first[place] = min(first.get(place, offset), offset)
        last[place] = max(last.get(place, 0), offset + 1)
    experiences: dict[str, Experience] = {}
    with bus.consumer([topic("trajectories")], start=Start.at_offsets(first)) as consumer:
        ends = consumer.end_offsets()
        consumer.pause(partition for partition in ends if partition not in first)
        until = {partition: min(end, ends.get(partition, 0)) for partition, end in last.items() if partition in ends}
        for record, event in scan(consumer, codec, until):
            if isinstance(event, Trajectory) and event.trajectory_id in covered.buffer:
                pair = join.trajectory(event, record)
                if pair is not None and _is_intact(event, artefacts):
                    experiences[event.trajectory_id] = pair.experience
    join.forget(first)
    return list(experiences.values())


def verify_artefacts(trajectory: Trajectory, artefacts: Artefacts) -> None:
    """Read what a trajectory refers to, so that a broken artefact is found before it is sampled. Raises ``StoreError``."""
    looks = [step.observation for step in trajectory.steps]
    if trajectory.final_observation is not None:
        looks.append(trajectory.final_observation)
    for look in looks:
        for blob in (look.screenshot, look.ui_tree):
            if blob is not None:
                artefacts.read(blob)


def _is_intact(trajectory: Trajectory, artefacts: Artefacts) -> bool:
    try:
        verify_artefacts(trajectory, artefacts)
    except StoreError as error:
        if error.retriable:
            raise
        log.error("left out of the buffer", trajectory=trajectory.trajectory_id, error=str(error))
        return False
    return True
