"""A generation from its claim until all is committed: `python -m bench.catch_up BOOTSTRAP TOPIC CODEC STORE`.

STORE is the `store` section of a configuration, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid

from backup_avro.chain import Opening
from bench.measured import measured, report
from controller.config import Config
from controller.guard import GuardedCluster
from controller.wiring import pipeline_policy_of, store_of
from sink.chain.writer import Identity, claim
from sink.pipeline import Phase, Pipeline
from sink.source.cluster import ClusterAdmin
from sink.source.fetcher import RawFetcher
from sink.transcode.choice import best_transcoder


def main() -> None:
    """Run once."""
    bootstrap, topic, codec, section = sys.argv[1:5]
    config = Config.model_validate(
        {
            "pair": f"bench-{uuid.uuid4().hex[:8]}",
            "instance": "a",
            "instances": ["a", "b"],
            "kafka": {"bootstrap.servers": bootstrap},
            "topics": {"include": [topic]},
            "store": json.loads(section),
            "object": {"codec": codec},
        }
    )
    store = store_of(config)
    admin = ClusterAdmin({"bootstrap.servers": bootstrap})
    who = Identity(pair=config.pair, instance="a", incarnation=uuid.uuid4().hex, cluster_id=admin.cluster_id())
    abort = threading.Event()
    opening = Opening(isolation_level="read_committed", codec=codec, sync=uuid.uuid4().hex)
    writer = claim(store, who, 1, opening=opening, reason="bench", stop=abort)
    pipeline = Pipeline(
        writer=writer,
        store=store,
        cluster=GuardedCluster(admin, config),
        open_source=lambda: RawFetcher({"bootstrap.servers": bootstrap}, read_committed=True),
        transcoder=best_transcoder(),
        policy=pipeline_policy_of(config),
        abort=abort,
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

    report(measured(work))


if __name__ == "__main__":
    main()
