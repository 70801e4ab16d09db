"""Every role with a credential of its own, on servers that refuse what nobody allowed.

First all of its work is done, by real instances and commands. Then each action of the table in docs/roles.md is tried
with each credential, and what a role may not is refused. `make roles` writes the tables from what the servers did.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from botocore.exceptions import ClientError
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPlaces
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from support.clusters.role_clients import client_of
from support.clusters.strict_servers import StrictBroker, StrictS3, bindings, start_broker
from support.pages import role_actions as rows
from support.pages.role_actions import CREDENTIALS, GROUP, GUARDED, KAFKA_ACTIONS, MATCHED, S3_ACTIONS, KafkaAction
from support.pairs.instances import Pair, merge

from tandem.controller.cli.main import run
from tandem.controller.roles.kafka import Acl, AclResource, acls
from tandem.controller.roles.role import CredentialRole
from tandem.controller.roles.s3 import BucketPlace, bucket_policy, place_of, policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CLEANED_OFTEN = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
REFUSED = ("AccessDenied", "not allowed", "AUTHORIZATION", "uthorization failed", "denied")
DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One pair on strict servers, and for each role what its configuration has under `kafka:` and `store:`."""

    broker: StrictBroker
    s3: StrictS3
    pair: Pair
    place: BucketPlace
    sections: dict[str, dict[str, Any]]
    folder: Path

    def tandem(self, name: str, *arguments: str) -> int:
        """Run a command in this process as a role; return its exit code."""
        settings = json.loads(json.dumps(self.pair.settings))
        settings.pop("log")
        merge(settings, self.sections[name])
        config = self.folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return run(["-c", str(config), *arguments])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The servers, the pair and the credentials of one module."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("roles")
        broker = start_broker(stack, tmp_path_factory.mktemp)
        pair = Pair(
            folder,
            bootstrap=broker.server.bootstrap,
            store={"root": rows.ROOT},
            topics={"include": [GUARDED], "patterns": [rows.EXPRESSION]},
            coordination={"topic": rows.COORDINATION},
        )
        pair.name = pair.settings["pair"] = rows.PAIR
        stack.enter_context(pair)
        place = place_of(rows.ROOT, pair=pair.name, instances=("a", "b"))
        s3 = StrictS3(
            tmp_path_factory.mktemp("strict-s3"),
            {name: policy(place, role, instance=instance) for name, (role, instance) in CREDENTIALS.items()},
        )
        stack.callback(s3.stop)
        s3.start()
        pair.settings["store"] = s3.section(rows.ROOT, s3.key)
        sections = {
            name: {
                "kafka": broker.admit(name, acls(rows.scope_for(role), role)),
                "store": s3.section(rows.ROOT, s3.keys[name]),
            }
            for name, (role, _) in CREDENTIALS.items()
        }
        yield World(broker=broker, s3=s3, pair=pair, place=place, sections=sections, folder=folder)


def write(bootstrap: str, topic: str, numbers: range) -> None:
    """Write records and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, partition=number % 2, key=b"key-%d" % (number % 50), value=b"value-%d" % number)
    assert producer.flush(30) == 0


def commit(bootstrap: str) -> None:
    """Have a group that stands somewhere."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(GUARDED, 0, 20)], asynchronous=False)
    consumer.close()


def test_every_role_does_its_work(
    world: World, make_topic: TopicMaker, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """First catch-up, handover with Spark's help, clearing, and all commands; nobody is refused anything."""
    assert spark is not None
    pair, plain = world.pair, world.broker.server.bootstrap
    for name, config in ((GUARDED, CLEANED_OFTEN), (MATCHED, UNCLEANED)):
        make_topic(name, partitions=2, config=config, bootstrap=plain)
        write(plain, name, range(200))
    commit(plain)

    def did(name: str, *arguments: str, code: int = 0) -> str:
        got = world.tandem(name, *arguments)
        captured = capsys.readouterr()
        assert got == code, f"{name}: {arguments}\n{captured.out}\n{captured.err}"
        for word in REFUSED:
            assert word not in captured.err, f"{name}: {arguments}\n{captured.err}"
        return captured.out

    a = pair.start("a", **world.sections["writer-a"])
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    for _ in range(3):
        write(plain, GUARDED, range(200))
    b = pair.start("b", **world.sections["writer-b"], scan={"by": "spark", "patience": "5m"})
    pair.wait("b is there", lambda: b.said("running"))
    did("operator", "failover", "--to", "b", "--yes", "--no-wait")
    did("catch-up", "catch-up", "--wait", "60s", "--range", "1000")
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    assert a.said("compared keys before clearing", generation=1, not_comparable=0)
    write(plain, GUARDED, range(200, 300))

    did("viewer", "wait", "--for", "steady", "--timeout", "60s")
    assert json.loads(did("viewer", "status", "-o", "json"))["problems"] == []
    for words in (
        "history",
        "describe 2",
        "describe customers",
        "check",
        "keys",
        "coordination tail",
        "report --html -",
    ):
        did("viewer", *words.split())
    for words in ("status --s3-only", "history"):
        did("viewer", *words.split())
    did("operator", "pause", "--for", "1h")
    did("operator", "resume")
    did("operator", "checkpoint", "create", "--id", "cut", "--timeout", "60s")
    did("operator", "checkpoint", "list")
    for words in ("verify", "verify --against-topic", "verify --expect-head-from-topic"):
        did("verify", *words.split())
    did("reader", "records", "--topic", GUARDED, "--key", "key-7")
    did("reader", "export", "--format", "jsonl", "--to", str(world.folder / "exported"), "--topics", GUARDED)
    restored = json.loads(did("restore", "restore", "--topics", GUARDED, "--suffix", ".restored", "-o", "json"))
    groups = ("restore", "groups", "--restore", restored["id"])
    did("restore-groups", *groups)
    did("restore-groups", *groups, "--execute")
    did("restore-groups", *groups, "--rollback")
    assert json.loads(did("drill", "drill", "--topics", GUARDED, "-o", "json"))["left"] == {}
    did("operator", "checkpoint", "delete", "cut", "--yes")
    did("janitor", "retention", "--execute")
    did("janitor", "retention", "--horizon", "0s", "--execute")

    world.broker.admin.delete_topics([MATCHED])[MATCHED].result(30)
    did("operator", "release", MATCHED, "--yes")
    did("operator", "restore", "adopt", f"{GUARDED}.restored")
    assert (a.terminate(), b.terminate()) == (0, 0)
    for one in (a, b):
        for word in REFUSED:
            assert word not in one.text(), one.text()


# --- what the store refuses -------------------------------------------------------------------------------------------


def there(admin: Any, key: str) -> None:
    """Have an object under a key."""
    admin.put_object(Bucket=rows.BUCKET, Key=key, Body=b"x")


def delete(client: Any, admin: Any, key: str) -> None:
    """Delete an object, in a batch and by itself. Raises ClientError."""
    admin.put_object(Bucket=rows.BUCKET, Key=key, Body=b"x")
    with suppress(ClientError):  # in a batch a key's refusal is not the request's
        client.delete_objects(Bucket=rows.BUCKET, Delete={"Objects": [{"Key": key}]})
    gone = "Contents" not in admin.list_objects_v2(Bucket=rows.BUCKET, Prefix=key)
    there(admin, key)
    client.delete_object(Bucket=rows.BUCKET, Key=key)
    assert gone, "by itself it is allowed, in a batch it is not"


def end_upload(client: Any, admin: Any, key: str) -> None:
    """End somebody's upload. Raises ClientError."""
    upload = admin.create_multipart_upload(Bucket=rows.BUCKET, Key=key)["UploadId"]
    client.abort_multipart_upload(Bucket=rows.BUCKET, Key=key, UploadId=upload)


def read(client: Any, admin: Any, key: str) -> None:
    """Read an object, and what is not there. Raises ClientError."""
    there(admin, key)
    client.get_object(Bucket=rows.BUCKET, Key=key)
    with pytest.raises(ClientError) as caught:
        client.get_object(Bucket=rows.BUCKET, Key=f"{key}-missing")
    assert caught.value.response["Error"]["Code"] == "NoSuchKey"


def read_lifecycle(client: Any, *_: object) -> None:
    """Ask for the lifecycle rules; that there are none is said with an error. Raises ClientError."""
    try:
        client.get_bucket_lifecycle_configuration(Bucket=rows.BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchLifecycleConfiguration":
            raise


OPEN = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{rows.BUCKET}/*"}
EXPIRE = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": "z/"}, "Expiration": {"Days": 9}}
REQUESTS: Mapping[str, Callable[[Any, Any, str], object]] = {
    "GetObject": read,
    "PutObject": lambda client, _, key: client.put_object(
        Bucket=rows.BUCKET, Key=f"{key}-{secrets.token_hex(4)}", Body=b"x", IfNoneMatch="*"
    ),
    "PutObjectAcl": lambda client, _, key: client.put_object_acl(Bucket=rows.BUCKET, Key=key, ACL="public-read"),
    "DeleteObject": lambda client, admin, key: delete(client, admin, f"{key}-victim"),
    "ListBucket": lambda client, _, prefix: client.list_objects_v2(Bucket=rows.BUCKET, Prefix=prefix),
    "ListBucketVersions": lambda client, _, prefix: client.list_object_versions(Bucket=rows.BUCKET, Prefix=prefix),
    "ListBucketMultipartUploads": lambda client, *_: client.list_multipart_uploads(
        Bucket=rows.BUCKET, Prefix=f"{rows.PREFIX}/{rows.PAIR}/a/"
    ),
    "AbortMultipartUpload": end_upload,
    "GetBucketVersioning": lambda client, *_: client.get_bucket_versioning(Bucket=rows.BUCKET),
    "PutBucketVersioning": lambda client, *_: client.put_bucket_versioning(
        Bucket=rows.BUCKET, VersioningConfiguration={"Status": "Suspended"}
    ),
    "GetLifecycleConfiguration": read_lifecycle,
    "PutLifecycleConfiguration": lambda client, *_: client.put_bucket_lifecycle_configuration(
        Bucket=rows.BUCKET, LifecycleConfiguration={"Rules": [EXPIRE]}
    ),
    "PutBucketPolicy": lambda client, *_: client.put_bucket_policy(
        Bucket=rows.BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [OPEN]})
    ),
    "DeleteBucket": lambda client, *_: client.delete_bucket(Bucket=rows.BUCKET),
    "CreateBucket": lambda client, *_: client.create_bucket(Bucket="one-more"),
}


def test_s3_refuses_what_a_role_may_not(world: World) -> None:
    """Every row of the table with every key."""
    admin = client_of(world.s3, world.s3.key)
    clients = {name: client_of(world.s3, key) for name, key in world.s3.keys.items()}
    found = []
    for row in S3_ACTIONS:
        who = set()
        for name, client in clients.items():
            try:
                REQUESTS[row.action](client, admin, row.key or "")
            except ClientError as error:
                if error.response["Error"]["Code"] != "AccessDenied":
                    raise
            else:
                who.add(name)
        found.append(frozenset(who))
    rows.keep("s3", rows.s3_table(found))
    assert dict(zip([row.name for row in S3_ACTIONS], found, strict=True)) == {
        row.name: row.allowed | row.besides for row in S3_ACTIONS
    }


def test_what_a_writer_deletes_comes_back(tmp_path: Path) -> None:
    """With versions a delete hides, and no writer removes a version or the marker; the bucket keeps its own chains."""
    place = place_of(rows.ROOT, pair=rows.PAIR, instances=("a", "b"))
    server = StrictS3(tmp_path, {"writer-a": policy(place, CredentialRole.WRITER, instance="a")})
    server.start()
    try:
        admin, writer = client_of(server, server.key), client_of(server, server.keys["writer-a"])
        at = {"Bucket": rows.BUCKET, "Key": f"{rows.PREFIX}/{rows.PAIR}/a/generation=00000001/topics/t"}
        admin.put_bucket_versioning(Bucket=rows.BUCKET, VersioningConfiguration={"Status": "Enabled"})
        version = writer.put_object(**at, Body=b"x", IfNoneMatch="*")["VersionId"]
        writer.delete_object(**at)
        with pytest.raises(ClientError, match="NoSuchKey"):
            writer.get_object(**at)
        [marker] = admin.list_object_versions(Bucket=rows.BUCKET, Prefix=at["Key"])["DeleteMarkers"]
        for one in (version, marker["VersionId"]):
            with pytest.raises(ClientError, match="AccessDenied"):
                writer.delete_object(**at, VersionId=one)
            batch = {"Objects": [{"Key": at["Key"], "VersionId": one}]}
            [error] = writer.delete_objects(Bucket=rows.BUCKET, Delete=batch)["Errors"]
            assert error["Code"] == "AccessDenied"
        admin.delete_object(**at, VersionId=marker["VersionId"])
        assert writer.get_object(**at)["Body"].read() == b"x"

        chains = {**bucket_policy(place), "Statement": bucket_policy(place)["Statement"][1:]}
        admin.put_bucket_policy(Bucket=rows.BUCKET, Policy=json.dumps(chains))
        entry = {"Bucket": rows.BUCKET, "Key": f"{rows.PREFIX}/{rows.PAIR}/generations/00000001.json"}
        there(admin, entry["Key"])
        with pytest.raises(ClientError, match="AccessDenied"):
            admin.delete_object(**entry)
    finally:
        server.stop()


# --- what Kafka refuses -----------------------------------------------------------------------------------------------


def topics_there(broker: StrictBroker, *names: str) -> None:
    """Have these topics, with a record in each."""
    known = broker.admin.list_topics(timeout=30).topics
    wanted = [NewTopic(name, 1, 1) for name in names if name not in known]
    if wanted:
        for future in broker.admin.create_topics(wanted, operation_timeout=30).values():
            future.result(30)
    producer = Producer({"bootstrap.servers": broker.server.bootstrap})
    for name in names:
        producer.produce(name, partition=0, key=b"k", value=b"v")
    assert producer.flush(30) == 0


def fetch(login: Mapping[str, Any], admin: AdminClient, topic: str) -> None:
    """Read a record. Raises KafkaException."""
    see(admin, topic)  # a consumer waits for ever for a topic that it may not see
    consumer = Consumer({**login, "group.id": f"tandem-coordination-{secrets.token_hex(4)}", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        for _ in range(100):
            message = consumer.poll(0.2)
            error = None if message is None else message.error()
            if message is not None and error is None:
                return
            if error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
        raise AssertionError(f"nothing came of {topic}")
    finally:
        consumer.close()


def produce(login: Mapping[str, Any], topic: str) -> None:
    """Write a record. Raises KafkaException."""
    failed: list[KafkaError] = []
    producer = Producer({**login, "log_level": 0, "message.timeout.ms": 20_000})
    producer.produce(topic, partition=0, key=b"k", value=b"v", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(30) == 0
    if failed[0] is not None:
        raise KafkaException(failed[0])


def begin_transactions(login: Mapping[str, Any], transactional_id: str) -> None:
    """Open a transactional id. Raises KafkaException."""
    Producer({**login, "log_level": 0, "transactional.id": transactional_id}).init_transactions(20)


def only(futures: Mapping[Any, Any]) -> Any:
    """Return the one result. Raises KafkaException."""
    [future] = futures.values()
    return future.result(30)


def configured(kind: Any, name: str, key: str, value: str) -> list[Any]:
    """Return a change of one key."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    return [ConfigResource(kind, name, incremental_configs=[entry])]


def create(admin: AdminClient, topic: str) -> None:
    """Ask whether a topic would be created. Raises KafkaException."""
    try:
        only(admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def delete_records(admin: AdminClient, topic: str) -> None:
    """Delete no record. Raises KafkaException, but not where the topic's policy forbids what the role may do."""
    try:
        only(admin.delete_records([TopicPartition(topic, 0, 0)]))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise


def see(admin: AdminClient, topic: str) -> None:
    """Ask where a topic's partitions are. Raises KafkaException."""
    listed = admin.list_topics(topic, timeout=30).topics[topic]
    if listed.error is not None:
        raise KafkaException(listed.error)


def ask_topic(login: Mapping[str, Any], admin: AdminClient, operation: str, topic: str, name: str) -> None:
    """Do with a topic what an operation of ACLs stands for. Raises KafkaException."""
    change = configured(ResourceType.TOPIC, topic, "segment.ms", "86400000")
    removal: Callable[[], object] = lambda: only(admin.delete_topics([topic]))  # noqa: E731 - one of several
    if "records" in name:
        see(admin, topic)  # where it can't be seen, the client finds no leader to ask
        removal = lambda: delete_records(admin, topic)  # noqa: E731 - as above
    requests: dict[str, Callable[[], object]] = {
        "Describe": lambda: see(admin, topic),
        "Read": lambda: fetch(login, admin, topic),
        "Write": lambda: produce(login, topic),
        "DescribeConfigs": lambda: only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])),
        "AlterConfigs": lambda: only(admin.incremental_alter_configs(change)),
        "Alter": lambda: only(admin.create_partitions([NewPartitions(topic, 9)], validate_only=True)),
        "Delete": removal,
        "Create": lambda: create(admin, topic),
    }
    requests[operation]()


def ask_group(admin: AdminClient, operation: str) -> None:
    """Do with the group what an operation stands for. Raises KafkaException."""
    match operation:
        case "Describe":
            found = only(admin.list_consumer_group_offsets([GroupPlaces(GROUP)]))
        case "Read":
            places = [TopicPartition(rows.TARGET, 0, 1)]
            found = only(admin.alter_consumer_group_offsets([GroupPlaces(GROUP, places)]))
        case "Delete":
            only(admin.delete_consumer_groups([GROUP]))
            return
        case other:
            raise AssertionError(other)
    for place in found.topic_partitions:
        if place.error is not None:
            raise KafkaException(place.error)


def ask_cluster(admin: AdminClient, operation: str) -> None:
    """Do with the cluster what an operation stands for. Raises KafkaException."""
    match operation:
        case "DescribeConfigs":
            only(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
        case "Alter":
            mine = Acl(resource=AclResource.TOPIC, name=rows.OTHER, operations=("Read",))
            only(admin.create_acls(list(bindings(mine, "nobody"))))
        case "AlterConfigs":
            only(admin.incremental_alter_configs(configured(ResourceType.BROKER, "1", "background.threads", "5")))
        case other:
            raise AssertionError(other)


def test_kafka_refuses_what_a_role_may_not(world: World) -> None:
    """Every row of the table with every principal."""
    broker = world.broker
    names = (GUARDED, MATCHED, rows.COORDINATION, rows.TARGET, rows.SCRATCH, rows.PROGRESS, rows.OTHER)
    topics_there(broker, *names)
    clients = {name: AdminClient({**one["kafka"], "log_level": 0}) for name, one in world.sections.items()}

    def allowed(row: KafkaAction, name: str) -> bool:
        resource, what, operation = row.needs[0]
        login, admin = world.sections[name]["kafka"], clients[name]
        try:
            if resource is AclResource.TOPIC:
                if operation == "Delete":
                    topics_there(broker, *names)
                ask_topic(login, admin, operation, what, row.name)
            elif resource is AclResource.GROUP:
                commit(broker.server.bootstrap)
                ask_group(admin, operation)
            elif resource is AclResource.TRANSACTIONAL_ID:
                begin_transactions(login, what)
            else:
                ask_cluster(admin, operation)
        except KafkaException as error:
            if error.args[0].code() not in DENIED:
                raise
            return False
        return True

    found = []
    for row in KAFKA_ACTIONS:
        # A group or topic that one principal deletes has to be there again for the next one.
        alone = row.needs[0][0] is AclResource.GROUP or row.needs[0][2] == "Delete"
        with ThreadPoolExecutor(1 if alone else len(clients)) as pool:
            may = pool.map(partial(allowed, row), clients)
            found.append(frozenset(name for name, yes in zip(clients, may, strict=True) if yes))
        if row.needs[0][2] == "Delete":
            topics_there(broker, *names)
    rows.keep("kafka", rows.kafka_table(found))
    assert dict(zip([row.name for row in KAFKA_ACTIONS], found, strict=True)) == {
        row.name: row.allowed for row in KAFKA_ACTIONS
    }
