"""Brokers of older releases of Apache Kafka, from their jars, as the sandbox runs the one that it is made for.

Kafka 3 runs by itself (KRaft) as 4 does; 2.8 with a ZooKeeper beside it, as its KRaft was a preview that lacked
transactions.
"""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tandem.controller.sandbox.jars import KAFKA_VERSION, KafkaRelease, checksums_in, jars_of, kafka_jars
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.server import LocalServer

RELEASES = ("2.8.2", "3.5.2", "3.9.1", KAFKA_VERSION)
_CHECKSUMS = Path(__file__).parent / "releases"
_IVY = """<ivy-module version="2.0">
    <info organisation="tandem" module="older"/>
    <configurations><conf name="default"/></configurations>
    <dependencies>
        <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default->default"/>
        <dependency org="org.slf4j" name="slf4j-reload4j" rev="1.7.36" conf="default->default"/>
    </dependencies>
</ivy-module>
"""
_LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p [%t] %c{1}: %m%n
"""
_LOGGING = "-Dlog4j.configuration=file:log4j.properties"


def jars_of_release(version: str) -> Path:
    """Return the folder with the jars of a release, fetched if need be: 40 MB each, once."""
    if version == KAFKA_VERSION:
        return kafka_jars()
    checksums = checksums_in((_CHECKSUMS / f"{version}.sha256").read_text("ascii"))
    with tempfile.TemporaryDirectory() as folder:
        ivy = Path(folder) / "ivy.xml"
        ivy.write_text(_IVY.format(version=version), encoding="utf-8")
        return jars_of(KafkaRelease(version=version, ivy=ivy, checksums=checksums))


def broker(folder: Path, version: str, overrides: Mapping[str, str] | None = None) -> KafkaServer:
    """Return a broker of a release, not started."""
    kind = KafkaServer if version == KAFKA_VERSION else KafkaWithZooKeeper if version.startswith("2.") else Kafka3
    return kind(folder, jars=jars_of_release(version), overrides=overrides)


class Kafka3(KafkaServer):
    """A broker that logs by log4j 1."""

    def _prepare(self) -> None:
        (self.folder / "log4j.properties").write_text(_LOG4J, encoding="ascii")
        super()._prepare()

    def _java(self, *options: str) -> list[str]:
        return super()._java(_LOGGING, *options)


class KafkaWithZooKeeper(Kafka3):
    """A broker that keeps its metadata in a ZooKeeper, which starts and ends with it."""

    port_names = ("broker",)

    def __init__(self, folder: Path, *, jars: Path, overrides: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, jars=jars, overrides=overrides)
        self._zookeeper = _ZooKeeper(folder / "zookeeper", self)

    def _settings(self) -> dict[str, str]:
        left = ("process.roles", "node.id", "controller.", "listener.security.protocol.map", "inter.broker.listener")
        return {key: value for key, value in super()._settings().items() if not key.startswith(left)} | {
            "broker.id": "1",
            "zookeeper.connect": self._zookeeper.address("client"),
            "listeners": f"PLAINTEXT://{self.address('broker')}",
        }

    def address(self, name: str) -> str:
        """There is no controller to reach."""
        return super().address("broker" if name == "controller" else name)

    def java(self, *options: str) -> list[str]:
        """Return the beginning of a command line for the ZooKeeper."""
        return self._java(*options)

    def _format(self) -> None:
        """The broker does it itself."""

    @property
    def cluster_id(self) -> str | None:
        """The id that the broker got when it came up first."""
        with suppress(FileNotFoundError):
            found = re.search(r"cluster\.id=(\S+)", (self.data / "meta.properties").read_text(encoding="ascii"))
            return found[1] if found else None
        return None

    def start(self, *, timeout_s: float = 60.0) -> None:
        self._zookeeper.start(timeout_s=timeout_s)
        super().start(timeout_s=timeout_s)

    def stop(self) -> None:
        """Stop both, the ZooKeeper last: the broker says good-bye to it."""
        super().stop()
        self._zookeeper.stop()


class _ZooKeeper(LocalServer):
    title = "ZooKeeper"
    port_names = ("client",)

    def __init__(self, folder: Path, kafka: KafkaWithZooKeeper) -> None:
        super().__init__(folder)
        self._kafka = kafka

    @property
    def log(self) -> Path:
        return self.folder / "zookeeper.log"

    def _prepare(self) -> None:
        host, port = self.address("client").split(":")
        (self.folder / "zoo.cfg").write_text(
            f"dataDir=data\nclientPortAddress={host}\nclientPort={port}\ntickTime=2000\nadmin.enableServer=false\n",
            encoding="ascii",
        )
        (self.folder / "log4j.properties").write_text(_LOG4J, encoding="ascii")

    def _command(self) -> list[str]:
        return [*self._kafka.java("-Xmx128m"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]

    def _environment(self) -> Mapping[str, str]:
        return {}

    def answers(self) -> bool:
        host, port = self.address("client").split(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(b"srvr")
            return b"Zookeeper version" in connection.recv(4096)
        return False
