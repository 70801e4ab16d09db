"""Deleted keys stay deleted (design, section 6): newest first, on a broker that soon forgets its tombstones."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from support.backups.witness import Row, consume, rows_of, stored
from support.clusters.topic_config import set_config
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.decision.decide import Reason
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S

_LOG = logging.getLogger(__name__)
# Paces and pauses are measured to the second: needs a machine that is not busy with other tests.
pytestmark = [pytest.mark.integration, pytest.mark.slow]

FORWARD = f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); import support.pipeline.forward"
# Processes of these tests measure against another bound than a minute, so that no test takes minutes.
BOUND = (
    "from tandem.sink import pipeline; from tandem.sink.read import tombstone_guarantee; "
    "tombstone_guarantee.SHORTEST_RETENTION_S = pipeline.SHORTEST_RETENTION_S = {}"
)
DAY_MS = "86400000"
UNCLEANED = {"min.compaction.lag.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}
D_S = 1.0
KEYS = 16_000
# At this rate, and with these small fetches, what is written below takes more than 10 s to read: ten times D.
SLOWLY = {"scan": {"rate_limit": "190KiB/s"}, "kafka": {"max.partition.fetch.bytes": 16_384}}


class Ledger:
    """Writes to one partition and knows what every key must be."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.state: dict[bytes, bytes | None] = {}
        self.offset: dict[bytes, int] = {}
        """Of the newest value of each key."""
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.size": 16_384}
        )

    def put(self, keys: Iterable[bytes], word: str) -> None:
        """Give keys a value."""
        for key in keys:
            self._send(key, b"%s of %s " % (word.encode(), key) * 4)
        assert self._producer.flush(60) == 0

    def delete(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._send(key, None)
        assert self._producer.flush(60) == 0

    def _send(self, key: bytes, value: bytes | None) -> None:
        self.state[key] = value
        self._producer.produce(self.topic, key=key, value=value, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        key, offset = message.key(), message.offset()
        assert isinstance(key, bytes)
        assert offset is not None
        if message.value() is not None:
            self.offset[key] = offset

    @property
    def deleted(self) -> set[bytes]:
        """The keys that must not be there."""
        return {key for key, value in self.state.items() if value is None}

    @property
    def alive(self) -> dict[bytes, bytes]:
        """The keys that must be there, with their values."""
        return {key: value for key, value in self.state.items() if value is not None}


def latest(rows: Iterable[Row]) -> dict[bytes, bytes]:
    """Return the latest value of each key, without those that a tombstone ends."""
    found = {row.key: row.value for row in rows}
    return {key: value for key, value in found.items() if key is not None and value is not None}


def test_no_deleted_key_comes_back_unless_the_order_is_turned(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Two pairs scan one log at a tenth of the pace that its tombstones ask for; one of them from low to high.

    Keys are deleted before the scan, while it runs (behind it and ahead of it) and after it, and the cleaner takes
    every tombstone away after a second. A time below 60 s is best effort: no taint is measured against it, and chunks
    of up to 256 offsets count however long they took. The order alone has to keep deleted keys away.
    """
    topic = make_topic(delete_retention_ms=round(D_S * 1000), config=UNCLEANED)
    ledger = Ledger(kafka.bootstrap, topic)
    keys = [b"key-%05d" % number for number in range(KEYS)]
    for low in range(0, KEYS, 1000):
        ledger.put(keys[low : low + 1000], "first")
        ledger.delete(keys[low + 3 : low + 1000 : 50])
    ledger.delete(keys[::10])
    before = ledger.deleted

    right, wrong = new_pair([topic]), new_pair([topic])
    a = right.start("a", **SLOWLY)
    wrong.start("a", prelude=FORWARD, **SLOWLY)
    began = time.monotonic()
    for pair in right, wrong:
        pair.wait("the scan is under way", lambda pair=pair: unread(pair) is not None)
    set_config(kafka.bootstrap, topic, {"min.compaction.lag.ms": "0", "max.compaction.lag.ms": "1000"})
    behind, ahead = 0, 0
    for wave in range(500):
        low = unread(right)
        going = [key for key in keys[wave * 7 + 1 :: 400] if ledger.state[key] is not None]
        ledger.delete(going)
        ledger.put(going[:2], "again")
        ledger.delete(going[:1])
        behind += sum(ledger.offset[key] >= low for key in going[2:]) if low else 0
        ahead += sum(ledger.offset[key] < low for key in going[2:]) if low else 0
        if low == 0:
            break
        time.sleep(0.2)  # the writer's pace
    took = time.monotonic() - began
    for pair in right, wrong:
        pair.wait("generation 1 is complete", lambda pair=pair: pair.complete(1))
    ledger.delete(keys[5::100])

    log = consume(kafka.bootstrap, [topic])
    assert latest(log.rows) == ledger.alive, "the ledger is what the topic says"
    for pair in right, wrong:
        pair.wait("all is committed", lambda pair=pair: pair.covered(log.ends))
    assert took > 10 * D_S, f"the scan took {took:.1f} s"
    assert min(len(before), behind, ahead) > 100, "deleted before, behind and ahead of the scan"
    still = {row.key for row in log.rows if row.value is None}
    assert len(before - still) > len(before) / 2, "the cleaner has taken most of the tombstones away"
    found = latest(stored(right.store, right.name))
    assert ledger.deleted & found.keys() == set()
    assert found == ledger.alive
    assert a.said("delete.retention.ms is too short", topic=topic), "that it is best effort is said"
    assert a.said("a range took longer than the tombstone guarantee allows"), "what took too long was read again"
    came_back = ledger.deleted & latest(stored(wrong.store, wrong.name)).keys()
    _LOG.info(
        "scan of %.1f s; deleted before %d, behind %d, ahead %d; oldest first brings %d back",
        *(took, len(before), behind, ahead, len(came_back)),
    )
    assert came_back, "from low to high the same history brings deleted keys back"


def unread(pair: Pair) -> int | None:
    """Return up to where the base is not read yet, by the chain: 0 if all is, None before the first chunk."""
    state = pair.generation(1)
    for position in state.positions.values() if state is not None else ():
        if position.base.complete:
            return 0
        if position.base.done:
            return position.base.done[0][0]
    return None


@pytest.mark.parametrize(
    "retention_s",
    [
        pytest.param(6.0, id="measured against 6 s"),
        pytest.param(SHORTEST_RETENTION_S, id="as it is"),
    ],
)
def test_who_was_away_too_long_says_so_and_is_replaced(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, retention_s: float
) -> None:
    """An Active and a builder are stopped for longer than tombstones live, while keys are deleted and cleaned away.

    The Active's generation is tainted before its next commit, and replaced by the peer; what it holds now has a key
    that was deleted, and a restore of it would say so. The builder's never becomes COMPLETE, and another one does.
    """
    prelude = BOUND.format(retention_s)
    topic = make_topic(delete_retention_ms=round(retention_s * 1000))
    ledger = Ledger(kafka.bootstrap, topic)
    keys = [b"key-%05d" % number for number in range(KEYS // 4)]
    ledger.put(keys, "first")
    pair, building = (
        new_pair([topic], liveness={"timeout": "180s"}, **QUICK, recovery={"window": "1d"}) for _ in range(2)
    )
    a, _ = pair.start("a", prelude=prelude), pair.start("b", prelude=prelude)
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    builder = building.start("a", prelude=prelude, **SLOWLY | {"scan": {"rate_limit": "70KiB/s"}})
    building.wait("the scan is under way", lambda: in_mid_scan(building))

    for process in a, builder:
        process.process.send_signal(signal.SIGSTOP)
    until = time.monotonic() + retention_s
    ledger.put(keys[:1], "last")  # what is under way to a stopped process gets there
    ledger.delete(keys[::100])
    while time.monotonic() < until or tombstones(kafka.bootstrap, topic) & ledger.deleted:
        assert time.monotonic() < until + 60, "the cleaner has not come"
        ledger.put(keys[1:9], "meanwhile")  # new segments make it come
        time.sleep(0.5)  # the writer's pace
    assert not building.complete(1), "stopped too late"
    for process in a, builder:
        process.process.send_signal(signal.SIGCONT)

    tainted = pair.wait("generation 1 is tainted", lambda: (found := pair.generation(1)) and found.taints and found)
    kinds = pair.kinds(1)
    assert kinds[kinds.index("TAINTED") + 1] == "COMMIT", "the taint comes before what was read after the gap"
    (taint,) = tainted.taints.values()
    assert "after it was last at head" in taint.reason
    said = pair.wait("it is said", lambda: a.said("tainted", topic=topic, reason=taint.reason))
    assert said[0]["remedy"]
    new = pair.wait("another generation is complete", lambda: sound(pair))
    assert (new.instance, new.claim.reason) == ("b", f"{Reason.ASKED}: {Reason.TAINTED}")

    other = building.wait("another generation is built", lambda: sound(building))
    assert other.number > 1
    assert "COMPLETE" not in building.kinds(1)
    assert "TAINTED" in building.kinds(1)
    building.wait("that is said too", lambda: builder.said("tainted", generation=1))
    building.wait("the first one is cleared", lambda: [g.number for g in building.live()] == [other.number])

    log = consume(kafka.bootstrap, [topic])
    assert latest(log.rows) == ledger.alive
    for each in pair, building:
        each.wait("all is committed", lambda each=each: each.covered(log.ends))
        assert latest(stored(each.store, each.name)) == ledger.alive
    selection = select(pair.live(), number=1, merge=False)
    assert [part.warning for part in selection.partitions] == [f"tainted above offset {taint.offset}: {taint.reason}"]
    spoilt = replace(selection, partitions=tuple(replace(part, warning=None) for part in selection.partitions))
    came_back = ledger.deleted & latest(rows_of(pair.store, spoilt)).keys()
    assert came_back, "the gap did harm"


def tombstones(bootstrap: str, topic: str) -> set[bytes | None]:
    """Return the keys whose tombstones are still in the topic."""
    return {row.key for row in consume(bootstrap, [topic]).rows if row.value is None}


def in_mid_scan(pair: Pair) -> bool:
    """Whether some of a base that is not done is stored."""
    state = pair.generation(1)
    return state is not None and bool(state.objects) and not any(p.base.complete for p in state.positions.values())


def sound(pair: Pair) -> Generation | None:
    """Return the newest generation if it is complete, untainted and not the first one."""
    newest = max(pair.live(), key=lambda g: g.number, default=None)
    return newest if newest is not None and newest.number > 1 and newest.complete and not newest.taints else None
