"""A generation from its claim until all is committed: `python -m bench.cases.catch_up BOOTSTRAP TOPIC CODEC STORE`.

STORE is the `store` section of a configuration, as JSON. `--pair NAME`: the generation is completed, for a restore.
`--workers N`: that many processes read too, as with `scan.workers`; what the largest of them took is told as well.
`--encrypted`: with the key in the variable `measured.KEY`.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import uuid
from dataclasses import replace

from bench.measured import KEY, measured, report, tree_peak_mb
from tandem.backup_avro.chain.entries import Entry, EntryKind, Opening
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import store_of
from tandem.controller.instance.wiring import pipeline_policy_of, workers_of
from tandem.controller.process import memory_allocator
from tandem.controller.watch.guarded_cluster import GuardedCluster
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.pipeline import Pipeline, PipelineParts
from tandem.sink.pipeline_report import Phase
from tandem.sink.read.scan.worker_processes import WorkerPool
from tandem.sink.store.chain.chain_writer import Identity, claim, now_ms
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.write.commit import complete_entry


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(prog="bench.cases.catch_up", description=__doc__)
    for name in ("bootstrap", "topic", "codec", "store"):
        parser.add_argument(name)
    parser.add_argument("--pair")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--encrypted", action="store_true")
    words = parser.parse_args()
    memory_allocator.set_up()  # as an instance does
    bootstrap, topic, codec, section = words.bootstrap, words.topic, words.codec, words.store
    config = Config.model_validate(
        {
            "pair": words.pair or f"bench-{uuid.uuid4().hex[:8]}",
            "instance": "a",
            "instances": ["a", "b"],
            "kafka": {"bootstrap.servers": bootstrap},
            "topics": {"include": [topic]},
            "store": json.loads(section),
            "object": {"codec": codec},
            "encryption": {"key_env": KEY} if words.encrypted else {},
        }
    )
    store = store_of(config)
    admin = ClusterAdmin({"bootstrap.servers": bootstrap})
    who = Identity(pair=config.pair, instance="a", incarnation=uuid.uuid4().hex, cluster_id=admin.cluster_id())
    abort = threading.Event()
    opening = Opening(isolation_level="read_committed", codec=codec, sync=uuid.uuid4().hex)
    writer = claim(store, who, 1, opening=opening, reason="bench", stop=abort)
    props = {"bootstrap.servers": bootstrap}
    workers = WorkerPool(workers_of(config, props), words.workers) if words.workers else None
    pipeline = Pipeline(
        writer,
        PipelineParts(
            store=store,
            cluster=GuardedCluster(admin, config),
            open_source=lambda: RawFetcher({"bootstrap.servers": bootstrap}, read_committed=True),
            transcoder=best_transcoder(),
            policy=pipeline_policy_of(config),
            abort=abort,
            workers=workers,
        ),
    )

    def work() -> tuple[int, int]:
        pipeline.start()
        while True:
            seen = pipeline.report()
            if seen.error is not None:
                raise seen.error
            if seen.phase is Phase.READING and seen.base_remaining == 0:
                break
            time.sleep(0.005)
        pipeline.drain()
        if not pipeline.join(300):
            raise RuntimeError("it did not end")
        error = pipeline.report().error
        if error is not None:
            raise error
        return pipeline.report().records, pipeline.report().bytes

    run = measured(work)
    if workers is not None:
        report(replace(run, peak_mb=tree_peak_mb()), what="worker")
        workers.close()
    report(run)
    if words.pair is not None:
        # Nobody writes to the topic: it is at head still.
        writer.append(Entry(kind=EntryKind.CONFIRM, seq=0, prev_sha256="", incarnation="", at=0, head_at=now_ms(store)))
        writer.append(complete_entry("bench"))


if __name__ == "__main__":
    main()
