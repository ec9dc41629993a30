"""One WebDriver session: every call bounded by a deadline, every vendor error translated. Used by the platforms and ``AppiumDevice``."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3
from appium.options.common import AppiumOptions as Capabilities
from appium.webdriver.client_config import AppiumClientConfig
from appium.webdriver.webdriver import WebDriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.common.proxy import Proxy, ProxyType
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.remote_connection import RemoteConnection
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

from distrl.connectors.appium.gesture import Payload
from distrl.core.contracts.clock import Clock
from distrl.core.errors import DeviceError, DeviceLostError, DeviceTimeoutError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
PNG = b"\x89PNG\r\n\x1a\n"


class Session:
    """A session on an Appium server. Not safe for use by several threads.

    ``deadline`` is a moment of ``clock.monotonic()``: whoever calls sets it, and no request goes on past it. Every
    method raises ``DeviceTimeoutError`` when the time is up and ``DeviceLostError`` for all else that goes wrong.
    """

    def __init__(self, server: str, capabilities: Mapping[str, Any], clock: Clock, *, deadline: float) -> None:
        """Open the session. If this raises, the server may still be at work on it: the caller sees to its processes."""
        self.deadline = deadline
        self._clock = clock
        self._server = server
        self._connection = RemoteConnection(client_config=_client_config(server))
        try:
            with self._translated("open a session"):
                # selenium's own connection, not Appium's: that one keeps its headers (with the key that makes the server
                # answer two session requests alike) on the class, where two devices in two threads share them.
                self._driver = WebDriver(
                    self._connection,  # type: ignore[arg-type]
                    options=Capabilities().load_capabilities(dict(capabilities)),
                )
        except BaseException:
            self._connection.close()  # type: ignore[no-untyped-call]
            raise

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """As the server granted them."""
        return dict(self._driver.capabilities)

    def remaining(self) -> float:
        """Seconds until the deadline. Raises ``DeviceTimeoutError`` when there are none."""
        seconds = self.deadline - self._clock.monotonic()
        if seconds <= 0:
            raise DeviceTimeoutError(f"the device behind {shown(self._server)} did not answer in time")
        return seconds

    def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self._execute("load a page", Command.GET, {"url": url})

    def script(self, source: str, *arguments: Any) -> Any:
        """Run JavaScript in the page and return what it returns; on Android, a ``mobile:`` command with its parameters."""
        return self._execute("run a script", Command.W3C_EXECUTE_SCRIPT, {"script": source, "args": list(arguments)})

    def perform(self, *actions: Payload) -> None:
        """Carry W3C actions out (``gesture``)."""
        self._execute("act", Command.W3C_ACTIONS, {"actions": list(actions)})

    def screenshot(self) -> bytes:
        """The screen as PNG."""
        data = self._execute("take a screenshot", Command.SCREENSHOT)
        try:
            png = base64.b64decode(data, validate=True)
        except (TypeError, ValueError) as error:
            raise DeviceLostError(f"the screenshot from {shown(self._server)} is not base64") from error
        if not png.startswith(PNG) or len(png) < 24:
            raise DeviceLostError(f"the screenshot from {shown(self._server)} is not a PNG file ({len(png)} bytes)")
        return png

    def source(self) -> str:
        """The page's or the screen's source: HTML in a browser, the UI hierarchy as XML on Android."""
        return str(self._execute("read the screen's source", Command.GET_PAGE_SOURCE))

    def quit(self) -> None:
        """End the session on the server. Raises nothing: a session that is lost cannot be ended."""
        with contextlib.suppress(DeviceError):
            self._execute("end the session", Command.QUIT)
        self._connection.close()  # type: ignore[no-untyped-call]

    def _execute(self, what: str, command: str, parameters: dict[str, Any] | None = None) -> Any:
        with self._translated(what):
            return self._driver.execute(command, parameters)["value"]

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        limit = self.remaining()
        self._connection.client_config.timeout = limit
        try:
            yield
        except TimeoutException as error:
            raise DeviceTimeoutError(f"could not {what} on {shown(self._server)}: {_first_line(error)}") from error
        except WebDriverException as error:
            raise DeviceLostError(f"could not {what} on {shown(self._server)}: {_first_line(error)}") from error
        except (HTTPError, OSError) as error:
            if _timed_out(error):
                raise DeviceTimeoutError(
                    f"could not {what} on {shown(self._server)}: no answer within {limit:.1f} s"
                ) from error
            raise DeviceLostError(
                f"could not {what}: the Appium server at {shown(self._server)} is gone or not started ({error})"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The client indexes into whatever JSON it got: an answer that is no WebDriver answer shows as one of these.
            raise DeviceLostError(
                f"could not {what}: {shown(self._server)} gave no WebDriver answer ({error!r})"
            ) from error


def shown(server: str) -> str:
    """A server's URL as it may stand in messages and logs: without the user and password that it may carry."""
    parts = urlsplit(server)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def server_status(server: str, seconds: float) -> None:
    """Return if an Appium server answers at this URL. Raises ``DeviceTimeoutError`` or ``DeviceLostError``."""
    with contextlib.closing(RemoteConnection(client_config=_client_config(server))) as connection:
        connection.client_config.timeout = seconds
        connection.add_command("getStatus", "GET", "/status")  # type: ignore[no-untyped-call]
        try:
            ready = connection.execute("getStatus", {})["value"]["ready"]  # type: ignore[no-untyped-call]
        except (HTTPError, OSError) as error:
            if _timed_out(error):
                raise DeviceTimeoutError(
                    f"the Appium server at {shown(server)} does not answer in {seconds:.1f} s"
                ) from error
            raise DeviceLostError(f"no Appium server answers at {shown(server)}: start one ({error})") from error
        except (WebDriverException, ValueError, KeyError, TypeError) as error:
            raise DeviceLostError(f"what answers at {shown(server)} is no Appium server ({error!r})") from error
        if ready is not True:
            raise DeviceLostError(f"the Appium server at {shown(server)} takes no sessions now")


def _client_config(server: str) -> AppiumClientConfig:
    """No retries: the client would send a request that timed out three times more, and wait as long each time."""
    local = urlsplit(server).hostname in LOOPBACK
    return AppiumClientConfig(
        server,
        # A proxy of the environment must not stand between this process and a server on its own machine.
        proxy=Proxy(raw={"proxyType": ProxyType.DIRECT if local else ProxyType.SYSTEM}),
        init_args_for_pool_manager={"init_args_for_pool_manager": {"retries": urllib3.Retry(0)}},
    )


def _timed_out(error: BaseException) -> bool:
    """Whether a time-out lies behind an error: urllib3 wraps it once or twice.

    A refused connection is none, though urllib3 derives that error from its time-outs.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (TimeoutError, Urllib3TimeoutError)) and not isinstance(seen, NewConnectionError):
            return True
        reason = getattr(seen, "reason", None)
        seen = reason if isinstance(reason, BaseException) else seen.__cause__
    return False


def _first_line(error: WebDriverException) -> str:
    """What happened, without the driver's stack trace of several screens."""
    return str(error.msg or type(error).__name__).strip().splitlines()[0]
