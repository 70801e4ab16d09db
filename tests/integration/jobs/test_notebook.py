"""docs/notebook.ipynb as a notebook, from an environment that is not activated; and the session that it begins with.

The kernel is a process of this environment's Python. Its PATH has Java and not this environment, and no variable of
Python or Spark is set, as where an editor starts a kernel.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.pages.notebook import plain_environ, run_notebook

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

_SESSION = "from tandem.spark_jobs.notebook import notebook_session\nspark = notebook_session('local[1,4]')\n"
_SHOW = "print(dict(spark.sparkContext.getConf().getAll()))"


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that knows nothing of this one."""
    return plain_environ(tmp_path)


def run_python(code: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `code` in this environment's Python."""
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=200
    )


def test_the_notebook(tmp_path: Path, plain: dict[str, str]) -> None:
    """Every cell, by this environment's Python; `test_wheel.py` has it in an environment with the extra alone."""
    run_notebook(sys.executable, tmp_path, plain)


def test_a_session_is_as_private_as_that_of_a_command(plain: dict[str, str]) -> None:
    """Spark's own defaults would answer anybody on its ports, and show a web page without a login."""
    done = run_python(f"{_SESSION}{_SHOW}", plain)
    assert done.returncode == 0, done.stderr
    for setting in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert f"'{setting}': 'true'" in done.stdout
    assert "'spark.ui.enabled': 'false'" in done.stdout


def test_workers_without_the_package(plain: dict[str, str], tmp_path: Path) -> None:
    """Their Python is named by the user and lacks Tandem: one error with a code, without the JVM's lines above it."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    done = run_python(_SESSION, plain | {"PYSPARK_PYTHON": str(other / "bin" / "python")})
    assert done.returncode == 1
    shown = done.stderr.rpartition("Traceback (most recent call last):")[2]
    assert "ConfigError: Spark's Python workers lack the module tandem" in shown
    assert "error code: TDM-P085" in shown
    assert "org.apache.spark" not in shown
