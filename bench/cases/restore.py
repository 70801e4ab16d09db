"""A restore by Spark, phase by phase: `python -m bench.cases.restore BOOTSTRAP TOPIC PAIR STORE COMPRESSION`.

STORE is a folder's address. Restores into `TOPIC.restored`, which is deleted again. The phases are told apart by what
they announce; processor time is that of this process and all below it, memory that of the largest Python worker.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

from bench.measured import Run, reading, report, tree_cpu_s, tree_peak_mb
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.report import RestoreListener
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.spark.session import session

_SUFFIX = ".restored"


@dataclass(slots=True)
class _Clock(RestoreListener):
    """When each phase began, and the processor time until then."""

    began: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def phase(self, text: str) -> None:
        """Note it."""
        self.began[text] = (time.perf_counter(), tree_cpu_s(), tree_peak_mb())

    def run(self, phase: str, after: str, records: int, size: int) -> Run:
        """Return what happened between two phases."""
        (begin, cpu, _), (end, cpu_after, peak) = self.began[phase], self.began[after]
        return Run(records=records, bytes=size, seconds=end - begin, cpu_s=cpu_after - cpu, peak_mb=peak)


def main() -> None:
    """Run once; report one line for each phase."""
    bootstrap, topic, pair, root, compression = sys.argv[1:6]
    address = StoreAddress(root=root, settings=reading())
    target = TargetCluster({"bootstrap.servers": bootstrap})
    options = RestoreOptions(naming=TopicNaming(suffix=_SUFFIX), compression=Compression[compression.upper()])
    clock = _Clock()
    clock.phase("starting Spark")
    with session(name="bench") as spark:
        # The first task pays for the start of the workers; a restore is not charged for it.
        spark.sparkContext.parallelize(range(4), 4).map(_warm).collect()
        found = restore(
            spark,
            RestoreRequest(
                address=address,
                reader=ChainReader(address.open(), pair),
                target=target,
                options=options,
                now=lambda: int(time.time() * 1000),
            ),
            tell=clock,
        )
        clock.phase("end")
    if found.mismatches:
        raise RuntimeError(f"the target is not what was loaded: {found.mismatches}")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic + _SUFFIX]).values():
        future.result(30)
    size = sum(
        piece.part.end - piece.part.start
        for plan in found.plan.topics
        for item in plan.partitions
        for piece in item.slices
    )
    report(clock.run("starting Spark", "planning", found.records, size), what="start of Spark")
    report(clock.run("planning", "loading", found.records, size), what="plan, topics")
    report(clock.run("loading", "verifying", found.records, size), what="load")
    report(clock.run("verifying", "setting the recorded config", found.records, size), what="check")


def _warm(number: int) -> int:
    import tandem.spark_jobs.restore.load.load  # noqa: F401, PLC0415 - in the worker

    return number


if __name__ == "__main__":
    main()
