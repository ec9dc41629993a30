"""``distrl dead-letters``: what could not be handled, why, and sending it back once that is mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distrl.core.cli import option

if TYPE_CHECKING:
    from distrl.core.codec import Codec
    from distrl.core.contracts.events import DeadLetter
    from distrl.core.runtime.redrive import Letter

SHORT = 10
"""Digits of an id in a table: enough to name it by."""
PREVIEW_BYTES = 512
"""Of a value that is no event, for people."""
ROLES = ("collector", "evaluator", "prioritizer", "learner", "supervisor")
code = click.option("--code", default="", metavar="CODE", help="Only those of this error code, as DISTRL-202.")
topic = click.option("--topic", default="", metavar="TOPIC", help="Only those whose record came from this topic.")
role = click.option("--role", type=click.Choice(ROLES), help="Only those of this role.")


@click.group("dead-letters")
@option.debug
def command() -> None:
    """List, show or send back what could not be handled."""


@command.command("list")
@code
@topic
@role
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest so many.")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def list_letters(
    code: str,
    topic: str,
    role: Any,
    limit: int | None,
    config: Path,
    name: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Dead letters, oldest first, with what became of each."""
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of
    from distrl.core.cli.table import show
    from distrl.core.runtime.redrive import read_letters, select

    run = loaded.run.name
    with bus_of(loaded) as bus:
        letters = select(read_letters(bus, codec_of(loaded), run), run=run, code=code, topic=topic, role=role)
    rows = [_row(letter, run) for letter in letters[-limit if limit else 0 :]]
    if not as_json:
        rows = [
            row
            | {
                "id": row["id"][:SHORT],
                "state": row["state"].partition(" to ")[0],
                "message": row["message"].partition("\n")[0][:120],
            }
            for row in rows
        ]
    columns = ("id", "record", "role", "code", "state", "message")
    kind = "such " if _any(code, topic, role) else ""
    show(columns, rows, as_json=as_json, empty=f"run {run!r} has no {kind}dead letters")


@command.command("show")
@click.argument("letter", metavar="ID|POSITION")
@click.option("--value", type=option.FILE, metavar="FILE", help="Write the record's original bytes there.")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def show_letter(
    letter: str, value: Path | None, config: Path, name: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """One dead letter: what failed, the traceback, and the record, decoded if it is an event.

    ID is the letter's id or its beginning; POSITION where the record came from, as trajectories/2/57, or where the letter lies, as
    dead-letters/0/3.
    """
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of
    from distrl.core.cli.table import console, plain, show_json
    from distrl.core.runtime.redrive import find, read_letters, with_value

    run = loaded.run.name
    codec = codec_of(loaded)
    with bus_of(loaded) as bus:
        found = find(read_letters(bus, codec, run), letter, run)
        event = with_value(bus, codec, run, found)
    if value is not None:
        value.write_bytes(event.value or b"")
    event_type, decoded = _decoded(codec, event)
    document = _row(found, run) | {
        "node": event.envelope.node,
        "cause": event.cause,
        "record_time": _time(event.record_time_ms),
        "headers": {header: _readable(data) for header, data in event.headers.items()},
        "redriven": [{"to": marker.position, "time": _time(marker.time_ms)} for marker in found.markers],
        "event": event_type,
        "value": decoded,
        "traceback": event.traceback,
    }
    if as_json:
        show_json(document)
        return
    output = console()
    for key, part in document.items():
        if key in ("value", "traceback"):
            continue
        if part not in ("", [], {}, None):
            output.print(f"{key.replace('_', ' '):<12} {plain(_line(part))}")
    output.print(f"\n{event_type or 'not an event'}:")
    output.print(plain(decoded if isinstance(decoded, str) else _pretty(decoded)))
    if event.traceback:
        output.print(f"\n{plain(event.traceback).rstrip()}")
    if value is not None:
        output.print(f"\n{len(event.value or b'')} bytes in {value}")


@command.command("redrive")
@click.argument("ids", metavar="[ID|POSITION]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were not sent back yet.")
@code
@topic
@role
@click.option("--again", is_flag=True, help="Also those that were sent back before.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@option.config
@option.name
@option.overrides
@option.as_json
@option.debug
def redrive_letters(
    ids: tuple[str, ...],
    everything: bool,
    code: str,
    topic: str,
    role: Any,
    again: bool,
    dry_run: bool,
    yes: bool,
    config: Path,
    name: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Send records back to where they came from: same topic, partition, key, value and headers.

    No offset of any group is touched. Every role gets the record as a new one; who has handled it already drops it by its id. A letter
    is sent back once, unless --again is given.
    """
    if sum((bool(ids), everything, _any(code, topic, role))) != 1:
        raise click.UsageError("name dead letters, or give --all, or choose by --code, --topic and --role")
    loaded = option.load(config, overrides, run__name=name)
    from distrl.core.cli.session import bus_of, codec_of
    from distrl.core.cli.table import show
    from distrl.core.errors import ConfigError
    from distrl.core.runtime.redrive import find, read_letters, redrive, refusal, select

    run = loaded.run.name
    codec = codec_of(loaded)
    with bus_of(loaded) as bus:
        letters = read_letters(bus, codec, run)
        if ids:
            chosen = [find(letters, text, run) for text in ids]
            for letter in chosen:
                if letter.redriven and not again:
                    raise ConfigError(
                        f"dead letter {letter.letter_id[:SHORT]} was sent back to {letter.markers[-1].position} already; "
                        "--again sends it once more"
                    )
                if why := refusal(letter, run):
                    raise ConfigError(f"dead letter {letter.letter_id[:SHORT]}: {why}")
        else:
            found = select(letters, run=run, code=code, topic=topic, role=role)
            chosen = [letter for letter in found if again or not letter.redriven]
            for letter in chosen:
                if why := refusal(letter, run):
                    click.echo(f"left out: dead letter {letter.letter_id[:SHORT]}: {why}", err=True)
            chosen = [letter for letter in chosen if not refusal(letter, run)]
        records = {letter.origin for letter in chosen}
        if chosen and not dry_run and not yes:
            click.confirm(f"send {len(records)} records back to their topics?", abort=True, err=True)
        if dry_run:
            rows = [_row(letter, run) | {"sent_to": None} for letter in chosen]
        else:
            rows = [
                _row(done.letter, run) | {"sent_to": done.position}
                for done in redrive(bus, codec, run, chosen, letters)
            ]
    for row in rows:
        del row["state"]
    if not as_json:
        prefix = f"distrl.{run}."
        rows = [row | {"id": row["id"][:SHORT], "sent_to": (row["sent_to"] or "").removeprefix(prefix)} for row in rows]
    columns = ("id", "record", "role", "code", *(() if dry_run else ("sent_to",)))
    show(columns, rows, as_json=as_json, empty="nothing to send back")
    if rows and not as_json:
        click.echo(f"\n{len(records)} records {'would be' if dry_run else 'were'} sent back")


def _row(letter: Letter, run: str) -> dict[str, Any]:
    """One letter as a listing shows it."""
    event = letter.event
    return {
        "id": letter.letter_id,
        "time": _time(event.envelope.time_ms),
        "role": event.role,
        "code": event.code,
        "record": f"{event.topic.removeprefix(f'distrl.{run}.')}/{event.partition}/{event.offset}",
        "key": None if event.key is None else _readable(event.key),
        "bytes": letter.value_bytes,
        "attempt": event.attempt,
        "state": f"sent back to {letter.markers[-1].position.removeprefix(f'distrl.{run}.')}"
        if letter.redriven
        else "open",
        "message": event.message,
        "position": f"dead-letters/0/{letter.offset}",
    }


def _decoded(codec: Codec, event: DeadLetter) -> tuple[str, Any]:
    """The name of the event that a record holds, and the event; else an empty name and the bytes, as text or in hexadecimal."""
    from dataclasses import asdict

    from distrl.core.errors import DistrlError

    value = event.value or b""
    try:
        held = codec.decode(value, headers=tuple(event.headers.items()))
    except DistrlError:
        return "", _readable(value[:PREVIEW_BYTES]) + ("" if len(value) <= PREVIEW_BYTES else " ...")
    return type(held).__name__, _json_ready(asdict(held))


def _json_ready(value: Any) -> Any:
    match value:
        case bytes():
            return _readable(value[:PREVIEW_BYTES])
        case dict():
            return {key: _json_ready(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_ready(item) for item in value]
        case _:
            return value


def _readable(data: bytes) -> str:
    """Text if it is text, else hexadecimal digits."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex()
    return text if text.isprintable() else data.hex()


def _time(time_ms: int) -> str:
    from distrl.core.cli.table import utc

    return utc(time_ms) if time_ms > 0 else ""


def _any(*filters: object) -> bool:
    return any(filters)


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(_line(item) for item in value)
    return str(value)


def _pretty(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)
