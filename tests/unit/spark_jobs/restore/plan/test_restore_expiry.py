"""What the retention would delete of restored records at once: by age, and by the size of logs not yet written."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record, encode
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore.plan.expiry import ExpiryForecast
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic, TopicPlan, shaped
from tandem.spark_jobs.restore.plan.topic_settings import fitted
from tandem.spark_jobs.restore.prepare.prepare import check_consent
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges

_NOW = 1_700_000_000_000
_COUNT = 40
#: Two objects of forty records each in each of two partitions.
_OBJECTS = 2
_DELETE = {"cleanup.policy": "delete", "retention.ms": "-1"}


def _plan(config: Mapping[str, str], *, partitions: int = 1, objects: int = 1) -> RestorePlan:
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders", partitions=partitions, config=config)])
    for at in range(objects):
        for partition in range(partitions):
            backup.commit(records("orders", partition, range(at * _COUNT, (at + 1) * _COUNT)), journal=False)
    backup.complete()
    return plan_of(ChainReader(store, PAIR), RestoreOptions())


def _topic(plan: RestorePlan) -> TopicPlan:
    [topic] = plan.topics
    return topic


def _sized(topic: TopicPlan, *, uncompressed: int | None = None, largest: int | None = None) -> TopicPlan:
    """The same, each part of which has such sizes."""

    def told(topic: TopicPlan) -> TopicPlan:
        return replace(
            topic,
            partitions=tuple(
                replace(
                    item,
                    slices=tuple(
                        replace(piece, part=replace(piece.part, uncompressed=uncompressed, largest=largest))
                        for piece in item.slices
                    ),
                )
                for item in topic.partitions
            ),
        )

    return told(topic)


def _by_age(surely: int, at_most: int) -> ExpiryForecast:
    return ExpiryForecast(surely=surely, at_most=at_most, settings=("retention.ms",))


@pytest.mark.parametrize(
    ("config", "age", "expected"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, 1040, _by_age(surely=40, at_most=40)),
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, 1039, _by_age(surely=0, at_most=40)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000"}, 1001, _by_age(surely=0, at_most=40)),
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, 1000, ExpiryForecast()),
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, 10_000, ExpiryForecast()),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, 10_000, ExpiryForecast()),
        ({"retention.ms": "1000"}, 10_000, _by_age(surely=40, at_most=40)),
    ],
)
def test_what_is_too_old(config: dict[str, str], age: int, expected: ExpiryForecast) -> None:
    """Counts what the recorded retention deletes at once; `age` is that of the first record, the last is 39 younger."""
    assert _topic(_plan(config)).expiry(_NOW + age) == expected


def _by_size(at_most: int, held: int = 0) -> ExpiryForecast:
    return ExpiryForecast(at_most=at_most, held_at_most=held, settings=("retention.bytes",) if at_most + held else ())


@pytest.mark.parametrize(
    ("retention", "at_most"), [("-1", 0), ("0", 160), ("1000000", 160), ("1200000", 80), ("2400000", 0)]
)
def test_what_the_size_would_delete(retention: str, at_most: int) -> None:
    """An object may go when it and the newer ones can be larger; 0.1 of what each partition has is left to batches."""
    topic = _topic(_plan({**_DELETE, "retention.bytes": retention}, partitions=2, objects=_OBJECTS))
    assert _sized(topic, uncompressed=1_000_000).expiry(_NOW) == _by_size(at_most)


def test_a_topic_of_normal_size_is_not_spoken_of() -> None:
    """Whatever its records are, if all of a partition is well below the limit; other policies have no limit."""
    big = {**_DELETE, "retention.bytes": "1000000"}
    assert _topic(_plan(big, objects=_OBJECTS)).expiry(_NOW) == ExpiryForecast()
    check_consent(_plan(big), RestoreOptions(), now=_NOW)
    compacted = {"cleanup.policy": "compact", "retention.bytes": "1"}
    assert _topic(_plan(compacted)).expiry(_NOW) == ExpiryForecast()
    both = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "1"}
    assert _topic(_plan(both)).expiry(_NOW) == _by_size(_COUNT)
    assert _topic(_plan({"retention.bytes": "1"})).expiry(_NOW) == _by_size(_COUNT)


def test_what_is_not_known_is_not_taken_for_small() -> None:
    """Chains of earlier releases say how large the largest record is, or nothing: then codecs bound it."""
    topic = _topic(_plan({**_DELETE, "retention.bytes": "100000"}))
    [piece] = topic.partitions[0].slices
    stored = piece.part.end - piece.part.start
    assert _sized(topic, largest=1000).expiry(_NOW) == ExpiryForecast()
    assert _sized(topic, largest=5000).expiry(_NOW) == _by_size(_COUNT)
    assert _sized(topic).expiry(_NOW) == _by_size(_COUNT)

    def limited(retention: int) -> TopicPlan:
        config = {**_DELETE, "retention.bytes": str(retention)}
        return _sized(replace(topic, source=replace(topic.source, config=config)))

    assert limited(stored * 32_768).expiry(_NOW) == _by_size(_COUNT)
    assert limited(stored * 40_000).expiry(_NOW) == ExpiryForecast()


def test_both_limits_are_named() -> None:
    """What is too old, and what is too much, may be the same records or others."""
    config = {**_DELETE, "retention.ms": "1000", "retention.bytes": "1200000"}
    topic = _sized(_topic(_plan(config, objects=_OBJECTS)), uncompressed=1_000_000)
    found = topic.expiry(_NOW + 1000 + 50)
    assert found == ExpiryForecast(surely=40, at_most=80, settings=("retention.ms", "retention.bytes"))
    assert found.describe(80) == "retention.ms and retention.bytes: 40 to 80 of 80 records"


def test_a_repartitioned_topic() -> None:
    """Any partition may get everything; how it is spread is not known before."""
    plan = _plan({**_DELETE, "retention.bytes": "3000000"}, partitions=2, objects=_OBJECTS)
    plan = replace(plan, topics=(_sized(_topic(plan), uncompressed=1_000_000),))
    assert _topic(plan).expiry(_NOW) == ExpiryForecast()
    spread = _topic(shaped(plan, RecordChanges(partitioner=Partitioner.MURMUR2), {}, count=3))
    assert spread.expiry(_NOW) == _by_size(160)
    larger = {**spread.source.config, "retention.bytes": "5000000"}
    assert replace(spread, source=replace(spread.source, config=larger)).expiry(_NOW) == ExpiryForecast()


def _target(config: Mapping[str, str], ends: Sequence[int]) -> TargetTopic:
    return TargetTopic(
        name="orders",
        topic_id="other",
        replication_factor=1,
        config={**_DELETE, "max.message.bytes": "1000", **config},
        starts=dict.fromkeys(range(len(ends)), 10),
        ends=dict(enumerate(ends)),
    )


def test_what_a_topic_holds_that_is_added_to() -> None:
    """Its own config counts, and what it holds is older and goes first; a partition that gets nothing loses nothing."""
    plan = _plan({**_DELETE, "retention.bytes": "1"}, partitions=2)
    plan = replace(plan, topics=(_sized(_topic(plan), uncompressed=10_000),))

    def appended(retention: str, *ends: int, partitioner: Partitioner | None = None) -> ExpiryForecast:
        target = {"orders": _target({"retention.bytes": retention}, ends)}
        return _topic(shaped(plan, RecordChanges(partitioner=partitioner), target, append=True)).expiry(_NOW)

    assert appended("-1", 30, 10) == ExpiryForecast()
    assert appended("50000", 30, 10) == ExpiryForecast()
    assert appended("30000", 30, 10) == _by_size(0, held=20)
    assert appended("5000", 30, 20) == _by_size(80, held=30)
    assert appended("5000", 30, 20).describe(80) == (
        "retention.bytes: 0 to 80 of 80 records, and up to 30 that the topic holds"
    )
    assert appended("60000", 60, 10, 10, partitioner=Partitioner.MURMUR2) == _by_size(0, held=50)
    assert appended("50000", 10, 10, 10, partitioner=Partitioner.MURMUR2) == ExpiryForecast()
    [first, second] = _topic(plan).partitions
    half = replace(plan, topics=(replace(_topic(plan), partitions=(first, replace(second, slices=()))),))
    target = {"orders": _target({"retention.bytes": "5000"}, (10, 30))}
    assert _topic(shaped(half, NOTHING, target, append=True)).expiry(_NOW) == _by_size(_COUNT)


def test_consent_for_what_the_size_may_delete() -> None:
    """Also where only what a topic holds may go; what the user sets counts, and nobody is asked about what is kept."""
    plan = _plan({**_DELETE, "retention.bytes": "1"})
    with pytest.raises(RefusedError, match=r"orders, retention\.bytes: 0 to 40 of 40 records"):
        check_consent(plan, RestoreOptions(), now=_NOW)
    check_consent(plan, RestoreOptions(consent=True), now=_NOW)
    check_consent(plan, RestoreOptions(keep_load_config=True), now=_NOW)

    def set_to(config: Mapping[str, str]) -> RestorePlan:
        return fitted(plan, {}, {}, config=config, partitions=None, repartitions=False)

    check_consent(set_to({"retention.bytes": "10000000"}), RestoreOptions(), now=_NOW)
    check_consent(set_to({"cleanup.policy": "compact"}), RestoreOptions(), now=_NOW)
    held = shaped(plan, NOTHING, {"orders": _target({"retention.bytes": "20000"}, (1000,))}, append=True)
    with pytest.raises(RefusedError, match=r"0 to 0 of 40 records, and up to 990 that the topic holds") as caught:
        check_consent(held, RestoreOptions(), now=_NOW)
    assert caught.value.code == "TDM-R082"


@pytest.mark.parametrize("seed", range(20))
def test_no_log_is_larger_than_was_said(seed: int) -> None:
    """Batches that a restore makes of random records, however they compress, lie below the bound of their sizes."""
    rng = random.Random(seed)
    items = [_any_record(rng, offset) for offset in sorted(rng.sample(range(10**12), rng.randint(1, 200)))]
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders", config=_DELETE)])
    backup.commit(items, journal=False)
    backup.complete()
    plan = plan_of(ChainReader(store, PAIR), RestoreOptions())
    body = b"".join(map(encode, items))
    batches = best_bodies().build_batches(
        body,
        len(items),
        max_batch_bytes=rng.choice([1024, 10_000, 900_000]),
        max_batch_records=20_000,
        compression=rng.choice([Compression.NONE, Compression.ZSTD]),
    )
    size = sum(len(batch.data) for batch in batches) + 78

    def limited(retention: int) -> ExpiryForecast:
        config = {**_DELETE, "retention.bytes": str(retention)}
        topic = _topic(plan)
        return replace(topic, source=replace(topic.source, config=config)).expiry(_NOW)

    assert limited(size - 1) == _by_size(len(items))
    assert limited(2 * size + 40 * len(items) + 2048) == ExpiryForecast()


def _any_record(rng: random.Random, offset: int) -> Record:
    return Record(
        topic="orders",
        partition=0,
        offset=offset,
        timestamp=rng.choice([-1, 0, rng.randrange(2**50), _NOW + offset]),
        key=rng.choice([None, b"", rng.randbytes(rng.randint(1, 40))]),
        value=rng.choice([None, b"", rng.randbytes(rng.randint(1, 300))]),
        headers=tuple((f"h{n}", rng.choice([None, b"x" * n])) for n in range(rng.choice([0, 0, 3]))),
    )
