"""Weights on their way: the learner publishes, collectors follow. Object first, then the event.

``WeightsPublisher`` is used by the learner, ``WeightsFollower`` by collectors, ``newest_weights`` and ``find_version`` by both
and by the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from distrl.core.codec import Codec, derived_id
from distrl.core.contracts.bus import Bus, Start
from distrl.core.contracts.clock import Clock
from distrl.core.contracts.events import WeightsUpdate
from distrl.core.contracts.policy import TrainablePolicy
from distrl.core.contracts.staleness import is_newer
from distrl.core.contracts.store import BlobStat, BlobStore
from distrl.core.contracts.topic import TopicName
from distrl.core.errors import (
    BlobNotFoundError,
    CodecError,
    RegistryUnavailableError,
    StoreError,
    WeightsError,
    is_retriable,
)
from distrl.core.runtime.blob import blob_ref, stored_blob
from distrl.core.runtime.disk import writing
from distrl.core.runtime.event_writer import EventWriter
from distrl.core.runtime.scan import OnUnreadable, scan

log = structlog.get_logger(__name__)
MEDIA_TYPE = "application/vnd.safetensors"
FETCH_MS = 60_000
"""A collector may be fetching what was stored less than this before the newest version; it is not removed yet."""
_KEY = re.compile(r"(\d{8,})-\d+\.safetensors")


def history(
    bus: Bus, codec: Codec, run: str, *, topic: str = "weights", on_unreadable: OnUnreadable | None = None
) -> Iterator[WeightsUpdate]:
    """Every weight update that the log holds now, in order; what cannot be read goes to ``on_unreadable`` or is passed over."""
    with bus.consumer([TopicName(run)(topic)], start=Start.earliest()) as consumer:
        for _, event in scan(consumer, codec, on_unreadable=on_unreadable):
            if isinstance(event, WeightsUpdate):
                yield event


def newest_weights(
    bus: Bus, codec: Codec, run: str, *, on_unreadable: OnUnreadable | None = None
) -> WeightsUpdate | None:
    """The newest update by (epoch, version, sequence); ``None`` if there is none."""
    newest: WeightsUpdate | None = None
    for topic in ("weights", "weights-latest"):
        for update in history(bus, codec, run, topic=topic, on_unreadable=on_unreadable):
            if is_newer(update, newest):
                newest = update
    return newest


def find_version(bus: Bus, codec: Codec, run: str, version: int | None) -> WeightsUpdate:
    """The update that announced ``version`` (the newest epoch's, if several), or the newest of all for ``None``."""
    found: WeightsUpdate | None = None
    for update in history(bus, codec, run):
        if version in (None, update.version) and is_newer(update, found):
            found = update
    if found is None:
        what = "any weights" if version is None else f"version {version}"
        raise WeightsError(f"run {run!r} has not published {what}: see `distrl weights list`")
    return found


def stored_version(key: str) -> int | None:
    """The version that an object of the store holds; ``None`` for what is no weights."""
    found = _KEY.fullmatch(key.rpartition("/")[2])
    return None if found is None else int(found[1])


def dispensable(stats: Sequence[BlobStat], *, kept: int) -> list[BlobStat]:
    """The weights that may go, oldest first: all but the ``kept`` newest versions (0: all are kept) and the first there is, which
    is the untrained policy."""
    versions = {stat.key: version for stat in stats if (version := stored_version(stat.key)) is not None}
    numbers = sorted(set(versions.values()))
    old = set(numbers[1:-kept]) if kept else set()
    return sorted(
        (stat for stat in stats if versions.get(stat.key) in old), key=lambda stat: (versions[stat.key], stat.key)
    )


def fetch_weights(store: BlobStore, update: WeightsUpdate, path: Path) -> None:
    """Bring published weights, verified, to ``path``. Raises ``BlobNotFoundError`` that says which versions are still there."""
    ref = blob_ref(update.blob)
    try:
        store.get_file(ref, path)
    except BlobNotFoundError as error:
        stats = store.list(ref.key.rpartition("/")[0] + "/")
        there = sorted({version for stat in stats if (version := stored_version(stat.key)) is not None})
        raise BlobNotFoundError(
            f"version {update.version} is no longer in the store (learner.weights_kept says how many are kept); "
            f"there are {_ranges(there) or 'none'}"
        ) from error


def _ranges(numbers: Sequence[int]) -> str:
    """``0, 7 to 9`` for 0, 7, 8, 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


class WeightsPublisher:
    """Puts versions into the store and announces them. Versions grow by one, over restarts too."""

    def __init__(
        self,
        store: BlobStore,
        writer: EventWriter,
        *,
        run: str,
        policy: str,
        epoch: int,
        options: str,
        work_dir: Path,
        patience_s: float,
        kept: int,
    ) -> None:
        """``kept``: versions that stay in the store besides the first; 0: all."""
        self._store = store
        self._writer = writer
        self._run = run
        self._policy = policy
        self._epoch = epoch
        self._options = options
        self._file = work_dir / "weights.safetensors"
        self._patience = patience_s
        self._kept = kept
        self._untidied = kept
        """Versions published since old ones were last removed; the first time they are looked for at once."""
        self.update: WeightsUpdate | None = None
        """What was announced last."""

    def publish(
        self,
        policy: TrainablePolicy,
        version: int,
        *,
        ingested: int,
        allowance: int,
        live_collectors: int,
        max_lag: int,
    ) -> WeightsUpdate:
        """Store the policy's weights as ``version``, then announce them; returns when the log has both announcements."""
        key = f"{self._run}/weights/{version:08d}-{self._epoch}.safetensors"
        for attempt in Retrying(
            retry=retry_if_exception(is_retriable),
            wait=wait_exponential(multiplier=0.2, max=10.0),
            stop=stop_after_delay(self._patience),
            reraise=True,
        ):
            with attempt:
                with writing("weights", self._file.parent):
                    policy.save(self._file)
                ref = self._store.put_file(key, self._file, media_type=MEDIA_TYPE)
        identity = derived_id("weights", self._run, str(self._epoch), str(version), "0")
        update = WeightsUpdate(
            envelope=self._writer.envelope(identity, begins_trace=True),
            policy=self._policy,
            epoch=self._epoch,
            version=version,
            sequence=0,
            blob=stored_blob(ref),
            base_model=policy.base_model,
            ingested=ingested,
            allowance=allowance,
            live_collectors=live_collectors,
            max_lag=max_lag,
            options=self._options,
        )
        self._announce(update, history=True)
        self._tidy()
        return update

    def renew(self, *, ingested: int, allowance: int, live_collectors: int) -> WeightsUpdate:
        """Announce the newest version again with a new allowance: same weights, next sequence."""
        if self.update is None:
            raise WeightsError("no version was published yet")
        sequence = self.update.sequence + 1
        identity = derived_id("weights", self._run, str(self._epoch), str(self.update.version), str(sequence))
        update = replace(
            self.update,
            envelope=self._writer.envelope(identity, parent=self.update.envelope.traceparent),
            sequence=sequence,
            ingested=ingested,
            allowance=allowance,
            live_collectors=live_collectors,
        )
        self._announce(update, history=False)
        return update

    def _tidy(self) -> None:
        """Remove versions beyond those kept, a tenth of them at a time. What goes wrong is tried again later."""
        self._untidied += 1
        if not self._kept or self._untidied < max(1, self._kept // 10):
            return
        self._untidied = 0
        try:
            stats = list(self._store.list(f"{self._run}/weights/"))
            newest_ms = max(stat.modified_ms for stat in stats)
            for stat in dispensable(stats, kept=self._kept):
                if newest_ms - stat.modified_ms >= FETCH_MS:  # both by the store's clock
                    self._store.delete(stat.key)
        except StoreError as error:
            log.warning("old weights stay for now", error=str(error))

    def _announce(self, update: WeightsUpdate, *, history: bool) -> None:
        if history:
            self._writer.send_all([update], topic="weights")
        self._writer.send_all([update], topic="weights-latest")
        self.update = update


class WeightsFollower:
    """The newest weights, verified and on this machine's disk. Used from one thread."""

    def __init__(
        self,
        bus: Bus,
        codec: Codec,
        store: BlobStore,
        run: str,
        *,
        work_dir: Path,
        clock: Clock,
        on_unreadable: OnUnreadable = lambda *_: None,
    ) -> None:
        """``on_unreadable`` hears of records that are no weight update."""
        self._on_unreadable = on_unreadable
        self._consumer = bus.consumer([TopicName(run)("weights-latest")], start=Start.earliest())
        self._codec = codec
        self._store = store
        self._clock = clock
        self._directory = work_dir / "weights"
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(
            ".*.part"
        ):  # of a fetch that a kill cut short; the folder is this node's alone
            left.unlink()
        self._fetch_after = 0.0
        self._failed: tuple[int, int] | None = None
        """What could not be fetched last; it alone waits for ``_fetch_after``."""
        self._fetched: tuple[int, int] | None = None
        self.update: WeightsUpdate | None = None
        """The newest update whose weights are here."""
        self._heard: WeightsUpdate | None = None

    @property
    def path(self) -> Path:
        """The file that holds the weights of ``update``."""
        return self._directory / "current.safetensors"

    def poll(self, on_weights: Callable[[WeightsUpdate], None] = lambda _: None) -> bool:
        """Take in what has come, never waiting for more; return whether ``update`` changed.

        ``on_weights`` is called when another version has been fetched and verified. A version that cannot be fetched or whose hash is
        wrong is not used: the former one stays, and it is tried again after a second, a newer one at once.
        """
        while records := self._consumer.poll(0.0, 100):
            for record in records:
                if record.value is None:
                    continue
                try:
                    update = self._codec.decode(record.value, WeightsUpdate, record.headers)
                except RegistryUnavailableError as error:
                    # It may be the newest for long: read it again, not over it. The topic has one partition.
                    log.warning("a weight update waits for the registry", error=str(error))
                    self._consumer.seek(record.topic_partition, record.offset)
                    return self._take_up(on_weights)
                except CodecError as error:
                    log.error("passed over a weight update that cannot be read", error=str(error))
                    self._on_unreadable(record, error)
                    continue
                if is_newer(update, self._heard):
                    self._heard = update
        return self._take_up(on_weights)

    def close(self) -> None:
        self._consumer.close()

    def _take_up(self, on_weights: Callable[[WeightsUpdate], None]) -> bool:
        """Fetch what was heard of, if that is new; return whether ``update`` changed."""
        heard = self._heard
        if heard is None or heard is self.update:
            return False
        if (heard.epoch, heard.version) != self._fetched:
            waits = self._failed == (heard.epoch, heard.version) and self._clock.monotonic() < self._fetch_after
            if waits or not self._fetch(heard):
                return False
            on_weights(heard)
        self.update = heard
        return True

    def _fetch(self, update: WeightsUpdate) -> bool:
        try:
            self._store.get_file(blob_ref(update.blob), self.path)
        except StoreError as error:
            # Wrong bytes may be mended by the store's own repair; in place of a version that is gone there is a newer one,
            # which is fetched as soon as it is heard of.
            log.error("weights are not used", version=update.version, error=str(error))
            self._failed = update.epoch, update.version
            self._fetch_after = self._clock.monotonic() + 1.0
            return False
        self._fetched = (update.epoch, update.version)
        return True
