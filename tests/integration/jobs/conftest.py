"""A folder and a bucket for backups, and commands on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.backups.build_backup import PAIR
from support.pairs.instances import store_settings

from tandem.controller.cli.main import run
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.reading.object_reader import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["file", "s3"])
def address(request: pytest.FixtureRequest) -> StoreAddress:
    """Where a store is: a folder, and a bucket of SeaweedFS."""
    if request.param == "file":
        return StoreAddress(root=request.getfixturevalue("tmp_path").as_uri(), settings=StoreAccess())
    root, server = request.getfixturevalue("bucket_root"), request.getfixturevalue("s3")
    assert isinstance(server, S3Server)
    return StoreAddress(root=root, settings=store_settings(server))


@pytest.fixture
def tandem(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the command on a folder; returns exit code, stdout, stderr. The session is there already."""
    assert spark is not None
    (tmp_path / "store").mkdir()
    config = tmp_path / "tandem.yaml"
    config.write_text(
        f"pair: {PAIR}\ntopics: {{include: [orders]}}\nkafka: {{bootstrap.servers: 'localhost:1'}}\n"
        f"store: {{root: '{(tmp_path / 'store').as_uri()}'}}\n"
    )

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["-c", str(config), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
