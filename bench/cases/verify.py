"""Verification of all objects of a generation in one process: `python -m bench.cases.verify PAIR STORE [SECONDS]`.

STORE is a folder's address. What a task of `tandem verify` does, object by object, for some seconds, without Spark;
bytes are those of objects as they are stored. For as long again, the decompression alone of what was read: no
verification can be faster.
"""

from __future__ import annotations

import sys
import time

from bench.measured import measured, reading, report
from tandem.backup_avro.record.container import decompress, iter_blocks
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.encrypted_objects import open_object
from tandem.spark_jobs.reading.object_reader import StoreAddress, open_container
from tandem.spark_jobs.verify.verify_plan import check_object, plan_objects


def main() -> None:
    """Run once, and once the decompression alone."""
    pair, root = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 3.0
    store = StoreAddress(root=root, settings=reading()).open()
    keys = keys_of(store)
    checks = plan_objects([ChainReader(store, pair).load(1)])

    def work() -> tuple[int, int]:
        until = time.perf_counter() + seconds
        records = size = 0
        while time.perf_counter() < until:
            for check in checks:
                found = check_object(check, store.get(check.item.key), keys)
                if found.findings:
                    raise RuntimeError(f"{found.findings}")
                records += found.records
                size += found.bytes
        return records, size

    def decompression() -> tuple[int, int]:
        item = checks[0].item
        data = open_object(keys, item, store.get(item.key))
        header = open_container(data)
        blocks = [block for part in item.parts for block in iter_blocks(data, header, part.start, part.end)]
        until = time.perf_counter() + seconds
        records = size = 0
        while time.perf_counter() < until:
            for block in blocks:
                decompress(block, header.codec)
            records += sum(block.count for block in blocks)
            size += item.bytes
        return records, size

    report(measured(work))
    report(measured(decompression), "decompression")


if __name__ == "__main__":
    main()
