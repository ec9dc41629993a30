"""The registry's connector and the codec on a real Apicurio Registry, and on it through a front that breaks things."""

from __future__ import annotations

import base64
import dataclasses
import json
import ssl
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from distrl.connectors import open_registry
from distrl.connectors.registry import ConfluentRegistry
from distrl.core.cli import exit
from distrl.core.cli.main import command
from distrl.core.codec import HEADER, RECORDS, Codec
from distrl.core.config import RegistryConfig
from distrl.core.contracts.clock import SystemClock
from distrl.core.contracts.events import NodeStatus, Reward, Trajectory
from distrl.core.errors import (
    ConfigError,
    IncompatibleSchemaError,
    RegistryCredentialsError,
    RegistryError,
    RegistryUnavailableError,
    UnknownSchemaError,
)
from distrl.schemas import all_schemas, latest, load_schema
from distrl.schemas.lock import schema_id
from distrl.schemas.registration import register

if TYPE_CHECKING:
    from apicurio import RegistryServer

pytestmark = pytest.mark.registry
GOLDEN = Path(__file__).resolve().parents[1] / "unit" / "golden"
COMMITTED = Codec()
EVENTS = [
    COMMITTED.decode((GOLDEN / f"{s.record}_v{s.version}.bin").read_bytes()) for s in map(latest, RECORDS.values())
]
REWARD = next(event for event in EVENTS if isinstance(event, Reward))


class HandClock(SystemClock):
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def opened(url: str, **settings: Any) -> ConfluentRegistry:
    return ConfluentRegistry(url, **{"clock": SystemClock(), **settings})


@pytest.fixture
def registry(registry_server: RegistryServer) -> Iterator[ConfluentRegistry]:
    registry = opened(registry_server.url)
    yield registry
    registry.close()


def record(*fields: str, name: str = "T") -> str:
    """A schema with text fields; those that end with ``=`` have a default."""
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "namespace": "test",
            "fields": [
                {"name": field.rstrip("="), "type": "string", **({"default": ""} if field.endswith("=") else {})}
                for field in fields
            ],
        }
    )


def subject() -> str:
    return f"test.{uuid.uuid4().hex}"


# --- ids ----------------------------------------------------------------------------------------


def test_a_schema_is_registered_once_and_found_by_its_id(registry: ConfluentRegistry) -> None:
    name = subject()
    assert registry.find(name, record("a")) is None
    given = registry.register(name, record("a"))
    assert registry.register(name, record("a")) == registry.find(name, record("a")) == given
    assert registry.schema(given)["fields"] == json.loads(record("a"))["fields"]
    assert registry.find(name, record("a", "b=")) is None


def test_what_is_not_there_is_said(registry: ConfluentRegistry) -> None:
    with pytest.raises(UnknownSchemaError, match="knows no schema 2147483647"):
        registry.schema(2**31 - 1)
    with pytest.raises(UnknownSchemaError, match="00000000"):
        registry.schema_by_guid(uuid.UUID(int=7))


def test_a_schema_that_is_none_is_refused_for_good(registry: ConfluentRegistry) -> None:
    with pytest.raises(RegistryError, match="422") as caught:
        registry.register(subject(), '"nonsense"')
    assert not caught.value.retriable


def test_a_subject_takes_only_versions_that_read_each_other(registry: ConfluentRegistry) -> None:
    name = subject()
    assert registry.require_compatibility(name) == "FULL_TRANSITIVE"
    registry.register(name, record("a"))
    assert registry.require_compatibility(name) == "FULL_TRANSITIVE"
    assert registry.is_compatible(name, record("a", "b="))
    registry.register(name, record("a", "b="))
    for unfit in (record("a", "c"), record("b=")):
        assert not registry.is_compatible(name, unfit)
        with pytest.raises(IncompatibleSchemaError, match="409"):
            registry.register(name, unfit)
    assert registry.is_compatible(subject(), record("a"))


def test_nodes_that_start_together_agree(registry_server: RegistryServer) -> None:
    name, together = subject(), threading.Barrier(6)

    def node() -> tuple[int, ...]:
        registry = opened(registry_server.url)
        together.wait(30)
        registry.require_compatibility(name)
        ids = tuple(registry.register(name, text) for text in (record("a"), record("a", "b=")))
        registry.close()
        return ids

    with ThreadPoolExecutor(6) as pool:
        ids = {future.result() for future in [pool.submit(node) for _ in range(6)]}
    assert len(ids) == 1


def test_an_address_that_is_not_the_apis_is_named(registry_server: RegistryServer) -> None:
    wrong = opened(f"http://{registry_server.address}/nothing/here")
    for call in (wrong.ping, lambda: wrong.find("a", record("a")), lambda: wrong.register("a", record("a"))):
        with pytest.raises(RegistryError, match=r"registry\.url"):
            call()
    wrong.close()


@pytest.mark.parametrize("url", ["localhost:8081", "ftp://h/", "http://user:secret@h:1/", "http://", "http://h:port/"])
def test_what_cannot_be_an_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(url)
    assert "secret" not in str(caught.value)


def test_a_configuration_opens_what_it_names(registry_server: RegistryServer) -> None:
    assert open_registry(RegistryConfig(), clock=SystemClock()) is None
    config = RegistryConfig(kind="confluent", url=registry_server.url + "/")
    registry = open_registry(config, clock=SystemClock())
    assert registry is not None
    registry.ping()
    registry.close()


def test_a_default_that_apicurio_stumbles_over_is_registered(registry: ConfluentRegistry) -> None:
    definition = json.loads(record("a="))
    definition["fields"][0]["default"] = "{}"
    name, text = subject(), json.dumps(definition)
    given = registry.register(name, text)
    assert registry.find(name, text) == given
    assert registry.schema(given)["fields"][0]["default"] == "{}"


# --- the codec ----------------------------------------------------------------------------------


def test_events_are_written_with_the_registrys_ids_and_read_by_them(
    registry: ConfluentRegistry, registry_server: RegistryServer
) -> None:
    writer = Codec(registry)
    writer.prepare()
    reader = Codec(opened(registry_server.url))
    for event in EVENTS:
        data = writer.encode(event)
        schema = latest(RECORDS[type(event)])
        assert data[:5] == HEADER.pack(0, registry.find(schema.name, schema.text))
        assert reader.decode(data) == writer.decode(data) == event
        assert reader.decode(data[5:], headers=(("__value_schema_id", data[:5]),)) == event
        assert reader.decode(data[5:], headers=(("apicurio.value.contentId", bytes(4) + data[1:5]),)) == event
        # A record from before the registry.
        assert reader.decode(COMMITTED.encode(event)) == event


def test_all_versions_are_registered_in_order(registry: ConfluentRegistry, registry_server: RegistryServer) -> None:
    for name in RECORDS.values():
        register(registry, latest(name))
    assert [entry.new for entry in register(registry, latest("node"))] == [False, False]
    for schema in all_schemas():
        with urllib.request.urlopen(
            f"{registry_server.url}/subjects/{schema.name}/versions/{schema.version}"
        ) as answer:
            there = json.load(answer)
        assert there["id"] == registry.find(schema.name, schema.text)
        assert schema_id(json.loads(there["schema"])) == schema.schema_id


def test_an_older_version_can_be_written(registry: ConfluentRegistry) -> None:
    old = Codec(registry, write_versions={"node": 1, "trajectory": 1})
    new = Codec(registry)
    status = next(event for event in EVENTS if isinstance(event, NodeStatus))
    status = dataclasses.replace(status, missing="collector", http="h:1", ready=False)
    data = old.encode(status)
    v1 = load_schema("node", 1)
    assert data[:5] == HEADER.pack(0, registry.find(v1.name, v1.text))
    assert new.decode(data) == dataclasses.replace(status, missing="", http="", ready=True)
    assert new.decode(new.encode(status)) == status
    trajectory = next(event for event in EVENTS if isinstance(event, Trajectory))
    assert new.decode(old.encode(trajectory)) == dataclasses.replace(trajectory, incarnation="")


def test_a_schema_of_somebody_elses_is_no_event(registry: ConfluentRegistry) -> None:
    given = registry.register(subject(), record("a"))
    with pytest.raises(UnknownSchemaError, match=r"test\.T, which is not an event"):
        Codec(registry).decode(HEADER.pack(0, given) + b"\x00")


# --- a front between us and the registry ------------------------------------------------------------


class Front:
    """A reverse proxy on 127.0.0.1 before the registry, as operators put one there; it asks for a login, and can fail on demand."""

    def __init__(self, target: str, *, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.login = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        self.answer: tuple[int, bytes] | None = None
        """Given in place of the registry's own."""
        self.asked: list[str] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                status, data = front.serve(self.command, self.path, body, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = handle_one

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}"

    def serve(self, method: str, path: str, body: bytes | None, login: str) -> tuple[int, bytes]:
        self.asked.append(f"{method} {path}")
        if login != self.login:
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        if self.answer is not None:
            return self.answer
        if path.startswith("/schemas/guids/"):  # as Confluent Platform 8 has them, and Apicurio has not
            path = f"/schemas/ids/{uuid.UUID(path.removeprefix('/schemas/guids/')).int}"
        request = urllib.request.Request(self.target + path, data=body, method=method)
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@contextmanager
def serving(front: Front) -> Iterator[Front]:
    thread = threading.Thread(target=front.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield front
    finally:
        front.server.shutdown()
        thread.join()
        front.server.server_close()


@pytest.fixture
def front(registry_server: RegistryServer) -> Iterator[Front]:
    with serving(Front(registry_server.url)) as front:
        yield front


def test_a_login_is_needed_and_given(registry_server: RegistryServer) -> None:
    with serving(Front(registry_server.url, login="distrl:sésame")) as front:
        opened(front.url, username="distrl", password="sésame").ping()
        for login in ({}, {"username": "distrl", "password": "wrong"}):
            with pytest.raises(RegistryCredentialsError, match=r"401.*DISTRL_REGISTRY__PASSWORD") as caught:
                Codec(opened(front.url, **login)).prepare()
            assert "wrong" not in str(caught.value)
            assert not caught.value.retriable


def test_tls_is_checked_with_the_authority_that_is_named(registry_server: RegistryServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(Front(registry_server.url, tls=context)) as front:
        opened(front.url, ca_file=tmp_path / "ca.pem").ping()
        with pytest.raises(RegistryCredentialsError, match=r"registry\.ca_file"):
            opened(front.url).ping()
    with pytest.raises(ConfigError, match=r"registry\.ca_file: there is no file"):
        opened(front.url, ca_file=tmp_path / "nothing.pem")


def test_a_schema_is_found_by_its_guid_where_the_server_has_them(front: Front) -> None:
    codec = Codec(opened(front.url))
    data = codec.encode(REWARD)
    guid = uuid.UUID(int=HEADER.unpack(data[:5])[1])
    reader = Codec(opened(front.url))
    framed = b"\x01" + guid.bytes
    assert reader.decode(framed + data[5:]) == REWARD
    assert reader.decode(data[5:], Reward, (("ce_id", b"x"), ("__value_schema_id", framed))) == REWARD


@pytest.mark.parametrize(
    ("status", "body", "error", "retriable"),
    [
        (503, b"away", RegistryUnavailableError, True),
        (500, b'{"error_code": 50001}', RegistryUnavailableError, True),
        (429, b"", RegistryUnavailableError, True),
        (403, b"<html>", RegistryCredentialsError, False),
        (404, b"<html>", RegistryError, False),
        (302, b"", RegistryError, False),
        (200, b"<html>welcome to the hotel</html>", RegistryError, False),
        (200, b"[]", RegistryError, False),
        (200, b'{"id": "one"}', RegistryError, False),
        (200, b'{"id": -1}', RegistryError, False),
    ],
)
def test_every_other_answer_is_an_error_of_ours(
    front: Front, status: int, body: bytes, error: type[RegistryError], retriable: bool
) -> None:
    front.answer = (status, body)
    with pytest.raises(RegistryError) as caught:
        opened(front.url).find("distrl.Reward", record("a"))
    assert isinstance(caught.value, error)
    assert caught.value.retriable is retriable


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": "{"},
        {"schema": 7},
        {"schema": '"string"'},
        {"schema": "{}", "schemaType": "JSON"},
        {"schema": record("a"), "references": [{"name": "b"}]},
        [],
    ],
)
def test_a_schema_that_cannot_be_used_is_an_error_of_ours(front: Front, answer: Any) -> None:
    front.answer = (200, json.dumps(answer).encode())
    with pytest.raises((RegistryError, UnknownSchemaError)):
        opened(front.url).schema(5)


def test_a_registry_that_failed_is_left_alone_for_a_moment(front: Front) -> None:
    clock = HandClock()
    registry = opened(front.url, clock=clock)
    front.answer = (503, b"")
    for _ in range(100):
        with pytest.raises(RegistryUnavailableError, match="503"):
            registry.schema(1)
    assert len(front.asked) == 1
    clock.now = 1.5
    front.answer = None
    registry.ping()
    assert len(front.asked) == 2


def test_an_answer_is_asked_for_once(front: Front) -> None:
    registry = opened(front.url)
    codec = Codec(registry)
    codec.prepare()
    asked = len(front.asked)
    data = [codec.encode(event) for event in EVENTS]
    for value in data:
        codec.decode(value)
    codec.prepare()
    assert len(front.asked) == asked
    other = Codec(opened(front.url))
    for _ in range(3):
        assert other.decode(data[0]) == EVENTS[0]
    assert len(front.asked) == asked + 1


def test_without_leave_to_register_something_missing_is_an_error(front: Front) -> None:
    front.answer = (404, b'{"error_code": 40401, "message": "Subject not found"}')
    with pytest.raises(RegistryError, match="distrl schemas register"):
        Codec(opened(front.url), register_missing=False).prepare()


def test_a_registry_that_holds_to_another_level_is_named(front: Front) -> None:
    front.answer = (200, b'{"compatibilityLevel": "BACKWARD"}')
    with pytest.raises(RegistryError, match="to BACKWARD compatibility, distrl needs FULL_TRANSITIVE or FULL"):
        opened(front.url).require_compatibility("distrl.Reward")


def test_a_level_that_the_registry_does_not_know_is_replaced_by_the_next(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = front.serve

    def knows_full_only(method: str, path: str, body: bytes | None, login: str) -> tuple[int, bytes]:
        if body is not None and b"FULL_TRANSITIVE" in body:
            return 422, b'{"error_code": 42203, "message": "Invalid compatibility level"}'
        return served(method, path, body, login)

    monkeypatch.setattr(front, "serve", knows_full_only)
    assert opened(front.url).require_compatibility(subject()) == "FULL"


# --- away, and back --------------------------------------------------------------------------------


@pytest.mark.timeout(360)
def test_an_outage_stops_only_what_must_be_asked_for(tmp_path: Path) -> None:
    from apicurio import start_registry

    cache = tmp_path / "registry.json"
    with start_registry(tmp_path / "state") as server:
        clock = HandClock()
        node = Codec(opened(server.url, clock=clock, cache_file=cache))
        node.prepare()
        written = node.encode(REWARD)
        other = opened(server.url)
        unheard = HEADER.pack(0, other.register("test.later", record("a"))) + b"\x00"
        server.kill()

        # What is known goes on.
        assert node.decode(node.encode(REWARD)) == REWARD
        with pytest.raises(RegistryUnavailableError, match="does not answer") as caught:
            node.decode(unheard)
        assert caught.value.retriable

        # A restart of the node knows what it knew, whoever registers what.
        again = Codec(opened(server.url, cache_file=cache), register_missing=False)
        again.prepare()
        assert again.encode(REWARD) == written
        assert again.decode(written) == REWARD
        reader = Codec(opened(server.url, cache_file=cache))
        assert reader.decode(written) == REWARD

        # Nobody else's answers, and nothing that is not as it should be.
        content = json.loads(cache.read_text(encoding="utf-8"))
        for number, spoiled in enumerate(
            [
                b"",
                b"\xff\xfe",
                b"[]",
                b'{"url": 1}',
                cache.read_bytes()[:-20],
                json.dumps(content | {"url": "http://127.0.0.1:1"}).encode(),
                json.dumps(content | {"schemas": []}).encode(),
                json.dumps(content | {"schemas": {key: {"type": "?"} for key in content["schemas"]}}).encode(),
                json.dumps(content | {"subjects": {"distrl.Reward": ["77"]}}).encode(),
                json.dumps(content | {"subjects": {"distrl.Reward": 7}}).encode(),
            ]
        ):
            file = tmp_path / f"spoiled-{number}.json"
            file.write_bytes(spoiled)
            with pytest.raises(RegistryUnavailableError):
                Codec(opened(server.url, cache_file=file)).prepare()
        with pytest.raises(RegistryUnavailableError):
            Codec(opened(server.url, cache_file=tmp_path / "no" / "folder.json")).prepare()

        server.start()
        clock.now = 60.0
        with pytest.raises(UnknownSchemaError, match="not an event"):
            node.decode(unheard)
        # Ids have outlived the crash, and a spoiled file is replaced by a good one.
        back = Codec(opened(server.url, cache_file=file))
        back.prepare()
        assert back.encode(REWARD) == written
        server.kill()
        Codec(opened(server.url, cache_file=file)).prepare()


def test_answers_of_a_registry_that_was_set_up_anew_are_forgotten(front: Front, tmp_path: Path) -> None:
    """The same address, other ids: what the file holds must not be written with."""
    cache = tmp_path / "registry.json"
    first = Codec(opened(front.url, cache_file=cache))
    first.prepare()
    written = first.encode(REWARD)
    content = json.loads(cache.read_text(encoding="utf-8"))
    # Every id means the next schema now.
    keys = sorted(content["schemas"], key=int)
    content["schemas"] = dict(zip(keys, [content["schemas"][key] for key in [*keys[1:], keys[0]]], strict=True))
    cache.write_text(json.dumps(content), encoding="utf-8")
    second = Codec(opened(front.url, cache_file=cache))
    second.prepare()
    assert second.encode(REWARD) == written
    assert json.loads(cache.read_text(encoding="utf-8"))["schemas"][keys[0]] != content["schemas"][keys[0]]


def test_a_node_starts_again_from_a_file_that_readers_share(front: Front, tmp_path: Path) -> None:
    """Who asks by id gets a schema in the registry's words and may write them over those of who asked for its id."""
    cache = tmp_path / "registry.json"
    node = Codec(opened(front.url, cache_file=cache))
    node.prepare()
    reader = Codec(opened(front.url, cache_file=cache))
    for event in EVENTS:
        assert reader.decode(node.encode(event)) == event
    front.answer = (503, b"")
    again = Codec(opened(front.url, cache_file=cache))
    again.prepare()
    assert [again.encode(event) for event in EVENTS] == [node.encode(event) for event in EVENTS]


def test_several_processes_may_share_the_file(front: Front, tmp_path: Path) -> None:
    cache = tmp_path / "registry.json"
    codecs = [Codec(opened(front.url, cache_file=cache)) for _ in range(4)]
    with ExitStack() as stack:
        for codec in codecs:
            thread = threading.Thread(target=codec.prepare)
            thread.start()
            stack.callback(thread.join)
    content = json.loads(cache.read_text(encoding="utf-8"))
    assert {schema.name for schema in map(latest, RECORDS.values())} == set(content["subjects"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["registry.json", "registry.lock"]


# --- commands ---------------------------------------------------------------------------------------


@pytest.fixture
def file(registry_server: RegistryServer, tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(
        f'[run]\ndirectory = "{tmp_path}/runs"\n[bus]\npath = "{tmp_path}/log"\n[store]\npath = "{tmp_path}/store"\n'
        f'[registry]\nkind = "confluent"\nurl = "{registry_server.url}"\n'
    )
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = exit.run(command, [*arguments, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else None, printed.err


def test_register_then_check_against_it(
    file: Path, registry_server: RegistryServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows, _ = run(capsys, "schemas", "register", "--config", str(file))
    assert code == 0
    assert [(row["record"], row["version"]) for row in rows] == [(s.record, s.version) for s in all_schemas()]
    code, again, _ = run(capsys, "schemas", "register", "--config", str(file))
    assert code == 0
    assert {row["state"] for row in again} == {"was there"}
    assert [row["id"] for row in again] == [row["id"] for row in rows]
    code, checked, _ = run(capsys, "schemas", "check", "--against", registry_server.url)
    assert code == 0
    assert [row["registry_id"] for row in checked] == [row["id"] for row in rows]
    assert {row["registry"] for row in checked} == {"has it"}


def test_a_registry_that_would_refuse_fails_the_check(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    served = front.serve

    def other_history(method: str, path: str, body: bytes | None, login: str) -> tuple[int, bytes]:
        if path == "/subjects/distrl.Reward":
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        if path == "/compatibility/subjects/distrl.Reward/versions":
            return 200, b'{"is_compatible": false}'
        return served(method, path, body, login)

    front.serve = other_history  # type: ignore[method-assign]
    code, rows, said = run(capsys, "schemas", "check", "--against", front.url)
    assert code == 2
    assert [row["registry"] for row in rows if row["record"] == "reward"] == ["refused"]
    assert "DISTRL-212" in said
    assert "would refuse reward version 1" in said


def test_register_without_a_registry_says_what_to_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    code, _, said = run(capsys, "schemas", "register", "--config", str(path))
    assert code == 2
    assert "registry.kind" in said


def test_doctor_looks_at_the_registry(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, findings, _ = run(capsys, "doctor", "--config", str(file))
    assert [finding["state"] for finding in findings if finding["check"] == "registry"] == ["ok"]
    code, findings, _ = run(capsys, "doctor", "--config", str(file), "--set", "registry.url=http://127.0.0.1:9/")
    assert code == 3
    [finding] = [finding for finding in findings if finding["check"] == "registry"]
    assert finding["state"] == "missing"
    assert "make stack-up" in finding["do"]
    _, findings, _ = run(capsys, "doctor", "--config", str(file), "--set", "registry.write_versions={reward=9}")
    [finding] = [finding for finding in findings if finding["check"] == "registry"]
    assert "reward has no version 9" in finding["found"]
