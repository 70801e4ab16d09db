"""Plans of restores, from generations that a test has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.backup_avro.chain.generation import Generation
from tandem.spark_jobs.reading.wanted_state import FoundState
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicNaming, plan_of_state


def make_plan(
    generations: Sequence[Generation],
    *,
    pair: str,
    naming: TopicNaming,
    topics: Sequence[str] | None = None,
    until: Mapping[tuple[str, int], int] | None = None,
    **state: object,
) -> RestorePlan:
    """Plan the restore of `topics` (None: all) from the newest state, or from what `state` says, as `FoundState`."""
    found = FoundState(generations=generations, **state)  # type: ignore[arg-type]  # the caller names fields
    return plan_of_state(found, pair=pair, naming=naming, topics=topics, until=until)
