"""Which class path a broker starts with: that of its class archive, if there is one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from tandem.controller.sandbox.kafka import KafkaServer, broker_archive


def _train(options: Sequence[str]) -> bool:
    command = ["java", *options, "org.apache.ivy.Main", "-version"]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def test_a_broker_starts_by_its_archive_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ivy's jar stands for the broker's; switched off, and with other jars, it starts as without an archive."""
    monkeypatch.setenv("TANDEM_CLASS_ARCHIVE", str(tmp_path / "classes"))
    jars = tmp_path / "jars"
    jars.mkdir()
    (found,) = (Path(pyspark.__path__[0]) / "jars").glob("ivy-*.jar")
    shutil.copy(found, jars)
    server = KafkaServer(tmp_path / "broker", jars=jars)
    plain = server._command()
    assert plain[plain.index("-cp") + 1] == f"{jars}/*"
    archive = broker_archive(jars)
    assert archive is not None
    assert archive.make(_train)
    command = server._command()
    place = command.index(f"@{archive.arguments}")
    assert [*command[:place], "-cp", f"{jars}/*", *command[place + 1 :]] == plain
    shutil.copy(found, jars / "another.jar")
    assert server._command() == plain
    (jars / "another.jar").unlink()
    monkeypatch.setenv("TANDEM_CLASS_ARCHIVE", "0")
    assert server._command() == plain
