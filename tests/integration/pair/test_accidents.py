"""Accidents that take keys from compacted topics of a real broker, each followed by a turn before anybody notices.

What each of them took stays restorable until it is released, and it is named, with the likely cause, within the turn.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from support.backups.witness import consume, rows_of
from support.clusters.topic_config import set_config
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker
from support.pairs.outcomes import cleared, policy_and_start

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.selection.losses import LossCause
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_MS = "86400000"
UNCLEANED = {"segment.ms": "500", "min.compaction.lag.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}
HOUR_MS = 3_600_000
ROUND = 20
SCANNED, LOST = 600, 500
ALL_KEYS = {b"key-%d" % number for number in range(3 * ROUND)}
EXPECTED = {
    "deleted": (LossCause.POLICY_CHANGED, 2 * ROUND),  # DeleteRecords in a spell of compact,delete
    "aged": (LossCause.POLICY_CHANGED, 2 * ROUND),  # retention in a spell of delete
    "spell": (LossCause.POLICY_CHANGED, 2 * ROUND),  # the same, and the spell goes on
    "flipped": (LossCause.LOG_START_MOVED, 2 * ROUND),  # compact, compact,delete, compact, if nobody sees that
    "segment": (LossCause.LEADER_CHANGED, ROUND),  # a file that is removed from a stopped broker
    "cut": (LossCause.LOG_CUT, None),
    "emptied": (LossCause.LOG_CUT, None),  # all files of a partition
    "anew": (LossCause.TOPIC_GONE, None),  # deleted and created again
}
"""What is named for each accident, and how many keys are counted."""


def write(bootstrap: str, topic: str, keys: Iterable[int], *, value: bytes | None = b"value", at: int) -> None:
    """One record of each key, acknowledged, with a time in ms: one that is seconds later begins another segment."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20})  # a batch is read as a whole
    for number in keys:
        producer.produce(topic, value, b"key-%d" % number, partition=0, timestamp=at)
    assert producer.flush(30) == 0


def log_start(bootstrap: str, topic: str) -> int:
    """Where the log of partition 0 begins."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    of = TopicPartition(topic, 0)
    return int(admin.list_offsets({of: OffsetSpec.earliest()})[of].result(30).offset)


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    """Delete the records of partition 0 below an offset, as only topics allow whose policy deletes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.delete_records([TopicPartition(topic, 0, before)]).values()
    assert future.result(30).low_watermark == before


def remove_segments(kafka: KafkaServer, topic: str, which: Callable[[int], bool]) -> None:
    """Remove segments of a stopped broker, chosen by their first offsets."""
    folder = Path(kafka.data) / f"{topic}-0"
    gone = [one for one in folder.iterdir() if one.stem.isdecimal() and which(int(one.stem))]
    assert any(one.suffix == ".log" for one in gone), sorted(folder.iterdir())
    for one in gone:
        one.unlink()


def test_what_accidents_took_stays_until_it_is_released(
    own_kafka: Callable[..., KafkaServer], make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """Nine topics, an accident for each of eight, one turn: whatever is lost is named, with its cause, and comes back.

    `cut` stands for an unclean election: the last segment of a stopped broker is removed, as by a replica that leads
    without it.
    """
    kafka = own_kafka()
    bootstrap = kafka.bootstrap
    names = {name: f"{topic_name}-{name}" for name in (*EXPECTED, "whole")}
    now = round(time.time() * 1000)
    for topic in names.values():
        make_topic(topic, config=UNCLEANED, bootstrap=bootstrap)
        for begin, at in ((0, now - HOUR_MS), (ROUND, now - HOUR_MS + 5000), (2 * ROUND, now)):
            write(bootstrap, topic, range(begin, begin + ROUND), at=at)
    pair = new_pair(list(names.values()), kafka=kafka, **QUICK)
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a")
    _while_it_runs(pair, bootstrap, names, now)
    make_topic(names["anew"], config=UNCLEANED, bootstrap=bootstrap)
    kafka.stop()
    remove_segments(kafka, names["segment"], lambda first: first == ROUND)
    remove_segments(kafka, names["cut"], lambda first: first == 3 * ROUND)
    remove_segments(kafka, names["emptied"], lambda _: True)
    kafka.start()

    one = pair.wait("generation 1 is cleared but for what is kept", lambda: cleared(pair))
    assert one.cleared is not None
    assert sorted(map(one.name_of, one.cleared.stays)) == sorted(f"{names[name]}-0" for name in EXPECTED)
    losses = {row["topic"]: row for row in pair.status()["losses"]}
    causes = {name: LossCause(losses[topic]["cause"]) for name, topic in names.items() if topic in losses}
    counts = {name: losses[names[name]]["keys"] for name in causes}
    seen = {LossCause.LOG_START_MOVED, LossCause.POLICY_CHANGED} & {causes["flipped"]}  # a survey may have come then
    assert causes == {name: cause for name, (cause, _) in EXPECTED.items()} | dict.fromkeys(["flipped"], *seen)
    assert counts == {name: keys for name, (_, keys) in EXPECTED.items()}
    assert {row["generation"] for row in losses.values()} == {1}
    said = pair.tandem("check", "-o", "json")
    assert said.returncode == 2, said.stdout
    faults = [(row["fault"], row["severity"], row["message"]) for row in json.loads(said.stdout)["findings"]]
    assert [one[:2] for one in faults[:1]] == [("keys vanished", "CRITICAL")]
    for name in ("cut", "emptied", "anew"):
        assert [one[:2] for one in faults if names[name] in one[2]] == [(None, "WARNING")], name

    counted = [name for name, (_, keys) in EXPECTED.items() if keys is not None]
    refused = pair.tandem("restore", "vanished", names["spell"], "--yes")
    assert (refused.returncode, "TDM-R133" in refused.stderr) == (5, True), "retention would delete it again"
    set_config(bootstrap, names["spell"], {"cleanup.policy": "compact"})
    back = pair.tandem("restore", "vanished", *(names[name] for name in counted), "--yes", "-o", "json")
    assert back.returncode == 0, back.stderr
    written = {row["topic"]: row["written"] for row in json.loads(back.stdout)["partitions"]}
    assert written == {names[name]: counts[name] for name in counted}
    log = consume(bootstrap, [names[name] for name in counted])
    for name in counted:
        assert {row.key for row in log.rows if row.topic == names[name] and row.value is not None} == ALL_KEYS, name
    lost = [name for name in EXPECTED if name not in counted]
    kept = select(pair.live(), number=1, wanted=lambda topic: topic.name in names.values(), merge=False, removed=True)
    rows = rows_of(pair.store, replace(kept, incomplete=()))
    for name in lost:
        assert {row.key for row in rows if row.topic == names[name]} >= ALL_KEYS, name
        plan = pair.tandem(*losses[names[name]]["commands"][0].split()[1:], "--dry-run", "-o", "json")
        assert plan.returncode == 0, plan.stderr
        assert f'"records": {sum(row.topic == names[name] for row in rows)}' in plan.stdout, plan.stdout

    for row in losses.values():
        assert row["commands"][1].startswith("tandem release ")
        done = pair.tandem(*row["commands"][1].split()[1:], "--yes", "-o", "json")
        assert done.returncode == 0, done.stderr
    pair.wait("all of generation 1 is cleared", lambda: (found := cleared(pair)) is not None and found.gone)
    assert pair.status()["losses"] == []


def _while_it_runs(pair: Pair, bootstrap: str, names: Mapping[str, str], now: int) -> None:
    """What brokers do to the topics of a pair: policies that delete, DeleteRecords, a topic that is deleted."""
    write(bootstrap, names["cut"], range(3 * ROUND, 3 * ROUND + 10), at=now + 5000)
    pair.wait("all is committed", lambda: pair.covered({(names["cut"], 0): 3 * ROUND + 10}))
    spells = {"deleted": ("compact,delete", "-1"), "aged": ("delete", "600000"), "spell": ("delete", "600000")}
    for name, (policy, retention_ms) in spells.items():
        set_config(bootstrap, names[name], {"cleanup.policy": policy, "retention.ms": retention_ms})
        pair.wait("the policy is known", lambda of=names[name], is_=policy: policy_and_start(pair, of)[0] == is_)
    set_config(bootstrap, names["flipped"], {"cleanup.policy": "compact,delete", "retention.ms": "600000"})
    delete_records(bootstrap, names["deleted"], 2 * ROUND)
    pair.wait("it expires", lambda: log_start(bootstrap, names["flipped"]) == 2 * ROUND)
    set_config(bootstrap, names["flipped"], {"cleanup.policy": "compact"})
    for name in spells:
        pair.wait("the log start is known", lambda of=names[name]: policy_and_start(pair, of)[1] == 2 * ROUND)
    for name in ("deleted", "aged"):
        set_config(bootstrap, names[name], {"cleanup.policy": "compact"})
        pair.wait("the policy is known", lambda of=names[name]: policy_and_start(pair, of)[0] == "compact")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([names["anew"]])[names["anew"]].result(30)
    pair.wait("it is gone", lambda: names["anew"] not in admin.list_topics(timeout=10).topics)


def test_accidents_while_the_next_copy_is_read(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """Two logs lose keys in the middle of a scan: the older copy alone has what was not scanned yet."""
    bootstrap = kafka.bootstrap
    now = round(time.time() * 1000)
    topics = [make_topic(f"{topic_name}-{name}", config=UNCLEANED) for name in ("flipped", "spell")]
    for topic in topics:
        write(bootstrap, topic, range(SCANNED), value=secrets.token_bytes(100), at=now)
    pair = new_pair(topics, **QUICK)
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a", scan={"rate_limit": "10KiB/s"}, kafka={"max.partition.fetch.bytes": 8192})
    pair.activate("b", 2)
    pair.wait("the scan is under way", lambda: (two := pair.generation(2)) is not None and two.positions)
    for topic in topics:
        set_config(bootstrap, topic, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
        delete_records(bootstrap, topic, LOST)
    set_config(bootstrap, topics[0], {"cleanup.policy": "compact"})
    assert pair.complete(2) is None, "the accidents came too late to be in the middle of a scan"
    one = pair.wait("generation 1 is cleared but for what is kept", lambda: cleared(pair))
    assert one.cleared is not None
    assert len(one.cleared.stays) == 2
    assert {row["generation"] for row in pair.status()["losses"]} == {1}
    first = brought_back(pair, topics)
    assert all(0 < keys < LOST for keys in first.values()), first

    pair.activate("a", 3)
    pair.wait("generation 2 is cleared but for what is kept", lambda: cleared(pair, 2))
    assert {row["generation"] for row in pair.status()["losses"]} == {1, 2}
    second = brought_back(pair, topics)
    assert [first[topic] + second[topic] for topic in topics] == [LOST, LOST]
    rows = consume(bootstrap, topics).rows
    for topic in topics:
        assert len({row.key for row in rows if row.topic == topic}) == SCANNED


def brought_back(pair: Pair, topics: Sequence[str]) -> dict[str, int]:
    """Bring vanished keys back; how many of each topic."""
    back = pair.tandem("restore", "vanished", *topics, "--yes", "-o", "json")
    assert back.returncode == 0, back.stderr
    return {row["topic"]: row["written"] for row in json.loads(back.stdout)["partitions"]}


def test_a_copy_that_is_kept_for_a_window_is_compared_within_the_turn(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """Nothing of it is cleared before its window is over: what vanished is named, and comes back, all the same."""
    bootstrap = kafka.bootstrap
    topic = make_topic(topic_name, config=UNCLEANED)
    write(bootstrap, topic, range(3 * ROUND), at=round(time.time() * 1000))
    pair = new_pair([topic], **QUICK, recovery={"window": "1h"})
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a")
    set_config(bootstrap, topic, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    delete_records(bootstrap, topic, ROUND)
    pair.activate("b", 2)
    (loss,) = pair.wait("the loss is named", lambda: pair.status()["losses"])
    assert (loss["generation"], loss["keys"], loss["cause"], loss["missingIn"]) == (1, ROUND, "policy changed", 2)
    assert "keys vanished" in {row["fault"] for row in pair.status()["problems"]}
    one = pair.generation(1)
    assert one is not None
    assert (one.sealed, one.whole) == (True, True)
    back = pair.tandem(*loss["commands"][0].split()[1:], "--yes", "-o", "json")
    assert [row["written"] for row in json.loads(back.stdout)["partitions"]] == [ROUND], back.stderr
    assert {row.key for row in consume(bootstrap, [topic]).rows} == ALL_KEYS


def test_a_policy_that_deletes_for_the_whole_life_of_a_generation(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """It was set before a turn and takes keys only after it: that is named too, until a release says it was meant."""
    bootstrap = kafka.bootstrap
    topic = make_topic(topic_name, config=UNCLEANED)
    write(bootstrap, topic, range(3 * ROUND), at=round(time.time() * 1000))
    pair = new_pair([topic], **QUICK)
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a")
    set_config(bootstrap, topic, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    pair.wait("the policy is known", lambda: policy_and_start(pair, topic)[0] == "compact,delete")
    pair.activate("b", 2)
    pair.wait("generation 1 is cleared", lambda: (found := cleared(pair)) is not None and found.gone)
    delete_records(bootstrap, topic, ROUND)
    pair.activate("a", 3)
    (loss,) = pair.wait("the loss is named", lambda: pair.status()["losses"])
    assert (loss["generation"], loss["keys"], loss["cause"], loss["missingIn"]) == (2, ROUND, "policy changed", 3)
    pair.wait("generation 2 is cleared but for what is kept", lambda: cleared(pair, 2))
    assert brought_back(pair, [topic]) == {topic: ROUND}
    released = pair.tandem(*loss["commands"][1].split()[1:], "--yes")
    assert released.returncode == 0, released.stderr

    pair.activate("b", 4)
    pair.wait("generation 3 is cleared", lambda: (found := cleared(pair, 3)) is not None and found.gone)
    delete_records(bootstrap, topic, 2 * ROUND)
    pair.activate("a", 5)
    pair.wait("generation 4 is cleared", lambda: (found := cleared(pair, 4)) is not None and found.gone)
    assert pair.status()["losses"] == []


def test_tombstones_for_everything_end_no_moment_of_the_window(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """An application deletes every key: no accident for the log, but the values of before stay as promised."""
    bootstrap = kafka.bootstrap
    topic = make_topic(topic_name)
    now = round(time.time() * 1000)
    write(bootstrap, topic, range(3 * ROUND), at=now)
    pair = new_pair([topic], **QUICK, recovery={"window": "1h"})
    pair.start("a", first="a")
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    good = one.at
    pair.start("b", first="a")
    write(bootstrap, topic, range(3 * ROUND), value=None, at=now + 5000)
    write(bootstrap, topic, [3 * ROUND], at=now + 10_000)
    pair.activate("b", 2)
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) and found.sealed)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert pair.status()["losses"] == []
    back = pair.tandem("restore", topic, "--at", iso(good), "--suffix", ".then", "--yes", timeout_s=180)
    assert back.returncode == 0, back.stderr
    rows = consume(bootstrap, [f"{topic}.then"]).rows
    assert {row.key for row in rows if row.value is not None} == ALL_KEYS


def test_a_segment_that_is_lost_from_a_log_of_which_records_expire(
    own_kafka: Callable[..., KafkaServer], make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """Its keys are named, and come back; those that expired, below the log start, are no loss and stay away."""
    kafka = own_kafka()
    bootstrap, now, expired = kafka.bootstrap, round(time.time() * 1000), ROUND // 2
    config = UNCLEANED | {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    hurt, whole = (make_topic(f"{topic_name}-{name}", config=config, bootstrap=bootstrap) for name in ("hurt", "whole"))
    for topic in hurt, whole:
        for begin, at in ((0, now - HOUR_MS), (ROUND, now - HOUR_MS + 5000), (2 * ROUND, now)):
            write(bootstrap, topic, range(begin, begin + ROUND), at=at)
    pair = new_pair([hurt, whole], kafka=kafka, **QUICK)
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a")
    for topic in hurt, whole:
        delete_records(bootstrap, topic, expired)
    kafka.stop()
    remove_segments(kafka, hurt, lambda first: first == ROUND)
    kafka.start()
    assert [log_start(bootstrap, topic) for topic in (hurt, whole)] == [expired, expired]
    pair.activate("b", 2)
    one = pair.wait("generation 1 is cleared but for what is kept", lambda: cleared(pair))
    assert one.cleared is not None
    assert [one.name_of(key) for key in one.cleared.stays] == [f"{hurt}-0"]
    (loss,) = pair.status()["losses"]
    assert (loss["generation"], loss["keys"], loss["cause"], loss["missingIn"]) == (1, ROUND, "leader changed", 2)
    assert brought_back(pair, [hurt]) == {hurt: ROUND}
    there = {row.key for row in consume(bootstrap, [hurt]).rows}
    assert there == ALL_KEYS - {b"key-%d" % number for number in range(expired)}
    released = pair.tandem(*loss["commands"][1].split()[1:], "--yes")
    assert released.returncode == 0, released.stderr
    pair.wait("all of generation 1 is cleared", lambda: (found := cleared(pair)) is not None and found.gone)


def test_what_expires_while_the_next_copy_is_read_is_no_loss(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """The log begins higher than at the claim once the scan comes to its start: the older copy goes all the same."""
    bootstrap = kafka.bootstrap
    topic = make_topic(topic_name, config=UNCLEANED | {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    write(bootstrap, topic, range(SCANNED), value=secrets.token_bytes(100), at=round(time.time() * 1000))
    pair = new_pair([topic], **QUICK)
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.start("b", first="a", scan={"rate_limit": "10KiB/s"}, kafka={"max.partition.fetch.bytes": 8192})
    pair.activate("b", 2)
    pair.wait("the scan is under way", lambda: (two := pair.generation(2)) is not None and two.positions)
    delete_records(bootstrap, topic, LOST)
    assert pair.complete(2) is None, "the records expired too late to be in the middle of a scan"
    pair.wait("generation 1 is cleared", lambda: (found := cleared(pair)) is not None and found.gone)
    assert pair.status()["losses"] == []
    assert policy_and_start(pair, topic) == ("compact,delete", LOST)
