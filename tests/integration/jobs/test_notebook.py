"""docs/notebook.ipynb as a notebook, from an environment that is not activated; and the session that it begins with.

The kernel is a process of this environment's Python. Its PATH has Java and not this environment, and no variable of
Python or Spark is set, as where an editor starts a kernel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.sink.store import open_store

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

NOTEBOOK = Path(__file__).parents[3] / "docs" / "notebook.ipynb"
_SESSION = "from tandem.spark_jobs.notebook import notebook_session\nspark = notebook_session('local[1,4]')\n"
_SHOW = "print(dict(spark.sparkContext.getConf().getAll()))"


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that knows nothing of this one: a home, and a PATH with `java` and `python3`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    java = shutil.which("java")
    assert java is not None
    (folder / "java").symlink_to(Path(java).resolve())
    path = os.pathsep.join((str(folder), "/usr/bin", "/bin"))
    assert shutil.which("tandem", path=path) is None
    return {"PATH": path, "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def run_python(code: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `code` in this environment's Python."""
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=200
    )


def test_the_notebook(tmp_path: Path, plain: dict[str, str]) -> None:
    """Every cell runs against a small backup, and shows what is there; none is stored with an output."""
    (tmp_path / "store").mkdir()
    root = (tmp_path / "store").as_uri()
    rows = [*records("customers", 0, range(40), keys=8, tombstones=[39]), *records("orders", 0, range(5))]
    Backup.completed(open_store(root), rows, topics=[TopicSpec("customers"), TopicSpec("orders")])
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    [place] = [at for at, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
    # As papermill sets parameters: a cell behind the one with their defaults.
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(f"root, pair = {root!r}, {PAIR!r}"))

    kernel = tmp_path / "kernels" / "plain"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "plain", "language": "python"}))
    manager = AsyncKernelManager(
        kernel_name="plain", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")])
    )
    client = NotebookClient(notebook, km=manager, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=plain)

    shown = {
        cell.id: "".join(out.get("text", "") for out in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert re.search(r"\|customers\| +0\| +40\|\n\| +orders\| +0\| +5\|", shown["count"])
    assert re.findall(r"\|(key-\d+) *\|(value-\d+) *\|", shown["newest"]) == [
        (f"key-{offset % 8}", f"value-{offset}") for offset in range(32, 39)
    ]
    assert re.search(r"\| +7\|", shown["query"])
    assert re.search(r"\|key-7\|39 +\|.*\.avro", shown["tombstones"])


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
