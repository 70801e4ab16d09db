"""The sandbox with its real servers: what clients see, what survives, what `tandem sandbox` says and repairs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from tandem.controller.cli.run.sandbox import app
from tandem.controller.sandbox.errors import ServerFailedError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK
from tandem.controller.sandbox.s3 import REGION, S3Server
from tandem.controller.sandbox.sandbox import Endpoints, Sandbox
from tandem.controller.sandbox.server import ServerState
from tandem.controller.sandbox.sigv4 import S3Key

pytestmark = pytest.mark.integration


def s3_client(endpoint_url: str, access_key: str, secret_key: str) -> Any:
    """Return a boto3 client."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2}),
    )


def client_of(s3: S3Server) -> Any:
    """Return a boto3 client with the server's own key."""
    return s3_client(s3.endpoint_url, s3.key.access_key, s3.key.secret_key)


def status_of(error: ClientError) -> int:
    """Return the HTTP status."""
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def produce(bootstrap: str, topic: str, records: list[tuple[bytes, bytes | None]]) -> None:
    """Write records and wait for the broker's word on each."""
    producer = Producer({"bootstrap.servers": bootstrap, "delivery.timeout.ms": 30_000, "enable.idempotence": True})
    outcomes: list[str] = []
    for key, value in records:
        producer.produce(topic, key=key, value=value, on_delivery=lambda error, _: outcomes.append(str(error)))
    assert producer.flush(30) == 0
    assert outcomes == ["None"] * len(records)


def consume(bootstrap: str, topic: str) -> list[tuple[int | None, bytes | None, bytes | None]]:
    """Return (offset, key, value) of all records of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        records = []
        limit = time.monotonic() + 30
        while consumer.position([partition])[0].offset < end:
            assert time.monotonic() < limit, "the end of the log was not reached"
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None
                records.append((message.offset(), message.key(), message.value()))
        return records
    finally:
        consumer.close()


def test_records_go_in_and_come_out(kafka: KafkaServer, make_topic: Callable[..., str]) -> None:
    """A topic with several partitions, keys, values, empty and null."""
    topic = make_topic(partitions=3)
    records: list[tuple[bytes, bytes | None]] = [(b"k1", b"v1"), (b"k2", b""), (b"k3", None)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(30) == 0
    assert consume(kafka.bootstrap, topic) == [(n, key, value) for n, (key, value) in enumerate(records)]


def test_topics_are_not_made_by_accident(kafka: KafkaServer, topic_name: str) -> None:
    """A missing topic stays missing, so that tests of missing topics mean something."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "delivery.timeout.ms": 2_000})
    delivered: list[bool] = []
    producer.produce(topic_name, b"x", on_delivery=lambda error, _: delivered.append(error is None))
    producer.flush(30)
    assert delivered == [False]
    assert topic_name not in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics


def test_the_cleaner_comes_by(kafka: KafkaServer, make_topic: Callable[..., str]) -> None:
    """Superseded records, and tombstones after their time, really go within seconds on a topic of make_topic."""
    topic = make_topic(delete_retention_ms=1000)
    produce(
        kafka.bootstrap, topic, [(b"k", b"%d" % number) for number in range(10)] + [(b"gone", b"x"), (b"gone", None)]
    )
    limit = time.monotonic() + 150
    number = 0
    while True:
        time.sleep(1.2)  # the segment rolls when a record comes that is a second younger; the active one is not cleaned
        produce(kafka.bootstrap, topic, [(b"tick", b"%d" % number)])
        number += 1
        left = [(key, value) for _, key, value in consume(kafka.bootstrap, topic) if key != b"tick"]
        if left == [(b"k", b"9")]:
            break
        assert time.monotonic() < limit, left


def test_objects_go_in_once(s3: S3Server, bucket_root: str) -> None:
    """What Tandem's safety rests on: a put with If-None-Match does not overwrite, and says 412."""
    client = client_of(s3)
    bucket, _, prefix = bucket_root.removeprefix("s3://").partition("/")
    key = f"{prefix}/claim"
    client.put_object(Bucket=bucket, Key=key, Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=bucket, Key=key, Body=b"second", IfNoneMatch="*")
    assert status_of(raised.value) == 412
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"first"


@pytest.mark.parametrize("wrong", ["secret", "key", "both missing"])
def test_strangers_are_refused(s3: S3Server, wrong: str) -> None:
    """A wrong secret, an unknown key and no signature at all get 403."""
    if wrong == "both missing":
        with socket.create_connection((LOOPBACK, s3.ports["s3"]), timeout=5) as connection:
            connection.sendall(b"GET /%s?list-type=2 HTTP/1.0\r\n\r\n" % s3.bucket.encode())
            assert connection.recv(100).split()[1] == b"403"
        return
    stranger = s3_client(
        s3.endpoint_url,
        s3.key.access_key if wrong == "secret" else "nobody",
        s3.key.secret_key if wrong == "key" else "wrong",
    )
    with pytest.raises(ClientError) as raised:
        stranger.list_objects_v2(Bucket=s3.bucket)
    assert status_of(raised.value) == 403


def test_a_wrong_bucket_is_not_made(s3: S3Server) -> None:
    """A put to a bucket that does not exist fails instead of making it."""
    with pytest.raises(ClientError) as raised:
        client_of(s3).put_object(Bucket="no-such-bucket", Key="x", Body=b"")
    assert status_of(raised.value) == 404


def test_only_loopback_listens(kafka: KafkaServer, s3: S3Server) -> None:
    """No other machine can reach a broker without passwords."""
    ours = set(kafka.ports.values()) | set(s3.ports.values())
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, port = local.rpartition(":")
            if state == "0A" and int(port, 16) in ours:
                listening.add(int(port, 16))
                assert address in {"0100007F", "0000000000000000FFFF00000100007F"}, line
    assert listening == ours


def test_a_broker_comes_back(own_kafka: Callable[..., KafkaServer], make_topic: Callable[..., str]) -> None:
    """Killed, suspended, stopped: the same port, the same cluster, the same records; and nothing answers meanwhile."""
    kafka = own_kafka(overrides={"message.max.bytes": "2000000"})
    topic = make_topic(bootstrap=kafka.bootstrap)
    produce(kafka.bootstrap, topic, [(b"a", b"1")])
    before = (kafka.bootstrap, kafka.cluster_id)

    kafka.kill()
    assert kafka.state is ServerState.DEAD
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0}).list_topics(timeout=1)
    kafka.start()
    assert (kafka.bootstrap, kafka.cluster_id) == before
    produce(kafka.bootstrap, topic, [(b"b", b"2")])

    kafka.suspend()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0}).list_topics(timeout=1)
    time.sleep(4)  # longer than the broker's session
    kafka.resume()
    produce(kafka.bootstrap, topic, [(b"c", b"3")])

    kafka.restart()
    assert [(key, value) for _, key, value in consume(kafka.bootstrap, topic)] == [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"c", b"3"),
    ]
    properties = (kafka.folder / "server.properties").read_text(encoding="utf-8")
    assert "message.max.bytes=2000000" in properties
    assert "Kafka Server started" in kafka.log.read_text(encoding="utf-8")


def test_an_s3_server_comes_back(own_s3: Callable[[], S3Server]) -> None:
    """Killed, suspended, stopped: the same endpoint and every object that was confirmed."""
    s3 = own_s3()
    endpoint, client = s3.endpoint_url, client_of(s3)
    big = os.urandom(9_000_000)  # more than one chunk of the filer
    client.put_object(Bucket=s3.bucket, Key="a/big", Body=big)
    s3.kill()
    with pytest.raises(EndpointConnectionError):
        client.head_object(Bucket=s3.bucket, Key="a/big")
    s3.start()
    assert client.get_object(Bucket=s3.bucket, Key="a/big")["Body"].read() == big
    client.put_object(Bucket=s3.bucket, Key="a/after", Body=b"x", IfNoneMatch="*")

    s3.suspend()
    assert s3.state is ServerState.SUSPENDED
    s3.resume()
    s3.restart()
    assert s3.endpoint_url == endpoint
    listed = client.list_objects_v2(Bucket=s3.bucket)["Contents"]
    assert [(one["Key"], one["Size"]) for one in listed] == [("a/after", 1), ("a/big", len(big))]
    s3.stop()
    assert not [path for port in s3.ports.values() for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]


def tandem_sandbox(command: str, folder: Path, *more: str) -> Result:
    """Run `tandem sandbox` as the command line does."""
    return CliRunner().invoke(app, [command, "--dir", str(folder), *more])


def pids(folder: Path) -> dict[str, int]:
    """Return the processes that the sandbox remembers."""
    state = json.loads((folder / "sandbox.json").read_text(encoding="utf-8"))
    return {name: state[name]["process"]["pid"] for name in ("kafka", "s3") if state[name]["process"]}


def states_of(folder: Path) -> dict[str, str]:
    """Return what `tandem sandbox status` says of each server; its exit code must agree.

    A server that did not answer within two seconds is asked again for a while: the machine may be busy.
    """
    deadline = time.monotonic() + 30
    while True:
        asked = tandem_sandbox("status", folder, "-o", "json")
        states = {server["name"]: server["state"] for server in json.loads(asked.stdout)["servers"]}
        assert asked.exit_code == (0 if set(states.values()) == {"running"} else 3)
        if "silent" not in states.values() or time.monotonic() > deadline:
            return states


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder, with a blank in its name, whose sandbox is down after the test."""
    folder = tmp_path / "my sandbox"
    yield folder
    Sandbox(folder).down()


def test_the_life_of_a_sandbox(folder: Path, make_topic: Callable[..., str]) -> None:
    """Up, up again, a server killed, seen, repaired, down, down again, and up with all data and the same ports."""
    first = tandem_sandbox("up", folder)
    assert first.exit_code == 0, first.output
    started = pids(folder)
    exports = dict(re.findall(r"^export (\w+)=(\S+)$", first.stdout, re.MULTILINE))
    bootstrap = re.search(r"bootstrap\.servers: (\S+)", first.stdout)
    assert bootstrap is not None
    topic = make_topic(bootstrap=bootstrap[1])
    produce(bootstrap[1], topic, [(b"k", b"v")])
    client = s3_client(exports["AWS_ENDPOINT_URL"], exports["AWS_ACCESS_KEY_ID"], exports["AWS_SECRET_ACCESS_KEY"])
    client.put_object(Bucket="tandem", Key="k", Body=b"v")
    assert (folder / "sandbox.json").stat().st_mode & 0o077 == 0
    assert (folder / "s3" / "identities.json").stat().st_mode & 0o077 == 0

    again = tandem_sandbox("up", folder)
    assert again.stdout == first.stdout
    assert again.stderr.count("runs already") == 2
    assert pids(folder) == started
    assert states_of(folder) == {"kafka": "running", "s3": "running"}

    for name in ("kafka", "s3"):
        os.kill(pids(folder)[name], signal.SIGKILL)
        assert states_of(folder) == {"kafka": "running", "s3": "running"} | {name: "dead"}
        repaired = tandem_sandbox("up", folder)
        assert repaired.exit_code == 0
        assert repaired.stdout == first.stdout
        assert "is dead; repairing" in repaired.stderr
        assert pids(folder)[name] != started[name]

    os.kill(pids(folder)["s3"], signal.SIGSTOP)
    assert states_of(folder)["kafka"] == "running"
    assert states_of(folder)["s3"] in {"suspended", "silent"}
    assert tandem_sandbox("up", folder).stdout == first.stdout
    assert states_of(folder) == {"kafka": "running", "s3": "running"}

    running = pids(folder)
    assert tandem_sandbox("down", folder).exit_code == 0
    assert pids(folder) == {}
    assert [_command(pid) for pid in running.values()] == ["", ""]
    assert states_of(folder) == {"kafka": "stopped", "s3": "stopped"}
    assert tandem_sandbox("down", folder).exit_code == 0

    assert tandem_sandbox("up", folder).stdout == first.stdout
    assert consume(bootstrap[1], topic) == [(0, b"k", b"v")]
    assert client.get_object(Bucket="tandem", Key="k")["Body"].read() == b"v"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.slow
def test_two_sandboxes_and_a_lost_port(tmp_path: Path, make_topic: Callable[..., str]) -> None:
    """Two run side by side and know nothing of each other; one whose ports somebody took moves with its data."""
    with Sandbox(tmp_path / "one", attached=True) as one, Sandbox(tmp_path / "two", attached=True) as two:
        endpoints = {sandbox: sandbox.up() for sandbox in (one, two)}
        topics = {sandbox: make_topic(bootstrap=endpoints[sandbox].bootstrap_servers) for sandbox in (one, two)}
        for sandbox in (one, two):
            _client(endpoints[sandbox]).put_object(Bucket="tandem", Key=topics[sandbox], Body=b"mine")
            produce(endpoints[sandbox].bootstrap_servers, topics[sandbox], [(b"k", b"mine")])
        for sandbox in (one, two):
            listed = _client(endpoints[sandbox]).list_objects_v2(Bucket="tandem")["Contents"]
            assert [object_["Key"] for object_ in listed] == [topics[sandbox]]
        with pytest.raises(ClientError):  # the key of one is not that of the other
            s3_client(endpoints[one].s3_endpoint_url, "sandbox", endpoints[two].secret_key).list_buckets()

        one.down()
        taken = [int(endpoints[one].bootstrap_servers.rpartition(":")[2]), int(endpoints[one].s3_endpoint_url[-5:])]
        squatters = [socket.create_server((LOOPBACK, port)) for port in taken]
        try:
            moved = one.up()
        finally:
            for squatter in squatters:
                squatter.close()
        assert moved.bootstrap_servers != endpoints[one].bootstrap_servers
        assert moved.s3_endpoint_url != endpoints[one].s3_endpoint_url
        assert consume(moved.bootstrap_servers, topics[one]) == [(0, b"k", b"mine")]
        assert _client(moved).get_object(Bucket="tandem", Key=topics[one])["Body"].read() == b"mine"
        _client(moved).put_object(Bucket="tandem", Key="after the move", Body=b"x")


def _client(endpoints: Endpoints) -> Any:
    return s3_client(endpoints.s3_endpoint_url, endpoints.access_key, endpoints.secret_key)


def test_two_ups_at_once(folder: Path) -> None:
    """Two people, or two scripts, start the same sandbox: one does, the other waits, both get the same answer."""
    command = [
        sys.executable,
        "-c",
        "from tandem.controller.cli.main import main; main()",
        "sandbox",
        "up",
        "--dir",
        str(folder),
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert "waiting for it" in answers[0][1] + answers[1][1]
    assert Sandbox(folder).status().running


def test_a_setting_that_the_broker_refuses(tmp_path: Path) -> None:
    """The broker's own reason is in the message, and nothing is left running."""
    kafka = KafkaServer(tmp_path / "kafka", overrides={"log.cleaner.threads": "no number"})
    with pytest.raises(ServerFailedError, match=r"log\.cleaner\.threads"):
        kafka.start()
    assert not kafka.running


def test_a_bucket_name_that_is_none(tmp_path: Path) -> None:
    """The server's refusal is an error at once, not a wait for nothing."""
    s3 = S3Server(tmp_path / "s3", bucket="b", key=S3Key(access_key="a", secret_key="b"))
    with pytest.raises(ServerFailedError, match="refuses to make the bucket 'b'"):
        s3.start()
    assert not s3.running
