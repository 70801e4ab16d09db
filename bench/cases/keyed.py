"""Work on the keys of one large partition: `python -m bench.cases.keyed MILLIONS STRATEGY FOLDER [KEYS] [PASS]`.

PASS is `sweep` (the default), which finds the superseded records and rewrites nothing: that costs the same in both
strategies; or `compare`, which compares all records with the newer half of them, as a cleaner leaves it; or `latest`,
which finds the newest record of each key before a restore with `--latest-per-key` loads them; or `merge`, which reads
and sorts four partitions for three others, as a restore with `--repartition` does, and writes to no broker: tasks count
what they would load. Only `stages` and `shuffle` can merge. STRATEGY is `memory`, one
task that remembers all keys; `stages`, those of the shuffle one after the other in this process, with all messages in
memory; or `shuffle`, on Spark's `local[2]` with a driver of 1 GB and Python workers whose address space is limited to
512 MB. The partition has so many million records of about
100 bytes in objects of 500,000 records, and is made in FOLDER if it is not there. KEYS is `twice`, each key has two
records (the default), or `once`, one record in twenty is superseded, which is for sweeps.
Spark is started before the clock is. Memory is the most that was resident: `driver` of this process, `worker` of the
largest Python worker, `jvm` of Java, `all` the sum over all processes. The bytes of a shuffle are those that Spark
wrote for the next stage, and spilled to disks while it did so.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from py4j.protocol import Py4JJavaError

from bench.measured import Run, peaks_mb, reading, report, tree_cpu_s
from tandem.backup_avro.chain.entries import Opening, Part, PartitionKey, StoredObject, sha256_hex
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.record.container import Codec, encode_block, encode_header
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.ambiguous_keys import refuse_ambiguous_keys
from tandem.spark_jobs.restore.merge_source import MergePlan, MergeSource, MergeTopic
from tandem.spark_jobs.restore.records.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.restore.records.newest_by_key import Winners, load_by_key
from tandem.spark_jobs.restore.records.newest_records import newest_offsets
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import RecordChanges
from tandem.spark_jobs.restore.records.record_stream import GivenUnits, RecordShaper
from tandem.spark_jobs.restore.sorted_load import LoadCalls, load_sorted
from tandem.spark_jobs.retention.sweep import sweep_all
from tandem.spark_jobs.retention.sweep_by_key import sweep_by_key
from tandem.spark_jobs.retention.sweep_plan import SweepPiece, SweepRules, SweepTask
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.session import session
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage, shuffle_here, shuffle_on
from tandem.spark_jobs.verify.compare_by_key import compare_by_key
from tandem.spark_jobs.verify.compare_keys import compare_generations
from tandem.spark_jobs.verify.compare_tasks import GenerationTask

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext

_MILLION = 1_000_000
#: Partitions that are merged, and those that they are merged into.
_MERGED, _INTO = 4, 3
_CORES = 2
_OBJECT = 500_000
_BLOCK = 2000
_SYNC = bytes(16)
#: Of so many records in the second half, one repeats a key of the first half.
_REPEATS = {"twice": 1, "once": 10}
_KEY = PartitionKey("AAAAAAAAAAAAAAAAAAAAAA", 0)
_OPENING = Opening(isolation_level="read_uncommitted", codec=Codec.ZSTANDARD.value, sync=_SYNC.hex())


def main() -> None:
    """Run once."""
    records, strategy, folder = int(float(sys.argv[1]) * _MILLION), sys.argv[2], Path(sys.argv[3])
    repeats = _REPEATS[sys.argv[4] if len(sys.argv) > 4 else "twice"]
    what = sys.argv[5] if len(sys.argv) > 5 else "sweep"
    run = {"sweep": _sweep, "compare": _compare, "latest": _latest, "merge": _merge}[what]
    parts = _MERGED if what == "merge" else 1
    case = _Case(
        address=StoreAddress(root=folder.resolve().as_uri(), settings=reading()),
        pieces=tuple(
            _Objects(folder, records, repeats, parts).piece(number, first)
            for number in range(parts)
            for first in range(0, records // parts, _OBJECT)
        ),
        records=records,
        superseded=records // (2 * repeats),
    )
    if strategy != "shuffle":
        began, cpu = time.perf_counter(), tree_cpu_s()
        run(case, {"memory": None, "stages": shuffle_here}[strategy])
        _report(case, began, cpu)
        return
    with session(
        f"local[{_CORES},4]", extra={"spark.driver.memory": "1g", "spark.executor.pyspark.memory": "512m"}
    ) as spark:
        context = spark.sparkContext
        context.parallelize(range(_CORES), _CORES).sum()
        began, cpu = time.perf_counter(), tree_cpu_s()
        run(case, shuffle_on(context))
        _report(case, began, cpu)
        sys.stdout.write(f"bytes of the shuffle, of them spilled: {_shuffled(context)}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A partition: its objects, its records, and how many of them are superseded."""

    address: StoreAddress
    pieces: tuple[SweepPiece, ...]
    records: int
    superseded: int


def _sweep(case: _Case, shuffle: Shuffle | None) -> None:
    task = SweepTask(
        folder=("bench", "a", 1),
        key=_KEY,
        topic="customers",
        opening=_OPENING,
        horizon=case.records,
        settled=case.records,
        pieces=case.pieces,
        rules=SweepRules(horizon=0, min_gain=0.0, most_tombstones=0),
    )
    if shuffle is None:
        [swept] = sweep_all(case.address.open(), [task], write=False)
    else:
        [swept] = sweep_by_key(case.address, [task], write=False, shuffle=shuffle, parallelism=_CORES)
    if swept.error is not None or swept.records != case.superseded:
        raise RuntimeError(f"{swept.records} records are superseded, not {case.superseded}: {swept.error}")


def _compare(case: _Case, shuffle: Shuffle | None) -> None:
    half = case.records // 2
    whole = tuple(_slice(piece, 0) for piece in case.pieces)
    task = GenerationTask(
        name="customers",
        key=_KEY,
        names=("generation 1", "generation 2"),
        slices=(whole, tuple(_slice(piece, half) for piece in case.pieces if piece.part.last >= half)),
        beyond=((), ()),
        starts=(0, 0),
        let_go=(0, 0),
        cut=case.records,
        expired=None,
        compacted=True,
        only_compacts=True,
        store=case.address,
    )
    if shuffle is None:
        found = compare_generations(task)
    else:
        [found] = compare_by_key([task], shuffle=shuffle, parallelism=_CORES)
    if not found.clean or found.keys != case.records - case.superseded:
        raise RuntimeError(f"{found.keys} keys, not {case.records - case.superseded}: {found.counts} {found.error}")


def _latest(case: _Case, shuffle: Shuffle | None) -> None:
    source = SourcePartition(partition=0, slices=tuple(_slice(piece, 0) for piece in case.pieces))
    shape = RecordChanges(latest=True)
    if shuffle is None:
        reader = case.address.reader(apart=True)

        def keyed() -> Iterator[tuple[int, bytes]]:
            bodies = chain.from_iterable(map(reader.bodies, source.slices))
            return RecordShaper(shape=shape, choose=None, count=0).keyed(0, bodies)

        found = len(newest_offsets(keyed, case.records))
    else:
        [found] = load_by_key(
            [_load_task(case, source, shape)],
            _count,
            _raised,
            shuffle=shuffle,
            parallelism=_CORES,
        )
    if found != case.records - case.superseded:
        raise RuntimeError(f"{found} newest records, not {case.records - case.superseded}")


def _merge(case: _Case, shuffle: Shuffle | None) -> None:
    if shuffle is None:
        raise RuntimeError("nothing merges in one task")
    slices = [_slice(piece, 0) for piece in case.pieces]
    topic = MergeTopic(
        topic="customers",
        topic_id=_KEY.topic_id,
        partitions=_MERGED,
        sources=tuple(
            SourcePartition(partition=number, slices=tuple(one for one in slices if one.part.key.partition == number))
            for number in range(_MERGED)
        ),
        count=_INTO,
        shape=RecordChanges(partitioner=Partitioner.MURMUR2),
        store=case.address,
    )
    times = ShuffleStage(partitions=_MERGED, work=_read_times, own_part=MergeTopic.of_sources)
    passed_on = ShuffleStage(partitions=1, work=_passed_on, own_part=lambda *_: None)
    plan = MergePlan.of(topic, shuffle(topic, (times, passed_on)))
    refuse_ambiguous_keys(topic, plan, shuffle=shuffle)
    tasks = [
        replace(_load_task(case, source, topic.shape), merged_into=number)
        for number, source in enumerate(topic.sources[:_INTO])
    ]
    loaded: Counter[int] = Counter()

    def so_far(found: Iterable[_Counted]) -> list[Any]:
        results = list(found)
        for one in results:
            loaded[one.task] += one.records
        return [replace(one, records=loaded[one.task]) for one in results]

    calls = LoadCalls(load=_counted, results=so_far)
    found = load_sorted(topic, plan, [[task] for task in tasks], calls, shuffle=shuffle)
    if sum(result.records for result in found) != case.records:
        raise RuntimeError(f"{[result.records for result in found]} records, not {case.records}")


def _read_times(topic: MergeTopic, _number: int, _: Iterator[Any]) -> Iterator[Message]:
    yield 0, MergeSource(topic=topic, source=topic.sources[0]).times()


def _passed_on(_: None, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    for message in messages:
        yield number, message


@dataclass(frozen=True)
class _Counted:
    """What a load of one slice tells."""

    task: int
    records: int
    resumed: int = 0
    left_out: int = 0
    seconds: float = 0.0


def _counted(task: LoadTask, given: GivenUnits) -> Iterator[_Counted]:
    found = sum(chunk.body.records for unit in given.units({}) for chunk in unit.chunks)
    yield _Counted(task.number, found)


def _load_task(case: _Case, source: SourcePartition, shape: RecordChanges) -> LoadTask:
    return LoadTask(
        plan="",
        run="",
        pair="bench",
        restore=None,
        topic="customers",
        topic_id=_KEY.topic_id,
        sources=(source,),
        target="customers",
        target_topic_id="",
        transactional_id="",
        spread=1,
        store=case.address,
        cluster=ClusterAddress(props={}),
        shape=shape,
    )


def _count(_: LoadTask, winners: Winners) -> Iterator[int]:
    yield len(winners[0])


def _raised(error: TandemError) -> NoReturn:
    raise error


def _slice(piece: SweepPiece, low: int) -> Slice:
    part = piece.part
    return Slice(
        generation=1,
        opening=_OPENING,
        item=piece.item,
        part=part,
        low=max(low, part.first),
        high=part.last + 1,
    )


def _report(case: _Case, began: float, cpu: float) -> None:
    seconds = time.perf_counter() - began
    size = sum(piece.item.bytes for piece in case.pieces)
    run = Run(records=case.records, bytes=size, seconds=seconds, cpu_s=tree_cpu_s() - cpu, peak_mb=0.0)
    for name, peak in peaks_mb().items():
        report(replace(run, peak_mb=peak), name)


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects of so many partitions with so many records in all, made where they are not there yet."""

    folder: Path
    records: int
    repeats: int
    partitions: int

    def piece(self, partition: int, first: int) -> SweepPiece:
        """Return the object that begins at an offset. The second half of the records repeats keys."""
        place = "-".join(map(str, (self.records, self.repeats, *([partition] if self.partitions > 1 else []))))
        path = self.folder / place / f"{first:020}.avro"
        end = min(first + _OBJECT, self.records // self.partitions)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            data = bytearray(encode_header(codec=Codec.ZSTANDARD, sync=_SYNC))
            for begin in range(first, end, _BLOCK):
                some = min(_BLOCK, end - begin)
                body = b"".join(self._record(partition, offset) for offset in range(begin, begin + some))
                data += encode_block(body, some, codec=Codec.ZSTANDARD, sync=_SYNC, level=None)
            path.write_bytes(data)
        stored = path.read_bytes()
        part = Part(
            key=_KEY._replace(partition=partition),
            first=first,
            last=end - 1,
            records=end - first,
            tombstones=0,
            min_timestamp=0,
            max_timestamp=0,
            start=len(encode_header(codec=Codec.ZSTANDARD, sync=_SYNC)),
            end=len(stored),
        )
        item = StoredObject(
            key=f"{place}/{path.name}", journal=False, bytes=len(stored), sha256=sha256_hex(stored), parts=(part,)
        )
        return SweepPiece(item=item, part=part, movable=True)

    def _record(self, partition: int, offset: int) -> bytes:
        """Return a record, encoded: its place in time is that of its number among the records of all partitions."""
        written = offset * self.partitions + partition
        # Neighbours in one half are far apart in the other, as keys are that change at random.
        half = self.records // 2
        number = written if written < half or written % self.repeats else (written - half) * 7_919 % half
        return encode(
            Record(
                topic="customers",
                partition=partition,
                offset=offset,
                timestamp=1_700_000_000_000 + written,
                timestamp_type=TimestampType.CREATE_TIME,
                key=b"customer-%011d" % number,
                value=b"v" * 60,
            )
        )


def _shuffled(context: SparkContext) -> tuple[int, int]:
    """Return the bytes that all stages so far have written for others, and have spilled to disks."""
    stages = context._jsc.sc().statusStore()  # noqa: SLF001 (PySpark's own view has no bytes)
    written = spilled = 0
    for number in count():
        try:
            stage = stages.lastStageAttempt(number)
        except Py4JJavaError:
            return written, spilled
        written += stage.shuffleWriteBytes()
        spilled += stage.diskBytesSpilled()
    raise AssertionError("stages have no end")


if __name__ == "__main__":
    # Spark's workers import this module by its name.
    import_module("bench.cases.keyed").main()
