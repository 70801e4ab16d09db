"""Each way to log in, on a real broker with both Kafka clients: a first backup, a restore, and what a wrong one says.

One broker has a listener for each: TLS with client certificates, SCRAM over TLS, and OAUTHBEARER over TLS with tokens
that it checks by the provider's keys (JWKS).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from support.backups.witness import assert_same, consume, stored
from support.pairs.instances import Pair, store_section
from support.servers.certificates import Authority
from support.servers.token_provider import AUDIENCE, ISSUER, TokenProvider

from tandem.backup_avro.errors import PermanentError, TandemError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.hedged_admin import HedgedAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.groups.target_groups import TargetGroups
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = pytest.mark.integration

SECRET = "swordfish-in-the-sea"
WRONG = "not-the-right-one"
UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
OAUTH = "org.apache.kafka.common.security.oauthbearer"
Props = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """The broker, and what to write under `kafka:` for each of its listeners, right and wrong."""

    server: KafkaServer
    provider: TokenProvider
    logins: Mapping[str, Props]
    wrong: Mapping[str, Props]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with one listener for each way to log in, beside its plain one."""
    folder = tmp_path_factory.mktemp("logins")
    broker, controller, mtls, scram, oauth = pick_ports(5)
    authority, stranger = Authority("Tests"), Authority("Stranger")
    own = authority.issue("broker", address=LOOPBACK)
    (folder / "broker.pem").write_text(own.key + own.certificate)
    ca = folder / "ca.pem"
    ca.write_text(authority.pem)
    listeners = ",".join(
        f"{name}://{LOOPBACK}:{port}"
        for name, port in (("PLAINTEXT", broker), ("MTLS", mtls), ("SCRAM", scram), ("OAUTH", oauth))
    )
    with ExitStack() as stack:
        provider = stack.enter_context(TokenProvider(client_id="tandem", client_secret=SECRET))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv(
            "JDK_JAVA_OPTIONS",
            f"{os.environ.get('JDK_JAVA_OPTIONS', '')} "
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys_url}",
        )
        server = KafkaServer(
            tmp_path_factory.mktemp("logins-kafka"),
            ports={"broker": broker, "controller": controller},
            overrides={
                "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MTLS:SSL,SCRAM:SASL_SSL,OAUTH:SASL_SSL"
                ),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(folder / "broker.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(ca),
                "listener.name.mtls.ssl.client.auth": "required",
                "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.scram.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
                "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
                    f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
                ),
                "sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": ISSUER,
            },
        )
        stack.callback(server.stop)
        server.start()
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        upsertion = UserScramCredentialUpsertion(
            "tandem", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), SECRET.encode()
        )
        admin.alter_user_scram_credentials([upsertion])["tandem"].result(30)

        mine, foreign = authority.issue("tandem", password=SECRET), stranger.issue("tandem")
        (folder / "tandem.crt").write_text(mine.certificate)
        (folder / "tandem.key").write_text(mine.key)
        at_mtls: Props = {
            "bootstrap.servers": f"{LOOPBACK}:{mtls}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
            "ssl.certificate.location": str(folder / "tandem.crt"),
            "ssl.key.location": str(folder / "tandem.key"),
            "ssl.key.password": SECRET,
        }
        at_scram: Props = {
            "bootstrap.servers": f"{LOOPBACK}:{scram}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "tandem",
            "sasl.password": SECRET,
            "ssl.ca.pem": authority.pem,
        }
        at_oauth: Props = {
            "bootstrap.servers": f"{LOOPBACK}:{oauth}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": provider.url,
            "sasl.oauthbearer.client.id": "tandem",
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": "kafka backup",
            "ssl.ca.location": str(ca),
        }
        tls_alone: Props = {
            "bootstrap.servers": f"{LOOPBACK}:{mtls}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
        }
        yield Guarded(
            server=server,
            provider=provider,
            logins={
                "mtls": at_mtls,
                "scram": at_scram,
                "oauth": at_oauth,
                "mtls in text": {
                    **tls_alone,
                    "ssl.certificate.pem": mine.certificate,
                    "ssl.key.pem": mine.key,
                    "ssl.key.password": SECRET,
                },
            },
            wrong={
                "scram": {**at_scram, "sasl.password": WRONG},
                "oauth": {**at_oauth, "sasl.oauthbearer.client.secret": WRONG},
                "msk": {
                    "bootstrap.servers": f"{LOOPBACK}:{oauth}",
                    "aws.msk.iam": True,
                    "aws.msk.region": "eu-central-1",
                    "ssl.ca.location": str(ca),
                },
                "no certificate": tls_alone,
                "a certificate of another authority": {
                    **tls_alone,
                    "ssl.certificate.pem": foreign.certificate,
                    "ssl.key.pem": foreign.key,
                },
            },
        )


@pytest.mark.spark
@pytest.mark.parametrize("login", ["oauth", "mtls", pytest.param("scram", marks=pytest.mark.slow)])
def test_backup_and_restore(
    login: str, guarded: Guarded, s3: S3Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An instance that logs in so completes a generation, and a restore that does so brings it back."""
    props = dict(guarded.logins[login])
    plain = guarded.server.bootstrap
    spark: SparkSession = request.getfixturevalue("spark")
    make_topic: TopicMaker = request.getfixturevalue("make_topic")
    topic_name = make_topic(bootstrap=plain, config=UNCLEANED)
    producer = Producer({"bootstrap.servers": plain, "enable.idempotence": True})
    for number in range(200):
        producer.produce(topic_name, key=b"key-%d" % number, value=b"value")
    assert producer.flush(30) == 0
    log = consume(plain, [topic_name])
    store = store_section(request.getfixturevalue("bucket_root"), s3)
    with Pair(tmp_path, bootstrap=plain, store=store, topics=[topic_name], kafka=props) as pair:
        a = pair.start("a")
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        pair.wait("all is committed", lambda: pair.covered(log.ends))
        assert a.terminate() == 0
        assert SECRET not in a.text()
        assert_same(stored(pair.store, pair.name), log.rows)
        report = restore(
            spark,
            RestoreRequest(
                address=StoreAddress(root=pair.root, settings=pair.store_settings),
                reader=ChainReader(pair.store, pair.name),
                target=TargetCluster(props),
                options=RestoreOptions(naming=TopicNaming(suffix=".restored")),
                now=lambda: round(time.time() * 1000),
            ),
        )
    assert report.mismatches == ()
    restored = consume(plain, [f"{topic_name}.restored"]).rows
    assert [(row.key, row.value) for row in restored] == [(row.key, row.value) for row in log.rows]
    with TargetGroups(props) as groups:
        assert groups.committed("nobody") == {}


def read_ends(props: Props, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Ask for the end of a topic with the fetcher."""
    with RawFetcher(props, read_committed=True) as fetcher:
        return dict(fetcher.end_offsets([(topic, 0)], timeout_s=10))


@pytest.mark.parametrize("login", ["mtls in text", "scram"])
def test_every_client_gets_in(login: str, guarded: Guarded, make_topic: TopicMaker) -> None:
    """With a password, and with a certificate and its locked key given as text."""
    props = guarded.logins[login]
    topic = make_topic(bootstrap=guarded.server.bootstrap)
    assert read_ends(props, topic) == {(topic, 0): (0, 0)}
    for admin in (ClusterAdmin, HedgedAdmin):
        assert [found.name for found in admin(props, timeout_s=10).topics([topic])] == [topic]
    producer = BatchProducer(props, f"logins-{topic}", timeout_s=10)
    try:
        producer.init_transactions()
        assert producer.know(topic) == {0}
    finally:
        producer.discard()
    with TargetGroups(props) as groups:
        assert groups.committed("nobody") == {}


def open_groups(props: Props) -> None:
    """Open the client that changes consumer groups."""
    with TargetGroups(props):
        pass


CLIENTS: Mapping[str, Callable[[Props], object]] = {
    "fetcher": lambda props: read_ends(props, "t"),
    "admin": lambda props: ClusterAdmin(props, timeout_s=6).topics(patterns=["t"]),
    "admin of an instance": lambda props: HedgedAdmin(props, timeout_s=6).topics(patterns=["t"]),
    "producer": lambda props: BatchProducer(props, "logins-wrong", timeout_s=5),
    "groups": open_groups,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("login", ["scram", "oauth", "no certificate", "a certificate of another authority"])
def test_a_wrong_login(login: str, client: str, guarded: Guarded) -> None:
    """Refused, in one line that says what to check, with an exit code of its own, and without the secret."""
    props = guarded.wrong[login]
    with pytest.raises(ClusterAuthenticationError) as raised:
        CLIENTS[client](props)
    error: TandemError = raised.value
    said = str(error)
    assert isinstance(error, PermanentError)
    assert error.exit_code == 1
    assert "\n" not in said
    for secret in (WRONG, SECRET, "not-the-secret", "PRIVATE KEY"):
        assert secret not in said
    word = "certificate" if "certificate" in login else "sasl.password" if login == "scram" else "sasl.oauthbearer"
    assert word in said
    assert client_config.servers_of(props) in said or guarded.provider.url in said


def test_an_instance_that_is_refused_ends(guarded: Guarded, s3: S3Server, bucket_root: str, tmp_path: Path) -> None:
    """A wrong secret ends it with 1 and one error that says what to do; waiting would not help."""
    store = store_section(bucket_root, s3)
    with Pair(tmp_path, bootstrap="", store=store, topics=["t"], kafka=dict(guarded.wrong["oauth"])) as pair:
        a = pair.start("a")
        assert a.end() == 1, a.last_words()
    last = a.ended_with()
    assert "check sasl.oauthbearer." in last["remedy"]
    for secret in (WRONG, SECRET, "not-the-secret"):
        assert secret not in a.text()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_token_of_msk(client: str, guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed tokens reach the broker, which is none of MSK's and refuses them; without credentials none is sent."""
    props = guarded.wrong["msk"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(ClusterAuthenticationError, match=r"sasl\.oauthbearer") as raised:
        CLIENTS[client](props)
    assert SECRET not in str(raised.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(ClusterAuthenticationError, match="No IAM token for MSK in eu-central-1"):
        CLIENTS[client](props)


@pytest.mark.slow  # a token lives for 4 s and is renewed 0.8 s before: beside other tests that is not always in time
def test_tokens_are_renewed(guarded: Guarded, make_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections outlive their tokens: both clients renew them in time, and nobody is thrown out."""
    monkeypatch.setattr(guarded.provider, "lifetime_s", 4)
    props = guarded.logins["oauth"]
    topic = make_topic(bootstrap=guarded.server.bootstrap)
    asked = len(guarded.provider.asked)
    admin = ClusterAdmin(props, timeout_s=10)
    with RawFetcher(props, read_committed=True) as fetcher:
        fetcher.assign((topic, 0), 0)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            for event in fetcher.poll(0.3):
                assert "fault" not in type(event).__name__.lower(), event
            assert admin.topics([topic])
    bodies = guarded.provider.asked[asked:]
    assert len(bodies) >= 4
    assert all(body.startswith("grant_type=client_credentials&scope=kafka") for body in bodies), bodies
