"""What a restore plans, from chains alone."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.restores.records import plan_state
from support.restores.restore_plans import make_plan

from tandem.backup_avro.chain.entries import EntryKind, PartitionKey
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan import plan_file
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_again, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic, TopicNaming
from tandem.spark_jobs.restore.plan.plan_document import Difference, PlannedPartition, describe_topic
from tandem.spark_jobs.restore.plan.target_codec import choose_codec, codec_names
from tandem.spark_jobs.restore.prepare.prepare import check_consent
from tandem.spark_jobs.restore.progress.task_progress import PlanState
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges

_NOW = 1_700_000_000_000


def _backup(store: ObjectStore, *topics: TopicSpec, number: int = 1, count: int = 40) -> Backup:
    backup = Backup.claim(store, topics=topics, number=number)
    for topic in topics:
        for partition in range(topic.partitions):
            backup.commit(records(topic.name, partition, range(count), tombstones=range(5)))
    backup.complete()
    return backup


def _planned(store: ObjectStore, naming: TopicNaming | None = None, **how: object) -> RestorePlan:
    return make_plan(
        ChainReader(store, PAIR).refresh(),
        pair=PAIR,
        naming=naming or TopicNaming(),
        **how,  # type: ignore[arg-type]  # the caller names arguments
    )


def _one(store: ObjectStore, config: Mapping[str, str]) -> restore_plan.TopicPlan:
    _backup(store, TopicSpec("orders", config=config))
    [topic] = _planned(store).topics
    return topic


def test_names(store: ObjectStore) -> None:
    """A mapping wins over the suffix; without both a topic keeps its name."""
    _backup(store, TopicSpec("orders"), TopicSpec("prices"))
    naming = TopicNaming(renamed={"orders": "old-orders"}, suffix=".restored")
    assert [topic.target for topic in _planned(store, naming).topics] == ["old-orders", "prices.restored"]
    assert [topic.target for topic in _planned(store).topics] == ["orders", "prices"]
    assert [topic.target for topic in _planned(store, TopicNaming(only="x"), topics=["prices"]).topics] == ["x"]


@pytest.mark.parametrize(
    ("naming", "topics", "message"),
    [
        (TopicNaming(only="x"), None, "names one topic"),
        (TopicNaming(renamed={"orders": "x", "prices": "x"}), None, "both be restored into x"),
        (TopicNaming(renamed={"orders": "prices"}), None, "both be restored into prices"),
        (TopicNaming(renamed={"nowhere": "x"}), None, "nowhere.*restored are orders, prices"),
        (TopicNaming(patterns=(("orders", "x"), ("order", "y"))), None, "--map-pattern order=y matches no topic"),
        (TopicNaming(patterns=(("prices", "x"),)), ["orders"], "--map-pattern prices=x matches no topic.*are orders"),
        (TopicNaming(suffix="/x"), None, "no name"),
        (TopicNaming(renamed={"orders": "__consumer_offsets"}), None, "it belongs to Kafka itself"),
        (TopicNaming(renamed={"orders": "_tandem_restore_progress"}), None, "it belongs to Tandem"),
        (TopicNaming(), ["orders", "nowhere"], "no complete partition of nowhere"),
    ],
)
def test_names_that_do_not_work(
    store: ObjectStore, naming: TopicNaming, topics: list[str] | None, message: str
) -> None:
    """Collisions, unknown topics and names that Kafka or Tandem keeps are usage errors."""
    _backup(store, TopicSpec("orders"), TopicSpec("prices"))
    with pytest.raises(ConfigError, match=message):
        _planned(store, naming, topics=topics)


def test_the_hash_is_that_of_what_is_written(store: ObjectStore) -> None:
    """Same chain and same names: same plan. A grown backup, another name or another subset: another plan."""
    backup = _backup(store, TopicSpec("orders"), TopicSpec("prices"))
    first = _planned(store)
    assert _planned(store).hash == first.hash
    others = [_planned(store, TopicNaming(suffix=".x")), _planned(store, topics=["orders"])]
    backup.commit(records("orders", 0, range(40, 50)))
    others.append(_planned(store))
    assert len({first.hash, *(plan.hash for plan in others)}) == 4


def test_the_hash_of_a_plan_is_that_of_one_document(store: ObjectStore) -> None:
    """Plans that earlier releases made are found again: the bytes hashed are those of the whole document at once."""
    _backup(store, TopicSpec("orders", partitions=3), TopicSpec("prices"))
    plan = _planned(store, TopicNaming(suffix=".x"))
    topics = [
        {
            "id": topic.source.topic_id,
            "target": topic.target,
            "partitions": [
                {
                    "partition": item.key.partition,
                    "end": item.end,
                    "slices": [
                        [one.item.sha256, one.part.start, one.part.end, one.low, one.high] for one in item.slices
                    ],
                }
                for item in topic.partitions
            ],
        }
        for topic in plan.topics
    ]
    document = {"v": 1, "pair": PAIR, "generation": 1, "seq": plan.basis[1], "topics": topics}
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    assert plan.hash == hashlib.sha256(data).hexdigest()


def test_a_plan_is_made_again_from_its_basis(store: ObjectStore) -> None:
    """The chain entries that a plan names are enough to make it again, however far the backup has grown."""
    first = _backup(store, TopicSpec("orders", partitions=2))
    second = Backup.completed(
        store,
        records("orders", 0, range(30)) + records("orders", 1, range(40)),
        topics=[TopicSpec("orders", partitions=2)],
        number=2,
        instance="b",
    )
    plan = _planned(store)
    assert plan.generation == 2
    assert plan.basis == {1: first.writer.state.seq, 2: second.writer.state.seq}
    second.commit(records("orders", 0, range(40, 60)))
    second.seal()
    reader = ChainReader(store, PAIR)
    old = [reader.load(number, upto=seq) for number, seq in plan.basis.items()]
    again = make_plan(old, pair=PAIR, naming=TopicNaming(), number=plan.generation)
    assert again == plan
    assert _planned(store).hash != plan.hash


def test_groups_stand_where_the_state_ends(store: ObjectStore) -> None:
    """A tainted one comes last, but has the newest records, and where groups stood by then; not of what was gone."""
    topics = TopicSpec("t"), TopicSpec("u")
    old, new = _backup(store, *topics), _backup(store, *topics[:1], number=2)
    groups = {"both": {("t", 0): 7, ("u", 0): 8}, "left": {("t", 0): 3, ("u", 0): 4}, "alone": {("t", 0): 5}}
    old.commit([], ends={("t", 0): 41}, groups=groups)
    old.seal()
    new.taint("t", 0, 60)
    new.commit(
        records("t", 0, range(41, 50)),
        groups={"both": {("t", 0): 48}, "left": {}, "new": {("t", 0): 47}},
    )
    made = _planned(store, topics=["t", "u"])
    assert (made.generation, made.basis.keys()) == (1, {1, 2})
    t, u = old.key("t", 0), old.key("u", 0)
    assert {name: {item.key: item.offset for item in items} for name, items in made.groups.items()} == {
        "both": {t: 48, u: 8},
        "left": {u: 4},
        "alone": {t: 5},
        "new": {t: 47},
    }


def test_groups_without_positions_are_named(store: ObjectStore) -> None:
    """A few of them, with the reason, as the newest generation that is used has them."""
    backup = _backup(store, TopicSpec("orders"))
    backup.append(EntryKind.COMMIT, unrecorded={f"s{number}": "share group" for number in range(7)})
    [warning] = _planned(store).warnings()
    assert warning.startswith("the backup has no positions of groups s0 (share group), s1 (share group), ")
    assert "s4 (share group) and 2 more: " in warning
    backup.append(EntryKind.COMMIT, unrecorded={})
    assert _planned(store).warnings() == []


def test_what_is_missing_is_said(store: ObjectStore) -> None:
    """Taints and partitions that are not there are warnings of the plan, with their names."""
    backup = _backup(store, TopicSpec("orders", partitions=2))
    backup.taint("orders", 1, 10, "away too long")
    backup.commit(records("orders", 1, range(40, 45)))
    [warning] = _planned(store).warnings()
    assert "orders-1" in warning
    assert "away too long" in warning


def test_nothing_complete_is_refused(store: ObjectStore) -> None:
    """Without a complete generation there is nothing to restore, and the message says where to look."""
    Backup.claim(store, topics=[TopicSpec("orders")]).commit(records("orders", 0, range(5)))
    with pytest.raises(RefusedError, match="complete"):
        _planned(store)


def test_loading_lets_everything_in(store: ObjectStore) -> None:
    """Nothing is deleted, compacted, refused for its time or size, or stamped anew while it is loaded."""
    config = _one(store, {"cleanup.policy": "compact", "max.message.bytes": "1000"}).loading_config()
    assert config["cleanup.policy"] == "delete"
    assert config["retention.ms"] == config["retention.bytes"] == "-1"
    assert config["message.timestamp.type"] == "CreateTime"
    for key in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
        assert int(config[key]) == 2**63 - 1
    assert config["max.message.bytes"] == str(1024 + 1024)
    assert int(_larger(store).loading_config()["max.message.bytes"]) == 200_000_000


def test_the_limit_while_loading_is_what_the_largest_record_needs(store: ObjectStore) -> None:
    """Where that is known of all; a topic that holds more than a request may is warned of."""
    topic = _one(store, {"cleanup.policy": "compact", "max.message.bytes": "2000000"})
    assert topic.largest is not None
    assert 10 < topic.largest < 100

    def known(*sizes: int | None) -> restore_plan.TopicPlan:
        [item] = topic.partitions
        [piece] = item.slices
        pieces = tuple(replace(piece, part=replace(piece.part, largest=size)) for size in sizes)
        return replace(topic, partitions=(replace(item, slices=pieces),))

    assert known(10, None).largest is None
    assert int(known(10, None).loading_config()["max.message.bytes"]) > 100_000_000
    assert known(10, 5_000_000).largest == 5_000_000
    assert known(10, 20).loading_config()["max.message.bytes"] == "2000000"
    assert known(10, 5_000_000).loading_config()["max.message.bytes"] == "5001024"
    huge = known(500_000_000)
    assert int(huge.loading_config()["max.message.bytes"]) < 105_000_000
    plan = replace(_planned(store), topics=(huge,))
    assert any("500,000,000 bytes" in warning for warning in plan.warnings())


def test_nothing_is_added_from_others_if_that_is_not_wanted(store: ObjectStore) -> None:
    """What another complete generation read beyond the chosen one is left out."""
    first = _backup(store, TopicSpec("orders"))
    Backup.completed(store, records("orders", 0, range(40)), number=2, instance="b")
    first.commit(records("orders", 0, range(40, 50)))
    merged, alone = _planned(store), _planned(store, merge=False)
    assert [item.end for item in merged.topics[0].partitions] == [50]
    assert [item.end for item in alone.topics[0].partitions] == [40]
    assert merged.hash != alone.hash


def _larger(store: ObjectStore) -> restore_plan.TopicPlan:
    Backup.completed(
        store,
        records("orders", 0, range(40)),
        topics=[TopicSpec("orders", config={"max.message.bytes": "200000000"})],
        number=2,
        instance="b",
    )
    [topic] = _planned(store, number=2).topics
    return topic


def test_the_recorded_config_undoes_the_loading_config(store: ObjectStore) -> None:
    """Each loading key is set to what was recorded or dropped; what can't be kept is said."""
    topic = _one(
        store,
        {
            "cleanup.policy": "compact",
            "segment.bytes": "1000000",
            "min.insync.replicas": "2",
            "leader.replication.throttled.replicas": "0:1",
            "message.timestamp.type": "LogAppendTime",
        },
    )
    changes, notes = topic.recorded_changes(1)
    assert topic.loading_config().keys() <= changes.keys()
    assert {key: value for key, value in changes.items() if value is not None} == {
        "cleanup.policy": "compact",
        "segment.bytes": "1000000",
        "min.insync.replicas": "1",
        "message.timestamp.type": "LogAppendTime",
    }
    assert len(notes) == 3
    assert topic.recorded_changes(3)[0]["min.insync.replicas"] == "2"


def test_consent(store: ObjectStore) -> None:
    """Records that would expire at once need a yes, or the loading config to be kept."""
    _one(store, {"cleanup.policy": "delete", "retention.ms": "1000"})
    plan = _planned(store)
    with pytest.raises(RefusedError, match=r"orders, retention\.ms: 40 to 40 of 40"):
        check_consent(plan, RestoreOptions(), now=_NOW + 2000)
    check_consent(plan, RestoreOptions(consent=True), now=_NOW + 2000)
    check_consent(plan, RestoreOptions(keep_load_config=True), now=_NOW + 2000)
    check_consent(plan, RestoreOptions(), now=_NOW)


_BY_KEY = RecordChanges(partitioner=Partitioner.MURMUR2)


def _target(**ends: int) -> TargetTopic:
    numbers = {int(name[1:]): end for name, end in ends.items()}
    return TargetTopic(
        name="t", topic_id="i", replication_factor=1, config={"a": "1"}, starts=dict.fromkeys(numbers, 5), ends=numbers
    )


def test_a_target_is_held_against_the_plan(store: ObjectStore) -> None:
    """Partitions must be as many unless it is said how keys are put to them; what was deleted counts as empty."""
    _backup(store, TopicSpec("orders", partitions=2))
    found = _planned(store)
    plan = restore_plan.shaped(found, NOTHING, {"orders": _target(p0=5, p1=5)})
    assert replace(plan, topics=found.topics) == found
    assert {topic.offsets.mode for topic in plan.topics} == {OffsetMode.FLOOR}
    same = restore_plan.shaped(plan, _BY_KEY, {"orders": _target(p0=5, p1=5)})
    assert replace(same, notes=()) == plan
    [note] = same.notes
    assert note.startswith("orders has 2 partitions, as orders had: records keep theirs, wherever murmur2 would")
    assert note in same.warnings()
    restore_plan.refuse_unless_empty(_target(p0=5, p1=5), plan)
    with pytest.raises(RefusedError, match="1 partitions"):
        restore_plan.shaped(plan, NOTHING, {"orders": _target(p0=5)})
    with pytest.raises(RefusedError, match="3 partitions"):
        restore_plan.shaped(plan, NOTHING, {}, count=3)
    with pytest.raises(RefusedError, match="not 3"):
        restore_plan.shaped(plan, _BY_KEY, {"orders": _target(p0=5)}, count=3)
    fewer = restore_plan.shaped(plan, _BY_KEY, {"orders": _target(p0=5)})
    more = restore_plan.shaped(plan, _BY_KEY, {}, count=3)
    other = restore_plan.shaped(plan, replace(_BY_KEY, partitioner=Partitioner.CRC32), {}, count=3)
    assert [item.topics[0].count for item in (fewer, more, other)] == [1, 3, 3]
    assert len({plan.hash, fewer.hash, more.hash, other.hash}) == 4
    assert any("murmur2" in line for line in more.warnings())
    with pytest.raises(RefusedError, match="TDM-R068"):
        restore_plan.refuse_unless_empty(_target(p0=5, p1=6), plan)
    source = replace(_target(p0=5, p1=6), topic_id=plan.topics[0].source.topic_id)
    with pytest.raises(RefusedError, match="is the very topic that was backed up, and it holds about 1 records") as own:
        restore_plan.refuse_unless_empty(source, plan)
    assert "--suffix .restored" in str(own.value.remedy)
    assert "deleting" not in str(own.value.remedy)


@pytest.mark.parametrize(
    "change",
    [
        {"keys": frozenset({b"a"})},
        {"keys": frozenset()},
        {"excluded": frozenset({b"a"})},
        {"excluded": frozenset({b"a", b""})},
        {"excluded": frozenset({b"a"}), "as_tombstones": True},
        {"since": 0},
        {"before": 0},
        {"until": 0},
        {"latest": True},
        {"latest": True, "tombstones": False},
    ],
)
def test_whatever_is_changed_makes_another_plan(store: ObjectStore, change: dict[str, object]) -> None:
    """So that a run that did other things is never resumed; and it is told."""
    _backup(store, TopicSpec("orders"))
    plan = _planned(store)
    shape = RecordChanges(**change)  # type: ignore[arg-type]  # named
    found = restore_plan.shaped(plan, shape, {})
    assert found.hash != plan.hash
    assert found.hash == restore_plan.shaped(_planned(store), shape, {}).hash
    assert len(found.warnings()) > len(plan.warnings())


def test_a_plan_in_a_file(store: ObjectStore) -> None:
    """All that was chosen comes back, and the plan that is made of it is that very one, though the backup has grown."""
    backup = _backup(store, TopicSpec("orders"))
    options = RestoreOptions(
        naming=TopicNaming(patterns=(("(.*)", r"\1.x"),), suffix=".r"),
        topics=("orders",),
        until={("orders", 0): 30},
        shape=RecordChanges(keys=frozenset({b"", b"\xff"}), excluded=frozenset({b"k"}), since=3, latest=True),
        bytes_per_second=7,
        compression=Compression.LZ4,
        replication_factor=1,
    )
    plan = restore_plan.shaped(plan_of(ChainReader(store, PAIR), options), options.shape, {})
    data = plan_file.encode(plan, options)
    found = plan_file.decode(data, "here", pair=PAIR)
    assert replace(found, exactly=None) == options
    assert found.exactly is not None
    backup.commit(records("orders", 0, range(40, 50)))
    reader = ChainReader(store, PAIR)
    again = plan_again(reader, found, found.exactly, lambda item: restore_plan.shaped(item, found.shape, {}))
    assert again is not None
    assert again.hash == plan.hash
    with pytest.raises(ConfigError, match="of pair shop, not of other"):
        plan_file.decode(data, "here", pair="other")
    for wrong in (b"", b"{}", data.replace(b'"kind"', b'"kinds"'), data.replace(b'"latest"', b'"last"')):
        with pytest.raises(ConfigError, match="TDM-R069"):
            plan_file.decode(wrong, "here", pair=PAIR)
    assert plan_file.id_of(data) == json.loads(data)["sha256"]
    for key, value in json.loads(data).items():
        for edited in ({"y": 1}, [["x", "y"]], "x", 9, None, not value):
            changed = json.dumps({**json.loads(data), key: edited}).encode()
            if json.loads(changed) != json.loads(data):
                with pytest.raises(ConfigError):
                    plan_file.decode(changed, "here", pair=PAIR)
    changed = data.replace(b'"bytes_per_second": 7', b'"bytes_per_second": 8')
    with pytest.raises(ConfigError, match="it was changed after --plan had written it"):
        plan_file.decode(changed, "here", pair=PAIR)


def test_names_by_pattern() -> None:
    """The first that the whole name matches; a name given by itself comes first, the suffix last."""
    naming = TopicNaming(renamed={"c.v1": "x"}, patterns=((r"(.*)\.v1", r"\1.v2"), (r"b.*", "y")), suffix=".r")
    assert [naming.target(name) for name in ("a.v1", "b.v1", "b.v3", "c.v1", "d")] == [
        "a.v2",
        "b.v2",
        "y",
        "x",
        "d.r",
    ]
    for wrong in (("(", "x"), (".*", r"\7")):
        with pytest.raises(ConfigError, match="--map-pattern"):
            TopicNaming(patterns=(wrong,)).target("a")


def test_the_document(store: ObjectStore) -> None:
    """A dry run shows what is read per partition, and how an existing target's config differs."""
    backup = _backup(store, TopicSpec("orders", config={"a": "2", "b": "3"}))
    plan = _planned(store)
    topic = describe_topic(plan.topics[0], _target(p0=5), now=_NOW, compression=None)
    [partition] = topic.partitions
    part = backup.writer.state.objects[next(iter(backup.writer.state.objects))].parts[0]
    assert partition == PlannedPartition(
        partition=0,
        objects=1,
        records=40,
        exact=True,
        tombstones=5,
        bytes=part.end - part.start,
        end=40,
        expired_below=None,
        generations=(1,),
        fillers=0,
    )
    assert topic.config_differences == {
        "a": Difference(present="1", recorded="2"),
        "b": Difference(present=None, recorded="3"),
    }
    assert plan.topics[0].partitions[0].key == PartitionKey(plan.topics[0].source.topic_id, 0)


def test_transactional_ids_are_stable() -> None:
    """One id per plan and source partition, the same whoever asks."""
    assert restore_plan.transactional_id("ab" * 32, "id", 3) == f"tandem-restore-{'ab' * 8}-id-3"


@pytest.mark.parametrize(
    ("config", "size", "compression"),
    [
        ({}, 900_000, Compression.NONE),
        ({"compression.type": "producer", "max.message.bytes": "1048588"}, 900_000, Compression.NONE),
        ({"compression.type": "lz4", "max.message.bytes": "50000"}, 50_000, Compression.LZ4),
        ({"compression.type": "uncompressed", "max.message.bytes": "0"}, 1024, Compression.NONE),
    ],
)
def test_batches_fit_the_recorded_config(
    store: ObjectStore, config: dict[str, str], size: int, compression: Compression
) -> None:
    """Batches are compressed as recorded and, but for single large records, no larger than the recorded limit."""
    topic = _one(store, config)
    assert topic.batch_bytes(900_000) == size
    assert topic.compression(None) is compression
    assert topic.compression(Compression.SNAPPY) is Compression.SNAPPY


_CODECS = {Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD}


@pytest.mark.parametrize("had", [set(some) for n in range(6) for some in itertools.combinations(sorted(_CODECS), n)])
def test_no_codec_is_brought_in(had: set[Compression]) -> None:
    """The codec is one that the topic had, zstd where it had that; none where nothing was recorded."""
    bits = sum(1 << codec for codec in had)
    chosen = choose_codec({}, bits, None)
    assert chosen in (had or {Compression.NONE})
    assert (chosen is Compression.ZSTD) == (Compression.ZSTD in had)
    assert (chosen is Compression.NONE) == (had <= {Compression.NONE})
    assert codec_names(bits) == [codec.name.lower() for codec in sorted(had)]
    for name, codec in (("uncompressed", Compression.NONE), ("gzip", Compression.GZIP), ("zstd", Compression.ZSTD)):
        assert choose_codec({"compression.type": name}, bits, None) is codec
    assert choose_codec({"compression.type": "producer"}, bits | 1 << 7, None) is chosen, "a codec of later brokers"
    assert choose_codec({"compression.type": "zstd"}, bits, Compression.GZIP) is Compression.GZIP


def test_a_plan_knows_the_codecs_of_each_topic(store: ObjectStore) -> None:
    """Of all the partitions of one topic, and of no other; an earlier release's part adds nothing."""
    backup = Backup.claim(store, topics=[TopicSpec("a", partitions=2), TopicSpec("b"), TopicSpec("c")])
    for topic, number, codecs in (("a", 0, 1 << 1), ("a", 1, 1 << 3 | 1), ("b", 0, 1 << 4), ("c", 0, 0)):
        backup.batch_codecs = codecs
        backup.commit(records(topic, number, range(9)))
    backup.complete()
    a, b, c = _planned(store).topics
    shown = [describe_topic(topic, None, now=_NOW, compression=None) for topic in (a, b, c)]
    assert [(topic.compression, topic.codecs) for topic in shown] == [
        ("lz4", ["none", "gzip", "lz4"]),
        ("zstd", ["zstd"]),
        ("none", []),
    ]
    assert describe_topic(a, None, now=_NOW, compression=Compression.GZIP).compression == "gzip"


def _written(plan: RestorePlan) -> PlanState:
    """What a run that was killed leaves on the target."""
    return plan_state(plan=plan.hash, run="x", generation=plan.generation, basis=plan.basis)


@pytest.mark.parametrize("topics", [None, ("orders",), ("old",), ("old", "orders")])
@pytest.mark.parametrize("generation", [None, 2])
def test_the_same_command_finds_itsplan_again(
    store: ObjectStore, topics: tuple[str, ...] | None, generation: int | None
) -> None:
    """Also where a topic that is gone comes from an older generation than the rest, and after commits in between."""
    first = Backup.completed(
        store,
        [*records("orders", 0, range(10)), *records("old", 0, range(10))],
        topics=[TopicSpec("orders"), TopicSpec("old")],
        number=1,
        instance="a",
    )
    second = Backup.completed(store, records("orders", 0, range(20)), number=2, instance="b")
    first.seal()
    options = RestoreOptions(naming=TopicNaming(suffix=".r"), topics=topics, generation=generation)
    if topics is not None and "old" in topics and generation is not None:
        with pytest.raises(ConfigError, match="old"):
            plan_of(ChainReader(store, PAIR), options)
        return
    plan = plan_of(ChainReader(store, PAIR), options)
    written = _written(plan)
    second.commit(records("orders", 0, range(20, 30)))
    for again in (options, RestoreOptions(naming=TopicNaming(suffix=".r"), topics=topics)):
        found = plan_again(ChainReader(store, PAIR), again, written)
        assert found is not None
        assert found.hash == plan.hash
    assert (
        plan_again(
            ChainReader(store, PAIR), RestoreOptions(naming=TopicNaming(suffix=".other"), topics=topics), written
        )
        is None
    )


def test_a_named_generation_is_found_again_where_the_newest_state_would_be_refused(store: ObjectStore) -> None:
    """`--to` takes one topic. The named generation has one; the newest state has a second one, from another."""
    first = Backup.claim(store, topics=[TopicSpec("orders"), TopicSpec("late")], number=1, instance="a")
    second = Backup.claim(store, topics=[TopicSpec("orders")], number=2, instance="b")
    first.commit([*records("orders", 0, range(10)), *records("late", 0, range(10))])
    first.complete()
    second.commit(records("orders", 0, range(12)))
    second.complete()
    first.commit(records("orders", 0, range(10, 20)))
    options = RestoreOptions(naming=TopicNaming(only="one"), generation=2)
    with pytest.raises(ConfigError, match="2 are to be restored"):
        plan_of(ChainReader(store, PAIR), replace(options, generation=None))
    plan = plan_of(ChainReader(store, PAIR), options)
    assert sorted(plan.basis) == [1, 2], "the first one reads on: its newest orders are taken along"
    written = _written(plan)
    found = plan_again(ChainReader(store, PAIR), options, written)
    assert found is not None
    assert found.hash == plan.hash


def test_not_all_that_begins_with_underscores_is_kafkas(store: ObjectStore) -> None:
    """A guarded topic of another system goes back under its own name."""
    _backup(store, TopicSpec("orders"))
    plan = _planned(store, naming=TopicNaming(renamed={"orders": "__strimzi_store_topic"}))
    assert [topic.target for topic in plan.topics] == ["__strimzi_store_topic"]
