"""The commands that look at a pair and hand it over, on two real instances, a real broker and a real S3 server."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.pages import documents
from support.pairs.cli_shell import Shell
from support.pairs.instances import store_settings

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.coordination_message import (
    CoordinationEvent,
    CoordinationMessage,
    encode,
    message_key,
)
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import REGION, S3Server
from tandem.sink.store import open_store

pytestmark = pytest.mark.integration

_MAIN = "from tandem.controller.cli.main import main; main()"
# A busy machine's broker may take longer for an answer than a person would wait.
_PATIENT = "from tandem.controller.coordination import topic_reader; topic_reader.ANSWER_S = 15.0"
_NOBODY = "127.0.0.1:1"
_LIVENESS_S = 6
RECORDS = 3000


@dataclass(slots=True)
class Pair:
    """A pair with its own topic, coordination topic and prefix; instances are processes."""

    name: str
    config: Path
    topic: str
    coordination: str
    bootstrap: str
    environ: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    shell: Shell | None = None

    def run(self, instance: str) -> None:
        """Start an instance; its log goes beside the configuration."""
        with (self.config.parent / f"{instance}.log").open("ab") as log:
            self.processes[instance] = subprocess.Popen(
                [sys.executable, "-c", _MAIN, "run", "-c", str(self.config)],
                env={**self.environ, "TANDEM_INSTANCE": instance},
                stderr=log,
                stdout=log,
            )

    def stop(self, instance: str, number: int = signal.SIGTERM) -> None:
        """End an instance and wait for it."""
        process = self.processes.pop(instance)
        process.send_signal(number)
        process.wait(60)

    def tandem(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. What it prints for scripts is as its schema says."""
        main = _MAIN if any(_NOBODY in word for word in arguments) else f"{_PATIENT}; {_MAIN}"
        done = subprocess.run(
            [sys.executable, "-c", main, *arguments],
            env=self._environ(),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        documents.check_output(arguments, done.stdout)
        return done

    def status(self) -> dict[str, Any]:
        """The status document, however healthy; all looks at it are taken by one process."""
        if self.shell is None:
            self.shell = Shell(self.config.parent, self._environ(), prelude=_PATIENT)
        arguments = ["status", "-o", "json"]
        done = self.shell.run(arguments)
        documents.check_output(arguments, done.out)
        found: dict[str, Any] = json.loads(done.out)
        return found

    def _environ(self) -> dict[str, str]:
        return {**self.environ, "TANDEM_CONFIG": str(self.config)}

    def wait_until(self, what: str, holds: Callable[[dict[str, Any]], bool], timeout_s: float = 120) -> dict[str, Any]:
        """Ask for the status until it holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.status()
            if holds(found):
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s} s: {what}; {json.dumps(found, indent=1)}")
            time.sleep(0.5)

    def send(self, key: bytes | None, value: bytes | None) -> None:
        """Write to the coordination topic."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        producer.produce(self.coordination, key=key, value=value)
        assert producer.flush(30) == 0


@pytest.fixture
def pair(kafka: KafkaServer, s3: S3Server, tmp_path: Path) -> Iterator[Pair]:
    """A pair over a topic with records; no instance runs yet. All are stopped at the end."""
    yield from made(kafka, s3, tmp_path)


@pytest.fixture(scope="module")
def running(kafka: KafkaServer, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair that several tests share: both instances run, and its first backup is complete."""
    for pair in made(kafka, s3, tmp_path_factory.mktemp("running"), liveness_s=60):
        pair.run("a")
        pair.wait_until("a has begun", begun)
        pair.run("b")
        pair.wait_until("the first backup", backed_up)
        yield pair


def made(kafka: KafkaServer, s3: S3Server, folder: Path, *, liveness_s: int = _LIVENESS_S) -> Iterator[Pair]:
    """Make a pair; stop what runs of it in the end."""
    name = f"pair-{secrets.token_hex(4)}"
    coordination = f"coordination-{name}"
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topic = NewTopic(name, num_partitions=3, replication_factor=1, config={"cleanup.policy": "compact"})
    client.create_topics([topic], operation_timeout=30)[name].result(timeout=30)
    write(kafka.bootstrap, name, RECORDS)
    config = folder / "pair.yaml"
    config.write_text(
        f"""\
pair: {name}
topics: {{include: [{name}]}}
kafka: {{bootstrap.servers: '{kafka.bootstrap}'}}
store: {{root: 's3://{s3.bucket}/{name}', endpoint_url: '{s3.endpoint_url}', addressing_style: path, region: {REGION}}}
coordination: {{topic: {coordination}, replication_factor: 1, heartbeat_interval: 500ms}}
flush: {{interval: 1s}}
liveness: {{timeout: {liveness_s}s}}
peer: {{timeout: 15s}}
handover: {{timeout: 20s}}
groups: {{enabled: false}}
"""
    )
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("TANDEM_", "AWS_"))},
        "AWS_ACCESS_KEY_ID": s3.key.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.key.secret_key,
    }
    pair = Pair(
        name=name,
        config=config,
        topic=name,
        coordination=coordination,
        bootstrap=kafka.bootstrap,
        environ=environ,
    )
    yield pair
    if pair.shell is not None:
        pair.shell.close()
    for process in pair.processes.values():
        process.kill()
        process.wait(30)


def begun(found: dict[str, Any]) -> bool:
    """There is a generation: nobody waits for an instance that is not up yet, and takes its turn."""
    return bool(found["generations"])


def backed_up(found: dict[str, Any]) -> bool:
    """There is a complete backup, and its instance has said so: the store tells that before a heartbeat does."""
    return bool(found["healthy"]) and any(one["role"] == "Active" for one in found["instances"])


def faults(found: dict[str, Any]) -> list[str]:
    """What is wrong, in the document's order."""
    return [problem["fault"] for problem in found["problems"]]


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records with keys that repeat."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, key=f"key-{number % 500}", value=None if number % 50 == 0 else f"value-{number}")
    assert producer.flush(60) == 0


@pytest.mark.timeout(900)
def test_a_pair_from_nothing_over_a_failover_to_the_death_of_both(pair: Pair) -> None:
    """The story that an operator sees: nothing, first backup, failover, records that wait, one dead, both dead."""
    nothing = pair.tandem("status")
    assert nothing.returncode == 3, nothing.stderr
    assert "nothing is stored yet" in nothing.stdout
    early = pair.tandem("failover", "--yes")
    assert (early.returncode, "there is no complete backup: nothing is stored yet" in early.stderr) == (5, True)
    no_topic = pair.tandem("coordination", "tail")
    assert (no_topic.returncode, "does not exist" in no_topic.stderr) == (1, True)

    pair.run("a")
    pair.wait_until("a has begun", begun)
    pair.run("b")
    first = pair.wait_until("the first backup", backed_up)
    assert (first["restore"]["generation"], first["restore"]["lag"]) == (1, 0)
    assert {one["instance"]: one["role"] for one in first["instances"]} == {"a": "Active", "b": "Passive"}
    [generation] = first["generations"]
    assert (generation["state"], generation["records"], generation["partitionsComplete"]) == ("COMPLETE", RECORDS, 3)
    assert sum(place["logEnd"] for place in generation["positions"]) == RECORDS
    assert all(place["lag"] == 0 for place in generation["positions"])

    silent = pair.tandem("failover")
    assert silent.returncode == 5
    assert "a is Active with generation 1; b shall build generation 2 and take over" in silent.stderr
    assert "run it again with --yes" in silent.stderr

    done = pair.tandem("failover", "--yes", "--wait", "--timeout", "110s", "--reason", "a drill", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["kind"], told["stage"], told["timedOut"]) == ("Failover", "done", False)
    assert [told[key] for key in ("fromInstance", "fromGeneration", "toInstance", "toGeneration")] == [
        "a",
        1,
        "b",
        2,
    ]
    assert [step["step"] for step in told["steps"]] == ["claimed", "complete", "sealed", "cleared"]
    assert "done: generation 2 of b is the backup" in done.stderr

    after = pair.wait_until("the new roles", lambda found: found["instances"][1]["role"] == "Active")
    assert [one["number"] for one in after["generations"]] == [2]
    assert after["generations"][0]["reason"] == "asked to take the next turn: a drill"
    history = json.loads(pair.tandem("history", "-o", "json").stdout)
    assert [(one["generation"], one["event"], one["instance"]) for one in history["events"]] == [
        (1, "CLAIM", "a"),
        (1, "OPEN", "a"),
        (1, "COMPLETE", "a"),
        (2, "CLAIM", "b"),
        (2, "OPEN", "b"),
        (2, "COMPLETE", "b"),
        (1, "SEALED", "a"),
        (1, "CLEARING", "a"),
        (1, "CLEARED", "a"),
    ]

    pair.stop("a")
    pair.wait_until("a is missed", lambda found: faults(found) == ["instance silent"])
    refused = pair.tandem("failover", "--yes")
    assert refused.returncode == 5
    assert "a was stopped" in refused.stderr
    assert "choose b with --to" in refused.stderr
    left = pair.tandem("failover", "--yes", "--force", "--wait", "--timeout", "1s")
    assert left.returncode == 4, left.stderr
    assert "waiting for a to claim generation 3" in left.stderr
    assert "the request stays in force" in left.stderr
    assert any("cli asked a" in note and "not claimed yet" in note for note in pair.status()["notes"])

    pair.stop("b", signal.SIGKILL)
    write(pair.bootstrap, pair.topic, 30)
    dead = pair.wait_until("both are missed", lambda found: found["problems"][0]["fault"] == "active silent")
    assert [problem["fault"] for problem in dead["problems"]] == ["active silent", "instance silent"]
    assert dead["restore"]["lag"] == 30

    pair.run("a")
    taken = pair.wait_until("a acts on the request", lambda found: (found["restore"] or {}).get("generation") == 3)
    assert taken["restore"]["instance"] == "a"
    assert taken["generations"][-1]["reason"] == "asked to take the next turn: manual failover"


@pytest.mark.slow
def test_a_pause_from_its_begin_to_a_copy_that_is_built_anew(pair: Pair) -> None:
    """The Active dies in a pause: CRITICAL, and nobody takes over before `resume`. Then the survivor builds anew."""
    pair.run("a")
    pair.run("b")
    pair.wait_until("the first backup", backed_up, timeout_s=120)
    paused = pair.tandem("pause", "--for", "1h", "--reason", "broker upgrade", "-o", "json")
    assert (paused.returncode, paused.stderr) == (0, ""), paused.stderr
    assert json.loads(paused.stdout)["paused"] is True
    waiting = pair.tandem("check")
    assert (waiting.returncode, "paused by" in waiting.stdout) == (1, True), waiting.stdout
    refused = pair.tandem("failover", "--yes")
    assert (refused.returncode, "`tandem resume` ends the pause" in refused.stderr) == (5, True), refused.stderr

    pair.stop("a", signal.SIGKILL)
    pair.wait_until("a is missed", lambda found: found["problems"][:1] != [] and not found["healthy"], timeout_s=120)
    time.sleep(2 * _LIVENESS_S)
    dead = pair.status()
    assert [problem["fault"] for problem in dead["problems"]] == ["active silent"]
    assert [one["number"] for one in dead["generations"]] == [1]
    assert next(one["doing"] for one in dead["instances"] if one["instance"] == "b").startswith("paused by a person")
    assert pair.tandem("check").returncode == 2

    assert pair.tandem("resume").returncode == 0
    taken = pair.wait_until("b takes over", lambda found: found["restore"]["generation"] == 2, timeout_s=120)
    assert (taken["restore"]["instance"], taken["pause"]) == ("b", None)
    anew = pair.tandem("reinit", "--yes", "--wait", "--timeout", "100s", "-o", "json")
    assert anew.returncode == 0, anew.stderr
    told = json.loads(anew.stdout)
    assert [told[key] for key in ("fromInstance", "fromGeneration", "toInstance", "toGeneration", "stage")] == [
        "b",
        2,
        "b",
        3,
        "done",
    ]
    assert told["built"]["records"] >= RECORDS


def test_brokers_that_are_down(running: Pair) -> None:
    """With S3 alone: the same picture of the backup, within seconds, and it is said what could not be asked."""
    down = ("--set", "kafka.bootstrap.servers=127.0.0.1:1")
    began = time.monotonic()
    status = running.tandem("status", "-o", "json", *down)
    assert time.monotonic() - began < 30
    assert status.returncode == 3
    found = json.loads(status.stdout)
    assert [problem["fault"] for problem in found["problems"]] == ["not known"]
    assert "127.0.0.1:1" in found["problems"][0]["message"]
    assert found["restore"]["generation"] == 1
    assert found["restore"]["lag"] is None
    quiet = running.tandem("status", "--s3-only", *down)
    assert (quiet.returncode, "HEALTHY" in quiet.stdout) == (0, True), quiet.stderr
    assert running.tandem("history", *down).returncode == 0
    for command in (("failover", "--yes"), ("coordination", "tail")):
        failed = running.tandem(*command, *down)
        assert failed.returncode == 1
        assert "no Kafka broker answers at 127.0.0.1:1" in failed.stderr
        assert "what to do:" in failed.stderr


def test_commands_that_scripts_use(running: Pair) -> None:
    """A running pair is OK with figures, steady, listed and described; brokers that are down cost only the lag."""
    steady = running.tandem("wait", "--for", "steady", "--for", "role=a:Active", "--for", "generation=1", "-o", "json")
    assert steady.returncode == 0, steady.stderr
    checked = running.tandem("check", "--lag-warning", "1000", "--commit-age-critical", "1h")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.startswith(f"OK - pair {running.name}: generation 1 restores up to ")
    assert "lag 0, a is Active|lag=0;1000 " in checked.stdout
    down = ("--set", "kafka.bootstrap.servers=127.0.0.1:1")
    assert running.tandem("check", *down).returncode == 0
    assert running.tandem("check", "--lag-warning", "1000", *down).returncode == 3
    late = running.tandem("wait", "--for", "role=b:Active", "--timeout", "1s")
    assert (late.returncode, "b is Passive" in late.stderr) == (4, True)
    listed = json.loads(running.tandem("list", "-o", "json").stdout)
    [mine] = [one for one in listed["pairs"] if one["pair"] == running.name]
    assert (mine["active"], mine["generations"], mine["records"]) == ("a", [1], RECORDS)
    found = json.loads(running.tandem("describe", running.topic, "-o", "json").stdout)
    assert found["copies"][0]["stored"]["records"] == RECORDS


def test_a_topic_full_of_surprises(running: Pair) -> None:
    """Messages of other pairs are passed over and counted, what is none is shown, and nothing of it is believed."""
    foreign = CoordinationMessage(
        event=CoordinationEvent.PROGRESS,
        pair="somebody-else",
        instance="a",
        incarnation="x",
        cluster_id="y",
        request_id="z",
        at=0,
        state="Active",
    )
    running.send(message_key(foreign), encode(foreign))
    running.send(b"no/message/AT-ALL", b"\x1b[2Jrubbish")
    running.send(f"{running.name}/a/PROGRESS".encode(), encode(foreign))

    tail = running.tandem("coordination", "tail", "--no-heartbeats")
    assert tail.returncode == 0, tail.stderr
    lines = tail.stdout.splitlines()
    assert any("COMPLETE     a  generation 1" in line for line in lines)
    [rubbish, forged] = [line for line in lines if "not a message" in line]
    assert "not a message (key no/message/AT-ALL): a coordination message does not start as Avro's" in rubbish
    assert f"(key {running.name}/a/PROGRESS): its key and its value disagree: the value is PROGRESS of" in forged
    assert "somebody-else/a/PROGRESS" not in tail.stdout
    assert "1 messages of other pairs were passed over" in tail.stderr

    everything = running.tandem("coordination", "tail", "--all", "-o", "json")
    documents = [json.loads(line) for line in everything.stdout.splitlines()]
    offsets = [document["offset"] for document in documents]
    assert offsets == sorted(offsets)
    assert {document["message"]["pair"] for document in documents if document["message"]} == {
        running.name,
        "somebody-else",
    }
    assert sum(document["undecodable"] is not None for document in documents) == 2
    recent = running.tandem("coordination", "tail", "--since", "5s", "-o", "json").stdout.splitlines()
    assert 0 < len(recent) < len(documents)
    running.wait_until("all is well", lambda found: bool(found["healthy"]))


def test_following_the_topic_until_interrupted(running: Pair) -> None:
    """`--follow` prints what comes, line by line, and ends at Ctrl-C without an error."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "coordination", "tail", "--follow", "--since", "0s", "-o", "json"],
        env={**running.environ, "TANDEM_CONFIG": str(running.config)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert [document["message"]["event"] for document in seen] == ["PROGRESS"] * 3
    assert (process.returncode, errors) == (0, "")


def test_consent_on_a_terminal(running: Pair) -> None:
    """On a terminal the costs are shown and consent is asked for; without it nothing is sent."""
    number = running.status()["restore"]["generation"] + 1
    refused, requests = consent(running, "n"), asked(running)
    assert "is Active with generation" in refused.stderr
    assert f"to build generation {number} now? [y/N]" in refused.stderr
    assert (refused.returncode, requests) == (1, [])
    given = consent(running, "y")
    assert given.returncode == 0, given.stderr
    assert [(one["instance"], one["target"], one["generation"]) for one in asked(running)] == [("cli", "b", number)]


def consent(pair: Pair, answer: str) -> subprocess.CompletedProcess[str]:
    """Run `tandem failover` with a terminal on which `answer` is typed."""
    mine, theirs = os.openpty()
    try:
        os.write(mine, f"{answer}\n".encode())
        return pair.tandem("failover", "--no-wait", stdin=theirs)
    finally:
        os.close(mine)
        os.close(theirs)


def asked(pair: Pair) -> list[dict[str, Any]]:
    """The ACTIVATE messages that are on the topic."""
    tail = pair.tandem("coordination", "tail", "-o", "json", "--no-heartbeats")
    messages = [json.loads(line)["message"] for line in tail.stdout.splitlines()]
    return [one for one in messages if one and one["event"] == "ACTIVATE"]


def at_rest(found: dict[str, Any]) -> bool:
    """All is well, and no turn was asked for that is still to begin."""
    return bool(found["healthy"]) and not found["requests"] and len(found["generations"]) == 1


@pytest.mark.spark
def test_repair_asks_for_a_new_generation(running: Pair, s3: S3Server) -> None:
    """A live pair agrees with its topic, key by key. Then an object goes: it is named, and the other instance asked."""
    before = running.wait_until("both are at rest", at_rest)
    number = before["restore"]["generation"]
    clean = running.tandem("verify", "--against-topic", "--repair", "--yes", "-o", "json")
    assert clean.returncode == 0, clean.stderr
    document = json.loads(clean.stdout)
    assert (document["clean"], document["counts"], document["repair"]["asked"]) == (True, {}, False)
    assert sum(part["keys"] for part in document["partitions"]) >= 500
    settings = store_settings(s3)
    store = open_store(f"s3://{s3.bucket}/{running.name}", settings)
    instance = before["generations"][0]["instance"]
    victim = next(info.key for info in store.list(layout.data_prefix(running.name, instance, number)))
    store.delete([victim])
    found = running.tandem("verify", "--repair", "--yes", "-o", "json")
    assert found.returncode == 3, found.stderr
    document = json.loads(found.stdout)
    assert victim in [finding["where"] for finding in document["findings"]]
    assert (document["repair"]["asked"], document["repair"]["generation"]) == (True, number + 1)
    running.wait_until("the new generation", lambda found: found["restore"]["generation"] == number + 1)
    assert running.status()["lastVerify"]["clean"] is False
