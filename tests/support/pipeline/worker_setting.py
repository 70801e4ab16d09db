"""What a worker process is started with."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tandem.sink.read.scan.worker_processes import WorkerSettings
from tandem.sink.store import StoreAccess


def setting(folder: Path) -> WorkerSettings:
    """Workers that write down their process ids."""
    return WorkerSettings(
        props={"bootstrap.servers": "127.0.0.1:9", "sasl.password": "hunter2"},
        root=f"file://{folder / 'store'}",
        settings=StoreAccess(),
        prepare=partial(prepare, str(folder)),
    )


def prepare(folder: str) -> None:
    """Runs first in each worker."""
    (Path(folder) / f"{os.getpid()}.pid").touch()
