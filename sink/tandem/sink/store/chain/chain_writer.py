"""Claims generation numbers and appends to chains. The store's put-if-absent is the only fence."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import ENTRY_JSON
from tandem.backup_avro.chain.entries import Claim, Entry, EntryKind, Opening, sha256_hex
from tandem.backup_avro.chain.generation import ChainError, Generation, check
from tandem.backup_avro.chain.json_codec import decode_entry, encode_claim, encode_entry, look_for_room, pack
from tandem.backup_avro.chain.snapshot import dump_state, items_of
from tandem.backup_avro.errors import OversizeError, PermanentError, RefusedError
from tandem.sink.store.contract.object_store import ObjectStore, PutResult, StoreTransientError

_LOG = structlog.get_logger()
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SNAPSHOT_ENTRIES = 1000
_SNAPSHOT_BYTES = 16 << 20
"""Bytes that a starting process reads at most, about, besides a SNAPSHOT. The next SNAPSHOT is written only after twice
its bytes, or a thousand entries."""


class HolderLostError(RefusedError):
    """Another incarnation has taken the chain over: this one must not append any more and halts."""


class ClaimLostError(PermanentError):
    """Another process claimed the number first."""


class StoppedError(PermanentError):
    """The wait for the store was given up because the process stops. The last put may or may not have taken effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The writer of a chain: one incarnation (process run) of one instance, on one cluster."""

    pair: str
    instance: str
    incarnation: str
    cluster_id: str


def now_ms(store: ObjectStore) -> int:
    """Return the store's clock in ms since the epoch."""
    return round(store.now().timestamp() * 1000)


def claim(
    store: ObjectStore, identity: Identity, number: int, *, opening: Opening, reason: str, stop: threading.Event
) -> ChainWriter:
    """Claim `number` and open its chain. Raises ClaimLostError if it is taken, StoppedError if `stop` is set first."""
    document = Claim(
        generation=number,
        pair=identity.pair,
        instance=identity.instance,
        incarnation=identity.incarnation,
        cluster_id=identity.cluster_id,
        nonce=secrets.token_hex(8),
        at=now_ms(store),
        reason=reason,
    )
    data = encode_claim(document)
    key = layout.claim_key(identity.pair, number)
    if not _put(store, key, data, stop):
        raise ClaimLostError(
            f"generation {number} of pair {identity.pair} was claimed by the other instance", code="TDM-S012"
        )
    writer = ChainWriter(
        store, Generation(claim=document, head_sha256=sha256_hex(data)), identity.incarnation, stop=stop
    )
    writer.append(
        Entry(kind=EntryKind.OPEN, seq=0, prev_sha256="", incarnation="", at=0, opening=opening, reason=reason)
    )
    return writer


def _put(
    store: ObjectStore,
    key: str,
    data: bytes,
    stop: threading.Event,
    *,
    refused: Callable[[StoreTransientError], None] = lambda _: None,
) -> bool:
    """Put the same bytes until the outcome is known; return whether the key holds them.

    `refused` is called with the error of each failed try.
    """
    attempt = 0
    while True:
        try:
            ours = store.put_if_absent(key, data) is PutResult.CREATED or store.get(key) == data
        except StoreTransientError as error:
            refused(error)
            if attempt == 0:
                _LOG.warning("store does not answer, trying the same bytes until it does", key=key, error=error)
            delay = _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
            attempt += 1
            if stop.wait(delay):
                raise StoppedError(f"stopped while waiting for the store to take {key}", code="TDM-S013") from error
        else:
            if attempt:
                _LOG.info("store answers again", key=key, attempts=attempt + 1)
            return ours


def _packed(entry: Entry) -> tuple[bytes, int]:
    """Return the stored bytes of an entry and the size of its JSON, which is not kept (a SNAPSHOT is large)."""
    plain = encode_entry(entry)
    return pack(plain), len(plain)


class ChainWriter:
    """Appends to one chain as one incarnation; safe to use from several threads. `state` folds all known entries.

    After a StoppedError no more entries can be appended: the outcome of the last put is unknown. `trouble` is why the
    store does not take the present entry yet.
    """

    def __init__(self, store: ObjectStore, state: Generation, incarnation: str, *, stop: threading.Event) -> None:
        self._store = store
        self._incarnation = incarnation
        self._stop = stop
        self._lock = threading.Lock()
        self._in_doubt: str | None = None
        self._snapshot_bytes = self._later_bytes = 0
        self._refused_seq = 0
        self.state = state
        self.trouble: str | None = None

    @property
    def incarnation(self) -> str:
        """The incarnation that writes the entries."""
        return self._incarnation

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of a put is unknown, so that the chain must be read again before the next append."""
        return self._in_doubt is not None

    @property
    def snapshot_due(self) -> bool:
        """Whether a starting process has so much to read that a SNAPSHOT is worth its bytes."""
        if self.state.seq - max(self.state.snapshot, self._refused_seq) >= _SNAPSHOT_ENTRIES:
            return True
        return self._later_bytes >= max(_SNAPSHOT_BYTES, 2 * self._snapshot_bytes)

    def snapshot_if_due(self) -> None:
        """Append a SNAPSHOT if one is worth its bytes. Raises as `append`.

        A SNAPSHOT above the size limit of entries is logged and left out, unbuilt, until as much was written again: a
        starting process then reads more of the chain, with the same result.
        """
        if not self.snapshot_due:
            return
        try:
            self.append(Entry(kind=EntryKind.SNAPSHOT, seq=0, prev_sha256="", incarnation="", at=0))
        except OversizeError as error:
            self._refused_seq, self._snapshot_bytes, self._later_bytes = self.state.seq, ENTRY_JSON, 0
            _LOG.warning(
                "the state is too large for a SNAPSHOT: a start reads more of the chain and takes longer",
                generation=self.state.number,
                objects=len(self.state.objects),
                partitions=len(self.state.positions),
                error=error,
            )

    def append(self, draft: Entry, *, unless: Callable[[], str | None] = lambda: None) -> Entry:
        """Append `draft` (its seq, link, incarnation and time are filled in here) and return the entry as written.

        If the number is taken: when it holds these very bytes, the entry is appended; when this incarnation held the
        chain and lost it, HolderLostError is raised; otherwise the next number is tried. A process that never held the
        chain (a janitor) may append the entries that the fold's rules allow to any incarnation, whoever the holder is.
        Raises ChainError if the draft breaks a rule, or if `unless`, called before each try, returns a reason against
        it in the present `state`; OversizeError, StoppedError.
        """
        with self._lock:
            if self._in_doubt:
                raise StoppedError(f"whether the store took {self._in_doubt} is not known", code="TDM-S014")
            while True:
                if (why_not := unless()) is not None:
                    raise ChainError(why_not, code="TDM-S015")
                entry = replace(
                    draft,
                    seq=self.state.seq + 1,
                    prev_sha256=self.state.head_sha256,
                    incarnation=self._incarnation,
                    at=max(self.state.at, now_ms(self._store)),
                    snapshot=self.state.snapshot,
                )
                if draft.kind is EntryKind.SNAPSHOT:
                    look_for_room(items_of(self.state))
                    entry = replace(entry, snapshot=entry.seq, folded=dump_state(self.state))
                check(self.state, entry)
                data, size = _packed(entry)
                key = layout.entry_key(self.state.claim.pair, self.state.number, entry.seq)
                self._in_doubt = key
                try:
                    taken = _put(self._store, key, data, self._stop, refused=self._refused)
                except OversizeError:
                    self._in_doubt = None  # it was not sent
                    raise
                self._in_doubt = self.trouble = None
                if taken:
                    self.state.apply(entry, sha256_hex(data))
                    self._count(entry, size)
                    return entry
                self._take_foreign(key, draft.kind)

    def _refused(self, error: StoreTransientError) -> None:
        self.trouble = str(error)

    def _count(self, entry: Entry, size: int) -> None:
        if entry.kind is EntryKind.SNAPSHOT:
            self._snapshot_bytes, self._later_bytes = size, 0
        else:
            self._later_bytes += size

    def _take_foreign(self, key: str, wanted: EntryKind) -> None:
        data = self._store.get(key)
        foreign = decode_entry(data, key)
        held = self.state.holder == self._incarnation
        self.state.apply(foreign, sha256_hex(data))
        self._count(foreign, len(data))
        if held and self.state.holder != self._incarnation and wanted is not EntryKind.TAKEOVER:
            raise HolderLostError(
                f"generation {self.state.number}: incarnation {self.state.holder} has taken the chain over",
                code="TDM-S016",
                remedy="only one process may run with this instance name; stop the other one or this one",
            )
        _LOG.info("chain number was taken, going on to the next", key=key, kind=foreign.kind.value)
