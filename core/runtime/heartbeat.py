"""A node's signs of life: status and metrics, from a thread of their own, so that a long update does not look like death."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import structlog

import distrl
from distrl.core.codec import derived_id
from distrl.core.contracts.bus import RecordPosition
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import Metrics, NodeStatus, Role
from distrl.core.contracts.metric import OUTBOX_SINCE
from distrl.core.errors import DistrlError
from distrl.core.runtime.activity import Activity
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.health import Health
from distrl.core.runtime.view import NodeView

log = structlog.get_logger(__name__)


class Heartbeat:
    """Sends ``NodeStatus`` and ``Metrics`` at an interval until it is closed."""

    def __init__(
        self,
        writer: EventWriter,
        activity: Activity,
        view: NodeView,
        health: Health,
        *,
        node: str,
        role: Role,
        plugin: str,
        incarnation: str,
        clock: Clock,
        interval_s: float,
        http: str,
        on_beat: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._activity = activity
        self._view = view
        self._health = health
        self._http = http
        self._node = node
        self._role = role
        self._plugin = plugin
        self._incarnation = incarnation
        self._clock = clock
        self._interval = interval_s
        self._on_beat = on_beat
        self._started_ms = clock.time_ms()
        self._beats = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, leaving: bool) -> None:
        """Stop. With ``leaving`` the node takes its entry off the topic ``nodes``: it left by its own will. One that leaves
        episodes in its outbox stays there as stopped, so that a collector of garbage knows of them."""
        self._closed.set()
        self._thread.join(timeout=15.0)
        try:
            self._beat()
            if leaving and not self._view.outbox_since_ms:
                self._writer.send_framed("nodes", self._node.encode(), None).result(timeout=10.0)
        except (DistrlError, TimeoutError) as error:
            log.warning("the last sign of life did not reach the log", error=str(error))

    def _run(self) -> None:
        while True:
            self._on_beat()
            try:
                self._beat()
            except DistrlError as error:
                log.warning("a sign of life did not reach the log", error=str(error))
            if self._clock.wait(self._closed, self._interval):
                return

    def _beat(self) -> None:
        self._beats += 1
        interval_ms, values = self._activity.take()
        identity = (self._node, self._incarnation, str(self._beats))
        since = self._view.outbox_since_ms
        future = self._writer.send(
            NodeStatus(
                envelope=self._writer.envelope(derived_id("node", *identity)),
                role=self._role,
                plugin=self._plugin,
                state=self._view.state,
                incarnation=self._incarnation,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_ms=self._started_ms,
                heartbeat_ms=round(self._interval * 1000),
                epoch=self._view.epoch,
                version=self._view.version,
                waiting_for=self._activity.waiting_for,
                counters=dict(self._activity.totals()) | ({OUTBOX_SINCE: since} if since else {}),
                distrl_version=distrl.__version__,
                missing="; ".join(item.words for item in self._health.missing),
                ready=self._health.ready,
                http=self._http,
            )
        )
        future.add_done_callback(self._on_answer)
        self._writer.send(
            Metrics(
                envelope=self._writer.envelope(derived_id("metrics", *identity)),
                role=self._role,
                interval_ms=interval_ms,
                values=values,
            )
        )

    def _on_answer(self, future: Future[RecordPosition]) -> None:
        if future.exception() is None:
            self._health.log_answered()
