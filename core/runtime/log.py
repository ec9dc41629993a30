"""Logging of a process: JSON lines into a file, readable lines on stderr. Called once by a node and by the supervisor.

Modules log with ``structlog.get_logger(__name__)``. What libraries log through ``logging`` comes out the same way, from
warnings on. Values under names that mean a secret are never written.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from pathlib import Path

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from distrl.core.errors import ConfigError
from distrl.core.runtime.redaction import HIDDEN, conceal, is_secret, redact

FILE_BYTES = 20_000_000
"""A log file that grows beyond this is set aside; the one before the last is dropped."""
FILES_KEPT = 3


def configure_logging(level: str, file: Path | None, node: str, role: str) -> None:
    """Set the process's logging up; calling again replaces what stood before.

    ``level``: ``debug``, ``info``, ``warning`` or ``error``, of distrl's own messages. ``file``: where JSON lines go; its folder
    is made. ``node`` and ``role`` are on every line. Raises ``ConfigError`` if the file cannot be written.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _identity(node, role),
        _redact,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handlers: list[logging.Handler] = [_handler(logging.StreamHandler(sys.stderr), shared, _readable())]
    if file is not None:
        handlers.append(_handler(_open(file), shared, _json()))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if getattr(handler, "distrl", False)]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("distrl").setLevel(level.upper())
    # kafka-python logs whole batches of records, payload and all, at ERROR; what matters reaches us as exceptions.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Hides the secrets of this process in the finished line, tracebacks and words of libraries included."""

    def format(self, record: logging.LogRecord) -> str:
        return conceal(super().format(record))


def _handler(handler: logging.Handler, shared: list[Processor], last: list[Processor]) -> logging.Handler:
    handler.setFormatter(
        _Formatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    handler.distrl = True  # type: ignore[attr-defined]  # how a later call finds what this one installed
    return handler


def _open(file: Path) -> logging.Handler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return logging.handlers.RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the log file {file}: {error.strerror}") from error


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str, ensure_ascii=False)]


def _readable() -> list[Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    ]


def _identity(node: str, role: str) -> Processor:
    def add(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("node", node)
        event.setdefault("role", role)
        return event

    return add


def _redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if is_secret(key) and value:
            event[key] = HIDDEN
        elif isinstance(value, dict):
            event[key] = redact(value)
    return event
