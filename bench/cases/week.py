"""A week of commits a minute with records in every partition: `python -m bench.cases.week [DAYS [PARTITIONS]]`.

The time is simulated and the store is in memory, so that its requests can be counted; rolling, commits, the chain and
merging are the real ones. Prints what the week leaves behind, what it cost, and how long commits take as it goes on.
"""

from __future__ import annotations

import gc
import json
import logging
import statistics
import sys
import threading
import time
from collections.abc import Sequence

import structlog

from bench.memory_store import MemoryStore
from bench.worked_sum import Prices
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, GroupOffset, Opening, PartitionKey, Position, Topic
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.sink.kafka.cluster.guarded_topics import GuardedTopics
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, Identity, claim, now_ms
from tandem.sink.transcode.transcoder_result import Segment
from tandem.sink.write.commit import CommitDraft, Committer, complete_entry
from tandem.sink.write.merge import Merger
from tandem.sink.write.merge_plan import MergeRules
from tandem.sink.write.object_buffer import ObjectBuffer

_PAIR, _TOPICS, _EVERY = "week", 10, 8
_RECORDS, _VALUE = 2, b'{"id":%010d,"state":"active","balance":%06d,"note":"abcdefghijklmnop"}'


class _Cluster:
    """Topics that never change."""

    def guarded(self) -> GuardedTopics:
        """Not asked for."""
        return GuardedTopics(topics=())

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Each name is its id."""
        return {name: name for name in names}

    def group_offsets(self, topics: Sequence[Topic]) -> dict[str, Sequence[GroupOffset] | None]:
        """None."""
        del topics
        return {}


class _Names:
    """Keys, as a pipeline makes them."""

    def __init__(self, writer: ChainWriter) -> None:
        claimed = writer.state.claim
        self._where = (claimed.pair, claimed.instance, claimed.generation)
        self._seq = writer.state.seq + 1
        self._made = 0

    def data(self, key: PartitionKey, first: int, last: int) -> str:
        """Of a partition's object."""
        nonce = self._nonce()
        return layout.data_key(
            self._where, topic=key.topic_id, partition=key.partition, first=first, last=last, nonce=nonce
        )

    def journal(self) -> str:
        """Of a journal."""
        return layout.journal_key(*self._where, seq=self._seq, nonce=self._nonce())

    def _nonce(self) -> str:
        self._made += 1
        return f"{self._seq:08x}{self._made:08x}"


def main() -> None:
    """Run once."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    days = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0
    partitions = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    store = MemoryStore()
    stop = threading.Event()
    who = Identity(pair=_PAIR, instance="a", incarnation="bench", cluster_id="bench")
    sync = "5a" * 16
    opening = Opening(isolation_level="read_committed", codec="zstandard", sync=sync)
    writer = claim(store, who, 1, opening=opening, reason="bench", stop=stop)
    committer = Committer(writer=writer, store=store, cluster=_Cluster(), stop=stop, name="commit")
    committer.start()
    merger = Merger(writer=writer, store=store, committer=committer, rules=MergeRules(), name="merge")
    buffer = ObjectBuffer(codec=Codec.ZSTANDARD, sync=bytes.fromhex(sync), block_size=256 << 10, level=1)
    keys = [PartitionKey(f"topic-{n % _TOPICS}", n // _TOPICS) for n in range(partitions)]
    topics = tuple(
        Topic(
            name=f"topic-{n}", topic_id=f"topic-{n}", partitions=partitions // _TOPICS, replication_factor=3, config={}
        )
        for n in range(_TOPICS)
    )
    base = Base(start=0, end=0, leader=1, done_at=0)
    commits = round(days * 1440)
    commit_s, merge_s, most_objects = [], [], 0
    for minute in range(commits):
        store.seconds += 60
        at = now_ms(store)
        low = minute * _RECORDS
        for key in keys:
            buffer.add(key, None, [_segment(key, low, at)])
        began = time.perf_counter()
        draft = CommitDraft(
            objects=tuple(buffer.cut(_Names(writer), max_objects=64)),
            positions={
                key: Position(offset=low + _RECORDS, epoch=0, head_at=at, log_start=0, base=base) for key in keys
            },
            head_at=at,
            topics=topics if minute == 0 else (),
            names={topic.name: topic.name for topic in topics},
        )
        committer.submit(draft)
        _wait(committer)
        commit_s.append(time.perf_counter() - began)
        if minute == 0:
            committer.request(_complete)
        if (minute + 1) % _EVERY == 0:
            began = time.perf_counter()
            while merger.step():
                pass
            merge_s.append(time.perf_counter() - began)
        most_objects = max(most_objects, len(writer.state.objects))
        if (minute + 1) % 1440 == 0:
            _tell(store, writer, (minute + 1) / 1440, commit_s[-1440:], merge_s[-180:])
    _start_up(store, writer)
    _cost(store, days, most_objects)


def _complete(writer: ChainWriter) -> None:
    writer.append(complete_entry("bench"))


def _segment(key: PartitionKey, low: int, at: int) -> Segment:
    body = b"".join(
        encode(
            Record(
                topic=key.topic_id,
                partition=key.partition,
                offset=offset,
                timestamp=at,
                timestamp_type=TimestampType.CREATE_TIME,
                key=b"key-%06d" % (offset * 7919 % 100_000),
                value=_VALUE % (offset, offset * 104_729 % 1_000_000),
                headers=(),
            )
        )
        for offset in range(low, low + _RECORDS)
    )
    return Segment(
        body=body,
        records=_RECORDS,
        tombstones=0,
        first_offset=low,
        last_offset=low + _RECORDS - 1,
        last_at=0,
        min_timestamp=at,
        max_timestamp=at,
        largest=len(body) // _RECORDS,
        codecs=1,
    )


def _wait(committer: Committer) -> None:
    while not committer.outcomes():
        if committer.error is not None:
            raise committer.error
        time.sleep(0.001)


def _tell(store: MemoryStore, writer: ChainWriter, day: float, commit_s: list[float], merge_s: list[float]) -> None:
    state = writer.state
    chain = [len(data) for key, data in store.objects.items() if key.endswith(".json")]
    _say(
        {
            "day": day,
            "objects": len(state.objects),
            "parts": sum(len(item.parts) for item in state.objects.values()),
            "objects_mb": round(sum(item.bytes for item in state.objects.values()) / 1e6, 1),
            "objects_in_store": sum(key.endswith(".avro") for key in store.objects),
            "replaced": len(state.replaced),
            "chain_entries": state.seq,
            "chain_mb": round(sum(chain) / 1e6, 1),
            "commit_ms": round(1000 * statistics.median(commit_s), 1),
            "merge_ms": round(1000 * statistics.median(merge_s), 1),
        }
    )


def _start_up(store: MemoryStore, writer: ChainWriter) -> None:
    gc.collect()
    before = store.requests.copy()
    began = time.perf_counter()
    state = ChainReader(store, _PAIR).load(1)
    seconds = time.perf_counter() - began
    if state != writer.state:
        raise RuntimeError("what is read is not what was written")
    requests = store.requests - before
    store.requests = before
    _say({"start_up_s": round(seconds, 2), "entries": state.seq, "requests": dict(requests)})


def _cost(store: MemoryStore, days: float, most_objects: int) -> None:
    _say(
        {
            "requests": dict(store.requests),
            "most_objects": most_objects,
            "dollars_a_month_for_requests": round(Prices().requests(store.requests) * 30 / days, 2),
        }
    )


def _say(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
