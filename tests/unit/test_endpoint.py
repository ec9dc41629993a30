"""The small HTTP server: what it answers, and what an odd or slow client cannot do to it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from distrl.core.errors import ConfigError
from distrl.core.runtime.endpoint import CONNECTIONS, Answer, Endpoint


def failing(_accept: str) -> Answer:
    raise ValueError("no such number")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    routes = {"/metrics": lambda accept: Answer(f"accept {accept}\n".encode()), "/fails": failing}
    with Endpoint("127.0.0.1", 0, routes, request_s=0.5) as endpoint:
        yield endpoint


def ask(endpoint: Endpoint, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def raw(endpoint: Endpoint, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
        return received


def is_cut(connection: socket.socket) -> bool:
    """Whether the server has ended it without an answer."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_route_is_answered_and_the_query_ignored(endpoint: Endpoint) -> None:
    status, headers, body = ask(endpoint, "GET", "/metrics?name[]=x", Accept="text/plain")
    assert (status, body) == (200, b"accept text/plain\n")
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"
    assert endpoint.address == f"127.0.0.1:{endpoint.port}"


def test_head_has_the_same_headers_and_no_body(endpoint: Endpoint) -> None:
    got, head = ask(endpoint, "GET", "/metrics"), ask(endpoint, "HEAD", "/metrics")
    assert head[0] == 200
    assert head[1]["content-length"] == got[1]["content-length"]
    assert head[2] == b""


@pytest.mark.parametrize("path", ["/", "/metrics/", "/%00", "/../etc/passwd"])
def test_another_path_is_not_found(endpoint: Endpoint, path: str) -> None:
    status, _, body = ask(endpoint, "GET", path)
    assert status == 404
    assert b"/metrics" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_another_method_is_refused(endpoint: Endpoint, method: str) -> None:
    status, headers, _ = ask(endpoint, method, "/metrics")
    assert status == 405
    assert headers["allow"] == "GET, HEAD"


def test_a_route_that_fails_says_so_without_its_message(endpoint: Endpoint) -> None:
    status, _, body = ask(endpoint, "GET", "/fails")
    assert status == 500
    assert b"no such number" not in body


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET /metrics\x00 HTTP/9.9\r\n\r\n",
        b"GET " + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"GET http://[/ HTTP/1.1\r\n\r\n",
        b"\xff\xfe\xfd\n\n",
    ],
)
def test_garbage_costs_its_own_connection_alone(endpoint: Endpoint, data: bytes) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert b"200 OK" not in raw(endpoint, data)
    assert ask(endpoint, "GET", "/metrics")[0] == 200


def test_clients_that_say_nothing_are_cut_off_and_others_answered(endpoint: Endpoint) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) for _ in range(CONNECTIONS)]
    try:
        silent[0].sendall(b"GET /met")
        for connection in silent:
            assert is_cut(connection)  # blocks until the server has had enough
        assert ask(endpoint, "GET", "/metrics")[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_a_client_that_comes_byte_by_byte_does_not_stay(endpoint: Endpoint) -> None:
    ended = threading.Event()
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as slow:

        def drip() -> None:
            try:
                while not ended.wait(0.05):
                    slow.sendall(b"x")
            except OSError:
                pass

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert is_cut(slow)
        finally:
            ended.set()
            thread.join()


def test_many_at_once_are_answered_or_turned_away(endpoint: Endpoint) -> None:
    results: list[int | None] = []

    def scrape() -> None:
        try:
            results.append(ask(endpoint, "GET", "/metrics")[0])
        except (OSError, http.client.HTTPException):
            results.append(None)

    threads = [threading.Thread(target=scrape) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) <= {200, None}
    assert 200 in results
    assert ask(endpoint, "GET", "/metrics")[0] == 200


def test_a_port_that_is_taken_is_named(endpoint: Endpoint) -> None:
    with pytest.raises(
        ConfigError, match=rf"run\.http_port = {endpoint.port}: cannot be listened on.*0 for a free port"
    ):
        Endpoint("127.0.0.1", endpoint.port, {})


def test_a_host_that_is_not_this_machine_s_is_named() -> None:
    with pytest.raises(ConfigError, match=r"run\.http_host = '192\.0\.2\.7'"):
        Endpoint("192.0.2.7", 0, {})


def test_what_listens_everywhere_is_called_by_the_machine_s_name() -> None:
    with Endpoint("0.0.0.0", 0, {}) as endpoint:
        assert endpoint.address == f"{socket.gethostname()}:{endpoint.port}"


def test_it_ends_with_open_connections_and_frees_its_port() -> None:
    endpoint = Endpoint("127.0.0.1", 0, {})
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as silent:
        silent.sendall(b"GET")
        endpoint.close()
        assert is_cut(silent)
    with Endpoint("127.0.0.1", endpoint.port, {}):
        pass
