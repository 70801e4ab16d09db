"""What can't be backed up of one topic sets that topic aside: all others are backed up as if it were not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from support.backups.chains import key, topic
from support.pipeline.doubles import Event, ScriptedSource, fetched
from support.pipeline.pipelines import QUICK, Bench, at_work, through
from support.pipeline.waiting import until
from support.records.strategies import batch

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record
from tandem.sink.kafka.events import AtHead, TopicPartition
from tandem.sink.process import clock
from tandem.sink.store.contract.object_store import StoreRejectedError, StoreTransientError, StoreUnfitError
from tandem.sink.write.topics_aside import TopicsAside

U0 = TopicPartition("u", 0)
REFUSED = StoreRejectedError(
    "put '…/t+0': the store answered 400 KeyTooLongError", code="TDM-X001", remedy="see the store's own log"
)

FAILS = StoreTransientError("put '…/t+0': the store answered 500 InternalError", code="TDM-X001")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Two topics, of one partition each: `t` as the bench has it, and `u`, that gets a record at each answer."""
    with at_work(policy=replace(QUICK, max_objects=8)) as it:
        it.cluster.topics["u"] = topic("u")
        plain, ends = it.log.answer, iter(range(1, 10_000))

        def answer(source: ScriptedSource) -> list[Event]:
            source.ends.setdefault(U0, (0, 1))
            events = plain(source)
            at, now = source.positions.get(U0), clock.now()
            if at is None:
                return events
            if source is not it.log.sources[0]:
                return [*events, AtHead(leader_id=1, partitions={U0: at}, requested_at=now, received_at=now)]
            time.sleep(0.005)
            record = Record(topic="u", partition=0, offset=at, timestamp=at, key=b"u", value=b"%d" % next(ends))
            return [*events, fetched(batch([record], leader_epoch=1), at, end=at + 1, at=now, topic="u")]

        it.log.answer = answer  # type: ignore[method-assign]  # the test's own
        yield it


def refuse(bench: Bench, error: Exception, *, also: Callable[[str], bool] = lambda _: False) -> None:
    """Have the store take no data object of `t`."""
    bench.store.before = lambda operation, name: (
        error if operation == "put" and ("/topics/t/" in name or also(name)) else None
    )


def u_grows(bench: Bench, *, by: int = 10) -> None:
    """Wait until more of `u` is in the chain."""
    before = bench.chain().positions[key("u")].offset
    bench.until(lambda state: state.positions[key("u")].offset >= before + by)


@pytest.mark.parametrize("error", [REFUSED, StoreUnfitError("name too long", code="TDM-X001", remedy="use s3://")])
def test_a_topic_that_the_store_refuses_stops_no_other_one(
    bench: Bench, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and counted as not read; once the store takes it, nothing of it is missing."""
    monkeypatch.setattr("tandem.sink.write.topics_aside._FIRST_REST_S", 0.3)
    refuse(bench, error)
    bench.log.append(*range(10))
    pipeline = bench.start()
    bench.until(lambda state: key("u") in state.positions)
    u_grows(bench)
    until(lambda: pipeline.report().unread)
    report = pipeline.report()
    assert report.error is None
    assert report.unread == 1
    assert report.aside == ("t",)
    assert report.trouble[0].startswith(f"topics are set aside, because the store takes nothing of them: t: {error}")
    assert not bench.chain().read_through(key())
    u_grows(bench)
    assert key() not in bench.chain().positions
    bench.store.before = lambda _operation, _name: None
    assert bench.stored(bench.until(through(10))) == list(range(10))
    until(lambda: not pipeline.report().unread)
    assert (pipeline.report().unread, pipeline.report().trouble, pipeline.report().aside) == (0, (), ())


def test_a_topic_that_is_refused_later_goes_on_where_the_chain_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed of it stays; what was not is read again."""
    monkeypatch.setattr("tandem.sink.write.topics_aside._FIRST_REST_S", 0.3)
    bench.read(0, 1)
    refuse(bench, REFUSED)
    bench.log.append(2, 3)
    u_grows(bench)
    assert bench.chain().positions[key()].offset == 2
    bench.log.append(4)
    bench.store.before = lambda _operation, _name: None
    assert bench.stored(bench.until(through(5))) == [0, 1, 2, 3, 4]


def test_a_store_that_takes_nothing_at_all_ends_the_pipeline(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no topic's fault: whoever runs the instance has to see it, and it is started again."""
    pipeline = bench.read(0, 1)

    def probe(prefix: str) -> tuple[str, ...]:
        assert prefix.endswith("/generation=00000001/")
        raise StoreRejectedError("nor a probe", code="TDM-X001")

    monkeypatch.setattr(bench.store, "probe", probe)
    refuse(bench, REFUSED)
    bench.log.append(2)
    until(lambda: pipeline.error is not None)
    assert pipeline.error is REFUSED


def test_a_journal_that_is_refused_is_no_single_topics_fault(bench: Bench) -> None:
    """Many topics share it, and nobody can say which of them is refused."""
    bench.policy = replace(QUICK, max_objects=1)
    bench.log.append(0, 1)
    refuse(bench, REFUSED, also=lambda name: "/journal/" in name)
    pipeline = bench.start()
    until(lambda: pipeline.error is not None)
    assert pipeline.error is REFUSED


def test_a_store_that_fails_for_one_topic_for_ever_stops_no_other_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each put of its objects is answered 500, all others are taken: named, and tried again after a rest."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    monkeypatch.setattr("tandem.sink.write.commit._PATIENCE_S", 0.2)
    monkeypatch.setattr("tandem.sink.write.topics_aside._FIRST_REST_S", 0.3)
    refuse(bench, FAILS)
    bench.log.append(*range(10))
    pipeline = bench.start()
    bench.until(lambda state: key("u") in state.positions)
    u_grows(bench)
    assert pipeline.report().error is None
    troubles = " ".join(pipeline.report().trouble)
    assert f"topics are set aside, because the store takes nothing of them: t: {FAILS}" in troubles
    assert key() not in bench.chain().positions
    bench.store.before = lambda _operation, _name: None
    assert bench.stored(bench.until(through(10))) == list(range(10))
    bench.until(lambda _: pipeline.report().trouble == ())


def test_a_topic_that_failed_before_holds_up_no_commit_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its rest one try is enough; once something of it was stored, it has the patience of all others again."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    monkeypatch.setattr("tandem.sink.write.commit._PATIENCE_S", 0.5)
    monkeypatch.setattr("tandem.sink.write.topics_aside._FIRST_REST_S", 0.05)
    monkeypatch.setattr("tandem.sink.write.topics_aside._LONGEST_REST_S", 0.05)
    refuse(bench, FAILS)
    bench.log.append(*range(10))
    pipeline = bench.start()
    bench.until(lambda state: key("u") in state.positions)
    monkeypatch.setattr("tandem.sink.write.commit._PATIENCE_S", 60.0)
    tries = len([name for operation, name in bench.store.log if operation == "put" and "/topics/t/" in name])
    u_grows(bench, by=100)
    again = [name for operation, name in bench.store.log if operation == "put" and "/topics/t/" in name][tries:]
    assert len(again) == len(set(again)) > 1, "each try has a name of its own"
    bench.store.before = lambda _operation, _name: None
    bench.until(through(10))
    refuse(bench, FAILS)
    bench.log.append(10)
    bench.until(lambda _: any("not stored yet" in trouble for trouble in pipeline.report().trouble))
    time.sleep(0.3)
    assert not any("set aside" in trouble for trouble in pipeline.report().trouble)


@pytest.mark.parametrize("max_objects", [8, 1])
def test_a_store_that_fails_for_all_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, max_objects: int
) -> None:
    """That is an outage, and no topic's own trouble, however long it lasts: nothing is set aside."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    monkeypatch.setattr("tandem.sink.write.commit._PATIENCE_S", 0.05)
    bench.policy = replace(QUICK, max_objects=max_objects)
    pipeline = bench.read(0, 1)
    asked: list[str] = []

    def probe(prefix: str) -> tuple[str, ...]:
        asked.append(prefix)
        raise FAILS

    monkeypatch.setattr(bench.store, "probe", probe)
    refuse(bench, FAILS, also=lambda name: name.endswith(".avro"))
    bench.log.append(2, 3)
    until(lambda: len(asked) >= 3)
    assert len(asked) >= 3
    assert pipeline.report().trouble == (f"what was read is not stored yet: {FAILS}",)
    bench.store.before = lambda _operation, _name: None
    assert bench.stored(bench.until(through(4))) == [0, 1, 2, 3]
    assert pipeline.error is None


def test_a_journal_that_fails_for_ever_is_begun_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next life of the pipeline gives it another name."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    monkeypatch.setattr("tandem.sink.write.commit._PATIENCE_S", 0.05)
    bench.policy = replace(QUICK, max_objects=1)
    bench.log.append(0, 1)
    refuse(bench, FAILS, also=lambda name: "/journal/" in name)
    pipeline = bench.start()
    until(lambda: pipeline.error is not None)
    assert pipeline.error is FAILS


def test_a_partition_that_can_not_be_read_is_counted_and_named_first(bench: Bench) -> None:
    """Message formats, compressions and batches that nobody can read: all else is committed as before."""
    pipeline = bench.read(0, 1)
    bench.log.spoilt = True
    bench.log.append(2)
    until(lambda: pipeline.report().unread)
    pipeline._context.report_trouble("later", "something else")
    report = pipeline.report()
    assert report.unread == 1
    assert report.trouble[0].startswith("topic t, partition 0, record batch at offset 2: ")
    assert report.trouble[1:] == ("something else",)
    u_grows(bench)
    bench.cluster.topics.pop("t")
    until(lambda: not pipeline.report().unread)
    assert pipeline.report().unread == 0


def test_what_can_not_be_read_is_named_up_to_five(bench: Bench) -> None:
    """A heartbeat has room for a few troubles, and one more number says how many there are."""
    pipeline = bench.start()
    for number in range(7):
        pipeline._context.report_damaged(
            TopicPartition("x", number), DamagedError(f"x-{number}: bad", code="TDM-X001"), tail=True
        )
        pipeline._context.report_damaged(
            TopicPartition("x", number), DamagedError(f"x-{number}: bad", code="TDM-X001"), tail=True
        )
    report = pipeline.report()
    assert report.trouble[0] == "x-0: bad; x-1: bad; x-2: bad; x-3: bad; x-4: bad; and 2 more partitions"
    assert report.unread == 7


def test_a_topic_rests_longer_each_time() -> None:
    """From a minute to an hour; what is committed of it ends that, and so does nobody guarding it any more."""
    aside = TopicsAside()
    for times, rest_s in enumerate((60.0, 120.0, 240.0)):
        aside.set_aside("id", name="t", why="no", now=1000.0 * times)
        assert aside.is_set_aside("id", 1000.0 * times + rest_s - 1)
        assert not aside.is_set_aside("id", 1000.0 * times + rest_s)
    for _ in range(20):
        aside.set_aside("id", name="t", why="no", now=0.0)
    assert aside.is_set_aside("id", 3599.0)
    assert not aside.is_set_aside("id", 3600.0)
    aside.forget_unguarded({"id", "other"})
    aside.committed({"other"})
    assert "id" in aside
    aside.committed({"id"})
    assert (len(aside), aside.trouble) == (0, None)
    for number in range(7):
        aside.set_aside(f"{number}", name=f"t{number}", why=f"why {number}", now=0.0)
    assert str(aside.trouble).endswith(": t0: why 0; t1: why 1; t2: why 2; t3: why 3; t4: why 4; and 2 more")
    aside.forget_unguarded({"3"})
    assert len(aside) == 1
    assert not aside.is_set_aside("4", 0.0)
