"""Brokers of other shapes: members that join the cluster of a sandbox's broker; one that is reached through gates."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tandem.controller.sandbox.kafka import FORMATTED, KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports

_PROGRAM: Final = Path(__file__).with_name("BrokersInOneProcess.java")


class Member(KafkaServer):
    """A broker without controller that joins the cluster of `first`."""

    def __init__(self, folder: Path, first: KafkaServer, node: int, *, port: int | None = None) -> None:
        broker = port or pick_ports(1)[0]
        address = f"PLAINTEXT://{LOOPBACK}:{broker}"
        super().__init__(
            folder,
            ports={"broker": broker, "controller": broker},  # it has no controller
            overrides={
                "process.roles": "broker",
                "node.id": str(node),
                "controller.quorum.voters": f"1@{first.address('controller')}",
                "listeners": address,
                "advertised.listeners": address,
            },
        )
        self.first = first

    def _format(self) -> None:
        cluster_id = self.first.cluster_id
        assert cluster_id
        with self.log.open("ab") as output:
            subprocess.run(
                [
                    *self._java("-Xmx128m"),
                    *("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id),
                    *("--config", "server.properties"),
                ],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                check=True,
            )
        (self.folder / FORMATTED).write_text(f"{cluster_id}\n", encoding="ascii")


class Members(KafkaServer):
    """Brokers without controller in one process, which join the cluster of `first`.

    A broker in a process of its own takes 130 MB and ten seconds of processor time, most of it to load its classes.
    """

    def __init__(self, folder: Path, first: KafkaServer, nodes: Sequence[int], overrides: Mapping[str, str]) -> None:
        super().__init__(folder, overrides=overrides)
        self.first = first
        self.nodes = tuple(nodes)
        self.port_names = tuple(f"broker{node}" for node in nodes)

    def _prepare(self) -> None:
        shutil.copy(self.first.folder / "log4j2.xml", self.folder)
        for node, (name, port) in zip(self.nodes, self.ports.items(), strict=True):
            member = Member(self.folder / name, self.first, node, port=port)
            member.overrides |= {**self.overrides, "log.dirs": str(member.data)}
            member.folder.mkdir(exist_ok=True)
            (member.folder / FORMATTED).touch()  # the program formats what is not formatted
            member._prepare()

    def _command(self) -> list[str]:
        files = [f"{name}/server.properties" for name in self.port_names]
        heap = ("-Xms512m", "-Xmx8g", "-Xss256k", "-XX:+UseParallelGC", "-XX:TieredStopAtLevel=1")
        return [*self._java(*heap), str(_PROGRAM), str(self.first.cluster_id), *files]

    def answers(self) -> bool:
        """Return whether all of them are in the cluster."""
        client = AdminClient({"bootstrap.servers": self.first.bootstrap, "log_level": 0})
        try:
            return {*self.nodes} <= {*client.list_topics(timeout=10).brokers}
        except KafkaException:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """What a broker needs to have a listener of its own for each of some clients, whose traffic goes through a gate.

    `behind` is where each gate forwards to. No connection goes round a gate: its address is the one that is advertised.
    """

    ports: Mapping[str, int]
    overrides: Mapping[str, str]
    behind: Mapping[str, str]

    @classmethod
    def through(cls, gates: Mapping[str, str]) -> Listeners:
        """Pick ports; `gates` are addresses (`host:port`) by the clients' names, in letters and digits."""
        broker, controller, *behind = pick_ports(2 + len(gates))
        ports = dict(zip(gates, behind, strict=True))
        listeners = [("PLAINTEXT", broker, f"{LOOPBACK}:{broker}")]
        listeners += [(f"GATE{name.upper()}", ports[name], address) for name, address in gates.items()]
        listening = ",".join(f"{label}://{LOOPBACK}:{port}" for label, port, _ in listeners)
        return cls(
            ports={"broker": broker, "controller": controller},
            overrides={
                "listeners": f"{listening},CONTROLLER://{LOOPBACK}:{controller}",
                "advertised.listeners": ",".join(f"{label}://{address}" for label, _, address in listeners),
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,"
                + ",".join(f"{label}:PLAINTEXT" for label, _, _ in listeners),
            },
            behind={name: f"{LOOPBACK}:{port}" for name, port in ports.items()},
        )
