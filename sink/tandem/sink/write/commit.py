"""Committing: upload the objects of a draft, look once more at the topic ids, append to the chain. One at a time.

The order is the safety: an object is in the store before the chain names it, and a taint is in the chain before the
first commit after the gap that caused it. What others have stored is looked up once more; what is missing is a taint.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Entry,
    EntryKind,
    GroupOffset,
    Mark,
    PartitionKey,
    Position,
    StoredObject,
    Taint,
    Topic,
)
from tandem.backup_avro.errors import PermanentError, TandemError, TransientError
from tandem.sink import clock
from tandem.sink.encryption.errors import KeyUnavailableError
from tandem.sink.encryption.objects import new_seal
from tandem.sink.kafka.cluster.guarded_topics import ClusterView
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError
from tandem.sink.meters import NOBODY, Meters, Target
from tandem.sink.store.chain.chain_writer import ChainWriter, StoppedError
from tandem.sink.store.object_store import ObjectStore, StoreTransientError, put_new
from tandem.sink.write.confirm import what_is_wrong
from tandem.sink.write.object_buffer import ObjectAssembly

_LOG = structlog.get_logger()
_T = TypeVar("_T")
_RETRY_S = 1.0
_PATIENCE_S = 30.0
"""What fails for longer than this may fail alone: then its topic must not hold up the others."""
_UPLOADS = 4
_TOPIC_IDS = "topic ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """Whom an object waits for, and what is said when that begins and ends."""

    who: Target
    begins: str
    ends: str


_FOR_STORING = _Wait(who="store", begins="store does not take an object", ends="store has taken the object")
_FOR_LOOKING_UP = _Wait(who="store", begins="store does not say whether it has an object", ends="store answers again")
_FOR_A_KEY = _Wait(who="kms", begins="the KMS gives no key for an object", ends="there is a key again")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDraft:
    """What one commit adds. `stored` are objects that are in the store already.

    `names` are the topics behind its positions, to be checked against their ids.
    """

    objects: tuple[ObjectAssembly, ...] = ()
    stored: tuple[StoredObject, ...] = ()
    positions: dict[PartitionKey, Position] = field(default_factory=dict)
    head_at: int | None = None
    skew: int | None = None
    topics: tuple[Topic, ...] = ()
    groups: dict[str, tuple[GroupOffset, ...]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    taints: tuple[Taint, ...] = ()
    names: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes held in memory until it is stored, about."""
        return sum(item.held for item in self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What became of a draft: the entry, and the topic ids that were left out.

    Those were no longer there, or nobody may say whether they are, or they are in `refused`: ids of topics that the
    store takes nothing of, while it takes other objects, and why.
    """

    entry: Entry
    lost_topics: frozenset[str]
    bytes: int
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float


Task = Callable[[ChainWriter], None]


class Committer:
    """A thread that carries out drafts and other appends to one chain, in order. `error` is why it ended early.

    What fails in passing is tried until it works; `trouble` says what that is now, for any thread.
    """

    def __init__(
        self,
        *,
        writer: ChainWriter,
        store: ObjectStore,
        cluster: ClusterView,
        stop: threading.Event,
        name: str,
        meters: Meters = NOBODY,
    ) -> None:
        self._writer = writer
        self._store = store
        self._cluster = cluster
        self._stop = stop
        self._meters = meters
        self._queue: queue.Queue[CommitDraft | Task | None] = queue.Queue()
        self._done: queue.SimpleQueue[CommitResult] = queue.SimpleQueue()
        self._drafts = 0
        self._refused: dict[str, str] = {}
        self._suspects: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: Exception | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a draft is under way."""
        return self._drafts > 0

    @property
    def trouble(self) -> str | None:
        """Why what was read is not stored yet, although that was tried; None as long as nothing was refused."""
        refused = list(self._refused.values())
        return refused[0] if refused else self._writer.trouble

    def submit(self, draft: CommitDraft) -> None:
        """Hand over a draft; its outcome comes out of `outcomes`."""
        self._drafts += 1
        self._queue.put(draft)

    def request(self, task: Task) -> None:
        """Have `task` append something of its own between drafts."""
        self._queue.put(task)

    def outcomes(self) -> list[CommitResult]:
        """Return what was committed since the last call."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
            self._drafts -= 1
        return found

    def stop(self) -> None:
        """End after what was handed over; for one whose thread may never have been started."""
        self._queue.put(None)

    def finish(self, timeout: float | None) -> bool:
        """End after what was handed over; return whether that happened in time (None: however long it takes)."""
        self.stop()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with ThreadPoolExecutor(_UPLOADS, thread_name_prefix="upload") as pool:
            while True:
                job = self._queue.get()
                if job is None:
                    return
                try:
                    if isinstance(job, CommitDraft):
                        self._done.put(self._commit(job, pool))
                    else:
                        job(self._writer)
                except Exception as error:  # noqa: BLE001 (whatever it is, the owner of the thread must see it)
                    self.error = error
                    return

    def _commit(self, draft: CommitDraft, pool: ThreadPoolExecutor) -> CommitResult:
        began = time.monotonic()
        stored, refused = self._store_objects(draft, pool)
        missing, unseen = self._missing(draft, pool)
        refused |= unseen
        self._suspects |= refused.keys()
        lost = self._lost(draft.names) if draft.positions else frozenset[str]()
        lost |= refused.keys()
        positions = {key: value for key, value in draft.positions.items() if key.topic_id not in lost}
        # The first taint of a partition counts, and what is missing lies below what was read late.
        taints = tuple(taint for taint in (*missing, *draft.taints) if taint.key.topic_id not in lost)
        if taints:
            self._writer.append(_entry(EntryKind.TAINTED, taints=taints))
            self._tell(taints, draft.names)
        objects = tuple(_without(item, lost) for item in stored)
        # Of a topic that is left out nothing is said, either: it would go by a promise that nothing was read under yet.
        topics = tuple(topic for topic in draft.topics if topic.removed or topic.topic_id not in lost)
        entry = _entry(
            EntryKind.COMMIT if objects or positions or topics or draft.groups else EntryKind.CONFIRM,
            objects=tuple(item for item in objects if item.parts),
            positions=positions,
            head_at=None if lost else draft.head_at,  # it would speak for the positions that are left out
            skew=draft.skew,
            topics=topics,
            groups=draft.groups,
            marks=tuple(_mark_without(mark, lost) for mark in draft.marks),
        )
        written = self._writer.append(entry)
        seconds = time.monotonic() - began
        self._meters.committed(seconds, written)
        self._writer.snapshot_if_due()
        size = sum(item.bytes for item in stored)
        return CommitResult(entry=written, lost_topics=lost, bytes=size, seconds=seconds, refused=refused)

    def _missing(self, draft: CommitDraft, pool: ThreadPoolExecutor) -> tuple[tuple[Taint, ...], dict[str, str]]:
        """Return a taint for each base of which something that others have stored is not there any more.

        And by topic id why the store does not say whether it has something of a topic, while it says so of others.

        A base is right as of its end only, so none of it is sound without a part. The commit names the object all the
        same: the chain says what there was, and whoever verifies or restores it meets the loss.
        """
        found: dict[PartitionKey, Taint] = {}
        unseen: dict[str, str] = {}
        for item, what in zip(draft.stored, pool.map(self._look_up, draft.stored), strict=True):
            if isinstance(what, StoreTransientError):
                unseen.update({part.key.topic_id: str(what) for part in item.parts})
            elif what is not None:
                for part in item.parts:
                    start = draft.positions[part.key].base.start
                    found.setdefault(part.key, Taint(key=part.key, offset=start, reason=f"{item.key} {what}"))
        return tuple(found.values()), unseen

    def _look_up(self, item: StoredObject) -> str | StoreTransientError | None:
        patience_s = self._patience_s({part.key.topic_id for part in item.parts})
        try:
            info = self._insist(item.key, _FOR_LOOKING_UP, lambda: self._store.head(item.key), patience_s=patience_s)
        except StoreTransientError as error:
            return error
        return what_is_wrong(item, None if info is None else info.size)

    def _tell(self, taints: tuple[Taint, ...], names: dict[str, str]) -> None:
        first = taints[0]
        _LOG.warning(
            "tainted: deleted keys may come back in what is stored from now on, or records are missing",
            generation=self._writer.state.number,
            partitions=len(taints),
            topic=names.get(first.key.topic_id, first.key.topic_id),
            partition=first.key.partition,
            reason=first.reason,
            remedy="another generation is built without being asked; what was read through before stays sound. If this "
            "comes back, find what stops or starves this process, or raise delete.retention.ms",
        )

    def _store_objects(self, draft: CommitDraft, pool: ThreadPoolExecutor) -> tuple[list[StoredObject], dict[str, str]]:
        """Return what the commit may name, and by topic id why the store takes nothing of a topic."""
        stored, refused = list(draft.stored), dict[str, str]()
        for assembly, outcome in zip(draft.objects, pool.map(self._upload, draft.objects), strict=True):
            topic_ids = {key.topic_id for key, _ in assembly.groups}
            if isinstance(outcome, StoredObject):
                stored.append(outcome)
                self._suspects -= topic_ids
                continue
            if assembly.journal:  # many topics share it; the next life of the pipeline gives it another name
                raise outcome
            # What fails in passing was given up because the store takes others.
            if isinstance(outcome, PermanentError) and not self._takes_others():
                raise outcome
            refused.update(dict.fromkeys(topic_ids, str(outcome)))
        return stored, refused

    def _patience_s(self, topic_ids: Collection[str]) -> float:
        """Return how long to try what is of these topics; one try is enough where it failed before."""
        return _PATIENCE_S if self._suspects.isdisjoint(topic_ids) else 0.0

    def _takes_others(self) -> bool:
        """Whether the store takes objects other than one that failed."""
        claim = self._writer.state.claim
        try:
            self._store.probe(layout.data_prefix(claim.pair, claim.instance, claim.generation))
        except TandemError:
            return False
        return True

    def _upload(self, assembly: ObjectAssembly) -> StoredObject | TandemError:
        """Build an object and store it, or return why the store refuses it for good, or fails for it alone.

        Its bytes are let go of as soon as the store has them.
        """
        key = assembly.key
        built = assembly.build(self._insist(key, _FOR_A_KEY, lambda: new_seal(self._store, key)))
        began = time.monotonic()
        try:
            patience_s = self._patience_s({of.topic_id for of, _ in assembly.groups})
            self._insist(key, _FOR_STORING, lambda: put_new(self._store, key, built.data), patience_s=patience_s)
        except StoppedError:
            raise
        except (PermanentError, StoreTransientError) as error:
            return error
        self._meters.uploaded(time.monotonic() - began)
        return built.item

    def _insist(self, key: str, wait: _Wait, step: Callable[[], _T], *, patience_s: float = math.inf) -> _T:
        """Do what an object waits for until it works: all else would lose its records.

        Raises what it failed with if that goes on for `patience_s`, and the store takes others.
        """
        told, asked = False, clock.now()
        try:
            while True:
                try:
                    done = step()
                except (StoreTransientError, KeyUnavailableError) as error:
                    if not told:
                        _LOG.warning(f"{wait.begins}, trying until it does", key=key, error=str(error))
                    told = True
                    self._refused[key] = str(error)
                    self._meters.retried(wait.who)
                    if clock.now() - asked >= patience_s:
                        if self._takes_others():
                            raise
                        patience_s, asked = _PATIENCE_S, clock.now()
                    if self._stop.wait(_RETRY_S):
                        raise StoppedError(f"stopped while the store or the KMS was waited for: {key}") from error
                else:
                    if told:
                        _LOG.info(wait.ends, key=key)
                    return done
        finally:
            self._refused.pop(key, None)

    def _lost(self, names: dict[str, str]) -> frozenset[str]:
        """Return the topic ids that are not what their names stand for any more, or may not be described.

        What was read of the latter may be of another topic that came to the name, so it is not named either. A login
        that is refused is tried again like all else: one broker may refuse it alone, and the fetch finds out whether
        any takes it.
        """
        told = False
        while True:
            try:
                present = self._cluster.topic_ids(tuple(names.values()))
            except (TransientError, ClusterAuthenticationError) as error:
                if not told:
                    _LOG.warning("cannot check topic ids before the commit, trying until it works", error=str(error))
                told = True
                self._refused[_TOPIC_IDS] = str(error)
                self._meters.retried("brokers")
                if self._stop.wait(_RETRY_S):
                    raise StoppedError("stopped while waiting for the brokers to confirm topic ids") from error
            else:
                self._refused.pop(_TOPIC_IDS, None)
                if told:
                    _LOG.info("topic ids could be checked, committing")
                return frozenset(topic_id for topic_id, name in names.items() if present.get(name) != topic_id)


def _without(item: StoredObject, lost: frozenset[str]) -> StoredObject:
    return replace(item, parts=tuple(part for part in item.parts if part.key.topic_id not in lost)) if lost else item


def _mark_without(mark: Mark, lost: frozenset[str]) -> Mark:
    kept = {key: offset for key, offset in mark.offsets.items() if key.topic_id not in lost}
    return replace(mark, offsets=kept) if lost else mark


def _entry(kind: EntryKind, **content: object) -> Entry:
    return Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0, **content)  # type: ignore[arg-type]  # Draft's


def complete_entry(reason: str) -> Entry:
    """Return a COMPLETE entry."""
    return _entry(EntryKind.COMPLETE, reason=reason)


def tainted_entry(taints: tuple[Taint, ...]) -> Entry:
    """Return a TAINTED entry."""
    return _entry(EntryKind.TAINTED, taints=taints)


def sealed_entry(reason: str, *, topics: tuple[Topic, ...] = ()) -> Entry:
    """Return a SEALED entry; `topics` are those that are no longer guarded (or are again) since the chain said so."""
    return _entry(EntryKind.SEALED, reason=reason, topics=topics)


def takeover_entry(reason: str) -> Entry:
    """Return a TAKEOVER entry."""
    return _entry(EntryKind.TAKEOVER, reason=reason)
