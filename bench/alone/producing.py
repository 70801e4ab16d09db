"""Record batches to a broker by batch size and bytes in flight: `python -m bench.alone.producing`.

What a restore sends, without what it does before: random batches, two partitions, the broker on the same machine. All
combinations take turns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict, deque
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.load import wait_until_led
from bench.servers import BenchKafka
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, Sent

_TOTAL = 512 << 20
_RECORD = 1_000
_ROUNDS = 3
_ANSWER_S = 60.0
_BATCHES = (100_000, 300_000, 900_000, 3_600_000)
_IN_FLIGHT = (1 << 20, 4 << 20, 8 << 20, 32 << 20)


def _batch(size: int) -> tuple[bytes, int]:
    """Return a batch of random records, and how many they are."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2 * size,
    )
    records = size // _RECORD
    for number in range(records):
        builder.append(number, timestamp=number, key=None, value=os.urandom(_RECORD - 20), headers=[])
    return bytes(builder.build()), records


def _send(producer: BatchProducer, topic: str, batch: tuple[bytes, int], in_flight: int) -> float:
    """Send `_TOTAL` bytes in one transaction; return the seconds."""
    data, records = batch
    waiting: deque[Sent] = deque()
    flying = 0
    began = time.perf_counter()
    producer.begin()
    for number in range(_TOTAL // len(data)):
        sent = producer.append(topic, number % 2, data, records)
        waiting.append(sent)
        flying += sent.size
        while flying > in_flight:
            done = waiting.popleft()
            done.base_offset(_ANSWER_S)
            flying -= done.size
    for sent in waiting:
        sent.base_offset(_ANSWER_S)
    producer.commit()
    return time.perf_counter() - began


def main() -> None:
    """Print a table: megabytes per second, the middle one of the rounds, and processor time of this process."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        kafka = BenchKafka(Path(folder))
        kafka.start()
        try:
            rates: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
            cpu: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            batches = {size: _batch(size) for size in _BATCHES}
            for number in range(_ROUNDS):
                config = {"max.message.bytes": "8000000", "retention.bytes": str(_TOTAL), "segment.bytes": "134217728"}
                topic = f"produced-{number}"
                admin.create_topics([NewTopic(topic, num_partitions=2, config=config)])[topic].result(30)
                wait_until_led(admin, topic, 2)
                for size in _BATCHES:
                    for in_flight in _IN_FLIGHT:
                        producer = BatchProducer({"bootstrap.servers": kafka.bootstrap}, f"bench-{number}")
                        producer.init_transactions()
                        producer.know(topic)
                        before = time.process_time()
                        rates[size, in_flight].append(_TOTAL / _send(producer, topic, batches[size], in_flight) / 1e6)
                        cpu[size, in_flight].append(time.process_time() - before)
                        producer.discard()
                admin.delete_topics([topic])[topic].result(30)
        finally:
            kafka.kill()
    print("| batches of | in flight | MB/s | CPU s for a GB |\n|--:|--:|--:|--:|")
    for (size, in_flight), found in rates.items():
        used = statistics.median(cpu[size, in_flight]) * 1e9 / _TOTAL
        print(f"| {size:,} B | {in_flight >> 20} MiB | {statistics.median(found):,.0f} | {used:.2f} |")


if __name__ == "__main__":
    main()
