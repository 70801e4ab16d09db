"""The transcoder alone, on one core: `python -m bench.cases.transcoder SIZE`."""

from __future__ import annotations

import random
import struct
import sys
import time

from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.measured import measured, report
from tandem.sink.transcode.implementation_choice import best_transcoder

_SECONDS = 3.0


def batches(size: int, *, count: int, per_batch: int) -> bytes:
    """Return uncompressed record batches of random values."""
    rng = random.Random(size)
    out = []
    for offset in range(0, count, per_batch):
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        for delta in range(per_batch):
            builder.append(delta, 1_700_000_000_000 + offset, b"key-%07d" % (offset + delta), rng.randbytes(size), [])
        built = bytearray(builder.build())
        struct.pack_into(">q", built, 0, offset)
        out.append(bytes(built))
    return b"".join(out)


def main() -> None:
    """Transcode the same response again and again."""
    size = int(sys.argv[1])
    data = batches(size, count=16_000_000 // (size + 60), per_batch=max(1, 16_000 // (size + 20)))
    transcoder = best_transcoder()

    def work() -> tuple[int, int]:
        until = time.perf_counter() + _SECONDS
        records = done = 0
        while time.perf_counter() < until:
            got = transcoder.transcode(
                data, topic="orders", partition=3, start=0, until=None, aborted=(), read_committed=True
            )
            records += sum(segment.records for segment in got.segments)
            done += len(data)
        return records, done

    report(measured(work))


if __name__ == "__main__":
    main()
