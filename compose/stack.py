"""The servers that a run needs, on this machine and without docker: ``python compose/stack.py up|down|status``.

``up`` starts a Kafka broker on 127.0.0.1:9092, an S3 server on 127.0.0.1:8333 and a schema registry on 127.0.0.1:8081 (other
ports if these are taken), which outlive it, and writes beside each other in the state folder (``.distrl``): ``stack.json``, what runs;
``stack.toml``, a configuration that uses it (``distrl run --config .distrl/stack.toml``); ``stack.env``, the same for a shell
(``. .distrl/stack.env``). ``down`` ends them and removes all that they kept. Up twice or down twice is harmless.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from server import Server, ServerError, port_is_free, write_private

STATE = Path(".distrl")
STOP_SECONDS = 3.0
"""The data is removed next, so nobody gains from waiting longer."""
SETTINGS = ("stack.json", "stack.toml", "stack.env")

Settings = dict[str, dict[str, str | list[str]]]
"""Sections of a configuration and the keys that point it at a server."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of server that the stack knows."""

    port: int
    """Where it is put if nothing else listens there."""
    make: Callable[[Path, int | None], Server]
    """Makes a detached server, not started."""
    settings: Callable[[Server], Settings]


@dataclass(frozen=True, slots=True)
class Running:
    """A server as ``stack.json`` remembers it."""

    kind: str
    pid: int
    started: str
    """When the process started, as the system words it: with the pid it names one process for good."""
    address: str
    settings: Settings

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


# --- the kinds; modules are loaded when they are asked for ------------------------------------------------


def _make_kafka(folder: Path, port: int | None) -> Server:
    from kafka_broker import KafkaServer

    return KafkaServer(folder, port=port, detached=True)


def _kafka_settings(server: Server) -> Settings:
    return {"bus": {"kind": "kafka", "bootstrap": [server.address]}}


def _make_s3(folder: Path, port: int | None) -> Server:
    from seaweedfs import S3Server

    return S3Server(folder, port=port, detached=True)


def _s3_settings(server: Server) -> Settings:
    from seaweedfs import S3Server

    assert isinstance(server, S3Server)
    return {
        "store": {
            "kind": "s3",
            "endpoint": server.endpoint,
            "access_key": server.access_key,
            "secret_key": server.secret_key,
        }
    }


def _make_registry(folder: Path, port: int | None) -> Server:
    from apicurio import RegistryServer

    return RegistryServer(folder, port=port, detached=True)


def _registry_settings(server: Server) -> Settings:
    from apicurio import RegistryServer

    assert isinstance(server, RegistryServer)
    return {"registry": {"kind": "confluent", "url": server.url}}


def _make_appium(folder: Path, port: int | None) -> Server:
    from appium_server import AppiumServer

    return AppiumServer(folder, port=port, detached=True)


def _appium_settings(_server: Server) -> Settings:
    return {}


KINDS = {
    "kafka": Kind(9092, _make_kafka, _kafka_settings),
    "s3": Kind(8333, _make_s3, _s3_settings),
    "registry": Kind(8081, _make_registry, _registry_settings),
    "appium": Kind(4723, _make_appium, _appium_settings),
}
DEFAULT = ("kafka", "s3", "registry")


# --- up, down, status ---------------------------------------------------------------------------------


def up(state: Path = STATE, kinds: Sequence[str] = DEFAULT) -> list[Running]:
    """Start those of ``kinds`` that do not run; return all that run. Raises ``ServerError``; then nothing new is left."""
    with _locked(state):
        known = {running.kind: running for running in read(state) if running.alive}
        fresh: list[tuple[Kind, Server]] = []
        try:
            for name in kinds:
                if name in known:
                    continue
                kind, folder = KINDS[name], _folder(state, name)
                shutil.rmtree(folder, ignore_errors=True)
                server = kind.make(folder, kind.port if port_is_free(kind.port) else None)
                fresh.append((kind, server))
                server.start()
                started = start_time(server.pid) or ""
                known[name] = Running(name, server.pid, started, server.address, kind.settings(server))
            write(state, list(known.values()))
        except BaseException:
            for _, server in fresh:
                server.stop()
                shutil.rmtree(server.state_dir, ignore_errors=True)
            raise
        return list(known.values())


def down(state: Path = STATE) -> list[Running]:
    """End what runs and remove all that it kept; return what was ended."""
    with _locked(state):
        ended = [running for running in read(state) if running.alive]
        for running in ended:
            end(running)
        for running in read(state):
            # Once more through its class, which knows what else it leaves on the machine.
            KINDS[running.kind].make(_folder(state, running.kind), None).kill()
        shutil.rmtree(state / "stack", ignore_errors=True)
        for name in SETTINGS:
            (state / name).unlink(missing_ok=True)
    (state / "stack.lock").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        state.rmdir()  # only if nothing else is in it
    return ended


def read(state: Path = STATE) -> list[Running]:
    """What ``up`` started and ``down`` has not ended, alive or not."""
    try:
        content = json.loads((state / "stack.json").read_text())
    except FileNotFoundError:
        return []
    return [Running(**entry) for entry in content["servers"]]


def write(state: Path, servers: Sequence[Running]) -> None:
    """Remember what runs, and write how to use it."""
    sections: Settings = {}
    for running in servers:
        sections.update(running.settings)
    toml = ["# Written by compose/stack.py up. Everything else has its default.", ""]
    env = ["# Written by compose/stack.py up."]
    for section, keys in sections.items():
        toml.append(f"[{section}]")
        for key, value in keys.items():
            text = json.dumps(value)  # strings and lists of strings are written alike in JSON and TOML
            toml.append(f"{key} = {text}")
            plain = value if isinstance(value, str) else text  # text is taken from the environment as it is there
            env.append(f"export DISTRL_{section.upper()}__{key.upper()}={shlex.quote(plain)}")
        toml.append("")
    write_private(
        state / "stack.json", json.dumps({"servers": [asdict(server) for server in servers]}, indent=2) + "\n"
    )
    write_private(state / "stack.toml", "\n".join(toml))
    write_private(state / "stack.env", "\n".join(env) + "\n")


def end(running: Running) -> None:
    """End one server: in order, and by force if that takes too long. Never touches a process that took over its pid."""
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        if not running.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        deadline = time.monotonic() + (0.0 if number == signal.SIGCONT else STOP_SECONDS)
        while running.alive and time.monotonic() < deadline:
            time.sleep(0.05)


def start_time(pid: int) -> str | None:
    """When a process started; ``None`` if there is none of that pid, or only what its parent has not collected yet."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]  # a machine without /proc
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    status, _, started = done.stdout.strip().partition(" ")
    return None if not started or status.startswith("Z") else started.strip()


def _folder(state: Path, kind: str) -> Path:
    return (state / "stack" / kind).resolve()


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    """One ``up`` or ``down`` at a time."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "stack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- command line -------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The servers that a run needs, without docker.")
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument(
        "--only", default=",".join(DEFAULT), help=f"which to start, of {','.join(KINDS)}; default: %(default)s"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="folder for all that is kept; default: %(default)s")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in options.only.split(",") if kind]
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}; there are {', '.join(KINDS)}")
    try:
        if options.action == "up":
            _show(up(options.state, kinds))
            _say("")
            _say((options.state / "stack.env").read_text().rstrip())
            _say("")
            _say(f"use it:  distrl run --config {options.state / 'stack.toml'}   or   . {options.state / 'stack.env'}")
            _say("end it:  make stack-down")
        elif options.action == "down":
            ended = down(options.state)
            _say(f"ended {', '.join(running.kind for running in ended)}" if ended else "nothing was running")
        else:
            servers = read(options.state)
            _show(servers)
            return 0 if servers and all(running.alive for running in servers) else 3
    except ServerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 3
    return 0


def _show(servers: Sequence[Running]) -> None:
    if not servers:
        _say("nothing is running")
    for running in servers:
        _say(f"{running.kind:8} {running.address:22} pid {running.pid:<8} {'up' if running.alive else 'gone'}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
