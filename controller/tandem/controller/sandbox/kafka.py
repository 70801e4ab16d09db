"""A one-node Apache Kafka (KRaft, broker and controller in one process) on loopback."""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tandem.controller.sandbox.errors import ServerFailedError
from tandem.controller.sandbox.jars import find_java, kafka_jars
from tandem.controller.sandbox.process import ProcessId
from tandem.controller.sandbox.server import LocalServer, last_lines
from tandem.spark_jobs.spark.class_archive import ClassArchive, find_archive

# Settings for a sandbox: one node, few and small internal topics, frequent runs of log cleaner and retention check.
# Documented at https://kafka.apache.org/43/configuration/broker-configs/.
SANDBOX_SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "1000",
    # 24 bytes a key: enough for a segment with 1.2 million distinct keys.
    "log.cleaner.dedupe.buffer.size": str(32 * 1024 * 1024),
    "log.retention.check.interval.ms": "5000",
    "log.initial.task.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
    # After a kill the broker's old registration must time out before a restarted broker may register.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}
# Only the C1 compiler: a sandbox runs for minutes, too short for C2's cost at the start to pay off.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", _SHORT_LIVED)
_NODE_ID = 1
#: File in the broker's folder with the cluster's id, once its data folder is formatted.
FORMATTED = "formatted"


def broker_archive(jars: Path) -> ClassArchive | None:
    """Return the class archive of a broker with these jars, made or not; None: start without one."""
    return find_archive("kafka", [*jars.glob("*.jar")], os.environ)


class KafkaServer(LocalServer):
    """The broker process. `overrides` are extra lines of server.properties and take precedence over all others."""

    title = "Kafka"
    port_names = ("broker", "controller")

    def __init__(
        self,
        folder: Path,
        *,
        jars: Path | None = None,
        overrides: Mapping[str, str] | None = None,
        attached: bool = True,
        ports: Mapping[str, int] | None = None,
        process: ProcessId | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """See LocalServer; `jars` is a folder with the broker's jars, by default that of kafka_jars()."""
        super().__init__(folder, attached=attached, ports=ports, process=process, changed=changed)
        self._jars = jars
        self._java_path: Path | None = None
        self.overrides = dict(overrides or {})

    @property
    def bootstrap(self) -> str:
        """The broker's address, for `bootstrap.servers` of clients."""
        return self.address("broker")

    @property
    def log(self) -> Path:
        """The broker's log4j output and the JVM's own."""
        return self.folder / "kafka.log"

    @property
    def data(self) -> Path:
        """The folder of the partitions' logs."""
        return self.folder / "data"

    def _settings(self) -> dict[str, str]:
        """Return the contents of server.properties."""
        return {
            "process.roles": "broker,controller",
            "node.id": str(_NODE_ID),
            "controller.quorum.voters": f"{_NODE_ID}@{self.address('controller')}",
            "listeners": f"PLAINTEXT://{self.address('broker')},CONTROLLER://{self.address('controller')}",
            "advertised.listeners": f"PLAINTEXT://{self.address('broker')}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": "data",  # relative to the process's folder: a comma in the path would split it
            **SANDBOX_SETTINGS,
            **self.overrides,
        }

    def _prepare(self) -> None:
        lines = [f"{key}={value.replace(chr(92), chr(92) * 2)}" for key, value in self._settings().items()]
        (self.folder / "server.properties").write_text("\n".join(lines) + "\n", encoding="utf-8")
        log4j = resources.files(__package__).joinpath("log4j2.xml").read_bytes()
        (self.folder / "log4j2.xml").write_bytes(log4j)
        if not (self.folder / FORMATTED).exists():
            self._format()

    def _format(self) -> None:
        """Format the data folder. The mark is written last, so an interrupted format is repeated."""
        # The leading letter keeps an id that begins with "-" from being parsed as an option.
        cluster_id = "t" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        with self.log.open("ab") as output:
            begin = output.seek(0, os.SEEK_END)
            ended = subprocess.run(  # noqa: S603 - a fixed command, no shell
                [
                    *self._java("-Xmx128m", _SHORT_LIVED),
                    *("kafka.tools.StorageTool", "format", "--ignore-formatted"),
                    *("--cluster-id", cluster_id, "--config", "server.properties"),
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            ).returncode
        if ended != 0:
            raise ServerFailedError(
                f"{self.title}: could not format {self.data}:\n{last_lines(self._log_since(begin))}",
                code="TDM-D019",
                remedy=f"the whole log is {self.log}",
            )
        (self.folder / FORMATTED).write_text(f"{cluster_id}\n", encoding="ascii")

    def _java(self, *options: str) -> list[str]:
        jars = self._jars = self._jars or kafka_jars()
        # Looked for once: its version is asked of Java itself.
        java = self._java_path = self._java_path or find_java()
        return [
            *(str(java), "-server", *options),
            *("-Dlog4j2.configurationFile=log4j2.xml", "-Djava.awt.headless=true", *self._classes(jars)),
        ]

    def _classes(self, jars: Path) -> list[str]:
        """Return the options with the class path: by the class archive, if there is one, which saves seconds."""
        archive = broker_archive(jars)
        if archive is not None and archive.ready():
            return [f"@{archive.arguments}"]
        return ["-cp", f"{jars}/*"]

    def _command(self) -> list[str]:
        return [*self._java(*_JVM), "kafka.Kafka", "server.properties"]

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    @property
    def cluster_id(self) -> str | None:
        """The id that the data folder was formatted with, None before the first start."""
        with suppress(FileNotFoundError):
            return (self.folder / FORMATTED).read_text(encoding="ascii").strip()
        return None

    def answers(self) -> bool:
        """Return whether this broker answers: the cluster has the expected cluster id and lists the broker."""
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "socket.timeout.ms": 2_000,
                # A refused connection is tried again soon, not after seconds.
                "reconnect.backoff.max.ms": 100,
            }
        )
        try:
            metadata = client.list_topics(timeout=2)
        except KafkaException:
            return False
        return metadata.cluster_id == self.cluster_id and _NODE_ID in metadata.brokers
