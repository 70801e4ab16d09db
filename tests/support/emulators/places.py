"""The five stores of `make store-test`: a root of a test's own on each, and the settings that reach it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from support.emulators.servers import BUCKET, azure_settings, gcs_settings
from tandem.controller.sandbox.s3 import REGION
from tandem.sink.store import ObjectStore, StoreAccess
from tandem.sink.store.open_store import open_store

STORES: Final = ("file", "seaweedfs", "versitygw", "azurite", "gcs")


@dataclass(frozen=True)
class StorePlace:
    """A root, and the keys of `store:` beside it, secrets among them; a folder needs none."""

    name: str
    root: str
    settings: dict[str, Any]

    @property
    def section(self) -> dict[str, Any]:
        """The whole `store:` section."""
        return {"root": self.root, **self.settings}

    @property
    def server(self) -> str:
        """Host and port of the server; empty for a folder."""
        return urlsplit(self.settings.get("endpoint_url", "")).netloc

    def open(self) -> ObjectStore:
        """Open the store for the test itself."""
        return open_store(self.root, StoreAccess(**self.settings))


def place_on(name: str, server: Callable[[str], Any], folder: Path) -> StorePlace:
    """Make a place on one of STORES. `server` gives the fixture of a name, `folder` is of the test alone."""
    prefix = f"{BUCKET}/{folder.name}-{secrets.token_hex(3)}"
    match name:
        case "file":
            (folder / "store").mkdir()
            return StorePlace(name, (folder / "store").as_uri(), {})
        case "azurite":
            return StorePlace(name, f"az://{prefix}", azure_settings(server("azurite")))
        case "gcs":
            return StorePlace(name, f"gs://{prefix}", gcs_settings(server("gcs_url"), folder))
    found = server("s3" if name == "seaweedfs" else name)
    settings = {
        "endpoint_url": found.endpoint_url,
        "addressing_style": "path",
        "region": REGION,
        "access_key_id": found.key.access_key,
        "secret_access_key": found.key.secret_key,
    }
    return StorePlace(name, f"s3://{prefix}", settings)
