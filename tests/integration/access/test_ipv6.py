"""Brokers and a store that have IPv6 addresses and no others."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.backups.witness import consume
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, store_section
from support.pairs.outcomes import UNCLEANED, assert_all_stored, contents, write_mixed
from support.servers.gate import Gate

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6"),
]


def test_a_backup_and_a_restore_over_ipv6(
    tmp_path: Path, make_topic: TopicMaker, s3: S3Server, bucket_root: str, topic_name: str
) -> None:
    """A turn, what the second instance holds, and a restore of it, with all that the commands ask on the way."""
    plain, controller, port = pick_ports(3)
    listeners = f"PLAINTEXT://{LOOPBACK}:{plain},SIX://[::1]:{port}"
    server = KafkaServer(
        tmp_path / "kafka",
        ports={"broker": plain, "controller": controller},
        overrides={
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SIX:PLAINTEXT",
        },
    )
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        topic = make_topic(topic_name, partitions=2, config=UNCLEANED, bootstrap=server.bootstrap)
        write_mixed(server.bootstrap, topic)
        gate = stack.enter_context(Gate(s3.endpoint_url.removeprefix("http://"), host="::1"))
        store = store_section(bucket_root, s3, endpoint_url=gate.endpoint_url)
        pair = stack.enter_context(Pair(tmp_path, bootstrap=f"[::1]:{port}", store=store, topics=[topic], **QUICK))
        for name in "ab":
            pair.start(name, first="a")
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        pair.activate("b", 2)
        pair.wait("generation 1 is cleared", lambda: [state.number for state in pair.live()] == [2])
        log = assert_all_stored(pair, server.bootstrap, [topic])
        checked = pair.tandem("check", "--connections")
        assert checked.returncode == 0, checked.stdout
        done = pair.tandem("restore", "--suffix", ".restored", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert contents(consume(server.bootstrap, [f"{topic}.restored"]).rows) == contents(log.rows)
        assert pair.status()["problems"] == []
