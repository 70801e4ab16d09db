"""Runs docs/notebook.ipynb as a notebook: its kernel is a process of the Python that is given."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from tandem.sink.store import open_store

_NOTEBOOK: Final = Path(__file__).parents[3] / "docs" / "notebook.ipynb"


def plain_environ(folder: Path) -> dict[str, str]:
    """The environment of a process that an editor starts: a home, and a PATH with `java`, `python3` and no `tandem`."""
    programs = folder / "bin"
    programs.mkdir()
    java = shutil.which("java")
    assert java is not None
    (programs / "java").symlink_to(Path(java).resolve())
    path = os.pathsep.join((str(programs), "/usr/bin", "/bin"))
    assert shutil.which("tandem", path=path) is None
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}


def run_notebook(python: str | Path, folder: Path, environ: Mapping[str, str]) -> None:
    """Run every cell against a small backup, and see that it shows what is there; none is stored with an output."""
    (folder / "store").mkdir()
    root = (folder / "store").as_uri()
    rows = [*records("customers", 0, range(40), keys=8, tombstones=[39]), *records("orders", 0, range(5))]
    Backup.completed(open_store(root), rows, topics=[TopicSpec("customers"), TopicSpec("orders")])
    notebook = nbformat.read(_NOTEBOOK, as_version=4)
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    [place] = [at for at, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())]
    # As papermill sets parameters: a cell behind the one with their defaults.
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(f"root, pair = {root!r}, {PAIR!r}"))

    kernel = folder / "kernels" / "plain"
    kernel.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "plain", "language": "python"}))
    manager = AsyncKernelManager(
        kernel_name="plain", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(folder / "kernels")])
    )
    client = NotebookClient(notebook, km=manager, timeout=200, resources={"metadata": {"path": str(folder)}})
    client.execute(env=dict(environ))

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
