"""Merges: a thread copies blocks of small objects into larger ones, and deletes objects that were replaced long ago.

Bytes are checked before they are copied, objects are in the store before the chain names them, and the committer both
reads the state and appends entries for the merger, between its commits. Objects that a REWRITE replaced are deleted
after a grace time, and only when no pin keeps them: a reader may have read the chain before the REWRITE. A checkpoint
keeps the objects that were in the chain when it was completed.
"""

from __future__ import annotations

import math
import secrets
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Entry,
    EntryKind,
    Part,
    StoredObject,
    Topic,
    codecs_of,
    largest_of,
    sha256_hex,
    uncompressed_of,
)
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.errors import DamagedError, TandemError, TransientError
from tandem.backup_avro.record.container import Codec, encode_header
from tandem.sink.encryption.errors import PlainObjectError
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore, put_new
from tandem.sink.store.encrypted_objects import ObjectBytes, Plain, new_seal, open_object, read_parts, stored_object
from tandem.sink.write.commit import Task
from tandem.sink.write.confirm import ObjectLoss, ObjectLostError
from tandem.sink.write.merge_plan import Merge, MergeOutput, MergePiece, MergeRules, plan_merge

_LOG = structlog.get_logger()
_GAP = 64 << 10
"""Bytes between two pieces up to which one request reads both."""
_AT_ONCE = 1000
_LOOK_S = 0.2
_AFTER = 8
"""Commits between two checks for objects to merge."""


class ChainAppender(Protocol):
    """Appends to the chain, one task after the other. `error` is why it ended."""

    error: Exception | None

    def request(self, task: Task) -> None:
        """Queue `task`, which is called with the chain's writer."""
        ...


@dataclass(slots=True)
class _CommitterCall:
    """A call that the committer makes for the merger. `value` or `failed` is set once it is done."""

    done: threading.Event
    value: object = None
    failed: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The next merge, and the parts of the state that it needs."""

    merge: Merge | None
    topics: dict[str, Topic]
    header: bytes
    replaced: dict[str, int]
    erased: dict[str, StoredObject | None]


class Merger:
    """Merges one generation's objects, every few commits. `stop` and never `join`: it may be uploading.

    `trouble` is why replaced objects can't be deleted, where a retry does not help. An object is put together while
    `turn` is held: its pieces and the object are in memory, beside the budget.
    """

    def __init__(
        self,
        *,
        writer: ChainWriter,
        store: ObjectStore,
        committer: ChainAppender,
        rules: MergeRules,
        name: str,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._store = store
        self._turn = nullcontext() if turn is None else turn
        self._committer = committer
        self._rules = rules
        self._claim = writer.state.claim
        self._mark = layout.mark_of(writer.incarnation)
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._commits = 0
        self._deleted: dict[str, None] = {}
        self._seqs: dict[str, int] = {}
        self._present: dict[str, tuple[int, int]] = {}
        self._known_pins: pins.KnownPins = {}
        self._told = False
        self._doubted: set[str] = set()
        self._lost: dict[str, ObjectLoss] = {}
        self.trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. It checks at once, because an earlier process may have left much unmerged."""
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current step. Objects that it has stored and not committed are orphans."""
        self._stopped.set()
        self._wake.set()

    @property
    def lost_objects(self) -> tuple[ObjectLoss, ...]:
        """Objects found missing or with other bytes twice. They stay as they are, and the rest is merged."""
        return tuple(self._lost.values())

    def committed(self) -> None:
        """Count a commit, and wake the thread every `_AFTER` commits."""
        self._commits += 1
        if self._commits % _AFTER == 0:
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopped.is_set():
                return
            try:
                while self.step():
                    pass
            except _StoppedError:
                return
            except Exception as error:  # noqa: BLE001 (backups go on without merging, but not for good)
                _LOG.warning("could not merge small objects, trying again", error=error, kind=type(error).__name__)

    def step(self) -> bool:
        """Merge once; return whether there may be more."""
        job = self._call_committer(self._next_job, mine=Exception)
        assert isinstance(job, _Job)
        self._try_sweep(job)
        if job.merge is None:
            return False
        try:
            objects = self._store_outputs(job, job.merge)
        except ObjectLostError as error:
            self._doubt(error)
            return True
        entry = replace(
            _REWRITE,
            objects=tuple(objects),
            replaced=tuple(item.key for item in job.merge.inputs),
            deleted=tuple(self._deleted),
            reason="merged",
        )
        try:
            self._call_committer(lambda writer: writer.append(entry), mine=ChainError)
        except ChainError as error:
            # A janitor was faster. The entry was not sent, so no chain names these objects.
            _LOG.info("the objects to merge were changed meanwhile", error=error)
            self._store.delete([item.key for item in objects])
            return True
        self._deleted = {}
        _LOG.debug(
            "merged", objects=len(job.merge.inputs), into=len(objects), bytes=sum(item.bytes for item in objects)
        )
        return True

    def _doubt(self, error: ObjectLostError) -> None:
        """Leave a faulty object out of merges from its second failure on. Raises `error` the first time.

        The same objects are due at every try, so one that can't be merged would block all that come after it.
        """
        key = error.item.key
        if key not in self._doubted:
            self._doubted.add(key)
            raise error
        self._lost[key] = ObjectLoss(error.item, error.text_about(key))
        _LOG.error("an object of this generation is lost", generation=self._claim.generation, error=error)

    def _next_job(self, writer: ChainWriter) -> _Job:
        state = writer.state
        assert state.opening is not None
        return _Job(
            merge=None if _over(state) else self._plan(state),
            topics=dict(state.topics),
            header=encode_header(codec=Codec(state.opening.codec), sync=bytes.fromhex(state.opening.sync)),
            replaced=dict(state.replaced),
            erased=dict(state.erased),
        )

    def _plan(self, state: Generation) -> Merge | None:
        plain = keys_of(self._store).refuses
        left = sum(map(plain, state.objects.values()))
        if left and not self._told:
            self._told = True
            _LOG.warning(
                "objects that are not encrypted are not merged: encryption.require is set",
                generation=state.number,
                objects=left,
                remedy="set it when `tandem keys` names no such objects any more, after two turns",
            )
        return plan_merge(state, self._rules, refused=lambda item: item.key in self._lost or plain(item))

    def _call_committer(self, what: Callable[[ChainWriter], object], *, mine: type[Exception]) -> object:
        """Have the committer call `what` and return its result. Raises `mine`; other errors end the committer."""
        timed_call = _CommitterCall(done=threading.Event())

        def run(writer: ChainWriter) -> None:
            try:
                timed_call.value = what(writer)
            except mine as error:
                timed_call.failed = error
            timed_call.done.set()

        self._committer.request(run)
        while not timed_call.done.wait(_LOOK_S):
            if self._stopped.is_set() or self._committer.error is not None:
                raise _StoppedError
        if timed_call.failed is not None:
            raise timed_call.failed
        return timed_call.value

    # --- copying ------------------------------------------------------------------------------------------------------

    def _store_outputs(self, job: _Job, merge: Merge) -> list[StoredObject]:
        stored: list[StoredObject] = []
        try:
            for output in merge.outputs:
                with self._turn:
                    stored.append(self._store_output(job, output))
        except Exception:
            with suppress(TandemError):
                self._store.delete([item.key for item in stored])
            raise
        return stored

    def _store_output(self, job: _Job, output: MergeOutput) -> StoredObject:
        if self._stopped.is_set():
            raise _StoppedError
        found = self._fetch(piece for group in output.groups for piece in group)
        key = self._name(job, output)
        seal = new_seal(self._store, key)
        canvas = ObjectBytes(seal, key=key, size=len(job.header) + sum(map(len, found.values())))
        canvas.write(job.header)
        parts = []
        for group in output.groups:
            start = canvas.at
            for piece in group:
                canvas.write(found.pop((piece.item.key, piece.part.start)))
            parts.append(_joined(group, start, canvas.at))
        data = canvas.finish()
        item = stored_object(data, key=key, journal=output.place is not None, parts=tuple(parts), seal=seal)
        put_new(self._store, key, data)
        return item

    def _name(self, job: _Job, output: MergeOutput) -> str:
        where = (self._claim.pair, self._claim.instance, self._claim.generation)
        nonce = layout.marked(secrets.token_hex(8), self._mark)
        if output.place is not None:
            return layout.journal_key(*where, seq=output.place, nonce=nonce)
        first, last = output.groups[0][0].part, output.groups[-1][-1].part
        topic = job.topics[first.key.topic_id].name
        return layout.data_key(
            where, topic=topic, partition=first.key.partition, first=first.first, last=last.last, nonce=nonce
        )

    def _fetch(self, pieces: Iterable[MergePiece]) -> dict[tuple[str, int], Plain]:
        """Read pieces and check them: those of separable objects one by one, other objects as a whole."""
        found: dict[tuple[str, int], Plain] = {}
        by_item: dict[str, list[MergePiece]] = {}
        for piece in pieces:
            by_item.setdefault(piece.item.key, []).append(piece)
        for wanted in by_item.values():
            item = wanted[0].item
            if item.separable:
                for run in _runs(wanted):
                    with _sound(item):
                        read = read_parts(self._store, item, [piece.part for piece in run])
                    found |= {(item.key, piece.part.start): data for piece, data in zip(run, read, strict=True)}
            else:
                with _sound(item):
                    data = self._read_whole(item)
                for piece in wanted:
                    found[item.key, piece.part.start] = data[piece.part.start : piece.part.end]
        return found

    def _read_whole(self, item: StoredObject) -> Plain:
        data = self._store.get(item.key, start=0, end=item.bytes, most=item.bytes)
        if sha256_hex(data) != item.sha256:
            raise DamagedError(f"{item.key} does not hold what the chain says", code="TDM-B043")
        return open_object(keys_of(self._store), item, data)

    # --- deleting -----------------------------------------------------------------------------------------------------

    def _try_sweep(self, job: _Job) -> None:
        """Sweep; if that fails, merging goes on: without merging the chain and its state grow without end."""
        before, self.trouble = self.trouble, None
        try:
            self._sweep(job)
        except TransientError as error:
            _LOG.warning("could not delete what merging replaced, trying again", error=error)
        except TandemError as error:
            self.trouble = str(error)
            if before is None:
                _LOG.warning("cannot delete what merging replaced", error=error)

    def _sweep(self, job: _Job) -> None:
        """Delete replaced objects after their grace time, unless a pin keeps them. The next REWRITE records it."""
        now = now_ms(self._store)
        old = [key for key, at in job.replaced.items() if now - at > self._rules.grace_ms and key not in self._deleted]
        if not old:
            return
        found = pins.list_pins(self._store, self._claim.pair, known=self._known_pins)
        holding = pins.pins_on(found, self._claim.generation, now)
        self._forget_all_but({pin.id for pin in holding})
        if not all(map(self._is_known, holding)):
            return
        seqs = sorted(self._seqs.values())
        before = _erased_from(job.erased)
        # A checkpoint that needs an object needs what an erasure left of it, and that one no more.
        going = [
            key
            for key in old
            if key in job.erased or not any(self._is_needed(one, seqs) for one in (key, *before.get(key, ())))
        ]
        for at in range(0, len(going), _AT_ONCE):
            batch = going[at : at + _AT_ONCE]
            self._store.delete(batch)
            self._deleted |= dict.fromkeys(batch)
            for key in batch:
                self._present.pop(key, None)

    def _is_known(self, pin: pins.Pin) -> bool:
        """Look up which objects a pin keeps; return whether that is known, since otherwise it may keep all of them.

        An object is in the chain from one entry to another, so the first and the last checkpoint that have it stand for
        those between them as well: the memory grows with the objects, and not with the objects of each checkpoint.
        """
        if pin.id in self._seqs:
            return True
        seq = checkpoints.completed_at(self._store, self._claim.pair, pin)
        if seq is None:
            return False
        state = ChainReader(self._store, self._claim.pair).load(self._claim.generation, upto=seq)
        for key in state.objects:
            first, last = self._present.get(key, (seq, seq))
            self._present[key] = min(first, seq), max(last, seq)
        self._seqs[pin.id] = seq
        return True

    def _is_needed(self, key: str, seqs: list[int]) -> bool:
        """Return whether one of the checkpoints, whose entries are `seqs` in ascending order, has an object."""
        first, last = self._present.get(key, (0, -1))
        at = bisect_left(seqs, first)
        return at < len(seqs) and seqs[at] <= last

    def _forget_all_but(self, held: set[str]) -> None:
        """Forget the pins that no longer hold the generation, and the objects that only they kept."""
        before, self._seqs = self._seqs, {pin_id: seq for pin_id, seq in self._seqs.items() if pin_id in held}
        if len(self._seqs) < len(before):
            lowest = min(self._seqs.values(), default=math.inf)
            self._present = {key: seen for key, seen in self._present.items() if seen[1] >= lowest}


def _erased_from(erased: dict[str, StoredObject | None]) -> dict[str, list[str]]:
    """Return the keys of the objects that each object took the place of, by its key."""
    found: dict[str, list[str]] = {}
    for old, new in erased.items():
        if new is not None:
            found.setdefault(new.key, []).append(old)
    return found


class _StoppedError(Exception):
    """The merger was stopped, or the committer has ended."""


_REWRITE = Entry(kind=EntryKind.REWRITE, seq=0, prev_sha256="", incarnation="", at=0)
_REMEDY = "`tandem verify` says what else is damaged; another generation is built without being asked"


def _over(state: Generation) -> bool:
    return state.sealed or state.clearing is not None


@contextmanager
def _sound(item: StoredObject) -> Iterator[None]:
    try:
        yield
    except ObjectMissingError as error:
        raise ObjectLostError(
            item, f"{item.key} is in the chain, but not in the store", code="TDM-B044", remedy=_REMEDY
        ) from error
    except PlainObjectError:
        raise
    except DamagedError as error:
        raise ObjectLostError(item, str(error.args[0]), code="TDM-B045", remedy=_REMEDY) from error


def _joined(group: tuple[MergePiece, ...], start: int, end: int) -> Part:
    """Return the part for pieces that were written as bytes [start, end) of the new object."""
    parts = [piece.part for piece in group]
    return replace(
        parts[0],
        last=parts[-1].last,
        records=sum(part.records for part in parts),
        tombstones=sum(part.tombstones for part in parts),
        min_timestamp=min(part.min_timestamp for part in parts),
        max_timestamp=max(part.max_timestamp for part in parts),
        start=start,
        end=end,
        scan=None if parts[0].scan is None else max(part.scan or 0 for part in parts),
        sha256=None,
        largest=largest_of(parts),
        uncompressed=uncompressed_of(parts),
        codecs=codecs_of(parts),
    )


def _runs(pieces: Iterable[MergePiece]) -> Iterator[list[MergePiece]]:
    """Yield lists of pieces of one object that one request reads, in the order of their bytes."""
    run: list[MergePiece] = []
    for piece in sorted(pieces, key=lambda piece: piece.part.start):
        if run and piece.part.start - run[-1].part.end > _GAP:
            yield run
            run = []
        run.append(piece)
    if run:
        yield run
