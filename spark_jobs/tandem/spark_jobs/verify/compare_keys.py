"""`tandem verify --against-topic` and `--against-generation`: two copies of each partition, key by key.

A partition is compared in memory by one Spark task, or, if its keys may be too many for that, by a shuffle
(`compare_by_key`). `compare_plan` judges the records of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tandem.backup_avro.chain.entries import PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError
from tandem.backup_avro.json_fields import UNLESS_NONE, in_json
from tandem.backup_avro.selection.coverage import common_offset, only_compacts
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Slice, choose_generation
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.encrypted_objects import require_keys
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.compaction import memory_or_shuffle
from tandem.spark_jobs.reading.newest_first import newest_first
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader, StoreAddress, require_pair
from tandem.spark_jobs.reading.task_objects import with_used_parts_only
from tandem.spark_jobs.reading.wanted_state import FoundState
from tandem.spark_jobs.spark.job_progress import reporting
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.shuffle import shuffle_on
from tandem.spark_jobs.spark.task_attempts import is_retried
from tandem.spark_jobs.spark.worker_log import logged
from tandem.spark_jobs.state.find_state import refuse_forged
from tandem.spark_jobs.verify.compare_by_key import compare_by_key, failed_comparison
from tandem.spark_jobs.verify.compare_plan import (
    NAMED,
    CompareFacts,
    CompareVerdict,
    Comparison,
    KeyFault,
    KeyFinding,
    PartitionResult,
    SeenRecord,
    Suspect,
    iter_seen_records,
    judge_suspects,
    with_key,
)
from tandem.spark_jobs.verify.compare_tasks import (
    PATIENCE_S,
    CompareTask,
    GenerationTask,
    LiveFacts,
    TopicTask,
    delete_retention_ms,
    generation_facts,
    live_log,
    stored_bodies,
    topic_facts,
)
from tandem.spark_jobs.verify.verify_plan import Repair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FEWEST, _MOST = 5, 100_000
"""The fewest findings of a partition, and the most of all partitions, that are reported in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """`tandem verify --against-topic` and `--against-generation`.

    `against` says with what; `not_compared` names topics or partitions and why. `generation` is the newest that the
    backup's side rests on.
    """

    pair: str
    root: str
    seconds: float = 0.0
    against: str
    generation: int
    partitions: tuple[PartitionResult, ...]
    not_compared: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    repair: Repair | None = field(default=None, metadata=UNLESS_NONE)

    @property
    @in_json
    def counts(self) -> dict[KeyFault, int]:
        """The number of findings of each kind."""
        found: dict[KeyFault, int] = {}
        for one in self.partitions:
            for kind, count in one.counts.items():
                found[kind] = found.get(kind, 0) + count
        return found

    @property
    @in_json
    def findings(self) -> list[KeyFinding]:
        """The findings that are reported in full."""
        return [finding for one in self.partitions for finding in one.findings]

    @property
    def lost(self) -> int:
        """The number of findings whose record only the backup (the older generation) has."""
        return sum(one.lost for one in self.partitions)

    @property
    @in_json
    def clean(self) -> bool:
        """Whether at least one partition was compared, and there are no findings."""
        return bool(self.partitions) and all(one.clean for one in self.partitions)


Tell = Callable[[int, int], None]


# --- against the topic ------------------------------------------------------------------------------------------------


def against_topic(
    spark: SparkSession,
    address: StoreAddress,
    pair: str,
    cluster: ClusterAddress,
    *,
    topics: Sequence[str] | None = None,
    tell: Tell | None = None,
) -> CompareResult:
    """Compare the records that a restore of the newest state would write with the live topics, up to the backup's ends.

    Raises ConfigError for topics that are not in the backup, RefusedError if nothing can be restored, SignatureError as
    a restore does if a generation is forged, DamagedError for chains, errors of the cluster. Damage in objects is
    reported in the result of its partition.
    """
    require_pair(address, pair)
    reader = ChainReader(address.open(), pair)
    numbers = [state.number for state in reader.refresh(tolerant=True)]
    with pins.hold_pins(reader.store, pair, numbers, owner="verify"):
        states = reader.refresh(tolerant=True)
        refuse_forged(reader)
        lost = reader.lost_generations(states)
        states = [state for state in states if state.number not in lost]
        wanted = None if topics is None else frozenset(topics)
        newest = FoundState(generations=states, records=newest_first(reader.store))
        selection = newest.select(
            wanted=lambda topic: wanted is None or topic.name in wanted, removed=wanted is not None
        )
        if wanted is not None:
            _check_wanted(wanted, selection.partitions)
        require_keys(reader.store, selection.partitions)
        by_number = {state.number: state for state in states}
        comparable, not_compared = _live(cluster, selection.partitions)
        not_compared |= dict.fromkeys(selection.incomplete, "no complete generation has read it through")
        tasks = [_topic_task(piece, by_number, address, cluster) for piece in comparable]
        tasks.sort(key=lambda task: -sum(piece.part.end - piece.part.start for piece in task.slices))
        found = _run(spark, tasks, _compare_topics, tell)
    damaged = {**reader.damaged, **lost}
    return CompareResult(
        pair=pair,
        root=address.root,
        against="topic",
        generation=selection.generation,
        partitions=found,
        not_compared=not_compared,
        warnings=tuple(f"generation {number} can't be read: {why}" for number, why in sorted(damaged.items())),
    )


def _check_wanted(wanted: frozenset[str], partitions: Iterable[PartitionSelection]) -> None:
    missing = wanted - {piece.topic.name for piece in partitions}
    if missing:
        raise ConfigError(
            f"the backup holds no complete partition of {', '.join(sorted(missing))}",
            code="TDM-V001",
            remedy="`tandem status` shows what is backed up",
        )


def _live(
    cluster: ClusterAddress, partitions: Iterable[PartitionSelection]
) -> tuple[list[PartitionSelection], dict[str, str]]:
    """Return the partitions whose topic has the same id in the cluster, and the reasons for the others."""
    names = {piece.topic.name for piece in partitions}
    with ClusterAdmin(cluster.props) as admin:
        infos = {info.name: info for info in admin.topics(names)}
    same, not_compared = [], {}
    for piece in partitions:
        info = infos.get(piece.topic.name)
        place = f"{piece.topic.name}-{piece.key.partition}"
        if info is None:
            not_compared[piece.topic.name] = "the cluster has no such topic; the backup is the last there is of it"
        elif info.topic_id != piece.key.topic_id:
            not_compared[piece.topic.name] = (
                f"the topic was deleted and created again: its id is {info.topic_id}, the backup's {piece.key.topic_id}"
            )
        elif piece.key.partition not in info.partitions:
            not_compared[place] = "the cluster has no such partition"
        else:
            same.append(piece)
    return same, not_compared


def _topic_task(
    piece: PartitionSelection,
    states: Mapping[int, Generation],
    address: StoreAddress,
    cluster: ClusterAddress,
) -> TopicTask:
    used = [states[number] for number in piece.generations]
    opening = used[0].opening
    assert opening is not None
    return TopicTask(
        name=piece.topic.name,
        key=piece.key,
        slices=with_used_parts_only(piece.slices),
        start=piece.log_start,
        let_go=max(_let_go(state, piece.key) for state in used),
        cut=piece.end,
        sound=piece.sound,
        doubt=piece.warning,
        head_at=max(state.head_at(piece.key) for state in used),
        delete_retention_ms=delete_retention_ms(piece.topic),
        compacted=piece.topic.compacted,
        only_compacts=piece.topic.policies == {"compact"},
        read_committed=opening.isolation_level == "read_committed",
        store=address,
        cluster=cluster,
    )


def _let_go(state: Generation, key: PartitionKey) -> int:
    expired = state.expired.get(key)
    return 0 if expired is None else expired.offset


def compare_topic(task: TopicTask) -> PartitionResult:
    """Compare one partition with the live one. Raises TransientError, and PermanentError for unreadable data."""
    began = time.monotonic()
    reader = ObjectReader(task.store.open(), apart=True)
    with live_log(task) as log:
        comparison = Comparison()
        comparison.merge(_seen(stored_bodies(reader, task.slices)), _seen(log.below(task.cut)))
        short = log.end
        suspects = comparison.suspects()
        doubtful = {key for key, one in suspects.items() if one.lacking == 1}
        newer = set() if short is not None else set(_until_empty(doubtful, _seen(log.to_head(PATIENCE_S))))
        log.look_again()
        live = LiveFacts(
            start=log.start,
            short=short,
            behind=log.behind,
            now=now_ms(task.store.open()),
            seconds=time.monotonic() - began,
        )
        facts = topic_facts(task, live)
        outcome = judge_suspects(suspects, comparison.different, (set(), newer), facts)
        named = _first(outcome, task.named)
        keys = _keys(stored_bodies(reader, _around(task.slices, named)), named)
        rest = [one.second.offset for key, one in named.items() if key not in keys and one.second is not None]
        if rest:
            with live_log(task) as again:
                keys |= _keys(again.below(max(rest) + 1), named)
    return _result(comparison, outcome, _told(named, keys, facts), facts, cut=task.cut, began=began)


# --- against another generation ---------------------------------------------------------------------------------------


def against_generation(
    spark: SparkSession, address: StoreAddress, pair: str, numbers: Sequence[int], *, tell: Tell | None = None
) -> CompareResult:
    """Compare two generations where both have read a partition; with one number, with the one that a restore rests on.

    Raises ConfigError for numbers that don't exist, RefusedError for a generation that is not complete, or is the one
    that a restore rests on already, or of another cluster; DamagedError for a chain. With one number it also raises
    SignatureError if a generation is forged: a restore would not name then what it rests on.
    """
    require_pair(address, pair)
    reader = ChainReader(address.open(), pair)
    if len(numbers) == 1:
        states = reader.refresh(tolerant=True)
        refuse_forged(reader)
        numbers = (*numbers, choose_generation(states).number)
    older, newer = sorted(numbers)
    if older == newer:
        raise RefusedError(
            f"generation {older} is what a restore rests on",
            code="TDM-V002",
            remedy="name another one, or two: --against-generation 1,2",
        )
    with pins.hold_pins(reader.store, pair, (older, newer), owner="verify"):
        first, second = reader.load(older), reader.load(newer)
        for state in (first, second):
            if not state.complete or state.gone:
                raise RefusedError(
                    f"generation {state.number} is {'cleared' if state.gone else 'not complete'}",
                    code="TDM-V003",
                    remedy="`tandem status` shows those that are",
                )
        if first.claim.cluster_id != second.claim.cluster_id:
            raise RefusedError(
                f"generations {older} and {newer} are of different clusters",
                code="TDM-V004",
                remedy="compare two of one cluster; `tandem describe` shows of which cluster each is",
            )
        keys_of(reader.store).require((*first.objects.values(), *second.objects.values()))
        tasks, not_compared = _overlap(first, second, address)
        found = _run(spark, tasks, _compare_generations, tell)
    return CompareResult(
        pair=pair,
        root=address.root,
        against=f"generation {older} with {newer}",
        generation=newer,
        partitions=found,
        not_compared=not_compared,
    )


def _overlap(
    first: Generation, second: Generation, address: StoreAddress
) -> tuple[list[GenerationTask], dict[str, str]]:
    parts = [_parts_by_key(state) for state in (first, second)]
    names = (f"generation {first.number}", f"generation {second.number}")
    tasks, not_compared = [], {}
    for key in sorted(first.positions.keys() | second.positions.keys()):
        holders = [state for state in (first, second) if state.usable(key)]
        name = (second if key in second.positions else first).name_of(key)
        if len(holders) < 2:
            only = f", only in generation {holders[0].number}" if holders else ""
            not_compared[name] = f"not read through by both, or being cleared{only}"
            continue
        ends = [common_offset(state, key) for state in (first, second)]
        cut = min(ends)
        topic = second.topics[key.topic_id]
        tasks.append(
            GenerationTask(
                name=topic.name,
                key=key,
                names=names,
                slices=_both(parts, key, (0, 0), (cut, cut)),
                beyond=_both(parts, key, (cut, cut), (ends[0], ends[1])),
                starts=(first.positions[key].log_start, second.positions[key].log_start),
                let_go=(_let_go(first, key), _let_go(second, key)),
                cut=cut,
                expired=_apart(first, second, key, topic),
                compacted=topic.compacted,
                only_compacts=only_compacts((first, second), key),
                store=address,
            )
        )
    return tasks, not_compared


def _parts_by_key(state: Generation) -> dict[PartitionKey, list[Slice]]:
    found: dict[PartitionKey, list[Slice]] = {}
    for item, part in state.live_parts():
        found.setdefault(part.key, []).append(
            Slice(
                generation=state.number,
                opening=state.opening,
                item=item,
                part=part,
                low=part.first,
                high=part.last + 1,
            )
        )
    return found


def _both(
    parts: Sequence[Mapping[PartitionKey, list[Slice]]],
    key: PartitionKey,
    lows: tuple[int, int],
    highs: tuple[int, int],
) -> tuple[tuple[Slice, ...], tuple[Slice, ...]]:
    """Return the slices of each side in [low, high), in offset order."""

    def one(side: int) -> tuple[Slice, ...]:
        low, high = lows[side], highs[side]
        inside = [piece for piece in parts[side].get(key, ()) if piece.part.first < high and piece.part.last >= low]
        inside.sort(key=lambda piece: piece.part.first)
        return with_used_parts_only(
            replace(piece, low=max(piece.low, low), high=min(piece.high, high)) for piece in inside
        )

    return one(0), one(1)


def _apart(first: Generation, second: Generation, key: PartitionKey, topic: Topic) -> str | None:
    """Return why a tombstone may have been written and expired between the two readings; None if it can't."""
    done_at = second.positions[key].base.done_at or 0
    if done_at - first.head_at(key) < delete_retention_ms(topic):
        return None
    return (
        f"not in generation {second.number}, which read the log longer than delete.retention.ms after the end of "
        f"generation {first.number}: they may have been deleted in between, and the tombstones be gone"
    )


def compare_generations(task: GenerationTask) -> PartitionResult:
    """Compare one partition in two generations. Raises TransientError, and PermanentError for unreadable data."""
    began = time.monotonic()
    store = task.store.open()
    readers = [ObjectReader(store, apart=True), ObjectReader(store, apart=True)]
    bodies = [stored_bodies(reader, slices) for reader, slices in zip(readers, task.slices, strict=True)]
    comparison = Comparison()
    comparison.merge(_seen(bodies[0]), _seen(bodies[1]))
    suspects = comparison.suspects()
    newer: tuple[set[int], set[int]] = (set(), set())
    for side, beyond in enumerate(task.beyond):
        doubtful = {key for key, one in suspects.items() if one.lacking == side}
        newer[side].update(_until_empty(doubtful, _seen(stored_bodies(readers[side], beyond))))
    facts = generation_facts(task)
    outcome = judge_suspects(suspects, comparison.different, newer, facts)
    named = _first(outcome, task.named)
    keys: dict[int, bytes | None] = {}
    for side in (0, 1):
        keys |= _keys(stored_bodies(readers[side], _around(task.slices[side], named)), named)
    return _result(comparison, outcome, _told(named, keys, facts), facts, cut=task.cut, began=began)


# --- what both share --------------------------------------------------------------------------------------------------


def _seen(bodies: Iterable[Body | Segment]) -> Iterator[SeenRecord]:
    for body in bodies:
        yield from iter_seen_records(body.body, best_bodies().spans(body.body, body.records))


def _until_empty(doubtful: set[int], records: Iterator[SeenRecord]) -> Iterator[int]:
    """Yield the keys in doubt that occur in the records; stop reading when all of them have occurred."""
    left = set(doubtful)
    while left:
        one = next(records, None)
        if one is None:
            return
        if one.key in left:
            left.remove(one.key)
            yield one.key


def _first(outcome: CompareVerdict, count: int) -> dict[int, Suspect]:
    """Return the findings that are reported in full."""
    return dict(islice(outcome.findings.items(), count))


def _around(slices: Iterable[Slice], named: Mapping[int, Suspect]) -> Iterator[Slice]:
    """Yield those of `slices`, cut down, that hold a latest record of a finding."""
    offsets = sorted(
        latest.offset for one in named.values() for latest in (one.first, one.second) if latest is not None
    )
    for piece in slices:
        inside = [offset for offset in offsets if piece.low <= offset < piece.high]
        if inside and inside[-1] >= piece.part.first and inside[0] <= piece.part.last:
            yield replace(piece, low=max(piece.low, inside[0]), high=min(piece.high, inside[-1] + 1))


def _keys(bodies: Iterable[Body | Segment], named: Mapping[int, Suspect]) -> dict[int, bytes | None]:
    """Return the keys behind the hashes, for those that occur in the bodies."""
    found: dict[int, bytes | None] = {}
    for body in bodies:
        spans = list(best_bodies().spans(body.body, body.records))
        for one, span in zip(iter_seen_records(body.body, spans), spans, strict=True):
            if one.key in named:
                found[one.key] = body.body[span[6] : span[7]] if one.key >= 0 else None
    return found


def _told(
    named: Mapping[int, Suspect], keys: Mapping[int, bytes | None], facts: CompareFacts
) -> tuple[KeyFinding, ...]:
    return tuple(with_key(one, keys.get(key), facts, known=key in keys) for key, one in named.items())


def _result(
    comparison: Comparison,
    outcome: CompareVerdict,
    findings: tuple[KeyFinding, ...],
    facts: CompareFacts,
    *,
    cut: int,
    began: float,
) -> PartitionResult:
    return PartitionResult(
        topic=facts.topic,
        partition=facts.partition,
        start=facts.start,
        cut=cut,
        records=(comparison.records[0], comparison.records[1]),
        keys=comparison.keys,
        counts=outcome.counts,
        lost=outcome.lost,
        findings=findings,
        explained=outcome.explained,
        not_judged=outcome.not_judged,
        seconds=round(time.monotonic() - began, 3),
    )


def _run(
    spark: SparkSession,
    tasks: Sequence[CompareTask],
    work: Callable[[Any, Iterable[Any]], Iterator[PartitionResult]],
    tell: Tell | None,
) -> tuple[PartitionResult, ...]:
    """Run each small task in a Spark task of its own, the large ones by a shuffle, and report how many are done."""
    if not tasks:
        return ()
    context = spark.sparkContext
    done = context.accumulator(0)
    # All findings are collected on the driver, so their number is limited. The largest partitions are read first.
    named = min(NAMED, max(_FEWEST, _MOST // len(tasks)))
    tasks = [replace(task, named=named) for task in sorted(tasks, key=lambda task: -task.records)]
    with reporting(
        lambda: min(done.value, len(tasks)), None if tell is None else lambda count: tell(count, len(tasks))
    ):
        found = []
        small, large = memory_or_shuffle.choose_way(tasks, memory_or_shuffle.COMPARED_IN_MEMORY)
        if small:
            found += context.parallelize(small, len(small)).mapPartitions(logged(partial(work, done))).collect()
        if large:
            found += compare_by_key(large, shuffle=shuffle_on(context), parallelism=context.defaultParallelism)
            done.add(len(large))
    return tuple(sorted(found, key=lambda one: (one.topic, one.partition)))


def _compare_topics(done: Any, tasks: Iterable[TopicTask]) -> Iterator[PartitionResult]:  # noqa: ANN401 - an accumulator
    for task in tasks:
        yield _guarded(compare_topic, task)
        done.add(1)


def _compare_generations(done: Any, tasks: Iterable[GenerationTask]) -> Iterator[PartitionResult]:  # noqa: ANN401 - as above
    for task in tasks:
        yield _guarded(compare_generations, task)
        done.add(1)


def _guarded(work: Callable[[Any], PartitionResult], task: CompareTask) -> PartitionResult:
    """Compare a partition; return an error that a retry would repeat as its result, so that Spark retries only others.

    At the last attempts every error is returned: a partition without a leader must not end the comparison of all
    others.
    """
    try:
        return work(task)
    except TandemError as error:
        if is_retried(error):
            raise
        return failed_comparison(task, str(error))
