"""`tandem rewind` on a real pair: the plan against what a plain consumer read, and what comes back."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Producer
from support.pairs.in_process import tandem
from support.pairs.instances import QUICK, Pair, PairMaker
from support.pairs.sessions import kill_session
from support.restores.cases import ends_of, read_with_offsets

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ExitCode
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store.chain.chain_writer import now_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
PARTITIONS = 3

Headers = tuple[tuple[str, bytes | None], ...]
State = dict[tuple[int, bytes], tuple[bytes, Headers]]


def write(bootstrap: str, topic: str, values: Iterable[tuple[int, bytes | None]], *, by: bytes | None = None) -> None:
    """Write values of numbered keys, key n into partition n % PARTITIONS, with the header `writer`."""
    room = {"queue.buffering.max.messages": 2_000_000}
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **room})
    for number, value in values:
        producer.produce(
            topic,
            partition=number % PARTITIONS,
            key=b"key-%d" % number,
            value=value,
            headers=None if by is None else [("writer", by)],
        )
    assert producer.flush(60) == 0


def state_of(bootstrap: str, topic: str) -> State:
    """What a plain read_committed consumer folds the topic into."""
    newest = newest_of(bootstrap, topic).items()
    return {place: (value, headers) for place, (_, value, headers) in newest if value is not None}


def newest_of(bootstrap: str, topic: str) -> dict[tuple[int, bytes], tuple[int, bytes | None, Headers]]:
    """Offset, value and headers of each key's newest record, be it a tombstone, as such a consumer reads them."""
    with ThreadPoolExecutor(PARTITIONS) as pool:  # each waits a second at the end of its partition
        parts = pool.map(lambda number: read_with_offsets(bootstrap, topic, number), range(PARTITIONS))
        return {
            (number, key): (offset, value, headers)
            for number, rows in enumerate(parts)
            for offset, (_, key, value, headers) in rows
            if key is not None
        }


def moment_of(pair: Pair, bootstrap: str, *topics: str) -> str:
    """Return a moment by which the backup holds all that the topics hold now, and which nothing is written before."""
    ends = {(topic, number): end for topic in topics for number, end in enumerate(ends_of(bootstrap, topic))}
    pair.wait("all is committed", lambda: pair.covered(ends))
    time.sleep(2)  # marks are made once a second
    at = iso(now_ms(pair.store))
    time.sleep(0.01)
    return at


@pytest.fixture
def begun(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession) -> tuple[Pair, str]:
    """A pair that has read 300 keys of a topic, a tenth of them deleted again, and reads on."""
    assert spark is not None
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    write(kafka.bootstrap, topic, [(number, b"first-%d" % number) for number in range(300)], by=b"good")
    write(kafka.bootstrap, topic, [(number, None) for number in range(0, 300, 10)])
    pair = new_pair([topic], **QUICK)
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    return pair, topic


def test_a_plan_names_what_became_of_each_key(kafka: KafkaServer, begun: tuple[Pair, str]) -> None:
    """Changed, created, deleted keys, by whichever writer; what options leave out; what is refused. Nothing changes."""
    pair, topic = begun
    before = state_of(kafka.bootstrap, topic)
    at = moment_of(pair, kafka.bootstrap, topic)
    write(kafka.bootstrap, topic, [(number, b"bad") for number in range(60)], by=b"bad")  # six had been deleted
    write(kafka.bootstrap, topic, [(number, None) for number in range(100, 120)], by=b"bad")  # two were before
    write(kafka.bootstrap, topic, [(number, b"new") for number in range(300, 310)], by=b"bad")
    write(
        kafka.bootstrap, topic, [(number, b"first-%d" % number) for number in range(1, 4)], by=b"good"
    )  # as they were
    write(kafka.bootstrap, topic, [(number, b"better") for number in range(200, 205)], by=b"good")  # one was gone
    after = state_of(kafka.bootstrap, topic)
    ends = ends_of(kafka.bootstrap, topic)

    plan, _ = tandem(pair, "rewind", topic, "--to", at, "--dry-run")
    assert plan["changes"] == {
        "changed": sum(before[key] != after[key] for key in before.keys() & after.keys()),
        "created": len(after.keys() - before.keys()),
        "deleted": len(before.keys() - after.keys()),
    }
    assert plan["changes"] == {"changed": 51 + 4, "created": 6 + 10 + 1, "deleted": 18}
    assert plan["planned"] == 90
    assert [part["head"] for part in plan["partitions"]] == ends
    assert all("key" not in one and len(one["hash"]) == 32 for one in plan["sample"])
    shown, _ = tandem(pair, "rewind", topic, "--to", at, "--dry-run", "--show-keys", "--key", "key-7")
    assert [(one["key"], one["kind"], one["liveOffset"] is not None) for one in shown["sample"]] == [
        ("key-7", "changed", True)
    ]
    assert (shown["planned"], sum(part["leftOut"] for part in shown["partitions"])) == (1, 89)
    bad, _ = tandem(pair, "rewind", topic, "--to", at, "--dry-run", "--where", "header.writer=bad")
    assert (bad["planned"], bad["changes"]) == (85, {"changed": 51, "created": 16, "deleted": 18})
    since, _ = tandem(pair, "rewind", topic, "--to", at, "--dry-run", "--since", f"0={ends[0] - 2}")
    assert since["planned"] == sum(
        part["changes"]["changed"]["keys"] for part in since["partitions"] if part["partition"] == 0
    )
    assert since["planned"] == 2, "each of the two last records is of a key of its own"
    assert ends_of(kafka.bootstrap, topic) == ends

    _, told = tandem(pair, "rewind", "no-such-topic", "--to", at, "--dry-run", expected=ExitCode.REFUSED)
    assert "TDM-R140" in told
    _, told = tandem(pair, "rewind", topic, "--to", "1999-01-01T00:00:00Z", "--dry-run", expected=ExitCode.REFUSED)
    assert "TDM-A125" in told


class GoodWriter(threading.Thread):
    """Writes values of some keys until it is stopped; `last` is what it wrote last of each."""

    def __init__(self, bootstrap: str, topic: str, keys: range) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic, self._keys = bootstrap, topic, keys
        self._stop_it = threading.Event()
        self.last: dict[tuple[int, bytes], bytes] = {}

    def run(self) -> None:
        """Write a round each tenth of a second."""
        count = 0
        while not self._stop_it.wait(0.1):
            count += 1
            some = [(number, b"live-%d" % count) for number in self._keys if (number + count) % 3 == 0]
            write(self._servers, self._topic, some, by=b"good")
            self.last |= {(number % PARTITIONS, b"key-%d" % number): value for number, value in some if value}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join()


def damage(bootstrap: str, topic: str) -> None:
    """What a bad writer does: changes, deletes and creates keys."""
    write(bootstrap, topic, [(number, b"bad-%d" % number) for number in range(60)], by=b"bad")
    write(bootstrap, topic, [(number, None) for number in range(100, 120)], by=b"bad")
    write(bootstrap, topic, [(number, b"new") for number in range(300, 310)], by=b"bad")


def test_damage_is_rewound_beside_a_writer_and_the_rewind_is_rewound(
    kafka: KafkaServer, begun: tuple[Pair, str]
) -> None:
    """Exactly the keys of the plan get their former value; the other writer's keep theirs; then the damage is back."""
    pair, topic = begun
    before = state_of(kafka.bootstrap, topic)
    at = moment_of(pair, kafka.bootstrap, topic)
    damage(kafka.bootstrap, topic)
    damaged = state_of(kafka.bootstrap, topic)
    # 40 to 49 are damaged too, and are written during the rewind.
    with GoodWriter(kafka.bootstrap, topic, range(40, 50)) as writer:
        time.sleep(0.5)
        _, told = tandem(pair, "rewind", topic, "--to", at, expected=ExitCode.REFUSED)
        assert "TDM-C020" in told
        report, told = tandem(pair, "rewind", topic, "--to", at, "--yes")
    assert len(writer.last) == 10
    after = state_of(kafka.bootstrap, topic)
    assert {key: value for key, (value, _) in after.items() if key in writer.last} == writer.last
    assert {key: one for key, one in after.items() if key not in writer.last} == {
        key: one for key, one in before.items() if key not in writer.last
    }
    assert report["written"] + report["leftAlone"] == report["planned"]
    assert report["written"] >= 85 - 10
    assert report["checkpoint"] == f"rewind-{report['id']}"
    again, _ = tandem(pair, "rewind", topic, "--to", at, "--dry-run", "--where", "header.writer=bad")
    assert again["planned"] == 0

    good = (1, b"key-1")  # written by a good writer after the rewind: stays
    write(kafka.bootstrap, topic, [(1, b"good, and newer")], by=b"good")
    undone, _ = tandem(pair, "rewind", topic, "--undo", report["id"], "--yes")
    assert undone["stateCheckpoint"] == report["checkpoint"]
    back = state_of(kafka.bootstrap, topic)
    kept = {*writer.last, good}
    assert {key: one for key, one in back.items() if key not in kept} == {
        key: one for key, one in damaged.items() if key not in kept
    }
    assert back[good] == (b"good, and newer", (("writer", b"good"),))
    redone, _ = tandem(pair, "rewind", topic, "--undo", undone["id"], "--yes")
    assert redone["written"] == undone["written"] >= 84 - 10
    final = state_of(kafka.bootstrap, topic)
    assert {key: one for key, one in final.items() if key not in kept} == {
        key: one for key, one in before.items() if key not in kept
    }
    _, told = tandem(pair, "rewind", topic, "--undo", "0123", "--yes", expected=ExitCode.USAGE)
    assert "TDM-R148" in told


Newest = tuple[int, bytes, int, Headers]
"""Partition, key, offset and headers of the newest record of a key, be it a tombstone."""


def test_each_option_writes_back_what_it_names_and_nothing_else(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession
) -> None:
    """Damage, a moment, more damage and good writes; the end is the state at the moment but for what was left out.

    What each option chooses is told from the log as a plain consumer reads it. One topic each, of one pair.
    """
    assert spark is not None
    options: dict[str, Callable[[str, list[int]], tuple[list[str], Callable[[Newest], bool]]]] = {
        "where": lambda _, __: (["--where", "header.writer=bad"], lambda one: one[3] == (("writer", b"bad"),)),
        "key": lambda _, __: (
            [word for key in ("key-7", "key-51", "key-300", "key-200") for word in ("--key", key)],
            lambda one: one[1] in {b"key-7", b"key-51", b"key-300", b"key-200"},
        ),
        "since": lambda middle, ends: (["--since", middle], lambda one: one[2] >= ends[one[0]]),
        "since-offset": lambda _, ends: (
            ["--since", f"0={ends[0]}", "--since", f"1={ends[1] - 5}"],
            lambda one: one[0] < 2 and one[2] >= (ends[0], ends[1] - 5)[one[0]],
        ),
        "until": lambda middle, ends: (["--until", middle], lambda one: one[2] < ends[one[0]]),
    }
    topics = {name: make_topic(partitions=PARTITIONS, config=UNCLEANED) for name in options}
    servers = kafka.bootstrap
    for topic in topics.values():
        write(servers, topic, [(number, b"first-%d" % number) for number in range(300)], by=b"good")
        write(servers, topic, [(number, None) for number in range(0, 300, 10)])
    pair = new_pair([*topics.values()], **QUICK)
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    at = moment_of(pair, servers, *topics.values())
    then = state_of(servers, topics["where"])  # the same in all
    for topic in topics.values():
        damage(servers, topic)
    middle = moment_of(pair, servers, *topics.values())
    ends = {name: ends_of(servers, topic) for name, topic in topics.items()}
    for topic in topics.values():
        write(servers, topic, [(number, b"worse") for number in range(50, 90)], by=b"bad")
        write(servers, topic, [(number, b"good, and newer") for number in [*range(20), 105, 200, 305]], by=b"good")
    for name, topic in topics.items():
        words, chooses = options[name](middle, ends[name])
        newest = newest_of(servers, topic)
        now = {place: (value, headers) for place, (_, value, headers) in newest.items() if value is not None}
        differs = {key for key in then.keys() | now.keys() if then.get(key) != now.get(key)}
        chosen = {key for key in differs if chooses((*key, newest[key][0], newest[key][2]))}
        assert set() < chosen < differs, name
        report, _ = tandem(pair, "rewind", topic, "--to", at, *words, "--without-checkpoint", "--yes")
        assert report["written"] == len(chosen), name
        wanted = {key: now[key] for key in now.keys() - chosen} | {key: then[key] for key in then.keys() & chosen}
        assert state_of(servers, topic) == wanted, name


def test_a_killed_rewind_is_repeated_and_both_are_rewound(kafka: KafkaServer, begun: tuple[Pair, str]) -> None:
    """SIGKILL between transactions; the same command again; then the damage is back, key by key."""
    pair, topic = begun
    many = range(1000, 46_000)
    write(kafka.bootstrap, topic, [(number, b"first-%d" % number) for number in many])
    before = state_of(kafka.bootstrap, topic)
    at = moment_of(pair, kafka.bootstrap, topic)
    damage(kafka.bootstrap, topic)
    write(kafka.bootstrap, topic, [(number, b"bad-%d" % number) for number in many], by=b"bad")
    damaged = state_of(kafka.bootstrap, topic)

    command = ["rewind", topic, "--to", at, "--yes", "-c", str(pair.config("a"))]
    main = "from tandem.controller.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", main, *command], start_new_session=True)
    prefix = f"{pair.name}/restores/rewind-"
    try:
        pair.wait("offsets are noted", lambda: len([*pair.store.list(prefix)]) > 4)
    finally:
        kill_session(process.pid)
        process.wait()
    [first] = {info.key.removeprefix(prefix).partition("/")[0] for info in pair.store.list(prefix)}
    half = state_of(kafka.bootstrap, topic)
    assert half not in (before, damaged)

    report, _ = tandem(pair, "rewind", topic, "--to", at, "--yes")
    assert state_of(kafka.bootstrap, topic) == before
    assert (report["written"], report["leftAlone"]) == (report["planned"], 0)
    assert 0 < report["planned"] < len(many)
    tandem(pair, "rewind", topic, "--undo", report["id"], "--yes")
    assert state_of(kafka.bootstrap, topic) == half
    tandem(pair, "rewind", topic, "--undo", first, "--yes")
    assert state_of(kafka.bootstrap, topic) == damaged


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundredth_of_a_million_keys_is_rewound_and_little_else_is_written(
    kafka: KafkaServer, begun: tuple[Pair, str]
) -> None:
    """One partition with more records than one pass compares; others go on writing, also some of the damaged keys."""
    pair, topic = begun
    keys = range(3000, 3_003_000, PARTITIONS)
    write(kafka.bootstrap, topic, [(number, b"first-%d" % number) for number in keys])
    before = state_of(kafka.bootstrap, topic)
    at = moment_of(pair, kafka.bootstrap, topic)
    bad = random.Random(1).sample(keys, len(keys) // 100)
    write(kafka.bootstrap, topic, [(number, b"bad") for number in bad], by=b"bad")
    busy = range(bad[0], bad[0] + 200 * PARTITIONS, PARTITIONS)
    with GoodWriter(kafka.bootstrap, topic, busy) as writer:
        time.sleep(0.5)
        report, _ = tandem(pair, "rewind", topic, "--to", at, "--where", "header.writer=bad", "--yes")
    after = state_of(kafka.bootstrap, topic)
    changed = {key for key in after if after[key] != before[key]}
    assert changed == set(writer.last)
    assert {key: value for key, (value, _) in after.items() if key in writer.last} == writer.last
    assert len(bad) - len(busy) <= report["written"] <= len(bad)
