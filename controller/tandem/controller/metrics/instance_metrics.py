"""The state of an instance at one moment, as metrics show it. Pure: made from values that are already in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.backup_avro.selection import coverage, losses, moments
from tandem.controller.decision.loss_sign_format import LossSign
from tandem.controller.decision.observation import Role
from tandem.controller.decision.pair_rules import is_heard, rotation_due_at
from tandem.controller.decision.recovery_window import cut_until
from tandem.controller.status.health import chosen, doubtful
from tandem.controller.status.instance_view import InstanceView, compared_losses, stored_view
from tandem.controller.status.overview import GenerationState, state_of
from tandem.controller.status.pair_view import PairView, last_activity_at
from tandem.sink.pipeline_report import PipelineReport
from tandem.sink.read.progress.reading_progress import PartitionReading


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRuns:
    """The last run of each kind, None if there is none. `known`: the store was asked.

    `lifecycle_rules` are how many rules of the bucket delete or archive objects of the pair, None if that is unknown.
    """

    known: bool = False
    last: Mapping[JobKind, JobOutcome | None] = field(default_factory=dict)
    lifecycle_rules: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMetrics:
    """The state by the chains. Times are ms since the epoch by the store's clock, sizes bytes; None: unknown, or none.

    `generation` is the newest that this instance owns, `restore_generation` the one a restore would read; 0: none.
    """

    newest: int
    generation: int
    restore_generation: int
    window_start: int | None
    window_short_until: int | None
    window_end: int | None
    completed_at: int | None
    states: Mapping[GenerationState, int]
    chain_entries: Mapping[int, int]
    stored_bytes: int
    stored_objects: int
    complete_bytes: int | None
    tainted: int
    damaged: int
    vanished_keys: int
    rotation_due: int | None
    handover_began: int | None
    catch_up_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMetrics:
    """The state of an instance at one moment. `role` is None before its parts are up. Times are seconds, but for `_ms`.

    `peer_heard_s` and `store_read_s` are seconds since that event; None: never. `handover_ms` is the duration of the
    last handover. `loss_signs` are those of the last day, None before the first read of the store.
    """

    role: Role | None = None
    ready: bool = False
    tick_age_s: float = 0.0
    peer_alive: bool | None = None
    peer_heard_s: float | None = None
    peer_agrees: bool | None = None
    store_failing: bool | None = None
    brokers_failing: bool | None = None
    coordination_failing: bool | None = None
    failing_duties: int | None = None
    reports: Sequence[PipelineReport] = ()
    readings: Mapping[int, Sequence[PartitionReading]] = field(default_factory=dict)
    store_read_s: float | None = None
    backup: BackupMetrics | None = None
    missing_heads: int | None = None
    lost_covers: int | None = None
    missing_keys: int | None = None
    handover_ms: int | None = None
    loss_signs: Sequence[LossSign] | None = None


def collect_backup_metrics(seen: PairView, instance: str) -> BackupMetrics:
    """Return the picture of the chains in one view, for the instance called `instance`."""
    base = chosen(seen)
    active = seen.active
    start = moments.unbroken_from(seen.generations)
    complete = max((g for g in seen.generations if g.complete), key=lambda g: g.number, default=None)
    spoilt = doubtful(seen)
    waiting = [
        newer.completed_at
        for older in seen.generations
        if older.complete
        and not older.sealed
        and (newer := coverage.successor(older, seen.generations)) is not None
        and newer.completed_at is not None
    ]
    return BackupMetrics(
        newest=seen.newest,
        generation=max((g.number for g in seen.generations if g.instance == instance), default=0),
        restore_generation=0 if base is None else base.number,
        window_start=start,
        window_short_until=cut_until(seen.generations, start, seen.policy),
        window_end=None if base is None else last_activity_at(base),
        completed_at=None if complete is None else complete.completed_at,
        states=Counter(map(state_of, seen.generations)),
        chain_entries={g.number: g.seq for g in seen.generations if not g.sealed},
        stored_bytes=sum(item.bytes for g in seen.generations for item in g.objects.values()),
        stored_objects=sum(len(g.objects) for g in seen.generations),
        complete_bytes=None if base is None else sum(item.bytes for item in base.objects.values()),
        tainted=0 if spoilt is None else len(spoilt.taints),
        damaged=len(seen.damaged),
        vanished_keys=sum(sum(losses.vanished_keys(g).values()) for g in seen.generations),
        rotation_due=None if active is None else rotation_due_at(active, seen.policy),
        handover_began=min(waiting, default=None),
        catch_up_ms=(
            None if complete is None or complete.completed_at is None else complete.completed_at - complete.claim.at
        ),
    )


class BackupMetricsCache:
    """Makes pictures of the chains, and reuses the last one while no chain has grown: objects may be many.

    Not thread-safe.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._seen: tuple[object, ...] | None = None
        self._made: BackupMetrics | None = None

    def of(self, seen: PairView) -> BackupMetrics:
        """Return the picture of the chains in a view."""
        key = (seen.newest, len(seen.damaged), *((g.number, g.seq, g.holder) for g in seen.generations))
        if self._made is None or key != self._seen:
            self._made, self._seen = collect_backup_metrics(seen, self._instance), key
        return self._made


def collect_instance_metrics(
    known: InstanceView, backups: BackupMetricsCache, readings: Mapping[int, Sequence[PartitionReading]]
) -> InstanceMetrics:
    """Return the picture of an instance for metrics; `readings` by generation. Not thread-safe."""
    peer_name = known.config.peer_instance
    peer, said = known.peers.peer(peer_name), known.peers.current_heartbeat(peer_name)
    heard_s = None if peer.heard_mono is None else known.now_mono - peer.heard_mono
    return InstanceMetrics(
        role=known.role,
        ready=known.ready,
        tick_age_s=known.now_mono - known.ticked_mono,
        peer_alive=heard_s is not None and is_heard(heard_s, left=peer.left, policy=known.policy),
        peer_heard_s=heard_s,
        peer_agrees=None if said is None or said.terms is None else known.dispute is None,
        store_failing=known.store_trouble is not None,
        brokers_failing=known.brokers_trouble is not None,
        coordination_failing=known.coordination_failing,
        failing_duties=len(known.failing),
        reports=known.reports,
        readings=readings,
        store_read_s=None if known.store is None else known.now_mono - known.store.began_mono,
        backup=_collect_backup(known, backups),
        missing_heads=len(known.lost_heads),
        lost_covers=len(known.uncovered),
        missing_keys=None if known.store is None else len(known.store.missing_key_ids),
        handover_ms=None if known.store is None else known.store.handover_ms,
        loss_signs=None if known.store is None else known.store.loss_signs,
    )


def _collect_backup(known: InstanceView, backups: BackupMetricsCache) -> BackupMetrics | None:
    """Return the picture of the chains with the lost keys that no chain records yet; None before the first decision."""
    stored = stored_view(known)
    if known.reason is None or stored is None:
        return None
    made = backups.of(stored)
    # The chain of a generation that is kept whole does not grow when its keys were compared, so the cache can't have
    # them. From CLEARING on the chain records them.
    whole = {g.number for g in stored.generations if g.whole}
    unrecorded = sum(loss.keys or 0 for number, loss in compared_losses(known) if number in whole)
    return replace(made, vanished_keys=made.vanished_keys + unrecorded)
