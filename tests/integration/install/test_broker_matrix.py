"""A pair, a turn, a restore and its groups on releases of Apache Kafka that people have; what is too old is refused.

`make broker-matrix` runs all of it and writes docs/compatibility.md; `make test` runs one older release.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.backups.witness import Row, assert_same, consume, stored
from support.clusters.capped import FETCH, METADATA, CappedKafka
from support.clusters.old_brokers import RELEASES, broker
from support.pairs.instances import QUICK, Pair, PairMaker

from tandem.backup_avro.errors import ExitCode
from tandem.controller.sandbox.kafka import KafkaServer

if TYPE_CHECKING:
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

_PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
_STEPS = ("pair", "turn", "restore", "groups", "verify")
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
    lines = [_line("Apache Kafka", _STEPS), _line("---", ["---"] * len(_STEPS))]
    for one in _TRIED:
        line = _line(one, ["works" if step in steps[one] else "not tried" for step in _STEPS])
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


def _write(bootstrap: str, topic: str) -> None:
    """Two partitions: tombstones, headers and a gap, and a transaction."""
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(300):
        value = None if number % 50 == 49 else b"value-%d" % number
        plain.produce(topic, partition=0, key=b"key-%d" % (number % 40), value=value, headers=[("n", b"%d" % number)])
    assert plain.flush(60) == 0
    atomic = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"})
    atomic.init_transactions(60)
    for wanted in (True, False, True):
        atomic.begin_transaction()
        for number in range(50):
            atomic.produce(topic, partition=1, key=b"key-%d" % number, value=b"%r" % wanted, timestamp=1_000 + number)
        (atomic.commit_transaction if wanted else atomic.abort_transaction)(60)


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


def _contents(rows: list[Row]) -> list[tuple[object, ...]]:
    """Return the records without where they are: a restore's own markers move them."""
    return [(row.partition, row.timestamp, row.key, row.value, row.headers) for row in sorted(rows)]


def _command(pair: Pair, *arguments: str) -> str:
    done = pair.tandem(*arguments, timeout_s=240)
    assert done.returncode == ExitCode.OK, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("release", _TRIED)
def test_a_release_of_kafka(
    release: str,
    server: Callable[..., KafkaServer],
    make_topic: TopicMaker,
    new_pair: PairMaker,
    found: dict[str, list[str]],
) -> None:
    """First backup, handover, restore of what the second one holds, consumers that go on, keys compared."""
    kafka = server(release)
    topic = make_topic(partitions=2, config=_UNCLEANED, bootstrap=kafka.bootstrap)
    readers = f"{topic}-readers"
    _write(kafka.bootstrap, topic)
    _commit(kafka.bootstrap, readers, TopicPartition(topic, 0, 123))
    log = consume(kafka.bootstrap, [topic])
    pair = new_pair([topic], kafka=kafka, **QUICK, groups={"interval": "1s"})
    pair.start("a", first="a")
    pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    found[release].append("pair")

    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
    pair.wait("groups are recorded", lambda: readers in pair.history()[-1].groups)
    found[release].append("turn")

    _command(pair, "restore", "--suffix", ".restored", "-o", "json")
    again = consume(kafka.bootstrap, [f"{topic}.restored"])
    assert _contents(again.rows) == _contents(log.rows)
    found[release].append("restore")

    done = json.loads(_command(pair, "restore", "groups", "--execute", "-o", "json"))
    assert done["executed"] is True
    assert _next(kafka.bootstrap, readers, f"{topic}.restored", 0) == b"value-123"
    found[release].append("groups")

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


def _write_some(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(topic, partition=0, key=b"key-%d" % number, value=b"value")
    assert producer.flush(60) == 0
