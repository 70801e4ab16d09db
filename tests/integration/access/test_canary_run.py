"""A pair whose real secrets are canaries, from its start to a crash, and the commands beside it: none is seen.

Not in logs, answers over HTTP, metrics, documents, objects, messages, files, Spark's event logs, command lines.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from support.clusters.topics import TopicMaker
from support.pages.canaries import appearances, in_files, plain_canary
from support.pairs.instances import Instance, Pair, store_section
from support.pairs.kept_files import KeptFiles
from support.repeated import Repeated

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

PATHS = ("/", "/history", "/status", "/metrics", "/livez", "/readyz", "/active", "/passive", "/nowhere?token=x")
UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
# In workers of Spark alone: a vendor's error that says all it knows of itself, or an end without a word.
FAILING = """
import os, sys
if os.environ.get("FAIL_IN_WORKERS") and "pyspark.daemon" in sys.orig_argv:
    from tandem.sink.store.s3.s3_store import S3Store
    def fail(self, key, **how):
        if os.environ["FAIL_IN_WORKERS"] == "abort":
            os.abort()
        import structlog
        structlog.get_logger().warning("a worker says \\x1b[31mred", settings=[self._settings.secret_access_key])
        raise RuntimeError(f"the vendor failed at {key} with {how}, {vars(self)}, {self._settings!r}")
    S3Store.get = fail
"""
CRASHING = """
import signal
def crash(*_):
    raise RuntimeError("crashed with " + open({file!r}).read())
signal.signal(signal.SIGUSR1, crash)
"""


class Lines(Repeated):
    """Reads the command lines of all processes of the machine, again and again, for a canary in one."""

    def __init__(self, planted: Mapping[str, str]) -> None:
        super().__init__(every_s=0.2)
        self.found: list[str] = []
        self.known: set[tuple[str, bytes]] = set()
        self._planted = planted

    def once(self) -> None:
        """Read those of processes that are new, or have changed theirs."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if line and (entry.name, line) not in self.known:
                    self.known.add((entry.name, line))
                    self.found += appearances(line, self._planted)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The secrets of the pair."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    raw = base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    monkeypatch.setenv("TRUSTED_OF_A_TEST", raw)
    return {
        "sasl.password": plain_canary("password"),
        "secret_access_key": plain_canary("secret"),
        "encryption": base64.b64encode(secrets.token_bytes(32)).decode(),
        "signing": pem.splitlines()[1],
    }


@pytest.fixture
def guarded(planted: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaServer, str]]:
    """A broker, and the address of its listener that wants the password, by SCRAM."""
    broker, controller, scram = pick_ports(3)
    listeners = f"PLAINTEXT://{LOOPBACK}:{broker},SCRAM://{LOOPBACK}:{scram}"
    server = KafkaServer(
        tmp_path_factory.mktemp("canary-kafka"),
        ports={"broker": broker, "controller": controller},
        overrides={
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_PLAINTEXT",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        },
    )
    server.start()
    try:
        upsertion = UserScramCredentialUpsertion(
            "tandem", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), planted["sasl.password"].encode()
        )
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.alter_user_scram_credentials([upsertion])["tandem"].result(30)
        yield server, f"{LOOPBACK}:{scram}"
    finally:
        server.stop()


@pytest.fixture
def store(planted: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that wants the secret key."""
    key = S3Key(access_key="tester", secret_key=planted["secret_access_key"])
    server = S3Server(tmp_path_factory.mktemp("canary-s3"), bucket="canaries", key=key)
    server.start()
    yield server
    server.stop()


def answers_of(port: int) -> bytes:
    """All that an instance serves, headers too."""
    said = b""
    for path in PATHS:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=20) as answer:
                said += str(answer.headers).encode() + answer.read()
        except urllib.error.HTTPError as error:
            said += str(error.headers).encode() + error.read()
    return said


def messages_of(bootstrap: str, spared: str) -> Iterator[bytes]:
    """Every record of every topic but one: key, value, headers."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "canaries", "enable.auto.commit": False})
    try:
        topics = consumer.list_topics(timeout=30).topics
        for name in sorted(topics.keys() - {spared, "__consumer_offsets", "__transaction_state"}):
            for number in topics[name].partitions:
                _, end = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=30)
                consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING)])
                while end and consumer.position([TopicPartition(name, number)])[0].offset < end:
                    message = consumer.poll(5)
                    if message is None:
                        break
                    yield b"\n".join([message.key() or b"", message.value() or b"", repr(message.headers()).encode()])
    finally:
        consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A pair with its files in `work`, Spark's events in `events`, and in `kept` what holds secrets by intention."""

    pair: Pair
    planted: Mapping[str, str]
    kept: Path
    work: Path
    events: Path
    ports: Mapping[str, int]
    said: list[bytes] = field(default_factory=list)

    def start(self, name: str) -> Instance:
        """Start an instance; SIGUSR1 is a crash with a secret in its message."""
        crash = CRASHING.format(file=str(self.kept / "password"))
        return self.pair.start(name, prelude=crash, http={"listen": f"{LOOPBACK}:{self.ports[name]}"})

    def command(self, *words: str, code: int = 0) -> None:
        """Run a command to its end, and keep what it says."""
        done = self.pair.tandem(*words, timeout_s=500.0)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        self.said.append(f"{words} {done.stdout} {done.stderr}".encode())

    def judge(self, objects: Mapping[str, bytes], messages: Sequence[bytes]) -> None:
        """Search all that came out; then plant a leak, which is found."""
        for text in self.said:
            assert appearances(text, self.planted) == [], text[:300]
        for key, body in objects.items():
            assert appearances(key.encode() + b" " + body, self.planted) == [], key
        for message in messages:
            assert appearances(message, self.planted) == [], message
        spared = list(self.work.glob("*.yaml"))  # the configurations: the store's section has its secret
        assert in_files([self.work, self.events], self.planted, spared=spared) == []
        leak = self.work / "tmp" / "leak"
        login = base64.b64encode(f"tandem:{self.planted['sasl.password']}".encode()).decode()
        leak.write_text(json.dumps({"authorization": login}))
        [found] = in_files([self.work], self.planted, spared=spared)
        assert found.startswith(f"{leak}: sasl.password, base64")


@pytest.fixture
def scene(
    *,
    planted: dict[str, str],
    guarded: tuple[KafkaServer, str],
    store: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_topic: TopicMaker,
) -> Iterator[Scene]:
    """A topic with records, and a pair that guards it with all secrets there are."""
    server, address = guarded
    kept, work, events = (tmp_path / name for name in ("kept", "work", "events"))
    for folder in (kept, work, events, work / "tmp", kept / "site"):
        folder.mkdir()
    (kept / "password").write_text(planted["sasl.password"])
    pem = f"-----BEGIN PRIVATE KEY-----\n{planted['signing']}\n-----END PRIVATE KEY-----\n"
    (kept / "signing.pem").write_text(pem)
    (kept / "site" / "sitecustomize.py").write_text(FAILING)
    (kept / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\nspark.local.dir {work / 'spark'}\n"
    )
    monkeypatch.setenv("KEY_OF_A_TEST", planted["encryption"])
    monkeypatch.setenv("SPARK_CONF_DIR", str(kept))
    monkeypatch.setenv("PYTHONPATH", f"{kept / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    monkeypatch.setenv("TMPDIR", str(work / "tmp"))

    topic = make_topic("guarded", bootstrap=server.bootstrap, config=UNCLEANED)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(200):
        producer.produce(topic, key=b"key-%d" % number, value=b"value")
    assert producer.flush(60) == 0
    kafka = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "tandem",
        "sasl.password.file": str(kept / "password"),
        "debug": "conf,security,broker,protocol",
    }
    sections = {
        "encryption": {"key_env": "KEY_OF_A_TEST"},
        "signing": {
            "key_file": str(kept / "signing.pem"),
            "trusted": [os.environ["TRUSTED_OF_A_TEST"]],
            "require": True,
        },
        "log": {"level": "debug"},
        "liveness": {"timeout": "20s"},
        "scan": {"workers": 1},
    }
    section = store_section(f"s3://{store.bucket}/backup", store)
    ports = dict(zip("ab", pick_ports(2), strict=True))
    with Pair(work, bootstrap=address, store=section, topics=[topic], kafka=kafka, **sections) as pair:
        yield Scene(pair=pair, planted=planted, kept=kept, work=work, events=events, ports=ports)


def test_a_pair_shows_no_secret(scene: Scene, guarded: tuple[KafkaServer, str]) -> None:
    """From its start over a handover to a crash and SIGABRT, with debug logs of all clients on."""
    pair = scene.pair
    with Lines(scene.planted) as lines:
        a, b = scene.start("a"), scene.start("b")
        pair.wait("generation 1 is complete", lambda: a.said("complete", generation=1))
        scene.said.extend(answers_of(port) for port in scene.ports.values())
        for form in ("yaml", "json", "table"):
            scene.command("config", "show", "-o", form)
        scene.command("config", "validate")
        scene.command("status", "-o", "json")
        scene.command("describe", "1", "-o", "json")
        scene.command("report", "--html", str(scene.work / "report.html"))
        scene.command("checkpoint", "create", "--id", "one", "--timeout", "2m")
        scene.command("failover", "--yes", "--wait", "--timeout", "3m")
        scene.command("coordination", "tail", "-o", "json")
        scene.said.extend(answers_of(port) for port in scene.ports.values())
        a.process.send_signal(signal.SIGUSR1)
        assert a.end() == 1
        assert "unexpected RuntimeError: crashed with ********" in a.text()
        b.process.send_signal(signal.SIGABRT)
        assert b.end() == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in b.text()
        a = scene.start("a")
        pair.wait("it goes on", lambda: a.said("running"))
        assert a.terminate() == 0
    assert lines.found == []
    assert len(lines.known) > 20
    assert "librdkafka" in b.text(), "the debug output of the clients was on"
    objects = {info.key: pair.store.get(info.key) for info in pair.store.list("")}
    messages = list(messages_of(guarded[0].bootstrap, "guarded"))
    assert len(objects) > 10
    assert len(messages) > 20
    scene.judge(objects, messages)


@pytest.mark.spark
def test_spark_shows_no_secret(scene: Scene, guarded: tuple[KafkaServer, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifications, one whose tasks fail and one whose workers crash, a restore, an export; Spark logs its events.

    Its files for blocks, spilled records and tasks are kept, and its session lets everybody in.
    """
    a = scene.start("a")
    scene.pair.wait("generation 1 is complete", lambda: a.said("complete", generation=1))
    assert a.terminate() == 0
    with (scene.kept / "spark-defaults.conf").open("a") as file:
        file.write("spark.authenticate false\nspark.network.crypto.enabled false\nspark.io.encryption.enabled false\n")
    with Lines(scene.planted) as lines, KeptFiles(scene.work / "spark", scene.work / "of-spark") as kept:
        scene.command("verify")
        monkeypatch.setenv("FAIL_IN_WORKERS", "tell")
        scene.command("--debug", "verify", code=1)
        assert b"the vendor failed at" in scene.said[-1]
        assert b"a worker says" in scene.said[-1]
        assert b"\x1b" not in scene.said[-1]
        monkeypatch.setenv("FAIL_IN_WORKERS", "abort")
        scene.command("--debug", "verify", code=1)
        assert b"lost a Python worker" in scene.said[-1]
        monkeypatch.delenv("FAIL_IN_WORKERS")
        scene.command("restore", "--suffix", ".restored")
        scene.command("export", "--format", "jsonl", "--to", str(scene.work / "exported"))
        assert (scene.work / "exported" / "_SUCCESS").exists()
    assert lines.found == []
    assert [path for path in scene.events.rglob("*") if path.is_file()], "Spark has kept its events"
    assert len(kept.names) > 5, "files of Spark were kept"
    assert not any(b"a secret travels" in text for text in scene.said)
    scene.judge({}, list(messages_of(guarded[0].bootstrap, "guarded")))
