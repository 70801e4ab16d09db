"""A survivor alone: it refreshes itself again and again, without more room, without a pause, until the peer is back."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from support.backups.witness import assert_same, consume, rows_of, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, PairMaker

from tandem.backup_avro.chain.entries import Entry, EntryKind, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.decision.decide import Reason
from tandem.controller.sandbox.kafka import KafkaServer

_LOG = logging.getLogger(__name__)
# Turns and time-outs of seconds need a machine that is not busy with other tests.
pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_MS = "86400000"
UNCLEANED = {"segment.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}
KEYS, SIZE = 3000, 400
REFRESHES = 3
ROOM = 2.2
"""Generations' worth of storage."""
# A turn is due again some seconds after the last one, and takes some seconds itself: long enough for commits in it.
ALONE = {
    "liveness": {"timeout": "5s"},
    "peer": {"timeout": "2s"},
    "rotation": {"interval": "6s"},
    "scan": {"rate_limit": "360KiB/s"},
}
SMALL_FETCHES = {"kafka": {"max.partition.fetch.bytes": 32_768}}  # so that the limit is kept evenly


class Writer:
    """Writes over the same keys all the time, some 50 records a second that don't compress."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
        self._random = random.Random(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: KafkaError | None = None

    def fill(self) -> None:
        """Give all keys a value."""
        for number in range(KEYS):
            self._send(number)
        assert self._producer.flush(60) == 0

    def start(self) -> None:
        """Go on in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; all that was written is confirmed."""
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        assert self._failed is None

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for _ in range(5):
                self._send(self._random.randrange(KEYS))
            self._producer.poll(0)

    def _send(self, number: int) -> None:
        value = self._random.randbytes(SIZE)
        self._producer.produce(self._topic, key=b"key-%d" % number, value=value, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failed = self._failed or error


class Room:
    """How much the store holds of a pair, whenever anything is committed. `most` is the worst, in generations."""

    def __init__(self, pair: Pair, instance: str) -> None:
        self._pair = pair
        self._instance = instance
        self._heads: dict[int, int] = {}
        self.looks = 0
        self.most = 0.0

    def look(self) -> list[Generation]:
        """Measure if something was appended since the last look; return all generations."""
        history = self._pair.history()
        heads = {g.number: g.seq for g in history}
        if heads != self._heads:
            self._heads = heads
            held = sum(info.size for info in self._pair.store.list(f"{self._pair.name}/{self._instance}/"))
            complete = [g for g in history if g.complete and g.instance == self._instance]
            one = max((sum(item.bytes for item in g.objects.values()) for g in complete), default=0)
            if one:
                self.looks += 1
                self.most = max(self.most, held / one)
        return history


def test_a_survivor_refreshes_itself_until_the_peer_comes_back(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """The Active dies and stays dead. The other one takes over, then replaces its own generation three times in a row.

    It never holds more than 2.2 generations, and commits go on during each refresh. A topic was deleted meanwhile. When
    the dead one is back it lets go of its old generation, but not of that topic, which nobody else has any more.
    """
    bootstrap = kafka.bootstrap
    topic, gone = make_topic(f"{topic_name}-kept"), make_topic(f"{topic_name}-gone", config=UNCLEANED)
    writer, other = Writer(bootstrap, topic), Writer(bootstrap, gone)
    writer.fill()
    other.fill()
    last_of_gone = consume(bootstrap, [gone])
    pair = new_pair([topic, gone], **ALONE)
    b = pair.start("b", first="b", scan={"rate_limit": None}, rotation={"interval": "1d"})
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    (gone_key,) = (PartitionKey(item.topic_id, 0) for item in one.topics.values() if item.name == gone)
    a = pair.start("a", first="b", **SMALL_FETCHES)
    pair.wait("a has heard of it", lambda: a.said("decision"))
    b.kill()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([gone])[gone].result(30)
    writer.start()

    room = Room(pair, "a")
    wanted = 2 + REFRESHES
    pair.wait(
        f"it has refreshed itself {REFRESHES} times",
        lambda: [g for g in room.look() if g.number == wanted and g.complete],
        timeout_s=200,
    )
    pair.wait("one generation is left of them", lambda: {g.number for g in room.look() if not g.gone} == {1, wanted})
    own = [g for g in pair.history() if g.instance == "a"]
    assert [g.number for g in own] == list(range(2, wanted + 1))
    assert own[0].claim.reason == Reason.ACTIVE_SILENT
    assert {g.claim.reason for g in own[1:]} == {f"{Reason.PEER_SILENT}: {Reason.ROTATION_DUE}"}
    assert room.looks > 3 * REFRESHES
    assert room.most <= ROOM, f"{room.most:.2f} generations at once"
    during = [commits_meanwhile(pair, old, old + 1) for old in range(2, wanted)]
    _LOG.info("room %.2f generations in %d looks; during refreshes %s", room.most, room.looks, during)
    for seconds, commits in during:
        assert commits >= max(2.0, seconds / 3), "commits went on, one a second as ever"

    # It asked the dead one for a turn before each refresh. Who comes back finds the last request, and may follow it.
    a.terminate()
    a, b = (pair.start(name, rotation={"interval": "1d"}) for name in "ab")
    one = pair.wait("the peer has cleared what it may", lambda: (g := pair.generation(1)) and g.cleared and g)
    writer.stop()
    log = consume(bootstrap, [topic])
    newest = pair.wait("no turn is under way", lambda: settled(pair))
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert one.cleared is not None
    assert set(one.cleared.stays) == {gone_key}
    assert {part.key for _, part in one.live_parts()} == {gone_key}
    assert {key for key in pair.objects_of("b") if key.startswith(pair.data_prefix("b", 1))} == set(one.objects)
    rows = {(row.offset, row.key, row.value) for row in stored(pair.store, pair.name)}
    assert rows >= {(row.offset, row.key, row.value) for row in log.rows}, "the cleaner goes on in the topic alone"
    selection = select(pair.live(), number=1, wanted=lambda item: item.name == gone, merge=False, removed=True)
    assert [part.key for part in selection.partitions] == [gone_key]
    assert_same(rows_of(pair.store, selection), last_of_gone.rows)
    active, passive = (a, b) if newest.instance == "a" else (b, a)
    pair.wait("the roles are clear", lambda: (active.role, passive.role) == ("Active", "Passive"))


def settled(pair: Pair) -> Generation | None:
    """Return the newest generation if the first one is all that is there besides it, and it takes records."""
    live = pair.live()
    return live[-1] if len(live) == 2 and live[-1].complete and not live[-1].sealed else None


def commits_meanwhile(pair: Pair, old: int, new: int) -> tuple[float, int]:
    """Return how many seconds the next generation was built for, and how often the old one committed in that time."""
    building = next(g for g in pair.history() if g.number == new)
    assert building.completed_at is not None
    began, ended = building.claim.at, building.completed_at
    return (ended - began) / 1000, sum(began <= at <= ended for at in times(pair.entries(old)))


def times(entries: list[Entry]) -> Iterator[int]:
    """Yield when a chain's commits were made."""
    for entry in entries:
        if entry.kind is EntryKind.COMMIT:
            yield entry.at
