"""The emulators as servers of tests, each with one bucket; start, kill and restart as the sandbox's servers do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

import urllib3

from support.emulators import install
from tandem.controller.sandbox.ports import LOOPBACK
from tandem.controller.sandbox.server import LocalServer
from tandem.controller.sandbox.sigv4 import S3Key, S3Request, send_signed

BUCKET: Final = "tandem-tests"
ACCOUNT: Final = "tandemtests"
ACCOUNT_KEY: Final = base64.b64encode(b"the key of an account of an emulator").decode()
_HTTP: Final = urllib3.PoolManager(maxsize=4, retries=False, timeout=5.0)


class _Emulator(LocalServer):
    stop_grace_s = 1.0
    port_names = ("http",)

    @property
    def log(self) -> Path:
        """The process's output."""
        return self.folder / "emulator.log"

    @property
    def endpoint_url(self) -> str:
        """The server's URL."""
        return f"http://{self.address('http')}"

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "TZ", "LANG") if name in os.environ}
        return {**kept, "HOME": str(self.folder), **self._variables()}

    def _variables(self) -> Mapping[str, str]:
        return {}

    def answers(self) -> bool:
        """Return whether the bucket exists; it is created if it does not."""
        try:
            return self._create_bucket() in {200, 201, 409}
        except (OSError, urllib3.exceptions.HTTPError):
            return False

    def _create_bucket(self) -> int:
        raise NotImplementedError


class Azurite(_Emulator):
    """Azure Blob Storage by Microsoft's own emulator, with one account."""

    title = "Azure Blob Storage (Azurite)"

    @property
    def account_url(self) -> str:
        """The account's URL: the emulator has its accounts in the path."""
        return f"{self.endpoint_url}/{ACCOUNT}"

    def _command(self) -> list[str]:
        flags = [
            "--blobHost",
            LOOPBACK,
            "--blobPort",
            str(self._ports["http"]),
            "--location",
            str(self.folder / "data"),
        ]
        return [*install.azurite(), *flags, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]

    def _variables(self) -> Mapping[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}

    def _create_bucket(self) -> int:
        date, version = formatdate(usegmt=True), "2021-08-06"
        path = f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}"
        signed = "\n".join(
            ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", path, "restype:container"]
        )
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        return _HTTP.request("PUT", f"{self.account_url}/{BUCKET}?restype=container", headers=headers).status


class FakeGcs(_Emulator):
    """Google Cloud Storage by fake-gcs-server. See `gcs_front` for what stands before it."""

    title = "Google Cloud Storage (fake-gcs-server)"

    def _command(self) -> list[str]:
        flags = {
            "scheme": "http",
            "host": LOOPBACK,
            "port": self._ports["http"],
            "backend": "filesystem",
            "filesystem-root": self.folder / "data",
            "public-host": self.address("http"),
        }
        return [install.go_program(install.FAKE_GCS), *(f"-{name}={value}" for name, value in flags.items())]

    def _create_bucket(self) -> int:
        body = json.dumps({"name": BUCKET}).encode()
        headers = {"Content-Type": "application/json"}
        return _HTTP.request("POST", f"{self.endpoint_url}/storage/v1/b?project=p", body=body, headers=headers).status


class VersityGw(_Emulator):
    """S3 by versitygw on a folder."""

    title = "S3 (versitygw)"
    key = S3Key(access_key="tester", secret_key="the secret of an emulator")

    def _command(self) -> list[str]:
        (self.folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        access = ["--access", self.key.access_key, "--secret", self.key.secret_key, "--port", self.address("http")]
        return [install.go_program(install.VERSITYGW), *access, "posix", str(self.folder / "data")]

    def _create_bucket(self) -> int:
        request = S3Request(method="HEAD", address=self.address("http"), path=f"/{BUCKET}")
        return send_signed(request, key=self.key, region="us-east-1", timeout_s=2.0)


def azure_settings(server: Azurite, **more: Any) -> dict[str, Any]:
    """Settings of a store on Azurite."""
    return {"endpoint_url": server.account_url, "account_name": ACCOUNT, "account_key": ACCOUNT_KEY, **more}


def gcs_settings(front: str, folder: Path, **more: Any) -> dict[str, Any]:
    """Settings of a store on fake-gcs-server behind the front at a URL; a key file that asks nobody for tokens."""
    file = folder / "gcs.json"
    file.write_text(json.dumps({"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}))
    return {"endpoint_url": front, "credentials_file": str(file), **more}
