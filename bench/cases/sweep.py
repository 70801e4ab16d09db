"""A sweep of all partitions of a generation in one process: `python -m bench.cases.sweep PAIR STORE`.

STORE is a folder's address. What a task of `tandem retention --horizon` does, partition by partition, without Spark:
everything lies below the horizon, and each key twice, so that half of the records go. What is written is in no chain,
and deleted again. Bytes are stored ones that are read.
"""

from __future__ import annotations

import sys

from bench.measured import measured, reading, report
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.retention.sweep_partition import Swept, sweep_partition
from tandem.spark_jobs.retention.sweep_plan import SweepRules, plan_sweep


def main() -> None:
    """Run once."""
    pair, root = sys.argv[1:3]
    store = StoreAddress(root=root, settings=reading()).open()
    state = ChainReader(store, pair).load(1)
    ends = {key: position.offset for key, position in state.positions.items()}
    tasks, _ = plan_sweep(state, ends, past=state, others=(), cuts={}, rules=SweepRules(horizon=0, min_gain=0.0))
    done: list[Swept] = []

    def work() -> tuple[int, int]:
        done.extend(sweep_partition(store, task, write=True) for task in tasks)
        records = sum(task.records for task in tasks)
        return records, sum(swept.read for swept in done)

    run = measured(work)
    store.delete([item.key for swept in done for item in swept.objects])
    if sum(swept.records for swept in done) * 2 != run.records:
        raise RuntimeError(f"{sum(swept.records for swept in done)} of {run.records} records went, not half of them")
    report(run)


if __name__ == "__main__":
    main()
