"""The turns of a pair for its time line: when each generation was claimed, completed, sealed and cleared. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.controller.status.overview import GenerationState, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The life of one generation. `ended_at` is when it was cleared, but for partitions that are kept.

    `state` None: it is wholly cleared. The time of an event that has not happened, or never will, is None.
    """

    generation: int
    instance: str
    state: GenerationState | None
    tainted: bool
    claimed_at: datetime
    completed_at: datetime | None
    sealed_at: datetime | None
    ended_at: datetime | None


def turn_of(generation: Generation) -> Turn:
    """Return the turn of a generation, whole or cleared."""
    over = generation.cleared is not None and generation.clearing is None
    return Turn(
        generation=generation.number,
        instance=generation.instance,
        state=None if generation.gone else state_of(generation),
        tainted=bool(generation.taints),
        claimed_at=utc_time(generation.claim.at),
        completed_at=None if generation.completed_at is None else utc_time(generation.completed_at),
        sealed_at=None if generation.sealed_at is None else utc_time(generation.sealed_at),
        ended_at=utc_time(generation.at) if over else None,
    )
