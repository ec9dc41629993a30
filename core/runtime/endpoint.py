"""A small HTTP server for ``/metrics`` and ``/health``: bounded, in daemon threads, off the hot path. One a node, one a supervisor.

It answers GET and HEAD of a few fixed paths, closes each connection after one answer, and never lets a slow or odd client cost
more than one of its few threads for a few seconds.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

import structlog

from distrl.core.errors import ConfigError

log = structlog.get_logger(__name__)
CONNECTIONS = 8
"""Requests that are answered at a time; one more is turned away."""
REQUEST_S = 5.0
BACKLOG = 16
POLL_S = 0.1
"""How often it looks for connections that have taken too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path answers."""

    body: bytes
    media_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK


def json_answer(document: Mapping[str, Any], *, ok: bool) -> Answer:
    """A JSON document, with 200 or, if not ``ok``, 503."""
    status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(json.dumps(document, indent=2).encode() + b"\n", "application/json", status)


Route = Callable[[str], Answer]
"""Given the request's ``Accept`` header. Called from the server's threads, several at a time."""


class Endpoint:
    """Serves ``routes`` by path from the moment it is made until it is closed."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route], *, request_s: float = REQUEST_S) -> None:
        """``port`` 0 takes a free one. ``request_s``: longest time of one connection, from first to last byte. Raises ``ConfigError`` if the address cannot be had."""
        try:
            self._server = _Server(host, port, routes, request_s)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"run.http_host = {host!r}, run.http_port = {port}: cannot be listened on "
                f"({getattr(error, 'strerror', None) or error}); free it, set another one, or 0 for a free port"
            ) from error
        # A wildcard is no address that others can call: this machine's name is.
        named = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
        self.port = int(self._server.server_address[1])
        self.address = f"[{named}]:{self.port}" if ":" in named else f"{named}:{self.port}"
        """``host:port`` for others to call."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": POLL_S}, name="http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering; open connections are cut. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut(older_than_s=0.0)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Server(http.server.HTTPServer):
    """Accepts in one thread and answers each connection in one of at most ``CONNECTIONS`` others."""

    request_queue_size = BACKLOG

    def __init__(self, host: str, port: int, routes: Mapping[str, Route], request_s: float) -> None:
        self.routes = routes
        self.request_s = request_s
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks the host's name up and may wait for a name server.
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= CONNECTIONS
            if not full:
                self._open[request] = time.monotonic()
        if full:
            self.shutdown_request(request)
            return
        threading.Thread(target=self._answer, args=(request, client_address), name="http-answer", daemon=True).start()

    def service_actions(self) -> None:
        self.cut(older_than_s=self.request_s)

    def cut(self, *, older_than_s: float) -> None:
        """End connections that have taken this long."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, begun in self._open.items() if now - begun >= older_than_s]
        for request in late:
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request was not answered", client=str(client_address), exc_info=True)

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # whatever a client does, or a route, costs its own connection alone
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self.shutdown_request(request)


class _Handler(http.server.BaseHTTPRequestHandler):
    """One request, one answer."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "distrl"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(
            self.server.request_s
        )  # of one read or write; the server cuts off what takes longer in all

    def do_GET(self) -> None:
        self._route(with_body=True)

    def do_HEAD(self) -> None:
        self._route(with_body=False)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Also called by the base class, for what is no HTTP and for other methods."""
        code = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else code
        self._send(Answer(f"{message or HTTPStatus(code).phrase}\n".encode(), status=code), with_body=True)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("http", line=(format % args)[:200])

    def _route(self, *, with_body: bool) -> None:
        try:
            path = urlsplit(self.path).path
        except ValueError:
            path = ""
        route = self.server.routes.get(path)
        if route is None:
            known = ", ".join(self.server.routes)
            answer = Answer(f"not found; there are {known}\n".encode(), status=HTTPStatus.NOT_FOUND)
        else:
            try:
                answer = route(self.headers.get("Accept", ""))
            except Exception as error:
                log.warning("a request failed", path=path, error=f"{type(error).__name__}: {error}")
                answer = Answer(b"internal error, see the node's log\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(answer, with_body=with_body)

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.media_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)
