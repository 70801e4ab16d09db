"""More than one broker: members that join the cluster of a sandbox's broker, with ports and folders of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from controller.sandbox.kafka import KafkaServer
from controller.sandbox.ports import LOOPBACK, pick_ports


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
