"""Between the blobs of events and the references of stores. Called by whoever puts artefacts away or reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from distrl.connectors.blob import verify
from distrl.core.contracts.events import Blob, Event, Trajectory, WeightsUpdate
from distrl.core.contracts.store import BlobRef
from distrl.core.errors import InvalidEventError


def inline_blob(data: bytes, media_type: str) -> Blob:
    """``data`` as a blob that rides inside its event."""
    return Blob(media_type, len(data), hashlib.sha256(data).hexdigest(), inline=data)


def stored_blob(ref: BlobRef) -> Blob:
    """A stored object as an event names it."""
    return Blob(ref.media_type, ref.size, ref.sha256, ref.bucket, ref.key)


def blob_ref(blob: Blob) -> BlobRef:
    """The claim check of a blob that lies in the store. Raises ``InvalidEventError`` for one that rides inside its event."""
    if not blob.key:
        raise InvalidEventError(f"a blob of {blob.size} bytes names no object in the store")
    return BlobRef(blob.bucket, blob.key, blob.size, blob.sha256, blob.media_type)


def inline_bytes(blob: Blob) -> bytes | None:
    """The verified bytes of a blob that rides inside its event, ``None`` for one in the store. Raises ``BlobCorruptError``."""
    if blob.inline is None:
        return None
    return verify(blob.inline, size=blob.size, sha256=blob.sha256, name="an artefact inside its event")


def stored_blobs(event: Event) -> Iterator[Blob]:
    """Every blob of an event that lies in the store: what must not be removed while somebody may read the event."""
    if isinstance(event, WeightsUpdate):
        blobs = [event.blob]
    elif isinstance(event, Trajectory):
        looks = [*(step.observation for step in event.steps), event.final_observation]
        blobs = [
            blob for look in looks if look is not None for blob in (look.screenshot, look.ui_tree) if blob is not None
        ]
    else:
        blobs = []
    return (blob for blob in blobs if blob.key)
