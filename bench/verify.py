"""Verification of all objects of a generation in one process: `python -m bench.verify PAIR STORE [SECONDS]`.

STORE is a folder's address. What a task of `tandem verify` does, object by object, for some seconds, without Spark;
bytes are those of objects as they are stored.
"""

from __future__ import annotations

import sys
import time

from bench.measured import measured, reading, report
from sink.chain.reader import ChainReader
from sink.encryption.key_ring import keys_of
from spark_jobs.read import StoreAddress
from spark_jobs.verify_plan import check_object, plan_objects


def main() -> None:
    """Run once."""
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

    report(measured(work))


if __name__ == "__main__":
    main()
