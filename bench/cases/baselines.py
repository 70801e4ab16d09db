"""What the figures are held against: `python -m bench.cases.baselines KIND BOOTSTRAP TOPIC PARTITIONS RECORDS`.

`raw` only receives bytes, `count` is a confluent-kafka consumer that only counts, `count-tuned` the same with a queue
in front of it that small records do not fill, `obvious` decodes with that and writes Avro files with fastavro.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import fastavro
from confluent_kafka import Consumer, TopicPartition

from bench.measured import measured, report
from tandem.backup_avro.record.current import SCHEMA_JSON
from tandem.sink.kafka.events import Fetched
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.wire.batch_bounds import end_of


def raw(bootstrap: str, topic: str, partitions: int) -> tuple[int, int]:
    """Receive everything; look at nothing but where it ends."""
    with RawFetcher({"bootstrap.servers": bootstrap}, read_committed=True) as fetcher:
        ends = fetcher.end_offsets([(topic, number) for number in range(partitions)])
        left = {tuple(place): end for place, (end, _) in ends.items()}
        for place in ends:
            fetcher.assign(place, 0)
        size = 0
        while left:
            for event in fetcher.poll(1.0):
                if isinstance(event, Fetched):
                    place = (event.topic, event.partition)
                    following, epoch = end_of(event.records, event.fetch_offset)
                    size += len(event.records)
                    fetcher.advance(place, following, epoch)
                    if following >= left.get(place, 0):
                        left.pop(place, None)
        return sum(end for end, _ in ends.values()), size


# Its own settings stop fetching for a second at a time whenever 100,000 messages wait, which are 10 MB of small ones.
_TUNED = {"queued.min.messages": 10_000_000, "fetch.queue.backoff.ms": 1}


def consumer(bootstrap: str, topic: str, partitions: int, *, tuned: bool) -> Consumer:
    """Return a consumer of everything, with room to work ahead."""
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 65536,
            "fetch.message.max.bytes": 1 << 20,
            "check.crcs": True,
        }
        | (_TUNED if tuned else {})
    )
    made.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return made


def count(bootstrap: str, topic: str, partitions: int, records: int, *, tuned: bool = False) -> tuple[int, int]:
    """Count messages and their bytes."""
    client = consumer(bootstrap, topic, partitions, tuned=tuned)
    seen = size = 0
    while seen < records:
        for message in client.consume(10_000, 1.0):
            seen += 1
            size += len(message.value() or b"")
    client.close()
    return seen, size


def obvious(bootstrap: str, topic: str, partitions: int, records: int) -> tuple[int, int]:
    """Decode, and write one file per partition."""
    client = consumer(bootstrap, topic, partitions, tuned=True)
    schema = fastavro.parse_schema(json.loads(SCHEMA_JSON))
    pending: dict[int, list[dict[str, object]]] = {number: [] for number in range(partitions)}
    seen = 0
    with tempfile.TemporaryDirectory() as folder:

        def flush(number: int) -> None:
            path = Path(folder) / f"{number}-{seen}.avro"
            with path.open("wb") as file:
                fastavro.writer(file, schema, pending[number], codec="zstandard")
            pending[number] = []

        while seen < records:
            for message in client.consume(10_000, 1.0):
                seen += 1
                kind, timestamp = message.timestamp()
                number = message.partition() or 0
                pending[number].append(
                    {
                        "topic": topic,
                        "partition": number,
                        "offset": message.offset(),
                        "timestamp": timestamp,
                        "timestampType": ("NONE", "CREATE_TIME", "LOG_APPEND_TIME")[kind],
                        "key": message.key(),
                        "value": message.value(),
                        "headers": [{"key": key, "value": value} for key, value in message.headers() or []],
                    }
                )
                if len(pending[number]) == 50_000:
                    flush(number)
        for number in pending:
            flush(number)
    client.close()
    return seen, 0


def main() -> None:
    """Run once."""
    kind, bootstrap, topic, partitions, records = sys.argv[1:6]
    work = {
        "raw": lambda: raw(bootstrap, topic, int(partitions)),
        "count": lambda: count(bootstrap, topic, int(partitions), int(records)),
        "count-tuned": lambda: count(bootstrap, topic, int(partitions), int(records), tuned=True),
        "obvious": lambda: obvious(bootstrap, topic, int(partitions), int(records)),
    }[kind]
    report(measured(work))


if __name__ == "__main__":
    main()
