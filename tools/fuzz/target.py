"""What is fuzzed: every reader of bytes that come from another machine, another process or a disk. Used by ``worker``.

A target has seeds, which are whole inputs, and ``feed``, which reads one mutated input as the runtime would. It may raise what
the reader promises (``expected``) and nothing else. ``folder`` is empty and the target's own.
"""

from __future__ import annotations

import copy
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distrl.connectors.blob import reference
from distrl.connectors.embedded.partition import pack_headers, unpack_headers
from distrl.connectors.folder import FolderStore
from distrl.connectors.ledger import read_ledger
from distrl.core.cli.template import TEMPLATES, template_path
from distrl.core.codec import Codec
from distrl.core.config import load_config
from distrl.core.contracts.action import InvalidAction, parse_action
from distrl.core.contracts.bus import TopicPartition
from distrl.core.contracts.events import Blob, ObservationRecord, Trajectory
from distrl.core.contracts.store import BlobRef
from distrl.core.errors import CheckpointError, DistrlError
from distrl.core.runtime.checkpoint import Checkpoints, Covered
from distrl.core.runtime.outbox import Outbox
from distrl.schemas import all_schemas
from distrl.testing import MemoryArtefacts, make_context, make_trajectory

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "unit" / "golden"
FOREIGN_ID = 7


@dataclass(frozen=True)
class Target:
    """One reader. ``feed`` gets the input and a source of chance for what else must be chosen."""

    seeds: Sequence[bytes]
    feed: Callable[[bytes, random.Random], object]
    expected: tuple[type[Exception], ...] = (DistrlError,)


def codec(folder: Path) -> Target:
    """Framed events, all committed versions."""
    reader = Codec()
    return Target(_golden(), lambda data, _: reader.decode(data))


class _Foreign:
    """A registry that knows one schema, which is nearly one of ours."""

    def __init__(self) -> None:
        self.definition: Mapping[str, Any] = {}

    def schema(self, schema_id: int) -> Mapping[str, Any]:
        return self.definition


TYPES: tuple[Any, ...] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", "distrl.Envelope", "distrl.Trajectory", "distrl.None",
    {"type": "array", "items": "null"}, {"type": "array", "items": "long"}, {"type": "map", "values": "string"},
    {"type": "fixed", "name": "F", "size": 0}, {"type": "fixed", "name": "F", "size": 2**40}, {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
    {"type": "enum", "name": "G", "symbols": ["a"]}, ["null", "string"], [], {}, None, 7,
    {"type": "bytes", "logicalType": "decimal", "precision": 2**31, "scale": 3}, {"type": "int", "logicalType": "date"},
    {"type": "string", "logicalType": "uuid"}, {"type": "long", "logicalType": "timestamp-micros"},
)  # fmt: skip
"""What a field of a foreign schema may be said to be."""


def foreign_schema(folder: Path) -> Target:
    """Framed events whose schema a registry gives, changed in one to three places."""
    schemas = all_schemas()
    whole = {schema: (GOLDEN / f"{schema.record}_v{schema.version}.bin").read_bytes() for schema in schemas}
    registry, codecs = _Foreign(), list[Codec]()

    def feed(data: bytes, source: random.Random) -> object:
        if source.random() < 0.02 or not codecs:  # a codec keeps what it resolved
            codecs[:] = [Codec(registry)]  # type: ignore[arg-type]  # of a registry a codec that only reads needs no more
        schema = source.choice(schemas)
        if source.random() < 0.5:
            data = whole[schema]
        definition = schema.definition
        for _ in range(source.randint(0, 3)):
            _change(definition, source)
        registry.definition = definition
        known = source.getrandbits(31)
        return codecs[0].decode(b"\x00" + known.to_bytes(4) + data[5:])

    return Target(_golden(), feed)


def _change(definition: Any, source: random.Random) -> None:
    """Change one field of one record in the definition, however deep."""
    records: list[Any] = []

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") == "record":
                records.append(node)
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    collect(definition)
    record = source.choice(records)
    fields = record["fields"]
    match source.randrange(5):
        case 0 if fields:
            source.choice(fields)["type"] = copy.deepcopy(source.choice(TYPES))
        case 1 if fields:
            del fields[source.randrange(len(fields))]
        case 2:
            fields.insert(
                source.randrange(len(fields) + 1),
                {
                    "name": source.choice(("new", "run", "envelope", "")),
                    "type": copy.deepcopy(source.choice(TYPES)),
                    "default": None,
                },
            )
        case 3:
            record["name"] = source.choice(("Trajectory", "Envelope", "Stranger", "", 7))
        case _ if fields:
            source.shuffle(fields)


def headers(folder: Path) -> Target:
    """Record headers, as the embedded log keeps them."""
    seeds = [pack_headers(each) or b"" for each in ((("traceparent", b"00-1"), ("ce_id", b"x" * 40)), (("a", b""),))]
    return Target(seeds, lambda data, _: unpack_headers(data))


def config(folder: Path) -> Target:
    """A configuration file, and settings over it."""
    path = folder / "config.toml"

    def feed(data: bytes, source: random.Random) -> object:
        path.write_bytes(data)
        text = data[:200].decode("utf-8", "replace")
        return load_config(
            path, overrides=[text] if source.random() < 0.1 else (), environment={"DISTRL_RUN__SEED": text}
        )

    def of_file(data: bytes, source: random.Random) -> object:
        if source.random() < 0.2:
            return feed(data, source)
        path.write_bytes(data)
        return load_config(path, environment={})

    return Target([template_path(name).read_bytes() for name in (*TEMPLATES, "demo")], of_file)


def action(folder: Path) -> Target:
    """The text of an action, as a policy wrote it."""
    texts = (
        "tap 0.250 0.125",
        'type "milk"',
        "press back",
        "swipe 0.5 0.8 0.5 0.2",
        "wait",
        "done",
        'type "\\ud83e\\udd5b"',
    )
    expected = (DistrlError, InvalidAction)
    return Target(
        [text.encode() for text in texts], lambda data, _: parse_action(data.decode("utf-8", "replace")), expected
    )


def ui_tree(folder: Path) -> Target:
    """The UI tree and the checks of a trajectory, as the evaluator ``state`` reads them."""
    from distrl.plugins.builtin.evaluator.state import StateEvaluator
    from distrl.plugins.spec import Options

    artefacts = MemoryArtefacts(inline=True)
    evaluator = StateEvaluator(Options(), make_context(folder, artefacts=artefacts))
    plain = make_trajectory()
    final = plain.final_observation
    assert final is not None
    assert final.ui_tree is not None
    tree = artefacts.read(final.ui_tree)
    checks = b'[{"resource_id": "query", "attribute": "text", "equals": "milk"}]'

    def feed(data: bytes, source: random.Random) -> object:
        if source.random() < 0.5:
            blob = Blob(
                "application/json", len(data), reference("b", "k", data, "application/json").sha256, inline=data
            )
            look = ObservationRecord(0, 1, 1, ui_tree=blob)
            event = replace(plain, final_observation=look, checks=checks.decode())
        else:
            event = replace(plain, checks=data.decode("utf-8", "replace"))
        return evaluator.evaluate([event])

    return Target([tree, checks], feed)


def hierarchy(folder: Path) -> Target:
    """The page source of an Android device."""
    from distrl.connectors.appium.hierarchy import read_hierarchy

    seed = (
        b'<?xml version="1.0" encoding="UTF-8"?><hierarchy rotation="0"><android.widget.FrameLayout class="a" bounds="[0,0][1080,2400]">'
        b'<node resource-id="x" class="b" text="&lt;milk&gt;" checked="true" focused="false" bounds="[0,-5][10,20]" content-desc="c"/>'
        b"</android.widget.FrameLayout></hierarchy>"
    )
    return Target([seed], lambda data, _: read_hierarchy(data.decode("utf-8", "replace"), (1080, 2400)))


def weights(folder: Path) -> Target:
    """A file of weights, as the policy ``factored`` loads it."""
    import torch

    from distrl.plugins.builtin.policy.factored import FactoredPolicy
    from distrl.plugins.builtin.policy.factored_options import FactoredOptions

    torch.set_num_threads(1)
    policy = FactoredPolicy(FactoredOptions(), make_context(folder))
    path = folder / "weights.safetensors"
    policy.save(path)
    whole = path.read_bytes()
    # The header is what is parsed; of the numbers behind it a piece is enough to be wrong.
    length = 8 + int.from_bytes(whole[:8], "little")
    small = whole[: length + 4096]

    def feed(data: bytes, source: random.Random) -> object:
        path.write_bytes(data + whole[len(small) :] if source.random() < 0.5 else data)
        return policy.load(path)

    return Target([small], feed)


def learner_state(folder: Path) -> Target:
    """The learner's own files in a checkpoint: counters, random state, the optimizer's tensors."""
    import torch

    from distrl.plugins.builtin.learner.learner_state import (
        OPTIMIZER,
        STATE,
        restore_optimizer,
        restore_state,
        save_optimizer,
        save_state,
    )

    torch.set_num_threads(1)
    parameters = [torch.nn.Parameter(torch.zeros(3, 4)), torch.nn.Parameter(torch.zeros(4))]
    optimizer = torch.optim.Adam(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    save_optimizer(optimizer, folder)
    save_state({"updates": 3, "numbers": [1.5, -2.0]}, random.Random(0), folder)
    good = {name: (folder / name).read_bytes() for name in (OPTIMIZER, STATE)}

    def feed(data: bytes, _: random.Random) -> object:
        name = STATE if data[:1] == b"{" else OPTIMIZER
        (folder / name).write_bytes(data)
        if name == STATE:
            return restore_state(random.Random(), folder)
        return restore_optimizer(optimizer, folder)

    return Target(list(good.values()), feed)


def manifest(folder: Path) -> Target:
    """The manifest of a checkpoint, in a folder store."""
    store = FolderStore(folder / "store")
    checkpoints = Checkpoints(store, "run", kept=1)
    covered = Covered(
        1, 2, 3, {TopicPartition("distrl.run.trajectories", 0): 7}, {"t": ("distrl.run.trajectories", 0, 5)}, ["t"]
    )
    checkpoints.save(covered, _write_state, folder / "work")
    (found,) = [stat for stat in store.list("run/checkpoints/") if "/manifest/" in stat.key]
    prefix, _, digest = found.key.rpartition("/")
    seed = store.get(BlobRef(store.bucket, found.key, found.size, digest, "application/json"))

    def feed(data: bytes, _: random.Random) -> object:
        for stat in list(store.list(prefix + "/")):
            store.delete(stat.key)
        store.put_content(prefix, data, media_type="application/json")
        if checkpoints.newest(folder / "fetched") is None:
            raise CheckpointError("passed over")
        return None

    return Target([seed], feed)


def _write_state(folder: Path) -> None:
    (folder / "learner.json").write_text("{}", encoding="utf-8")


def outbox(folder: Path) -> Target:
    """A collector's outbox file, and the events in its rows."""
    path = folder / "outbox.sqlite"
    reader, trajectory = Codec(), make_trajectory()
    box = Outbox(path)
    box.put([(f"t-{number}", reader.encode(trajectory)) for number in range(3)], done=[1])
    box.confirm(["t-0"])
    box.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    database.close()
    whole = path.read_bytes()
    update = "UPDATE episode SET {} = ? WHERE position = 2"

    def feed(data: bytes, source: random.Random) -> object:
        for old in folder.iterdir():
            old.unlink()
        if source.random() < 0.5:
            # A page that SQLite takes for sound, with a row that we have not written.
            path.write_bytes(whole)
            odd = source.choice(
                (data, data.decode("utf-8", "replace"), source.getrandbits(62), source.random(), b"", "")
            )
            with sqlite3.connect(path) as database:
                database.execute(update.format(source.choice(("value", "trajectory_id", "confirmed"))), (odd,))
            database.close()
        else:
            path.write_bytes(data)
        box = Outbox(path)
        try:
            box.done()
            for entry in box.entries():
                reader.decode(entry.value, Trajectory)
            box.confirm(["t-1"])
            box.remove(["t-1"])
            return len(box)
        finally:
            box.close()

    return Target([whole], feed)


def ledger(folder: Path) -> Target:
    """A simulated device's ledger, torn or not."""
    path = folder / "ledger-d0.jsonl"
    seed = b'{"entry": "started", "episode": "a", "time_ms": 1}\n{"entry": "finished", "episode": "a", "time_ms": 2}\n'

    def feed(data: bytes, _: random.Random) -> object:
        path.write_bytes(data)
        return read_ledger(folder)

    return Target([seed], feed)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "codec": codec,
    "foreign-schema": foreign_schema,
    "headers": headers,
    "config": config,
    "action": action,
    "ui-tree": ui_tree,
    "hierarchy": hierarchy,
    "weights": weights,
    "learner-state": learner_state,
    "manifest": manifest,
    "outbox": outbox,
    "ledger": ledger,
}


def _golden() -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))]
