"""A TCP relay between a run and one of its servers, which can go away or spoil what passes. Used by the fault campaign.

The server behind it is real and unharmed; what breaks is the way to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Literal, Self

HOST = "127.0.0.1"
CHUNK = 65_536
Mode = Literal["pass", "refuse", "spoil"]


class Relay:
    """Listens on a free port and passes bytes to ``host:port``; modes are changed while connections are open.

    ``refuse`` closes every connection and takes no new one, as a server that is down. ``spoil`` changes one byte in every
    body of an HTTP answer that is not XML: an object arrives whole and wrong.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._mode: Mode = "pass"
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self.spoiled = 0
        """Answers that were spoiled."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def set(self, mode: Mode) -> None:
        """Change what happens to bytes and connections from now on."""
        self._mode = mode
        self._call(self._close() if mode == "refuse" else self._listen())

    def _call(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, HOST, self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        behind: asyncio.StreamWriter | None = None
        try:
            answers, behind = await asyncio.open_connection(*self._target)
            self._writers.add(behind)
            await asyncio.gather(self._pass(reader, behind), self._pass_back(answers, writer))
        except OSError:
            pass
        finally:
            for side in (writer, behind):
                if side is not None:
                    self._writers.discard(side)
                    side.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._mode == "spoil":
                data = self._spoiled(data)
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _spoiled(self, data: bytes) -> bytes:
        """The chunk with its last byte changed, if it carries (part of) an object."""
        head, separator, body = data.partition(b"\r\n\r\n")
        if data.startswith(b"HTTP/") and (not separator or not body or b"xml" in head.lower()):
            return data
        self.spoiled += 1
        return data[:-1] + bytes([data[-1] ^ 0xFF])
