"""The wheel that a release ships: built twice it is the same, it has all that is needed, and it works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from supply_chain import wheel
from supply_chain.lock import ROOT

_ROOTS = ("avro", "controller", "sink", "spark_jobs")

# Stands outside of the sources, so that whatever is imported comes from the wheel.
_SMOKE = """
import sys
from pathlib import Path
from tandem import backup_avro, controller, sink, spark_jobs
from tandem.sink.transcode import _bodies, _twin
home = Path(sys.argv[1])
for module in (backup_avro, controller, sink, spark_jobs, _bodies, _twin):
    assert Path(module.__file__).is_relative_to(home), module.__file__
from tandem.backup_avro.record.current import SCHEMA
from tandem.controller.sandbox.jars import pinned_checksums
assert SCHEMA and pinned_checksums()
from tandem.controller.cli.main import main
sys.argv = ["tandem", *sys.argv[2:]]
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_of_the_last_commit(tmp_path: Path) -> None:
    """Two builds are the same byte for byte; every file of the packages is in it, no test is; commands run from it."""
    built, source = wheel.release(tmp_path / "dist")
    assert source.name.endswith(".tar.gz")
    names = set(zipfile.ZipFile(built).namelist())
    for root in _ROOTS:
        listed = subprocess.run(
            ["git", "ls-tree", "-r", "--name-only", f"HEAD:{root}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert set(listed) <= names
    assert {name.split("/")[0] for name in names} == {"tandem", "tandem_kafka_backup-0.1.0.dist-info"}
    home = tmp_path / "home"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", home, built],
        check=True,
    )
    environment = os.environ | {"PYTHONPATH": str(home)}
    for words, expected in [
        (["--version"], "0.1.0"),
        (["--help"], "restore"),
        (["config", "validate", "-c", "nowhere.yaml"], ""),
    ]:
        ended = subprocess.run(
            [sys.executable, "-c", _SMOKE, home, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == (2 if "nowhere.yaml" in words else 0), ended.stderr
        assert expected in ended.stdout
