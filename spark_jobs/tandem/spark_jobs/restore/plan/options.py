"""The user's options of a restore, and the plan that follows from them and from the store.

A restore writes the newest state, a named cut, or the state at a moment, of all or some topics, bounded by offsets
where some are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.reading.newest_first import newest_first
from tandem.spark_jobs.reading.wanted_state import FoundState, StateRequest
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan.offset_mode import MOST_FILLERS, OffsetMode
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicNaming
from tandem.spark_jobs.restore.progress.task_progress import PlanState
from tandem.spark_jobs.restore.records.load_task import LoadPace
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges
from tandem.spark_jobs.state import find_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPlan:
    """Identifies a plan that was made before: its hash, and the chain entries it rests on (generation -> entry)."""

    hash: str
    generation: int
    basis: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """The user's options. `replication_factor` None: as recorded, at most the number of brokers.

    `generation`, `at`, `commit` and `checkpoint` select the state, see StateRequest. `until` bounds partitions,
    (topic, number) -> the first offset that is not restored. `shape` is what is changed about records, `partitions` the
    number of partitions of new topics, None: as recorded. `topic_config` overrides recorded settings.
    `bytes_per_second` bounds the bytes sent by all tasks together. `compression` is the codec of all batches, None: one
    that each topic had (`target_codec`), whatever `pace` says. With `leaves_record` a record of the restore and its
    offset map are put into the store. `exactly`: any other plan is refused. `merge`: records that other complete
    generations hold beyond that one are added. `append`: records are added to topics that hold others and keep their
    config. `offsets` None: floor where it is possible. `max_fill`: most fillers of one partition.
    `wait_cleaned`: the restore ends when the cleaner has removed the fillers of exact offsets.
    """

    naming: TopicNaming = field(default_factory=TopicNaming)
    topics: tuple[str, ...] | None = None
    generation: int | None = None
    at: int | None = None
    commit: int | None = None
    checkpoint: str | None = None
    until: Mapping[tuple[str, int], int] = field(default_factory=dict)
    shape: RecordChanges = NOTHING
    partitions: int | None = None
    topic_config: Mapping[str, str] = field(default_factory=dict)
    bytes_per_second: int | None = None
    compression: Compression | None = None
    keep_load_config: bool = False
    consent: bool = False
    leaves_record: bool = True
    exactly: ExactPlan | None = None
    merge: bool = True
    append: bool = False
    offsets: OffsetMode | None = None
    max_fill: int = MOST_FILLERS
    wait_cleaned: bool = False
    replication_factor: int | None = None
    pace: LoadPace = field(default_factory=LoadPace)

    @property
    def state_request(self) -> StateRequest:
        """The state to be restored."""
        return StateRequest(generation=self.generation, at=self.at, commit=self.commit, checkpoint=self.checkpoint)


def plan_of(reader: ChainReader | ConnectorReader, options: RestoreOptions) -> RestorePlan:
    """Return the plan for the user's options from the present contents of the store.

    Raises ConfigError for topics or states that don't exist, RefusedError for those that can't be restored,
    DamagedError if nothing can be read.
    """
    return _plan(reader, options, find_state.find_state(reader, options.state_request, merge=options.merge))


def _plan(reader: ChainReader | ConnectorReader, options: RestoreOptions, found: FoundState) -> RestorePlan:
    return restore_plan.plan_of_state(
        found,
        pair=reader.pair,
        naming=options.naming,
        topics=options.topics,
        until=options.until,
    )


def plan_again(
    reader: ChainReader | ConnectorReader,
    options: RestoreOptions,
    state: PlanState | ExactPlan,
    finish: Callable[[RestorePlan], RestorePlan] = lambda plan: plan,
) -> RestorePlan | None:
    """Return the plan of `state`, an unfinished run or a plan file, if the options ask for it now; None otherwise.

    It is made from the chain entries that it rested on: the backup may have grown since, and been merged. `finish` adds
    the parts of the plan that depend on the target.
    """
    if options.generation not in {None, state.generation}:
        return None
    try:
        for plan in _candidates(reader, options, state):
            finished = finish(plan)
            if finished.hash == (state.hash if isinstance(state, ExactPlan) else state.plan):
                return finished
    except (ConfigError, RefusedError, DamagedError):
        return None
    return None


def _candidates(
    reader: ChainReader | ConnectorReader, options: RestoreOptions, state: PlanState | ExactPlan
) -> Iterator[RestorePlan]:
    """Yield the plans that the options may have led to at the time of `state`. Raises the errors of planning."""
    if isinstance(reader, ConnectorReader):
        yield _plan(reader, options, reader.find(options.state_request))
        return
    if options.checkpoint is not None:
        upto = state.basis.get(state.generation)
        yield _plan(reader, options, find_state.named_cut(reader, options.checkpoint, upto=upto))
        return
    generations = [reader.load(number, upto=seq) for number, seq in sorted(state.basis.items())]
    if options.commit is not None:
        yield _plan(reader, options, find_state.moment(reader, generations, options.state_request))
        return
    # If the user named a generation, fewer records of others are merged; whether one was named is not stored.
    for number in (None, state.generation):
        with suppress(ConfigError, RefusedError):  # only one of the two need be possible
            if options.at is None:
                found = FoundState(
                    generations=generations,
                    number=number,
                    merge=options.merge,
                    records=newest_first(reader.store),
                )
            else:
                state_request = replace(options.state_request, generation=number)
                found = find_state.moment(reader, generations, state_request, merge=options.merge)
            yield _plan(reader, options, found)
