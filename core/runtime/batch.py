"""Hands a batch to a plugin so that one bad event costs itself alone. Used by the evaluator's and the prioritizer's loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from distrl.core.errors import DistrlError, is_environmental, is_retriable

A = TypeVar("A")
B = TypeVar("B")


class Untried:
    """An event of a batch that was not tried."""


AWAY = 2
"""Events in a row that fail with what may pass, after which the rest of a batch is not tried: the world seems to be away."""


def outcomes(batch: Sequence[A], call: Callable[[Sequence[A]], Sequence[B]]) -> list[B | DistrlError | Untried]:
    """What became of each: its result, its own error, or that it was not tried.

    The whole batch is tried at once; if that fails, each alone. Raises what is environmental and no retry mends.
    """
    if not batch:
        return []
    try:
        return list(call(batch))
    except DistrlError as error:
        if is_environmental(error) and not is_retriable(error):
            raise
        if len(batch) == 1:
            return [error]
    found: list[B | DistrlError | Untried] = []
    in_a_row = 0
    for event in batch:
        if in_a_row >= AWAY:
            found.append(Untried())
            continue
        [outcome] = outcomes([event], call)
        found.append(outcome)
        in_a_row = in_a_row + 1 if isinstance(outcome, DistrlError) and is_retriable(outcome) else 0
    return found
