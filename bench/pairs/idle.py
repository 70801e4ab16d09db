"""What a pair of 1,000 partitions costs while it runs: `python -m bench.pairs.idle [SECONDS]`.

Both instances run with the settings that they have by themselves, and with signing.require, against a broker and an S3
server whose requests a proxy counts. Prints a line for each stage of SECONDS: the pair with nothing to do, with 720
checkpoints and 3,000 claims that nobody signed, and with these while each partition gets records all the time.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.counting_proxy import CountingProxy
from bench.pairs.processes import PairProcesses, again_and_again
from bench.servers import BenchKafka, store_section
from bench.worked_sum import Prices
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Claim
from tandem.backup_avro.chain.json_codec import encode_claim
from tandem.backup_avro.chain.signatures import Signer
from tandem.controller.config.derived_settings import store_of
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key
from tandem.controller.status.checkpoint_view import WantedCheckpoint, draft_request
from tandem.sink.store.chain.checkpoints import CheckpointCache, list_checkpoints, put_request
from tandem.sink.store.contract.object_store import ObjectStore

_TOPICS, _PARTITIONS = 10, 100
_CHECKPOINTS, _CLAIMS = 720, 3000
_PAIR = "idle"
_PATIENCE_S = 600.0
_SETTLE_S = 20.0
"""What COMPLETE brings with it is over by then."""
_DAY_S: Final = 86_400.0


class _Idle(PairProcesses):
    """A pair whose instances reach the store through the proxy; nothing else does."""

    def __init__(self, folder: Path, kafka: BenchKafka, s3: S3Server, proxy: CountingProxy) -> None:
        signers = {instance: Signer.generate() for instance in ("a", "b")}
        keys = {instance: folder / f"{instance}.pem" for instance in signers}
        for instance, signer in signers.items():
            keys[instance].write_bytes(signer.pem())
            keys[instance].chmod(0o600)

        def signing(instance: str) -> dict[str, Any]:
            trusted = [signer.public for signer in signers.values()]
            return {"signing": {"key_file": str(keys[instance]), "trusted": trusted, "require": True}}

        store = store_section(s3, "idle")
        counted = {"store": store | {"endpoint_url": proxy.endpoint_url}}
        super().__init__(
            folder,
            {
                "pair": _PAIR,
                "kafka": {"bootstrap.servers": kafka.bootstrap},
                "topics": {"patterns": ["idle-.*"]},
                "store": store,
            },
            own={"command": signing("a"), "a": counted | signing("a"), "b": counted | signing("b")},
        )
        self._proxy = proxy
        self.store: ObjectStore = store_of(self.config)
        self.others_store: ObjectStore = store_of(self.configure("other"))

    def measure(self, stage: str, seconds: float) -> None:
        """Print what `seconds` cost."""
        before = {name: self.cpu_s(name) for name in self.processes}
        self._proxy.taken()
        time.sleep(seconds)
        requests = self._proxy.taken()
        line = {
            "stage": stage,
            "partitions": _TOPICS * _PARTITIONS,
            "core_share": {name: round((self.cpu_s(name) - before[name]) / seconds, 4) for name in self.processes},
            "memory_mb": {name: round(self.memory_mb(name)) for name in self.processes},
            "requests_a_day": {name: round(n * _DAY_S / seconds) for name, n in sorted(requests.items())},
            "dollars_a_month_for_requests": round(Prices().requests(requests) * 30 * _DAY_S / seconds, 2),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run once."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        for part in ("kafka", "s3"):
            (folder / part).mkdir()
        kafka = BenchKafka(folder / "kafka")
        kafka.start()
        stack.callback(kafka.kill)
        key = S3Key(access_key="bench", secret_key=secrets.token_urlsafe(24))
        s3 = S3Server(folder / "s3", bucket="bench", key=key)
        s3.start()
        stack.callback(s3.kill)
        host, port = s3.address("s3").rsplit(":", 1)
        proxy = CountingProxy((host, int(port)))
        stack.callback(proxy.close)
        _create_topics(kafka.bootstrap)
        _produce(Producer({"bootstrap.servers": kafka.bootstrap}))
        pair = _Idle(folder, kafka, s3, proxy)
        stack.callback(pair.close)
        for instance in ("a", "b"):
            pair.start(instance)
        pair.wait("a complete generation", lambda: pair.complete(1))
        time.sleep(_SETTLE_S)
        pair.measure("idle", seconds)
        _ask_checkpoints(pair)
        _forge_claims(pair)
        time.sleep(_SETTLE_S)
        pair.measure(f"idle, {_CHECKPOINTS} checkpoints, {_CLAIMS} unsigned claims", seconds)
        # A record into each partition every other second.
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        with again_and_again(partial(_produce, producer), every_s=2):
            time.sleep(_SETTLE_S)
            pair.measure(f"busy, {_CHECKPOINTS} checkpoints, {_CLAIMS} unsigned claims", seconds)


def _create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"idle-{n}", num_partitions=_PARTITIONS, replication_factor=1) for n in range(_TOPICS)]
    for future in admin.create_topics(topics).values():
        future.result(60)


def _produce(producer: Producer) -> None:
    """Write a record into each partition."""
    for n in range(_TOPICS):
        for partition in range(_PARTITIONS):
            producer.produce(f"idle-{n}", key=b"key", value=b"value", partition=partition)
        producer.poll(0)
    producer.flush(60)


def _ask_checkpoints(pair: _Idle) -> None:
    wanted = WantedCheckpoint(id=None, lifetime_ms=1000 * round(_PATIENCE_S), keep_ms=None, by="bench", reason="")
    request = draft_request(pair.config, pair.store, wanted)
    for n in range(_CHECKPOINTS):
        put_request(pair.store, replace(request, id=f"bench-{n:04d}", nonce=secrets.token_hex(16)))

    remembered = CheckpointCache()

    def completed() -> bool:
        found = list_checkpoints(pair.store, _PAIR, remembered=remembered).checkpoints
        return sum(item.outcome is not None and item.outcome.completed for item in found) == _CHECKPOINTS

    pair.wait("all checkpoints", completed)


def _forge_claims(pair: _Idle) -> None:
    for number in range(1000, 1000 + _CLAIMS):
        claim = Claim(
            generation=number,
            pair=_PAIR,
            instance="x",
            incarnation="forged",
            cluster_id="forged",
            nonce=secrets.token_hex(8),
            at=0,
            reason="forged",
        )
        pair.others_store.put_if_absent(layout.claim_key(_PAIR, number), encode_claim(claim))


if __name__ == "__main__":
    main()
