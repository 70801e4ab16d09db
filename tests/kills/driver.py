"""One run of the restore that is killed: `python -m kills.driver ROOT PAIR SERVERS TARGET PARTITIONS OFFSETS`.

Executors are processes of their own. Small batches and transactions, slowly, so that a run can be hit anywhere.
"""

from __future__ import annotations

import json
import os
import sys
import time

from tandem.sink.store import StoreAccess
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.records.load_task import LoadPace
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import RecordChanges
from tandem.spark_jobs.restore.report import RestoreListener
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.spark.session import session

_MASTER = "local-cluster[2,1,1024]"
_PROPERTIES = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    # An executor that was killed is no reason to give the job up.
    "spark.task.maxFailures": "50",
    "spark.deploy.maxExecutorRetries": "-1",
}


class _Lines(RestoreListener):
    """Says on stdout where it is."""

    def phase(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def records(self, done: int, of: int) -> None:
        sys.stdout.write(f"committed {done} of {of}\n")
        sys.stdout.flush()


def main() -> None:
    """Restore, and print what came of it."""
    root, pair, servers, target, partitions, offsets = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    options = RestoreOptions(
        naming=TopicNaming(only=target),
        partitions=int(partitions),
        offsets=OffsetMode(offsets),
        shape=RecordChanges(partitioner=Partitioner.MURMUR2),
        pace=LoadPace(
            batch_bytes=5_000,
            compression=Compression.NONE,
            in_flight_bytes=0,
            commit_seconds=4.0,  # so much of the waiting for the rate is in open transactions
            answer_seconds=20.0,
        ),
        # Half a minute for the whole of it, if nothing is killed.
        bytes_per_second=40_000,
    )
    address = StoreAddress(root=root, settings=StoreAccess())
    with session(_MASTER, name="kills", extra=_PROPERTIES) as spark:
        report = restore(
            spark,
            RestoreRequest(
                address=address,
                reader=ChainReader(address.open(), pair),
                target=TargetCluster({"bootstrap.servers": servers}),
                options=options,
                now=lambda: round(time.time() * 1000),
            ),
            tell=_Lines(),
        )
    found = {"records": report.records, "resumed": report.resumed, "mismatches": len(report.mismatches)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
