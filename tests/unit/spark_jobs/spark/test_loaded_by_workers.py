"""What the process of Spark's Python workers loads before it forks: each restore waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.spark_jobs.spark import worker_daemon


def test_workers_of_a_plain_restore_load_no_numpy() -> None:
    """It takes a tenth of the daemon's processor time, and only keyed and merged loads need it."""
    code = f"import sys, {worker_daemon.LOADED}; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _installed(folder: Path) -> list[str]:
    """Install something like PySpark and Py4J; return the path that Spark gives to its workers."""
    for name in ("pyspark", "py4j"):
        (folder / "site" / name).mkdir(parents=True)
        (folder / "site" / name / "__init__.py").touch()
    archives = folder / "site" / "pyspark" / "python" / "lib"
    archives.mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0.10-src.zip"):
        (archives / name).touch()
    own = [str(archives / name) for name in ("pyspark.zip", "py4j-0.10-src.zip")]
    mine = (str(folder / "mine.zip"), str(archives / "mine.zip"), "python/lib/pyspark.zip")
    return ["", *own, str(folder / "jars" / "spark-core.jar"), *mine, str(folder / "site")]


def test_what_is_installed_comes_before_archives_of_the_same(tmp_path: Path) -> None:
    """Modules in an archive are compiled each time; the user's own archives stay."""
    path = _installed(tmp_path)
    assert worker_daemon.without_archives(path) == ["", *path[3:]]


@pytest.mark.parametrize("other", [[], ["elsewhere"]])
def test_archives_stay_where_another_version_or_none_is_installed(tmp_path: Path, other: list[str]) -> None:
    """The driver's release is the one that the archives are of."""
    path = [*_installed(tmp_path)[:-1], *(str(tmp_path / name) for name in other)]
    for name in other:
        for module in ("pyspark", "py4j"):
            (tmp_path / name / module).mkdir(parents=True)
            (tmp_path / name / module / "__init__.py").touch()
    assert worker_daemon.without_archives(path) == path


def test_a_path_without_archives_stays() -> None:
    """As on a machine whose Spark comes without them."""
    assert worker_daemon.without_archives(["", "/somewhere"]) == ["", "/somewhere"]
