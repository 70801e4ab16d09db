"""Checkpoints as jobs that remove records need them: all of them, or none."""

from __future__ import annotations

from tandem.backup_avro.documents.checkpoint import Checkpoint
from tandem.backup_avro.errors import RefusedError
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import checkpoints


def readable_checkpoints(store: ObjectStore, pair: str) -> tuple[Checkpoint, ...]:
    """Return all checkpoints of a pair. Raises RefusedError if one can't be read: what it needs is not known then."""
    known = checkpoints.list_checkpoints(store, pair)
    if known.damaged:
        raise RefusedError(
            f"checkpoints can't be read, so the objects that they need are unknown: {', '.join(sorted(known.damaged))}",
            code="TDM-T002",
            remedy="bring them back from the bucket's versions, or `tandem checkpoint delete` them",
        )
    return known.checkpoints
