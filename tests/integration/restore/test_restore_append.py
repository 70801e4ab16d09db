"""Restores into topics that hold something and that others write to, on a real broker."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.backups.build_backup import Backup, TopicSpec, records
from support.clusters.topics import TopicMaker
from support.restores.cases import Case, CrashAt, CrashError, Do, read_all, rows_of
from support.restores.live_topics import OWN_CONFIG, backup_of_two, unfinished, write_theirs

from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.spark_jobs.restore.abandon import abandon
from tandem.spark_jobs.restore.lease import lease_record, other_restores
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import LostEndError, PlanPhase, RestoreProgress
from tandem.spark_jobs.restore.records.load_task import LoadPace
from tandem.spark_jobs.restore.records.record_changes import RecordChanges

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_LOST = RecordChanges(keys=frozenset({b"key-7"}), latest=True)


def _restored(case: Case, topic: str, number: int) -> list[tuple[object, ...]]:
    return [row for row in read_all(case.kafka.bootstrap, topic, number) if row[2] != b"theirs"]


def test_a_lost_key_comes_back_into_a_live_topic(case: Case, live: str) -> None:
    """Beside a writer; what the topic held stays, its config is put back, and the report names what was written."""
    items = backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    meanwhile: list[dict[str, str]] = []

    def interfere() -> None:
        meanwhile.append(case.target.set_on([live])[live])
        write_theirs(case, live, range(50, 80))

    report = case.restore(RestoreOptions(shape=_LOST, append=True), Do("verifying", interfere))
    assert report.mismatches == ()
    assert report.records == 2
    for number in (0, 1):
        last = [item for item in items if item.partition == number and item.key == b"key-7"][-1]
        assert _restored(case, live, number) == rows_of([last])
        assert len(read_all(case.kafka.bootstrap, live, number)) == 41
    [during] = meanwhile
    assert (during["retention.ms"], during["cleanup.policy"]) == ("-1", "compact")
    assert int(during["min.compaction.lag.ms"]) > 10**18
    assert case.target.set_on([live])[live] == config
    [topic] = report.topics
    assert topic.config["retention.ms"] == OWN_CONFIG["retention.ms"]
    assert "min.compaction.lag.ms" not in topic.config


@pytest.mark.parametrize("phase", ["loading", "verifying", "putting"])
def test_a_run_that_ended_is_resumed(case: Case, live: str, phase: str) -> None:
    """Wherever the driver dies: nothing twice, and the config that was there before the first try is put back."""
    items = backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    options = RestoreOptions(append=True, pace=LoadPace(batch_bytes=2000, commit_seconds=0.0))
    with pytest.raises(CrashError):
        case.restore(options, CrashAt(phase))
    assert case.target.set_on([live])[live] != config
    write_theirs(case, live, range(50, 60))
    report = case.restore(options)
    assert report.mismatches == ()
    assert report.resumed == (0 if phase == "loading" else 600)
    assert case.target.set_on([live])[live] == config
    for number in (0, 1):
        expected = rows_of([item for item in items if item.partition == number])
        there = _restored(case, live, number)
        # The topic is compacted again since its config was put back: of each key the newest, in order, nothing twice.
        assert [row for row in expected if row in there] == there
        assert {row[1]: row for row in there} == {row[1]: row for row in expected}
    with pytest.raises(RefusedError, match="was appended to these topics before"):
        case.restore(options)
    tasks = case.target.progress(settled=True).tasks.values()
    assert not [item for item in tasks if item.target == live], "what ended needs no progress"


def test_one_that_did_not_end_stands_in_the_way_of_another_until_it_is_given_up(case: Case, live: str) -> None:
    """Half of it may be in the topic. Given up, its config is put back, and nobody goes on with it."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    everything = RestoreOptions(append=True)
    with pytest.raises(CrashError):
        case.restore(everything, CrashAt("verifying"))
    held_off = case.target.set_on([live])[live]
    state = unfinished(case, live)
    with pytest.raises(RefusedError, match=f"did not end.*tandem restore abandon {state.plan[:16]}"):
        case.restore(RestoreOptions(shape=_LOST, append=True))
    assert case.target.set_on([live])[live] == held_off
    with pytest.raises(ConfigError, match="no restore 'ffffffff'"):
        abandon(case.target, "ffffffff")
    done = abandon(case.target, state.plan[:16])
    assert (done.records, done.put_back, done.stay, done.gone, done.refused) == (600, (live,), (), (), {})
    assert case.target.set_on([live])[live] == config
    with pytest.raises(RefusedError, match="is abandoned: there is nothing to abandon"):
        abandon(case.target, state.plan)
    assert case.restore(RestoreOptions(shape=_LOST, append=True)).records == 2
    assert case.target.set_on([live])[live] == config
    with pytest.raises(RefusedError, match="wholly or in part"):
        case.restore(everything)


def test_a_run_that_is_given_up_ends(case: Case, live: str) -> None:
    """Its tasks are fenced, and those that begin later find that nobody is in charge of them any more."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]

    def give_up() -> None:
        abandon(case.target, unfinished(case, live).plan)

    with pytest.raises(OvertakenError):
        case.restore(RestoreOptions(append=True), Do("loading", give_up))
    assert case.target.set_on([live])[live] == config
    assert _restored(case, live, 0) == _restored(case, live, 1) == []


@pytest.mark.parametrize("phase", ["verifying", "putting the config back"])
def test_a_run_that_is_given_up_after_the_load_says_no_more(case: Case, live: str, phase: str) -> None:
    """It finds out at its next word; the config is as it was, and nobody appends the same a second time."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]

    def give_up() -> None:
        abandon(case.target, unfinished(case, live).plan)

    with pytest.raises(OvertakenError):
        case.restore(RestoreOptions(append=True), Do(phase, give_up))
    assert case.target.set_on([live])[live] == config
    assert [state.state for state in case.states() if live in state.targets] == [PlanPhase.ABANDONED]
    with pytest.raises(RefusedError, match="wholly or in part"):
        case.restore(RestoreOptions(append=True))


def test_the_same_command_beside_a_run_that_has_loaded(case: Case, live: str) -> None:
    """The later one ends it; the earlier one finds out. All is there once, and the config is as it was."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    ends = case.target.look([live])[live].ends
    options = RestoreOptions(append=True)
    with pytest.raises(OvertakenError):
        case.restore(options, Do("verifying", lambda: case.restore(options)))
    assert case.target.set_on([live])[live] == config
    [state] = [state for state in case.states() if live in state.targets]
    assert state.state is PlanPhase.FINISHED
    grown = sum(case.target.look([live])[live].ends.values()) - sum(ends.values())
    assert grown <= 600 + 4, "300 in each of two partitions, and the markers of their transactions"


@pytest.mark.parametrize("change", ["trimmed", pytest.param("compacted", marks=pytest.mark.slow)])
def test_an_earlier_run_does_not_take_what_happened_since_for_its_own_fault(case: Case, live: str, change: str) -> None:
    """The later one has ended it, and the topic went on: what is missing by now is no mismatch of the earlier one."""
    backup_of_two(case, live)
    options = RestoreOptions(append=True)

    def trim() -> None:
        case.admin.alter_config(live, {"cleanup.policy": "compact,delete"})
        ends = case.target.look([live])[live].ends
        admin = AdminClient(case.props)
        for future in admin.delete_records([TopicPartition(live, *end) for end in ends.items()]).values():
            future.result(30)

    def wait_for_compaction() -> None:
        deadline = time.monotonic() + 60
        while len(_restored(case, live, 0)) == 300:
            assert time.monotonic() < deadline, "it is not compacted"
            write_theirs(case, live, range(50))
            time.sleep(1)

    def end() -> None:
        assert case.restore(options).mismatches == ()
        trim() if change == "trimmed" else wait_for_compaction()

    with pytest.raises(OvertakenError):
        case.restore(options, Do("verifying", end))


def test_given_up_while_topics_are_being_held_off(case: Case, live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right before the run sets what holds compaction off: it takes that back when it finds out."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    alter = ClusterAdmin.alter_configs

    def after_all(
        admin: ClusterAdmin, changes: Mapping[str, Mapping[str, str | None]], *, only_ask: bool = False
    ) -> dict[str, TandemError]:
        if only_ask:
            return {}
        monkeypatch.setattr(ClusterAdmin, "alter_configs", alter)
        abandon(case.target, unfinished(case, live).plan)
        return admin.alter_configs(changes)

    monkeypatch.setattr(ClusterAdmin, "alter_configs", after_all)
    with pytest.raises(OvertakenError):
        case.restore(RestoreOptions(append=True))
    assert case.target.set_on([live])[live] == config
    assert _restored(case, live, 0) == []


def test_a_transaction_that_nobody_ends(case: Case, live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may lose the end of one: it is named, with what ends it, and giving up does not depend on it."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(append=True), CrashAt("verifying"))
    producer = Producer(
        {
            "bootstrap.servers": case.kafka.bootstrap,
            "transactional.id": f"{live}-open",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(marks.TOPIC, partition=3, key=b"f/f/0", value=None)
    assert producer.flush(30) == 0
    monkeypatch.setattr(marks, "SETTLE_S", 6.0)
    try:
        with pytest.raises(LostEndError, match=rf"{marks.TOPIC}-3: a transaction that began at offset \d+ ") as held:
            case.target.progress(settled=True)
        assert "--partition 3 --start-offset" in str(held.value)
        told: list[str] = []
        done = abandon(case.target, unfinished(case, live).plan, told.append)
    finally:
        producer.abort_transaction(30)
    assert done.put_back == (live,)
    assert "is not counted" in told[-1]
    assert case.target.set_on([live])[live] == config


def test_a_topic_that_is_held_off_by_nobody_is_refused(case: Case, live: str) -> None:
    """Its own config is not known any more: to put back what is set would leave it so."""
    backup_of_two(case, live)
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(append=True), CrashAt("verifying"))
    state = unfinished(case, live)
    lease_record.write_phase(case.target, state, replace(state, state=PlanPhase.ABANDONED))
    with pytest.raises(RefusedError, match="has the configuration of a restore that was killed"):
        case.restore(RestoreOptions(shape=_LOST, append=True))


@pytest.mark.parametrize("said", [False, True])
def test_of_two_that_begin_at_the_same_time_one_goes_on(
    case: Case, live: str, monkeypatch: pytest.MonkeyPatch, *, said: bool
) -> None:
    """The first comes when the second has planned, before or after that has said so; it puts the own config back."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    first, second = RestoreOptions(append=True), RestoreOptions(shape=_LOST, append=True)
    looks: list[str] = []
    look = other_restores.refuse_if_met

    def meanwhile(known: RestoreProgress, now: RestoreProgress, topic_ids: Collection[str]) -> None:
        looks.append("")
        if len(looks) == (2 if said else 1):
            monkeypatch.setattr(other_restores, "refuse_if_met", look)
            if said:
                looks.append(_refused(case, first))
            else:
                with pytest.raises(CrashError):
                    case.restore(first, CrashAt("verifying"))
            now = case.target.plans()
        look(known, now, topic_ids)

    monkeypatch.setattr(other_restores, "refuse_if_met", meanwhile)
    if said:
        assert case.restore(second).mismatches == ()
        assert "did not end" in looks[-1]
    else:
        assert "began at the same time" in _refused(case, second)
        assert case.restore(first).resumed == 600
    assert case.target.set_on([live])[live] == config


def _refused(case: Case, options: RestoreOptions) -> str:
    with pytest.raises(RefusedError) as refusal:
        case.restore(options)
    return str(refusal.value)


def test_records_without_a_key_are_left_out_of_a_compacted_topic(case: Case, live: str) -> None:
    """Its broker refuses them, and there is no moment at which it would not. The report counts them."""
    base = records(live, 0, range(100))
    items = [replace(item, key=None) if item.offset % 10 == 0 else item for item in base]
    Backup.completed(case.store, items, topics=[TopicSpec(live, partitions=2)], block_records=25)
    report = case.restore(RestoreOptions(append=True))
    assert (report.mismatches, report.records) == ((), 90)
    [topic] = report.topics
    assert "10 records were left out, they have no key: a compacted topic takes none like them" in topic.notes
    assert {row[1] for row in _restored(case, live, 0)} == {item.key for item in items if item.key is not None}


def test_several_topics_are_given_up_together(case: Case, live: str, make_topic: TopicMaker) -> None:
    """All of them get their config back, one that was deleted meanwhile excepted."""
    other, gone = make_topic(partitions=1, config=OWN_CONFIG), make_topic(partitions=1, config=OWN_CONFIG)
    topics = [TopicSpec(live, partitions=2), TopicSpec(other), TopicSpec(gone)]
    Backup.completed(
        case.store,
        [item for name in (live, other, gone) for item in records(name, 0, range(20))],
        topics=topics,
        block_records=50,
    )
    config = case.target.set_on([live, other])
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(append=True), CrashAt("verifying"))
    case.target.admin.delete_topic(gone)
    done = abandon(case.target, unfinished(case, live).plan)
    assert (done.put_back, done.gone) == (tuple(sorted((live, other))), (gone,))
    assert case.target.set_on([live, other]) == config


def test_another_life_of_a_topic_does_not_hide_one_that_did_not_end(
    case: Case, live: str, make_topic: TopicMaker
) -> None:
    """The topics that it still holds off are to get their config back first."""
    other = make_topic(partitions=1, config=OWN_CONFIG)
    Backup.completed(
        case.store,
        [item for name in (live, other) for item in records(name, 0, range(20))],
        topics=[TopicSpec(live, partitions=2), TopicSpec(other)],
        block_records=50,
    )
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(append=True), CrashAt("verifying"))
    case.target.admin.delete_topic(live)
    said = _refused(case, RestoreOptions(topics=(live,)))
    assert f"into {', '.join(sorted([live, other]))}, from generation 1, did not end" in said
    assert "abandon it with `tandem restore abandon" in said
    assert "give its command again" not in said, "there is nothing to go on with"


def test_what_cannot_be_appended_is_refused(case: Case, live: str, topic_name: str, make_topic: TopicMaker) -> None:
    """A topic that is missing, that stamps records, or that a plain restore is in the middle of."""
    backup_of_two(case, live)
    with pytest.raises(RefusedError, match="and nowhere is not"):
        case.restore(RestoreOptions(naming=TopicNaming(only="nowhere"), append=True))
    stamped = make_topic(partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(RefusedError, match="stamps its records itself"):
        case.restore(RestoreOptions(naming=TopicNaming(only=stamped), append=True))
    with pytest.raises(RefusedError, match="--append"):
        case.restore(RestoreOptions())
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(naming=TopicNaming(only=topic_name)), CrashAt("verifying"))
    with pytest.raises(RefusedError, match="did not end"):
        case.restore(RestoreOptions(naming=TopicNaming(only=topic_name), append=True))
