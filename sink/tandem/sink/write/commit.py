"""Commits drafts one at a time: uploads their objects, checks the topic ids once more, appends to the chain.

The order is what makes it safe: an object is in the store before the chain names it, and a taint is in the chain before
the first commit after the gap that caused it. Objects that other processes have stored are looked up once more; a
missing one is a taint.
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
from tandem.sink.encryption.errors import KeyUnavailableError
from tandem.sink.kafka.cluster.guarded_topics import ClusterView
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError
from tandem.sink.process import clock
from tandem.sink.process.meters import NOBODY, Meters, Target
from tandem.sink.store.chain.chain_writer import ChainWriter, StoppedError
from tandem.sink.store.contract.object_store import ObjectStore, StoreTransientError, put_new
from tandem.sink.store.encrypted_objects import new_seal
from tandem.sink.write.confirm import what_is_wrong
from tandem.sink.write.object_buffer import ObjectAssembly

_LOG = structlog.get_logger()
_T = TypeVar("_T")
_RETRY_S = 1.0
_PATIENCE_S = 30.0
"""Seconds after which a failing object may be the only one that fails: then its topic must not delay the others."""
_UPLOADS = 4
_TOPIC_IDS = "topic ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """The target that an object waits for, and the log texts for the beginning and end of the wait."""

    who: Target
    begins: str
    ends: str


_FOR_STORING = _Wait(who="store", begins="store does not take an object", ends="store has taken the object")
_FOR_LOOKING_UP = _Wait(who="store", begins="store does not say whether it has an object", ends="store answers again")
_FOR_A_KEY = _Wait(who="kms", begins="the KMS gives no key for an object", ends="there is a key again")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDraft:
    """Contents of one commit. `stored` are objects that are in the store already.

    `names` are the topics of its positions by topic id, which are checked before the commit.
    """

    objects: tuple[ObjectAssembly, ...] = ()
    stored: tuple[StoredObject, ...] = ()
    positions: dict[PartitionKey, Position] = field(default_factory=dict)
    head_at: int | None = None
    skew: int | None = None
    topics: tuple[Topic, ...] = ()
    groups: dict[str, tuple[GroupOffset, ...]] = field(default_factory=dict)
    unrecorded: dict[str, str] | None = None
    marks: tuple[Mark, ...] = ()
    taints: tuple[Taint, ...] = ()
    names: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Approximate bytes held in memory until the draft is stored."""
        return sum(item.held for item in self.objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """Result of a draft: the entry, and the topic ids that were left out.

    Their topics no longer exist, or may not be described, or are in `refused`: ids of topics whose objects the store
    refuses, while it takes other objects, with the reason.
    """

    entry: Entry
    lost_topics: frozenset[str]
    bytes: int
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float


Task = Callable[[ChainWriter], None]


class Committer:
    """A thread that commits drafts and makes other appends to one chain, in order. `error` is why it ended early.

    Transient failures are retried until they pass; `trouble` is the present one, readable by any thread.
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
        """Why records are not stored yet although the committer has tried; None while no attempt has failed."""
        refused = list(self._refused.values())
        return refused[0] if refused else self._writer.trouble

    def submit(self, draft: CommitDraft) -> None:
        """Queue a draft; `outcomes` returns its result."""
        self._drafts += 1
        self._queue.put(draft)

    def request(self, task: Task) -> None:
        """Queue `task` to append entries of its own between drafts."""
        self._queue.put(task)

    def outcomes(self) -> list[CommitResult]:
        """Return the results of the drafts committed since the last call."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
            self._drafts -= 1
        return found

    def stop(self) -> None:
        """Stop the thread after the queued work; may be called even if the thread was never started."""
        self._queue.put(None)

    def finish(self, timeout: float | None) -> bool:
        """Stop the thread after the queued work; return whether it ended within `timeout` s (None: wait for ever)."""
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
                except Exception as error:  # noqa: BLE001 (the owner of the thread must see any error)
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
        # The first taint of a partition counts, and missing objects lie below records that were read late.
        taints = tuple(taint for taint in (*missing, *draft.taints) if taint.key.topic_id not in lost)
        if taints:
            self._writer.append(_entry(EntryKind.TAINTED, taints=taints))
            self._log_taints(taints, draft.names)
        objects = tuple(_without(item, lost) for item in stored)
        # The news of a topic that is left out stay out too: they hold a guarantee under which no record was read yet.
        topics = tuple(topic for topic in draft.topics if topic.removed or topic.topic_id not in lost)
        news_of_groups = draft.groups or draft.unrecorded is not None
        entry = _entry(
            EntryKind.COMMIT if objects or positions or topics or news_of_groups else EntryKind.CONFIRM,
            objects=tuple(item for item in objects if item.parts),
            positions=positions,
            head_at=None if lost else draft.head_at,  # it would hold for the positions that are left out
            skew=draft.skew,
            topics=topics,
            groups=draft.groups,
            unrecorded=draft.unrecorded,
            marks=tuple(_mark_without(mark, lost) for mark in draft.marks),
        )
        written = self._writer.append(entry)
        seconds = time.monotonic() - began
        self._meters.committed(seconds, written)
        self._writer.snapshot_if_due()
        size = sum(item.bytes for item in stored)
        return CommitResult(entry=written, lost_topics=lost, bytes=size, seconds=seconds, refused=refused)

    def _missing(self, draft: CommitDraft, pool: ThreadPoolExecutor) -> tuple[tuple[Taint, ...], dict[str, str]]:
        """Return a taint for each scan that lacks an object which another process has stored.

        The second value maps topic ids to the reason why the store does not answer for objects of that topic while it
        answers for others.

        A scan is right as of its end only, so none of it is sound without a part. The commit names the object all the
        same: the chain records what there was, and a verification or restore meets the loss.
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
            info = self._retry_until_done(
                item.key, _FOR_LOOKING_UP, lambda: self._store.head(item.key), patience_s=patience_s
            )
        except StoreTransientError as error:
            return error
        return what_is_wrong(item, None if info is None else info.size)

    def _log_taints(self, taints: tuple[Taint, ...], names: dict[str, str]) -> None:
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
        """Return the objects that the commit may name, and by topic id why the store refuses a topic's objects."""
        stored, refused = list(draft.stored), dict[str, str]()
        for assembly, outcome in zip(draft.objects, pool.map(self._upload, draft.objects), strict=True):
            topic_ids = {key.topic_id for key, _ in assembly.groups}
            if isinstance(outcome, StoredObject):
                stored.append(outcome)
                self._suspects -= topic_ids
                continue
            if assembly.journal:  # many topics share it; the next run of the pipeline gives it another name
                raise outcome
            # A transient failure was given up only because the store takes other objects.
            if isinstance(outcome, PermanentError) and not self._takes_others():
                raise outcome
            refused.update(dict.fromkeys(topic_ids, str(outcome)))
        return stored, refused

    def _patience_s(self, topic_ids: Collection[str]) -> float:
        """Return how many s to try objects of these topics; 0 (one try) for topics that failed before."""
        return _PATIENCE_S if self._suspects.isdisjoint(topic_ids) else 0.0

    def _takes_others(self) -> bool:
        """Return whether the store takes objects other than the one that failed."""
        claim = self._writer.state.claim
        try:
            self._store.probe(layout.data_prefix(claim.pair, claim.instance, claim.generation))
        except TandemError:
            return False
        return True

    def _upload(self, assembly: ObjectAssembly) -> StoredObject | TandemError:
        """Build an object and store it, or return why the store refuses it for good, or fails for it alone.

        Its bytes are released as soon as the store has them.
        """
        key = assembly.key
        built = assembly.build(self._retry_until_done(key, _FOR_A_KEY, lambda: new_seal(self._store, key)))
        began = time.monotonic()
        try:
            patience_s = self._patience_s({of.topic_id for of, _ in assembly.groups})
            self._retry_until_done(
                key, _FOR_STORING, lambda: put_new(self._store, key, built.data), patience_s=patience_s
            )
        except StoppedError:
            raise
        except (PermanentError, StoreTransientError) as error:
            return error
        self._meters.uploaded(time.monotonic() - began)
        return built.item

    def _retry_until_done(self, key: str, wait: _Wait, step: Callable[[], _T], *, patience_s: float = math.inf) -> _T:
        """Repeat `step` for an object until it works: giving up would lose its records.

        Raises the error of `step` if it goes on for `patience_s` while the store takes other objects.
        """
        told, asked = False, clock.now()
        try:
            while True:
                try:
                    done = step()
                except (StoreTransientError, KeyUnavailableError) as error:
                    if not told:
                        _LOG.warning(f"{wait.begins}, trying until it does", key=key, error=error)
                    told = True
                    self._refused[key] = str(error)
                    self._meters.retried(wait.who)
                    if clock.now() - asked >= patience_s:
                        if self._takes_others():
                            raise
                        patience_s, asked = _PATIENCE_S, clock.now()
                    if self._stop.wait(_RETRY_S):
                        raise StoppedError(
                            f"stopped while waiting for the store or the KMS to take {key}", code="TDM-B037"
                        ) from error
                else:
                    if told:
                        _LOG.info(wait.ends, key=key)
                    return done
        finally:
            self._refused.pop(key, None)

    def _lost(self, names: dict[str, str]) -> frozenset[str]:
        """Return the topic ids whose names now have another topic id, or may not be described.

        The records of the latter may be from another topic that took the name, so the commit does not name them
        either. A refused login is retried like other failures: one broker may refuse it alone, and the fetch finds out
        whether any broker takes it.
        """
        told = False
        while True:
            try:
                present = self._cluster.topic_ids(tuple(names.values()))
            except (TransientError, ClusterAuthenticationError) as error:
                if not told:
                    _LOG.warning("cannot check topic ids before the commit, trying until it works", error=error)
                told = True
                self._refused[_TOPIC_IDS] = str(error)
                self._meters.retried("brokers")
                if self._stop.wait(_RETRY_S):
                    raise StoppedError(
                        "stopped while waiting for the brokers to confirm topic ids", code="TDM-B038"
                    ) from error
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
    """Return a SEALED entry; `topics` are those that are no longer, or again, guarded in contrast to the chain."""
    return _entry(EntryKind.SEALED, reason=reason, topics=topics)


def takeover_entry(reason: str) -> Entry:
    """Return a TAKEOVER entry."""
    return _entry(EntryKind.TAKEOVER, reason=reason)
