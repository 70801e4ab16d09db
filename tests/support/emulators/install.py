"""Gets the emulators, a Node package and two Go modules, and keeps them in the user's cache for all checkouts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem" / "emulators"
AZURITE: Final = "azurite@3.35.0"
FAKE_GCS: Final = "github.com/fsouza/fake-gcs-server@v1.56.1"
VERSITYGW: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def azurite() -> list[str]:
    """Return the command of Azurite's blob service; skip the test without npm."""
    folder = _CACHE / AZURITE
    main = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not main.exists():
        _install("npm", ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), AZURITE], {})
    return [shutil.which("node") or "node", str(main)]


def go_program(module: str) -> str:
    """Return the path of a Go module's program; skip the test without Go."""
    program, _, version = module.rpartition("/")[2].partition("@")
    folder = _CACHE / f"{program}@{version}"
    if not (folder / program).exists():
        _install("go", ["go", "install", module], {"GOBIN": str(folder)})
    return str(folder / program)


def _install(tool: str, command: list[str], variables: dict[str, str]) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on PATH, which gets {command[-1]}")
    _CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stderr[-2000:]}"
