"""The device ``appium``: a browser or a phone behind an Appium server. Made by collectors and evaluation, one a device.

A session is opened at the first ``reset`` and kept from episode to episode. When a call fails the session is given up: what it
left on this machine is ended at once, and the next ``reset`` opens a fresh one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Iterator

import structlog

from distrl.connectors.appium.android import AndroidPlatform
from distrl.connectors.appium.chromium import ChromiumPlatform
from distrl.connectors.appium.option import AppiumOptions
from distrl.connectors.appium.platform import Platform
from distrl.connectors.appium.session import Session, server_status
from distrl.connectors.ledger import LedgerFile
from distrl.connectors.miniwob.page import PARAMETER, page_state, start_page
from distrl.core.contracts.action import Action
from distrl.core.contracts.device import StepResult
from distrl.core.contracts.events import Outcome
from distrl.core.contracts.observation import Observation, Screenshot
from distrl.core.contracts.role import RoleContext
from distrl.core.contracts.task import Task
from distrl.core.errors import ConfigError, DeviceError, DeviceLostError

_QUIT_SECONDS = 3.0
"""A healthy session ends in 0.1 s; a collector that stops waits only so long for its devices."""

log = structlog.get_logger(__name__)


class AppiumDevice:
    """A ``Device``. Screenshots are PNG; a UI tree comes from Android alone.

    ``reset`` takes at most ``reset_seconds``, every other call ``step_seconds``. ``wait`` waits, ``done`` and ``fail`` only look.
    """

    def __init__(self, options: AppiumOptions, context: RoleContext, index: int) -> None:
        """Opens nothing yet. Raises ``ConfigError`` if there are fewer ``udids`` than devices."""
        self._options = options
        self._clock = context.clock
        self._server = options.servers[index % len(options.servers)].rstrip("/")
        self._id = f"{context.node}-appium-{index}"
        self._platform: Platform
        if options.platform == "android":
            if options.udids and index >= len(options.udids):
                raise ConfigError(f"device {index} has no phone: udids names {len(options.udids)}")
            udid = options.udids[index] if options.udids else ""
            self._id = udid or self._id
            self._platform = AndroidPlatform(options, context.clock, udid)
        else:
            self._platform = ChromiumPlatform(options, context.clock, context.work_dir, f"browser-{index}")
        self._ledger = LedgerFile(context.work_dir, self._id)
        self._session: Session | None = None
        self._lost: Session | None = None
        """Given up, and not yet ended on the server."""
        self._task: Task | None = None
        self._screen = (0, 0)

    @property
    def device_id(self) -> str:
        return self._id

    def reset(self, task: Task, *, episode: str) -> Observation:
        """Raises ``TaskError`` for a task that this platform cannot start."""
        deadline = self._clock.monotonic() + self._options.reset_seconds
        self._task = None
        observation = None
        if self._session is not None:
            # A session that stood idle may be gone through no fault of this episode: a fresh one gets its chance, and so
            # the old one must leave it time.
            try:
                observation = self._begin(self._session, task, min(deadline, self._limit()))
            except DeviceError as error:
                log.warning(
                    "the session was lost between episodes; opening a new one", device=self._id, error=str(error)
                )
        if observation is None:
            observation = self._begin(self._open(deadline), task, deadline)
        self._task = task
        self._ledger.append("started", episode, time_ms=self._clock.time_ms())
        return observation

    def step(self, action: Action) -> StepResult:
        with self._calling() as (session, task):
            if action.kind == "wait":
                self._pause(session, self._options.wait_seconds)
            elif action.kind not in ("done", "fail"):
                self._platform.act(session, action, self._screen)
                self._pause(session, self._options.settle_seconds)
            done, outcome = self._state(session, task)
            return StepResult(self._look(session), done, outcome if done else None)

    def observe(self) -> Observation:
        with self._calling() as (session, _):
            return self._look(session)

    def outcome(self) -> float | None:
        with self._calling() as (session, task):
            return self._state(session, task)[1]

    def finish(self, episode: str, outcome: Outcome) -> None:
        self._ledger.append("finished", episode, time_ms=self._clock.time_ms(), outcome=outcome)

    def health(self) -> None:
        server_status(self._server, self._options.step_seconds)

    def close(self) -> None:
        self._task = None
        self._quit(self._session or self._lost)
        self._session = self._lost = None
        self._platform.clear()
        self._ledger.close()

    # --- inside -----------------------------------------------------------------------------------

    def _limit(self) -> float:
        return self._clock.monotonic() + self._options.step_seconds

    @contextlib.contextmanager
    def _calling(self) -> Iterator[tuple[Session, Task]]:
        """One call of a running episode, within its time limit; the session is given up if it fails."""
        if self._session is None or self._task is None:
            raise DeviceLostError(f"{self._id} has no episode; reset it first")
        self._session.deadline = self._limit()
        with self._giving_up():
            yield self._session, self._task

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except DeviceError:
            # What hangs holds memory and a core: it is ended now, not at the next reset, which may never come.
            self._session, self._lost, self._task = None, self._session, None
            self._platform.kill()
            raise

    def _open(self, deadline: float) -> Session:
        self._quit(self._lost)
        self._lost = None
        self._platform.clear()
        with self._giving_up():
            self._session = self._platform.open(self._server, deadline)
        return self._session

    def _begin(self, session: Session, task: Task, deadline: float) -> Observation:
        session.deadline = deadline
        with self._giving_up():
            if PARAMETER in task.parameters:
                goal = start_page(session, task)
            else:
                goal = ""
                self._platform.start(session, task)
                self._pause(session, self._options.settle_seconds)
            return dataclasses.replace(self._look(session), goal=goal)

    def _state(self, session: Session, task: Task) -> tuple[bool, float | None]:
        """Whether the environment has ended the episode, and what it says of it."""
        return page_state(session) if PARAMETER in task.parameters else (False, None)

    def _look(self, session: Session) -> Observation:
        png = session.screenshot()
        # Width and height stand in the first chunk of every PNG file (PNG specification, section 11.2.2).
        width, height = struct.unpack(">II", png[16:24])
        self._screen = (width, height)
        tree = self._platform.ui_tree(session, self._screen)
        return Observation(self._clock.time_ms(), Screenshot(width, height, png), tree)

    def _pause(self, session: Session, seconds: float) -> None:
        if seconds > 0:
            self._clock.sleep(min(seconds, session.remaining()))

    def _quit(self, session: Session | None) -> None:
        if session is not None:
            session.deadline = self._clock.monotonic() + _QUIT_SECONDS
            session.quit()
