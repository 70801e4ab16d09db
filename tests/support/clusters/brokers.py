"""Brokers of other shapes: members that join the cluster of a sandbox's broker; one that is reached through gates."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports


class Member(KafkaServer):
    """A broker without controller that joins the cluster of `first`."""

    def __init__(self, folder: Path, first: KafkaServer, node: int) -> None:
        broker, unused = pick_ports(2)
        address = f"PLAINTEXT://{LOOPBACK}:{broker}"
        super().__init__(
            folder,
            ports={"broker": broker, "controller": unused},
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
        (self.folder / "formatted").write_text(f"{cluster_id}\n", encoding="ascii")


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
