"""Outcomes of verifications, drills and sweeps in the store: puts them, deletes the oldest, reads the latest."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome, after, decode_outcome, encode_outcome
from tandem.backup_avro.errors import DamagedError
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore, put_new

#: Outcomes of one kind that are kept.
KEPT: Final = 20
_RATED = RatedLog(structlog.get_logger())


def put_outcome(store: ObjectStore, outcome: JobOutcome) -> None:
    """Put an outcome, and remove the oldest ones of its kind. Raises errors of the store.

    Findings of earlier outcomes that it does not settle are carried over into it.
    """
    prefix = layout.result_prefix(outcome.pair, outcome.kind.value)
    if outcome.scope is not None:
        outcome = after(outcome, latest_outcome(store, outcome.pair, outcome.kind))
    put_new(store, f"{prefix}{outcome.at:015d}-{secrets.token_hex(8)}.json", encode_outcome(outcome))
    keys = [info.key for info in store.list(prefix)]
    if len(keys) > KEPT:
        store.delete(sorted(keys)[:-KEPT])


class OutcomeReader:
    """Reads the newest outcome of each kind repeatedly. Caches outcomes, which never change."""

    def __init__(self, store: ObjectStore, pair: str) -> None:
        self._store = store
        self._pair = pair
        self._newest: dict[JobKind, str] = {}
        self._read: dict[JobKind, JobOutcome | None] = dict.fromkeys(JobKind)

    def refresh(self) -> dict[JobKind, JobOutcome | None]:
        """Return the newest outcome of each kind or None; one listing if none is new. Raises as `latest_outcome`."""
        keys = sorted(info.key for info in self._store.list(layout.results_prefix(self._pair)))
        for kind in JobKind:
            newest = max(
                (key for key in keys if key.startswith(layout.result_prefix(self._pair, kind.value))), default=""
            )
            if newest != self._newest.get(kind, ""):
                self._read[kind] = latest_outcome(self._store, self._pair, kind)
                self._newest[kind] = newest
        return dict(self._read)


def latest_of_each(store: ObjectStore, pair: str) -> dict[JobKind, JobOutcome | None]:
    """Return the result of `latest_outcome` for every kind."""
    return {kind: latest_outcome(store, pair, kind) for kind in JobKind}


def latest_outcome(store: ObjectStore, pair: str, kind: JobKind) -> JobOutcome | None:
    """Return the newest outcome of a kind that can be read, None if there is none. Raises errors of the store."""
    return next(newest_first(store, pair, kind), None)


def newest_first(store: ObjectStore, pair: str, kind: JobKind) -> Iterator[JobOutcome]:
    """Yield the outcomes of a kind that are kept and can be read. Raises errors of the store."""
    keys = sorted(info.key for info in store.list(layout.result_prefix(pair, kind.value)))
    for key in reversed(keys):
        try:
            yield decode_outcome(store.get(key), key)
        except ObjectMissingError:  # another run has just removed it
            continue
        except DamagedError as error:
            _RATED.warning("the outcome of a run can't be read and is passed over", key=key, error=error)
