"""A broker (SASL_SSL with SCRAM for pods, plain for the tests) and an S3 server on the control plane's address.

`python -m kube.servers FOLDER`, in the network namespace of the control plane; runs until SIGTERM. From SIGUSR1 to
SIGUSR2 the S3 server stands still: connections stay, and nothing answers.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its names are public, but not marked for re-export
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kube.scene import ADDRESS, BUCKET, KEY, PASSWORD, USER
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server

_S3_PORTS = {
    "s3": 8333,
    "s3.grpc": 18333,
    "filer": 8888,
    "filer.grpc": 18888,
    "master": 9333,
    "master.grpc": 19333,
    "volume": 8080,
    "volume.grpc": 18080,
}


class _OpenS3(S3Server):
    """Listens on all addresses of the namespace, not on loopback alone."""

    def _command(self) -> list[str]:
        return [word.replace("-ip.bind=127.0.0.1", "-ip.bind=0.0.0.0") for word in super()._command()]


def _listeners(cache: Path) -> dict[str, str]:
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    inner = "PLAINTEXT://127.0.0.1:29092"
    return {
        "listeners": f"{inner},CONTROLLER://127.0.0.1:29093,TESTS://{ADDRESS}:9092,PODS://{ADDRESS}:9093",
        "advertised.listeners": f"{inner},TESTS://{ADDRESS}:9092,PODS://kafka.infra:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TESTS:PLAINTEXT,PODS:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.pods.scram-sha-512.sasl.jaas.config": jaas,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(cache / "pki" / "broker.pem"),
    }


def main(cache: Path) -> None:
    folder = cache / "servers"
    for name in ("kafka", "s3"):
        (folder / name).mkdir(exist_ok=True)
    s3 = _OpenS3(folder / "s3", bucket=BUCKET, key=KEY, ports=_S3_PORTS)
    ports = {"broker": 29092, "controller": 29093}
    kafka = KafkaServer(folder / "kafka", overrides=_listeners(cache), ports=ports)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    s3.start()
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, secret, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result()
        signal.signal(signal.SIGUSR1, lambda *_: s3.suspend())
        signal.signal(signal.SIGUSR2, lambda *_: s3.resume())
        (folder / "ready").write_text(str(os.getpid()))
        while True:
            signal.pause()
    finally:
        kafka.stop()
        s3.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
