"""The state of one instance, as its HTTP server returns it at `/status`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.backup_avro.documents.pause import in_force
from tandem.controller.decision.observation import Role
from tandem.controller.status.instance_view import InstanceView, error_text
from tandem.controller.status.overview import PauseStatus, pause_status
from tandem.sink.pipeline_report import Phase, PipelineReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """A generation that the instance builds or keeps up to date. Counts are since the process began.

    `lag_records`: offsets that the logs have and no commit. `base_remaining`: offsets of the first reading to go.
    `aside` are topics that are not read for a while, because the store takes nothing of them.
    """

    generation: int
    phase: Phase
    partitions: int
    base_remaining: int
    lag_records: int
    records: int
    bytes: int
    commits: int
    trouble: tuple[str, ...]
    error: str | None
    aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """One instance, as it sees itself. `reason` is that of its last decision.

    `role` is None before the process has read store and brokers; `not_ready` is why it is not `ready`. `store`,
    `brokers` and `disagrees` say what is wrong, None if nothing is; `rolled_back` are entries that were published and
    are not in the store. `lost_objects`: which generations are kept because what covers them has lost objects.
    `keys_missing`: encryption keys that stored objects need and the configuration does not name. `failing`: duties
    that fail again and again.
    `restored` are topics that a pattern matches and that are not backed up, because a restore created them.
    """

    pair: str
    instance: str
    incarnation: str
    role: Role | None = None
    ready: bool = False
    not_ready: str | None = None
    reason: str | None = None
    store: str | None = None
    brokers: str | None = None
    rolled_back: tuple[str, ...] = ()
    lost_objects: tuple[str, ...] = ()
    keys_missing: str | None = None
    failing: tuple[str, ...] = ()
    disagrees: str | None = None
    pause: PauseStatus | None = None
    restored: tuple[str, ...] = ()
    pipelines: tuple[PipelineStatus, ...] = ()


def instance_state(known: InstanceView) -> InstanceState:
    """Return the document of an instance."""
    return InstanceState(
        pair=known.identity.pair,
        instance=known.identity.instance,
        incarnation=known.identity.incarnation,
        role=known.role,
        ready=known.ready,
        not_ready=known.not_ready,
        reason=known.reason,
        store=known.store_trouble,
        brokers=known.brokers_trouble,
        rolled_back=tuple(map(str, known.lost_heads)),
        lost_objects=known.lost_covers,
        keys_missing=known.missing_keys,
        failing=known.troubles,
        disagrees=known.dispute,
        pause=None if known.store is None else pause_status(in_force(known.store.pause, known.at), known.at),
        restored=() if known.topics is None else known.topics.restored,
        pipelines=tuple(map(_pipeline_state, known.reports)),
    )


def _pipeline_state(report: PipelineReport) -> PipelineStatus:
    return PipelineStatus(
        generation=report.generation,
        phase=report.phase,
        partitions=report.partitions,
        base_remaining=report.base_remaining,
        lag_records=report.lag_records,
        records=report.records,
        bytes=report.bytes,
        commits=report.commits,
        trouble=report.trouble,
        error=error_text(report.error),
        aside=report.aside,
    )
