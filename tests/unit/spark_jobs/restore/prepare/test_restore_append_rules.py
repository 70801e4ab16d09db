"""Adding to topics that hold something: whose plan it is, what is refused, what is put back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.errors import RefusedError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan.expiry import ExpiryForecast
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import LOADING, RestorePlan, TargetTopic, shaped
from tandem.spark_jobs.restore.records.record_changes import NOTHING
from tandem.spark_jobs.restore.target import append

_OWN = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "max.message.bytes": "5000"}
_TARGET = TargetTopic(name="t", topic_id="id-t", replication_factor=1, config=_OWN, starts={0: 3}, ends={0: 9})


@pytest.fixture
def plain() -> RestorePlan:
    """Of one topic, `t`, with forty records from 2023; its recorded config keeps them for ever."""
    store = MemoryStore()
    Backup.completed(store, records("t", 0, range(40)), topics=[TopicSpec("t", config={"cleanup.policy": "compact"})])
    return plan_of(ChainReader(store, PAIR), RestoreOptions())


def _appended(plain: RestorePlan, target: TargetTopic = _TARGET) -> RestorePlan:
    return shaped(plain, NOTHING, {"t": target}, append=True)


def test_appending_is_another_plan(plain: RestorePlan) -> None:
    """A run that filled an empty topic is never resumed by one that adds to it; the target's config does not matter."""
    made = _appended(plain)
    assert made.hash not in {plain.hash, shaped(plain, NOTHING, {"t": _TARGET}).hash}
    changed = {**_OWN, "retention.ms": "-1"}
    assert made.hash == _appended(plain, replace(_TARGET, config=changed)).hash


def test_the_targets_own_config_counts(plain: RestorePlan) -> None:
    """Its retention says what expires at once, its limit how large batches are, and it is what it has afterwards."""
    (topic,) = _appended(plain).topics
    assert topic.expiry(2_000_000_000_000) == ExpiryForecast(surely=40, at_most=40, settings=("retention.ms",))
    assert plain.topics[0].expiry(2_000_000_000_000) == ExpiryForecast()
    assert topic.batch_bytes(900_000) == 5000
    meanwhile = append.config_meanwhile(topic)
    assert (meanwhile["retention.ms"], meanwhile["min.compaction.lag.ms"]) == ("-1", str(2**63 - 1))
    assert "cleanup.policy" not in meanwhile
    before = {"retention.ms": "1000"}
    assert append.put_back(before) == {**dict.fromkeys(meanwhile), "retention.ms": "1000"}
    resumed = replace(topic, appended_to={**_OWN, **meanwhile})
    assert append.config_after(resumed, before) == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "1000",
    }
    assert meanwhile.keys() - {"min.compaction.lag.ms", "max.compaction.lag.ms", "max.message.bytes"} < LOADING.keys()


def test_what_is_refused(plain: RestorePlan) -> None:
    """Topics that are not there, or that stamp records."""
    made = _appended(plain)
    append.refuse_unless_appendable(made, {"t": _TARGET})
    with pytest.raises(RefusedError, match="and t is not"):
        append.refuse_unless_appendable(made, {})
    stamps = replace(_TARGET, config={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(RefusedError, match="TDM-R074"):
        append.refuse_unless_appendable(made, {"t": stamps})


def test_only_compacted_topics_refuse_records_without_a_key(plain: RestorePlan) -> None:
    """And only where the topic's own policy stays: a topic that is restored as a whole gets it after the records."""
    (topic,) = _appended(plain).topics
    assert append.takes_keys_only(topic)
    (topic,) = _appended(plain, replace(_TARGET, config={"cleanup.policy": "delete"})).topics
    assert not append.takes_keys_only(topic)
    assert not append.takes_keys_only(plain.topics[0])


def test_a_topic_that_somebody_left_held_off_is_refused(plain: RestorePlan) -> None:
    """What would be noted as its own config, and put back, is a restore's."""
    (topic,) = _appended(plain).topics
    left = {**_OWN, **append.config_meanwhile(topic)}
    append.refuse_if_held({"t": _OWN, "u": {}})
    with pytest.raises(
        RefusedError, match=r"topic t has the configuration of a restore that was killed.*min.compaction.lag.ms"
    ):
        append.refuse_if_held({"t": left})


def test_people_are_told(plain: RestorePlan) -> None:
    """That what comes back counts as newer, and that it is the very topic."""
    (told,) = append.warnings(_appended(plain), {"t": _TARGET})
    assert "counts as newer" in told
    assert "very topic" not in told
    source = replace(_TARGET, topic_id=plain.topics[0].source.topic_id)
    (told,) = append.warnings(_appended(plain), {"t": source})
    assert "the very topic that was backed up" in told
    assert append.warnings(_appended(plain), {}) == []
