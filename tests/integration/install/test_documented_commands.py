"""The commands of README and docs are run as they stand there, against real servers and a real pair."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic
from support.backups.old_files import avro, rows, sink_key
from support.pages import command_story as story
from support.pages import shell_lines
from support.pages.command_story import Act
from support.pairs.cli_shell import Done, Shell
from support.patience import answered

from tandem.controller.sandbox.jars import find_java, kafka_jars
from tandem.controller.sandbox.sandbox import Sandbox
from tandem.sink.encryption.key_text import is_key
from tandem.sink.kafka.wire.topic_ids import from_base64
from tandem.spark_jobs.restore.progress.task_progress import TOPIC as PROGRESS_TOPIC

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_MAIN = "from tandem.controller.cli.main import main; main()"
_TOPICS = "customers", "orders", "old-orders", "old-customers"
_TOOLS = {"kafka-topics.sh": "TopicCommand", "kafka-transactions.sh": "TransactionsCommand"}
_CONFIG = """\
pair: look
topics: {{include: [customers, orders], patterns: ['old-[a-z]*']}}
kafka: {{bootstrap.servers: '{brokers}'}}
store: {{root: '{root}', endpoint_url: '{endpoint}', addressing_style: path}}
flush: {{interval: 1s}}
coordination: {{replication_factor: 1, heartbeat_interval: 500ms}}
liveness: {{timeout: 15s}}
groups: {{interval: 1s}}
recovery: {{window: 1d}}
"""


class World:
    """What the pages take for granted: servers, topics, a configuration file, a pair, an old backup."""

    root = "s3://tandem/backup"
    old_root = "s3://tandem/acme-old-backup/prod"
    suffix_of_old = ".of-old-files"
    topic_orders = "topic/orders"
    pair = "look"
    deleted_topic = "old-customers"
    deleted_orders = "old-orders"
    stuck_topic = "stuck"
    broker_id = "1"
    first = "0"
    cut_restore = "3f1c0a9be27d4416" * 4

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "AWS_"))}
        self.environ = kept | {"AWS_EC2_METADATA_DISABLED": "true", "TANDEM_CONFIG": "tandem.yaml", "COLUMNS": "200"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.instance = ""
        self.restore_id = ""
        self.moment = ""
        self.brokers = ""
        self.deleted_topic_id = ""
        self.sandbox_folder = str(folder / ".sandbox")
        self._shell: Shell | None = None

    # --- what stands for what -----------------------------------------------------------------------------------------

    @property
    def fresh_folder(self) -> str:
        """A folder that is not there yet."""
        return str(self.folder / f"fresh-{secrets.token_hex(4)}")

    other_fresh_folder = fresh_folder

    @property
    def tomorrow(self) -> str:
        """A time to come."""
        return (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def words(self, act: Act) -> list[str]:
        """The words of a line, with what the world has put in."""
        # Those of the line first: one may hold another.
        stands_for = {**act.given, **{text: name for text, name in story.STANDS_FOR.items() if text not in act.given}}
        found = []
        for word in shlex.split(act.line):
            for text, name in stands_for.items():
                if word == text or (len(text) > 6 and text in word):
                    word = word.replace(text, str(getattr(self, name)))  # noqa: PLW2901 - one after the other
            found.extend(word.split(" ") if " --" in word else [word])
        return found

    # --- running ------------------------------------------------------------------------------------------------------

    def act(self, act: Act) -> None:
        """Run one line, and see that it ends and says what it should."""
        if act.before:
            getattr(self, act.before)()
        words = self.words(act)
        if words[0] == "run":
            self.start(words)
            return
        done = self.until(words, act) if act.ends_by else self.run(words)
        assert done.code == act.code, f"tandem {' '.join(words)}\n{done.out}\n{done.err}"
        assert "Traceback" not in done.err
        assert act.says in done.out + done.err, f"tandem {' '.join(words)}\n{done.out}\n{done.err}"
        if words[:2] == ["sandbox", "up"]:
            self.environ |= dict(re.findall(r"^export (\w+)=(\S+)$", done.out, re.MULTILINE))
            self.brokers = self.environ["KAFKA_BOOTSTRAP_SERVERS"]

    def run(self, words: Sequence[str]) -> Done:
        """Run a command to its end; from the second on in one interpreter, which is quicker."""
        if not self.brokers or words[0] == "sandbox":
            done = subprocess.run(
                [sys.executable, "-c", _MAIN, *words],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=180,
            )
            return Done(code=done.returncode, out=done.stdout, err=done.stderr)
        if self._shell is None:
            self._shell = Shell(self.folder, self.environ)
        return self._shell.run(list(words))

    def until(self, words: Sequence[str], act: Act) -> Done:
        """Start what goes on for ever, wait for what it should say, and end it by the signal."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _MAIN, *words],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if act.says in line:
                break
        process.send_signal(signal.Signals[act.ends_by])
        out, err = process.communicate(timeout=60)
        return Done(code=process.returncode, out=seen + out, err=err)

    def start(self, words: Sequence[str]) -> None:
        name = next((word.partition("=")[2] for word in words if word.startswith("instance=")), self.instance)
        environ = (
            self.environ if any("instance=" in word for word in words) else self.environ | {"TANDEM_INSTANCE": name}
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-c", _MAIN, *words], cwd=self.folder, env=environ, stdout=log, stderr=log
            )

    def tool(self, act: Act) -> None:
        """Run a line of another tool in a shell; those of Kafka are started as their scripts start them."""
        if act.before:
            getattr(self, act.before)()
        line = act.line
        for text, name in act.given.items():
            line = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", str(getattr(self, name)), line)
        tools = self.folder / "bin"
        tools.mkdir(exist_ok=True)
        for name, command in _TOOLS.items():
            words = f"'{find_java()}' -cp '{kafka_jars()}/*' org.apache.kafka.tools.{command}"
            (tools / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (tools / name).chmod(0o755)
        path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), self.environ["PATH"]))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == act.code, f"{line}\n{done.stdout}\n{done.stderr}"
        assert act.says in done.stdout, f"{line}\n{done.stdout}\n{done.stderr}"
        if act.after:
            getattr(self, act.after)()

    # --- steps in between ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Topics with records, a group, the files, an old backup: all that the pages speak of."""
        client = AdminClient({"bootstrap.servers": self.brokers})
        compacted = {"cleanup.policy": "compact"}
        topics = [NewTopic(name, 2, 1, config=compacted) for name in _TOPICS]
        for future in client.create_topics(topics, operation_timeout=30).values():
            future.result(timeout=30)
        producer = Producer({"bootstrap.servers": self.brokers})
        for number in range(1000):
            for topic in _TOPICS:
                producer.produce(topic, key=f"customer-{number % 100}", value=f"order {number}")
        assert producer.flush(60) == 0
        billing = ConsumerGroupTopicPartitions("billing", [TopicPartition("customers", 0, 100)])

        def commit() -> None:
            [future] = client.alter_consumer_group_offsets([billing]).values()
            for one in future.result(timeout=30).topic_partitions:
                if one.error is not None:
                    raise KafkaException(one.error)

        answered(commit, KafkaException)  # the first group of a new broker: its coordinator is still being loaded
        text = _CONFIG.format(brokers=self.brokers, root=self.root, endpoint=self.environ["AWS_ENDPOINT_URL"])
        for name in ("tandem.yaml", "a.yaml"):
            (self.folder / name).write_text(text)
        for topic in ("customers", "orders"):
            body = avro(rows(topic, 0, range(50), key=b"customer-7"))
            self.s3.put_object(Bucket="tandem", Key=f"acme-old-backup/prod/{sink_key(topic, 0, 0)}", Body=body)

    @property
    def s3(self) -> Any:
        """A client of the sandbox's store."""
        return boto3.client(
            "s3",
            endpoint_url=self.environ["AWS_ENDPOINT_URL"],
            aws_access_key_id=self.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environ["AWS_SECRET_ACCESS_KEY"],
            region_name=self.environ["AWS_DEFAULT_REGION"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def as_a(self) -> None:
        """The next `run` is instance a."""
        self.instance = "a"

    def as_b(self) -> None:
        """The next `run` is instance b."""
        self.instance = "b"

    def stop(self, name: str) -> None:
        """SIGTERM ends an instance with 0."""
        process = self.processes.pop(name)
        process.terminate()
        assert process.wait(60) == 0, (self.folder / f"{name}.log").read_text()[-2000:]

    def stop_b(self) -> None:
        """As soon as b has begun."""
        log = self.folder / "b.log"
        deadline = time.monotonic() + 60
        while '"running"' not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        self.stop("b")

    def settle(self) -> None:
        """Wait until nothing is under way, and who is Active has said so; a moment later there is one to restore to."""
        settled = ["--for", "steady", "--for", f"role={self.a_is_active}"]
        done = self.run(["wait", *settled, "--timeout", "150s"])
        assert done.code == 0, done.err
        self.moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def restorable(self) -> int:
        """The generation that a restore would use."""
        found: int = json.loads(self.run(["status", "--s3-only", "-o", "json"]).out)["restore"]["generation"]
        return found

    @property
    def newest_number(self) -> str:
        """The newest generation, as text."""
        return str(self.restorable())

    @property
    def newest(self) -> str:
        """A condition that holds."""
        return f"generation={self.restorable()}"

    @property
    def two_generations(self) -> str:
        """The newest, and the one before it, which is kept."""
        newest = self.restorable()
        return f"{newest - 1},{newest}"

    @property
    def owner(self) -> str:
        """Whose the newest generation is."""
        found: str = json.loads(self.run(["status", "--s3-only", "-o", "json"]).out)["restore"]["instance"]
        return found

    @property
    def passive(self) -> str:
        """The other instance."""
        return "a" if self.owner == "b" else "b"

    @property
    def a_is_active(self) -> str:
        """The condition that the owner is Active."""
        return f"{self.owner}:Active"

    @property
    def pair_and_suffix(self) -> str:
        """The other cluster is this one, so the topics get other names."""
        return "look --suffix .elsewhere"

    @property
    def another_cluster(self) -> str:
        """The same for a line that names no pair."""
        return f"{self.brokers} --suffix .there"

    def note_restore(self) -> None:
        """The restore that was just carried out."""
        found = self.s3.list_objects_v2(Bucket="tandem", Prefix="backup/look/restores/")["Contents"]
        newest = max((one for one in found if one["Key"].endswith("/restore.json")), key=itemgetter("LastModified"))
        self.restore_id = newest["Key"].split("/")[3]

    def delete_restored(self) -> None:
        """Make room for the next restore."""
        client = AdminClient({"bootstrap.servers": self.brokers})
        names = [name for name in client.list_topics(timeout=30).topics if name.endswith((".restored", ".before"))]
        for future in client.delete_topics(names, operation_timeout=30).values():
            future.result(timeout=30)

    def delete_topics(self) -> None:
        """Two guarded topics go, and the instances notice."""
        names = [self.deleted_orders, self.deleted_topic]
        client = AdminClient({"bootstrap.servers": self.brokers})
        described = client.describe_topics(TopicCollection(names))[self.deleted_orders].result(timeout=30)
        self.deleted_topic_id = from_base64(str(described.topic_id))
        for future in client.delete_topics(names, operation_timeout=30).values():
            future.result(timeout=30)
        deadline = time.monotonic() + 60
        while not all(name in self.run(["status"]).out for name in names):
            assert time.monotonic() < deadline, "nobody noticed that the topics are gone"
            time.sleep(0.5)

    @property
    def key_file(self) -> str:
        """The file of a data key."""
        return str(self.folder / "data.key")

    def key_is_taken(self) -> None:
        """The file holds a key as Tandem reads it."""
        assert is_key(Path(self.key_file).read_text())

    def make_topic(self, name: str, partitions: int) -> None:
        """Make a compacted topic, unless it is there."""
        client = AdminClient({"bootstrap.servers": self.brokers})
        if name not in client.list_topics(timeout=30).topics:
            new = NewTopic(name, partitions, 1, config={"cleanup.policy": "compact"})
            client.create_topics([new], operation_timeout=30)[name].result(timeout=30)

    def stable_end(self) -> int:
        """The offset up to which consumers with `read_committed` get records of the stuck topic."""
        partition = TopicPartition(self.stuck_topic, 0)
        client = AdminClient({"bootstrap.servers": self.brokers})
        latest = client.list_offsets(
            {partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30
        )
        return int(latest[partition].result(timeout=30).offset)

    def open_transaction(self) -> None:
        """A producer dies in a transaction."""
        self.make_topic(self.stuck_topic, 1)
        producer = Producer({"bootstrap.servers": self.brokers, "transactional.id": "dies", "log_level": 0})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(self.stuck_topic, key="key", value="value")
        assert producer.flush(60) == 0
        assert self.stable_end() == 0

    def transaction_is_aborted(self) -> None:
        """Consumers get past its record and the marker."""
        assert self.stable_end() == 2

    def cut_progress(self) -> None:
        """Of a restore's progress the record is there that names its parts, and no part."""
        self.make_topic(PROGRESS_TOPIC, 4)
        value = json.dumps({"plan": self.cut_restore, "parts": 2, "sha256": "0" * 64}, separators=(",", ":"))
        producer = Producer({"bootstrap.servers": self.brokers})
        producer.produce(PROGRESS_TOPIC, key=self.cut_restore, value=value, partition=0)
        assert producer.flush(60) == 0
        done = self.run(["restore", "list"])
        assert self.cut_restore in done.out + done.err, f"{done.code}\n{done.out}\n{done.err}"

    def progress_is_whole(self) -> None:
        """Nothing of it is told any more."""
        done = self.run(["restore", "list"])
        assert done.code == 0, done.err
        assert self.cut_restore not in done.out + done.err

    def coordination_is_gone(self) -> None:
        """The topic is deleted."""
        topics = AdminClient({"bootstrap.servers": self.brokers}).list_topics(timeout=30).topics
        assert "_compacted_log_backup_coordination" not in topics

    def stop_both(self) -> None:
        for name in list(self.processes):
            self.stop(name)

    def close(self) -> None:
        """End all that still runs."""
        for process in self.processes.values():
            process.kill()
            process.wait(30)
        if self._shell is not None:
            self._shell.close()
        Sandbox(self.folder / ".sandbox").down()


def play(world: World, acts: Sequence[Act]) -> None:
    """Run lines in their order."""
    for one in acts:
        world.act(one)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all lines: sandbox, configuration, instances, and all that looks at them."""
    world = World(tmp_path_factory.mktemp("commands"))
    try:
        play(world, story.LOOKING)
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def turned(world: World) -> World:
    """The same after handovers, as walk and the alerts have them."""
    play(world, story.TURNS)
    return world


@pytest.mark.timeout(900)
def test_the_first_look(world: World) -> None:
    """Each line of it has ended as it should, and both instances run."""
    assert {name: process.poll() for name, process in world.processes.items()} == {"a": None, "b": None}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_turns(turned: World) -> None:
    """Each handover has a generation of its own: the first copy and one for each line."""
    turned.settle()
    assert turned.restorable() >= 1 + len(story.TURNS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_restores_and_checks(turned: World) -> None:
    """What reads the backup."""
    play(turned, story.RESTORES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_backups_of_the_connector(turned: World) -> None:
    """Files that somebody else wrote."""
    play(turned, story.OLD_FILES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_examples_of_the_reference(turned: World) -> None:
    """docs/cli.md, which is what `--help` says."""
    play(turned, story.EXAMPLES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_scenarios_of_operations(turned: World) -> None:
    """docs/operations.md, what is not shown elsewhere."""
    play(turned, story.OPERATIONS)


@pytest.mark.timeout(300)
def test_lines_of_other_tools(world: World) -> None:
    """What pages show of Kafka's own tools and others, with what it should bring about."""
    for one in story.TOOLS:
        world.tool(one)


def test_the_end(world: World) -> None:
    """Both instances end with 0, and the sandbox goes down."""
    play(world, story.END)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quickstart(tmp_path: Path) -> None:
    """Its block as it stands there, in a folder with an environment and nothing else; the restored topic has it all."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "AWS_", "KAFKA_"))}
    environ |= {"AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        ["bash", "-e", "-c", shell_lines.quickstart()],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=480)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        Sandbox(tmp_path / ".sandbox").down()
    assert process.returncode == 0, out
    assert "HEALTHY" in out
    assert "clean: everything is as the chains say" in out
    assert re.search(r"customers +customers\.restored +3 +1,000 +0 ", out), out
