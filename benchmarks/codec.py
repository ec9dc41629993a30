"""How fast events are encoded and decoded, against bare fastavro on the same dictionaries, in one run.

Run ``python benchmarks/codec.py``. The ratio says what the frame, the dataclasses and the checks cost; the
figures a second depend on the machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
import timeit
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from distrl.core.codec import Codec
from distrl.core.contracts.events import Blob, Envelope, ObservationRecord, StepRecord, Trajectory
from distrl.schemas import latest

STEPS = 10
CALLS = 50
ROUNDS = 40


def trajectory(inline: bytes | None) -> Trajectory:
    """Ten steps; screenshots in the store, or ``inline`` ones."""
    digest = hashlib.sha256(inline or b"").hexdigest()
    screen = (
        Blob("image/png", 20_480, digest, "distrl", f"demo/screens/{digest}")
        if inline is None
        else Blob("image/png", len(inline), digest, inline=inline)
    )
    tree = Blob("application/json", 900, digest, "distrl", f"demo/trees/{digest}")
    look = ObservationRecord(1_735_689_600_000, 1080, 2400, screen, tree)
    step = StepRecord(look, "tap 0.250 0.125", (0, 37, 300), -1.25, (-0.5, -0.25, -0.5), 0.75, 0.5)
    return Trajectory(
        Envelope("id", "demo", "collector-1", 1_735_689_600_000),
        *("trajectory-1", "policy", "search-17", "search", "train", "Search for milk", "[]", 1, STEPS, "phone-0"),
        *("factored", 1, 41, "", '{"temperature": 1.0}', "finished", 1_735_689_600_000, 1_735_689_601_000),
        steps=(step,) * STEPS,
        final_observation=look,
    )


def rates(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Calls a second of each, the best of a few rounds. They take turns, so that a busy machine slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            seconds[name].append(timeit.timeit(call, number=CALLS))
    return {name: CALLS / min(times) for name, times in seconds.items()}


def measure(name: str, event: Trajectory) -> dict[str, object]:
    codec, parsed = Codec(), parse_schema(latest("trajectory").definition)
    data, record = codec.encode(event), asdict(event)
    body = data[5:]

    def write() -> bytes:
        out = BytesIO()
        schemaless_writer(out, parsed, record)
        return out.getvalue()

    assert write() == body
    rate = rates(
        {
            "encode": lambda: codec.encode(event),
            "fastavro_encode": write,
            "decode": lambda: codec.decode(data, Trajectory),
            "fastavro_decode": lambda: schemaless_reader(BytesIO(body), parsed, None),
        }
    )
    return {
        "case": name,
        "bytes": len(data),
        **{f"{what}_per_s": round(value) for what, value in rate.items()},
        "encode_ratio": round(rate["encode"] / rate["fastavro_encode"], 2),
        "decode_ratio": round(rate["decode"] / rate["fastavro_decode"], 2),
    }


def main() -> None:
    for name, inline in (("references", None), ("inline 20 kB screens", bytes(range(256)) * 80)):
        sys.stdout.write(json.dumps(measure(name, trajectory(inline))) + "\n")


if __name__ == "__main__":
    main()
