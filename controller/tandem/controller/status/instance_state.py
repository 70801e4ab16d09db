"""What one instance says of itself: the document at `/status`, and the details of its heartbeats. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.decision.observation import Role
from tandem.controller.process import log
from tandem.controller.status.overview import PauseStatus
from tandem.sink.pipeline import Phase, PipelineReport
from tandem.sink.resource_limits import scarcity
from tandem.sink.write.confirm import CoverLostError

_TROUBLES_IN_HEARTBEAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """A generation that the instance builds or keeps up to date. Counts are since the process began.

    `lag_records`: offsets that the logs have and no commit. `base_remaining`: offsets of the first reading to go.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """One instance, as it sees itself. `reason` is that of its last decision.

    `role` is None before the process has read store and brokers. `store`, `brokers` and `disagrees` say what is wrong,
    None if nothing is; `rolled_back` are entries that were published and are not in the store. `lost_objects`: which
    generations are kept because what covers them has lost objects. `failing`: duties that fail again and again.
    """

    pair: str
    instance: str
    incarnation: str
    role: Role | None = None
    ready: bool = False
    reason: str | None = None
    store: str | None = None
    brokers: str | None = None
    rolled_back: tuple[str, ...] = ()
    lost_objects: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    disagrees: str | None = None
    pause: PauseStatus | None = None
    pipelines: tuple[PipelineState, ...] = ()


def pipeline_state(report: PipelineReport) -> PipelineState:
    """Return the state of a pipeline."""
    return PipelineState(
        generation=report.generation,
        phase=report.phase,
        partitions=report.partitions,
        base_remaining=report.base_remaining,
        lag_records=report.lag_records,
        records=report.records,
        bytes=report.bytes,
        commits=report.commits,
        trouble=report.trouble,
        error=_error(report.error),
    )


def pipeline_part(report: PipelineReport) -> Heartbeat:
    """Return what a heartbeat says of a pipeline."""
    return Heartbeat(
        generation=report.generation,
        lag=report.lag_records,
        phase=report.phase.value,
        partitions=report.partitions,
        base_remaining=report.base_remaining,
        records=report.records,
        error=_error(report.error),
        trouble="; ".join(report.trouble[:_TROUBLES_IN_HEARTBEAT]) or None,
    )


def lost_covers(kept: Mapping[int, CoverLostError]) -> tuple[str, ...]:
    """Return what is lost, a sentence without a remedy for each generation of mine that is kept because of it."""
    return tuple(str(error.args[0]) for _, error in sorted(kept.items()))


def _error(error: Exception | None) -> str | None:
    if error is None:
        return None
    lacking = scarcity(error)
    why = str(error) if lacking is None else f"{lacking.message}: {lacking.remedy}"
    return log.redact(" ".join(why.split()))
