"""One MiniWoB++ page in a browser: an episode started from a seed, its goal and how it went. Used by ``AppiumDevice``.

Source: ``html/core/core.js`` of MiniWoB++ 1.1.0, whose globals the scripts below read.
"""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from typing import Any, Protocol

from distrl.core.contracts.clock import Clock
from distrl.core.contracts.task import Task
from distrl.core.errors import DeviceError, MissingPackageError, TaskError

PARAMETER = "miniwob"
"""The task's parameter that names the page."""

_POLL_SECONDS = 0.05

_START = """
const style = document.createElement('style');
style.textContent = '#reward-display, #click-canvas { display: none !important } * { caret-color: transparent !important }';
document.head.appendChild(style);
Math.seedrandom(arguments[0]);
core.EPISODE_MAX_TIME = 3600000;
core.startEpisodeReal();
"""
# The display shows the reward and the canvas where was tapped: neither is the agent's to see. A blinking caret would make the
# same state look different. The page's own clock must not end an episode: a slow device is no failed agent.

_GOAL = """
if (!WOB_TASK_READY) return null;
const utterance = core.getUtterance();
return typeof utterance === 'string' ? utterance : utterance.utterance;
"""

_STATE = """
if (typeof WOB_DONE_GLOBAL === 'undefined') return null;
return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];
"""
# The raw reward: the other one decays with the time that the device takes.


class Browser(Protocol):
    """What is asked of a browser's session. Raises ``DeviceError``."""

    @property
    def clock(self) -> Clock: ...

    def open(self, url: str) -> None: ...

    def script(self, source: str, *arguments: Any) -> Any: ...

    def remaining(self) -> float:
        """Seconds left; raises ``DeviceTimeoutError`` when there are none."""


def page_folder() -> Path:
    """Where the pages lie. Raises ``MissingPackageError``."""
    # find_spec, not an import: the package itself imports gymnasium and registers 130 environments.
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        raise MissingPackageError("MiniWoB++ is not installed: pip install 'distrl[appium]'")
    return Path(found.origin).parent / "html" / "miniwob"


def page_file(name: str) -> Path:
    """The file of a page. Raises ``TaskError`` for an unknown one, with the nearest known name."""
    folder = page_folder()
    known = sorted(path.stem for path in folder.glob("*.html"))
    if name in known:
        return folder / f"{name}.html"
    nearest = difflib.get_close_matches(name, known, n=1)
    raise TaskError(f"MiniWoB++ has no page {name!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ""))


def start_page(browser: Browser, task: Task) -> str:
    """Load the task's page, start the episode of its seed, and return the goal as the page words it.

    The page is loaded anew each time: what an earlier episode left in it would show. The same seed gives the same pixels.
    """
    browser.open(page_file(task.parameters[PARAMETER]).as_uri())
    goal = browser.script(_START + _GOAL, task.seed)
    while goal is None:
        browser.clock.sleep(min(_POLL_SECONDS, browser.remaining()))
        goal = browser.script(_GOAL)
    if not isinstance(goal, str):
        raise DeviceError(f"the page {task.parameters[PARAMETER]} words its goal as {goal!r}, which is no text")
    return goal


def page_state(browser: Browser) -> tuple[bool, float]:
    """Whether the episode is over, and its success from 0 to 1 as it stands.

    A penalty counts 0 and partial credit what it is. An agent that has left the page by a link has failed.
    """
    state = browser.script(_STATE)
    if state is None:
        return True, 0.0
    done, reward = state
    return bool(done), min(1.0, max(0.0, float(reward)))
