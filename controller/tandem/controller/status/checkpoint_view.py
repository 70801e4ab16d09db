"""Checkpoints for commands: request one, and read the status of each. The status needs only the store.

A request needs the brokers, for the logs' ends. The chains are read *before* the ends are: only by that order can a
generation that was complete by then stand for the cut (`backup_avro.documents.checkpoint`).
"""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.documents.checkpoint import (
    Checkpoint,
    CheckpointRequest,
    CheckpointState,
    judge_all,
    takes_part,
    why_unrestorable,
    witnesses,
)
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.errors import PermanentError, RefusedError, TandemError, TransientError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.coordination.store_hints import SENDER, send_hint
from tandem.controller.coordination.topic_reader import ANSWER_S
from tandem.controller.status.health import first_names
from tandem.controller.status.outside_view import ask_cluster, log_ends, read_chains
from tandem.controller.watch.checkpoint_keeper import expired
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPartition:
    """One partition of a cut: everything below `end` belongs to it."""

    topic: str
    topic_id: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """One checkpoint for people and scripts. `detail`: why it failed, or what it waits for.

    `restorable` is whether `tandem restore --checkpoint` would find it now; `why_not` says why it would not.
    `kept_until` None: until it is deleted.
    """

    id: str
    status: CheckpointState
    requested_at: datetime | None = None
    requested_by: str | None = None
    reason: str | None = None
    deadline: datetime | None = None
    settled_at: datetime | None = None
    generation: int | None = None
    seq: int | None = None
    kept_until: datetime | None = None
    restorable: bool = False
    why_not: str | None = None
    detail: str | None = None
    partitions: tuple[CutPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDocument(CheckpointStatus):
    """`tandem checkpoint create` and `show`."""

    pair: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """`tandem checkpoint list`."""

    pair: str
    checkpoints: Sequence[CheckpointStatus]
    damaged: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeleted:
    """`tandem checkpoint delete`."""

    pair: str
    id: str
    deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCheckpoint:
    """A checkpoint as a person asks for it; `id` None: one is made up.

    `lifetime_ms` is how long it may take, `keep_ms` how long it is kept (None: until it is deleted); both times begin
    with the request.
    """

    id: str | None
    lifetime_ms: int
    keep_ms: int | None
    by: str
    reason: str


def draft_request(config: Config, store: ObjectStore, wanted: WantedCheckpoint) -> CheckpointRequest:
    """Return a request for a cut as of now, not put yet.

    Raises RefusedError if no complete generation could hold it, errors of brokers and store.
    """
    generations = read_chains(ChainReader(store, config.pair)).generations
    props: dict[str, Value] = dict(config.kafka.reveal())
    with ClusterAdmin(props, timeout_s=ANSWER_S) as admin:
        cluster_id = admin.cluster_id()
        guarded = ask_cluster(config, admin, cluster_id, store).guarded
        ends = log_ends(config, admin, guarded)
        if ask_cluster(config, admin, cluster_id, store).guarded != guarded:
            raise TransientError(
                "topics changed while the ends of their logs were asked for", code="TDM-I040", remedy="ask again"
            )
    cut = {key: ends[guarded.topics[key.topic_id][0], key.partition].stable for key in guarded.partitions()}
    if not cut:
        raise RefusedError(
            "none of the guarded topics exists: there is nothing to name",
            code="TDM-I041",
            remedy="check topics.include and patterns",
        )
    _check_sight(config, generations, guarded)
    found = witnesses(cut, [g for g in generations if g.claim.cluster_id == cluster_id])
    if not found:
        _refuse(generations, cluster_id, cut, {topic_id: name for topic_id, (name, _) in guarded.topics.items()})
    at = now_ms(store)
    nonce = secrets.token_hex(16)
    return CheckpointRequest(
        id=wanted.id or f"{utc_time(at):%Y%m%dT%H%M%SZ}-{nonce[:6]}",
        nonce=nonce,
        pair=config.pair,
        cluster_id=cluster_id,
        at=at,
        deadline=at + wanted.lifetime_ms,
        keep_until=None if wanted.keep_ms is None else at + wanted.keep_ms,
        by=wanted.by,
        reason=wanted.reason,
        topics={topic_id: name for topic_id, (name, _) in guarded.topics.items()},
        cut=cut,
        witnesses=found,
    )


def _check_sight(config: Config, generations: Iterable[Generation], guarded: GuardedPartitions) -> None:
    """Raise TransientError if the brokers do not list a topic that is being backed up, maybe for a missing right."""
    active = max((g for g in generations if takes_part(g)), key=lambda g: g.number, default=None)
    if active is None or active.claim.cluster_id != guarded.cluster_id:
        return
    unseen = [
        topic.name
        for topic in active.topics.values()
        if not topic.removed and topic.topic_id not in guarded.topics and config.guards(topic.name)
    ]
    if unseen:
        names = first_names(sorted(unseen))
        raise TransientError(
            f"generation {active.number} reads {names}, but the brokers do not list it in this life",
            code="TDM-I042",
            remedy="if it was deleted or created anew a moment ago, ask again; else let this principal describe it",
        )


def _refuse(
    generations: Iterable[Generation], cluster_id: str, cut: Iterable[PartitionKey], names: Mapping[str, str]
) -> None:
    """Raise RefusedError with the reason why no generation could hold the cut."""
    remedy = "`tandem status` shows what is missing; ask again when it is there"
    active = max((g for g in generations if takes_part(g)), key=lambda g: g.number, default=None)
    if active is None:
        raise RefusedError(
            "no complete generation takes records: none could hold the checkpoint", code="TDM-I043", remedy=remedy
        )
    if active.claim.cluster_id != cluster_id:
        raise RefusedError(
            f"the backup is of cluster {active.claim.cluster_id}, but the brokers belong to cluster {cluster_id}",
            code="TDM-I044",
            remedy="check kafka.bootstrap.servers, pair and store.root of this configuration",
        )
    if active.taints:
        raise RefusedError(
            f"generation {active.number} is tainted: it can't hold a checkpoint",
            code="TDM-I045",
            remedy="ask again when the generation that replaces it is complete; `tandem status` shows how far it is",
        )
    lacking = [f"{names[key.topic_id]}-{key.partition}" for key in cut if not active.usable(key)]
    raise RefusedError(
        f"generation {active.number} has not read {first_names(lacking)} through yet: it could not hold the checkpoint",
        code="TDM-I046",
        remedy=remedy,
    )


def hint(config: Config, store: ObjectStore, request: CheckpointRequest) -> TandemError | None:
    """Hint to the instances that a checkpoint was requested or deleted; return the error if that fails.

    Without the hint they notice it a little later.
    """
    message = CoordinationMessage(
        event=CoordinationEvent.CHECKPOINT,
        pair=request.pair,
        instance=SENDER,
        incarnation=str(uuid.uuid4()),
        cluster_id=request.cluster_id,
        request_id=uuid.uuid4().hex,
        at=now_ms(store),
        reason=request.reason or None,
        details={"checkpoint": request.id},
    )
    return send_hint(config, lambda _: message)


class CheckpointStatusReader:
    """Reads the status of checkpoints from the store alone. Reads only new chain entries; one thread at a time."""

    def __init__(self, store: ObjectStore, pair: str, *, by: str) -> None:
        self._store = store
        self._pair = pair
        self._by = by
        self._reader = ChainReader(store, pair)

    def read_status(self, checkpoint_id: str) -> CheckpointStatus:
        """Return the status of a checkpoint. Raises errors of the store, DamagedError."""
        found = checkpoints.find_checkpoint(self._store, self._pair, checkpoint_id)
        if found is None:
            return CheckpointStatus(id=checkpoint_id, status=CheckpointState.DOES_NOT_EXIST)
        return self._status(found, self._states())

    def all(self) -> tuple[list[CheckpointStatus], dict[str, str]]:
        """Return all checkpoints, oldest first, and the errors of unreadable ones by id. Raises errors of the store."""
        listing = checkpoints.list_checkpoints(self._store, self._pair)
        states = self._states()
        return [self._status(item, states) for item in listing.checkpoints], listing.damaged

    def _states(self) -> dict[int, Generation]:
        return {state.number: state for state in self._reader.refresh(tolerant=True)}

    def _status(self, found: Checkpoint, states: Mapping[int, Generation]) -> CheckpointStatus:
        now = now_ms(self._store)
        request = found.request
        if found.outcome is None:
            judgement = judge_all(request, states.values(), None)
            found = self._expire(found, now, judgement.detail)
            detail = judgement.detail if found.outcome is None else found.outcome.reason
        else:
            detail = found.outcome.reason
        outcome = found.outcome
        why_not = why_unrestorable(found, states, now)
        return CheckpointStatus(
            id=request.id,
            status=found.status(now),
            requested_at=utc_time(request.at),
            requested_by=request.by,
            reason=request.reason or None,
            deadline=utc_time(request.deadline),
            settled_at=None if outcome is None else utc_time(outcome.at),
            generation=None if outcome is None else outcome.generation,
            seq=None if outcome is None else outcome.seq,
            kept_until=None if request.keep_until is None else utc_time(request.keep_until),
            restorable=why_not is None,
            why_not=why_not,
            detail=detail or None,
            partitions=tuple(
                CutPartition(
                    topic=request.topics.get(key.topic_id, key.topic_id),
                    topic_id=key.topic_id,
                    partition=key.partition,
                    end=end,
                )
                for key, end in sorted(request.cut.items(), key=lambda item: (request.name_of(item[0]), item[0]))
            ),
        )

    def _expire(self, found: Checkpoint, now: int, detail: str) -> Checkpoint:
        """Settle a request past its deadline as failed; a caller without the right to write only sees it as failed."""
        if now < found.request.deadline:
            return found
        outcome = expired(found.request, at=now, by=self._by, detail=detail or "no Active has looked at it")
        with contextlib.suppress(PermanentError):
            outcome = checkpoints.settle_request(self._store, found.request, outcome)
        return Checkpoint(request=found.request, outcome=outcome)
