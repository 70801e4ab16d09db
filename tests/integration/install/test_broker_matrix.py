"""A pair, a turn, a restore, its groups and a sweep on releases of Kafka that people have; older ones are refused.

`make broker-matrix` runs all of it and writes docs/compatibility.md; `make test` runs one older release.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from support.backups.witness import Log, Row, assert_same, consume, stored
from support.clusters.capped import FETCH, METADATA, CappedKafka
from support.clusters.old_brokers import RELEASES, broker
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker
from support.pairs.outcomes import contents, write_mixed

from tandem.backup_avro.errors import ExitCode
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

_PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
_STEPS = ("pair", "turn", "restore", "groups", "retention", "verify")
_TOO_OLD = ("2.8.2", {"inter.broker.protocol.version": "2.7"})
_CAPPED = {"4.3.1, Fetch up to 11": {FETCH: 11}, "4.3.1, Metadata up to 9": {METADATA: 9}}
_TRIED = (*RELEASES, "4.3.1, Fetch up to 11")
_BEGIN, _END = "<!-- written by make broker-matrix -->", "<!-- end -->"
_UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, list[str]]]:
    """What worked, by release; the page gets it with COMPATIBILITY_PAGE, and what was never tried is called so."""
    steps: dict[str, list[str]] = defaultdict(list)
    yield steps
    if os.environ.get("COMPATIBILITY_PAGE"):
        before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        table, _, after = rest.partition(_END)
        _PAGE.write_text(f"{before}{_BEGIN}\n{_table(steps, table)}\n{_END}{after}", encoding="utf-8")


def _table(steps: dict[str, list[str]], known: str) -> str:
    """Return the table; the lines of releases that this run left out stay as they are in `known`."""
    lines = [_line("Apache Kafka", (*_STEPS, "run on")), _line("---", ["---"] * (len(_STEPS) + 1))]
    today = datetime.now(UTC).date().isoformat()
    for one in _TRIED:
        line = _line(one, [*("works" if step in steps[one] else "not tried" for step in _STEPS), today])
        kept = [old for old in known.splitlines() if old.startswith(f"| {one} |") and not steps[one]]
        lines += kept or [line]
    return "\n".join(lines)


def _line(first: str, others: Iterable[str]) -> str:
    return f"| {' | '.join([first, *others])} |"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KafkaServer]]:
    """A function that starts a broker of a release, which ends with the test."""
    started: list[KafkaServer] = []

    def start(release: str, overrides: dict[str, str] | None = None) -> KafkaServer:
        folder = tmp_path_factory.mktemp("release")
        made = CappedKafka(folder, _CAPPED[release]) if release in _CAPPED else broker(folder, release, overrides)
        started.append(made)
        made.start(timeout_s=120)
        return made

    yield start
    for one in started:
        one.stop()


def _commit(bootstrap: str, group: str, place: TopicPartition) -> None:
    consumer = _member(bootstrap, group)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def _next(bootstrap: str, group: str, topic: str, partition: int) -> bytes | None:
    """Return the value that a member of the group reads next."""
    consumer = _member(bootstrap, group)
    consumer.assign(consumer.committed([TopicPartition(topic, partition)], timeout=30))
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is None, message.error()
    value = message.value()
    assert value is None or isinstance(value, bytes)
    return value


def _member(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )


def _values(rows: list[Row]) -> dict[tuple[int, bytes | None], bytes]:
    """Return the newest value of each key; a key whose newest record is a tombstone has none."""
    newest = {(row.partition, row.key): row.value for row in sorted(rows)}
    return {key: value for key, value in newest.items() if value is not None}


def _command(pair: Pair, *arguments: str) -> str:
    done = pair.tandem(*arguments, timeout_s=240)
    assert done.returncode == ExitCode.OK, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def _back_up_and_restore(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, found: list[str]
) -> tuple[str, Pair, Log]:
    """First backup, handover, restore of what the second one holds; return the topic, its pair and its log."""
    topic = make_topic(partitions=2, config=_UNCLEANED, bootstrap=kafka.bootstrap)
    write_mixed(kafka.bootstrap, topic)
    _commit(kafka.bootstrap, _readers(topic), TopicPartition(topic, 0, 123))
    log = consume(kafka.bootstrap, [topic])
    pair = new_pair([topic], kafka=kafka, **QUICK, groups={"interval": "1s"})
    pair.start("a", first="a")
    pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    found.append("pair")

    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
    pair.wait("groups are recorded", lambda: _readers(topic) in pair.history()[-1].groups)
    found.append("turn")

    _command(pair, "restore", "--suffix", ".restored", "-o", "json")
    again = consume(kafka.bootstrap, [f"{topic}.restored"])
    assert contents(again.rows) == contents(log.rows)
    found.append("restore")
    return topic, pair, log


def _readers(topic: str) -> str:
    return f"{topic}-readers"


def test_an_older_release_of_kafka(
    server: Callable[..., KafkaServer], make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """First backup, handover and restore on 3.5.2, the quick line of the matrix."""
    _back_up_and_restore(server("3.5.2"), make_topic, new_pair, [])


@pytest.mark.slow
@pytest.mark.parametrize("release", _TRIED)
def test_a_release_of_kafka(
    release: str,
    server: Callable[..., KafkaServer],
    make_topic: TopicMaker,
    new_pair: PairMaker,
    found: dict[str, list[str]],
) -> None:
    """First backup, handover, restore of what the second one holds, consumers that go on, a sweep, keys compared."""
    kafka = server(release)
    topic, pair, log = _back_up_and_restore(kafka, make_topic, new_pair, found[release])

    done = json.loads(_command(pair, "restore", "groups", "--execute", "-o", "json"))
    assert done["executed"] is True
    assert _next(kafka.bootstrap, _readers(topic), f"{topic}.restored", 0) == b"value-123"
    found[release].append("groups")

    swept = json.loads(_command(pair, "retention", "--horizon", "1s", "--min-gain", "0", "--execute", "-o", "json"))
    assert swept["executed"] is True
    _command(pair, "restore", "--suffix", ".swept", "-o", "json")
    left = consume(kafka.bootstrap, [f"{topic}.swept"])
    assert len(left.rows) < len(log.rows)
    assert set(contents(left.rows)) < set(contents(log.rows))
    assert _values(left.rows) == _values(log.rows)
    found[release].append("retention")

    _command(pair, "verify", "--against-topic", "-o", "json")
    found[release].append("verify")
    if not os.environ.get("COMPATIBILITY_PAGE"):
        assert _line(release, ["works"] * len(_STEPS)) in _PAGE.read_text(encoding="utf-8"), "make broker-matrix"


@pytest.mark.slow
@pytest.mark.parametrize(("release", "overrides"), [_TOO_OLD, ("4.3.1, Metadata up to 9", {})])
def test_brokers_without_topic_ids_are_refused(
    release: str,
    overrides: dict[str, str],
    server: Callable[..., KafkaServer],
    make_topic: TopicMaker,
    new_pair: PairMaker,
) -> None:
    """One line with the least release, before anything is claimed; `check --connections` says it beforehand."""
    kafka = server(release, overrides)
    topics = [make_topic(config=_UNCLEANED, bootstrap=kafka.bootstrap) for _ in range(3)]
    for topic in topics:
        _write_some(kafka.bootstrap, topic)
    pair = new_pair(topics, kafka=kafka)
    checked = pair.tandem("check", "--connections")
    assert checked.returncode == 2, checked.stdout
    assert "has no id: the brokers are older than Apache Kafka 2.8" in checked.stdout
    a = pair.start("a", first="a")
    assert a.end() == ExitCode.ERROR
    assert "has no id: the brokers are older than Apache Kafka 2.8" in a.text()
    assert "Traceback" not in a.text()
    assert pair.history() == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.10.2", "0.9.0"])
def test_a_topic_of_an_old_message_format_is_set_aside_by_name(
    version: str, server: Callable[..., KafkaServer], make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Its partitions are named with the remedy; the others are backed up; nothing is claimed again and again."""
    kafka = server("2.8.2")
    plain = make_topic(config=_UNCLEANED, bootstrap=kafka.bootstrap)
    # Records of the old format before and behind those of today's, as a topic has them that was upgraded or set back.
    kinds = {
        "old": [version],
        "upgraded": [version, "2.8"],
        "set-back": ["2.8", version],
    }
    topics = {}
    for kind, formats in kinds.items():
        topics[kind] = make_topic(f"{kind}-{version}", config=_UNCLEANED, bootstrap=kafka.bootstrap)
        for one in formats:
            _set_format(kafka.bootstrap, topics[kind], one)
            _write_some(kafka.bootstrap, topics[kind])
    _write_some(kafka.bootstrap, plain)
    pair = new_pair([plain, *topics.values()], kafka=kafka, **QUICK)
    a = pair.start("a", first="a")
    pair.wait("the plain topic is stored", lambda: _stored_of(pair, plain) == 10)

    def told() -> str:
        text = " ".join(one["message"] for one in pair.status()["problems"])
        return text if all(topic in text for topic in topics.values()) else ""

    messages = pair.wait("status names what can't be read", told)
    seen = [len(pair.history())]
    until = time.monotonic() + 45
    number = 0
    while time.monotonic() < until:
        number += 1
        _write_some(kafka.bootstrap, plain)
        pair.wait("what came is stored", lambda: _stored_of(pair, plain) == 10 + 10 * number)  # noqa: B023
        time.sleep(3)
        seen.append(len(pair.history()))
    assert seen == [1] * len(seen)
    assert not pair.complete(1)
    assert a.process.poll() is None
    for topic in topics.values():
        assert topic in messages
    assert "copy the records into a new topic with a current client" in messages


def _stored_of(pair: Pair, topic: str) -> int:
    """Return how many records of a topic the first generation holds."""
    state = pair.generation(1)
    if state is None:
        return 0
    return sum(part.records for _, part in state.live_parts() if state.topics[part.key.topic_id].name == topic)


def _set_format(bootstrap: str, topic: str, version: str) -> None:
    entry = ConfigEntry("message.format.version", version, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its requests end with it
    admin.incremental_alter_configs([resource])[resource].result(30)
    time.sleep(2)  # until the broker has heard of it


def _write_some(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(topic, partition=0, key=b"key-%d" % number, value=b"value")
    assert producer.flush(60) == 0
