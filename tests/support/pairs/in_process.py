"""Commands of a pair in the process of the test, which has a Spark session already."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from support.pairs.instances import Pair
from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.main import run


def tandem(pair: Pair | Path, *arguments: str, expected: ExitCode = ExitCode.OK) -> tuple[dict[str, Any], str]:
    """Run a command of a pair or configuration; return its document (empty if none) and what it told people."""
    config = pair if isinstance(pair, Path) else pair.config("a")
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        code = run([*arguments, "-c", str(config), "-o", "json"])
    assert code == expected, f"{arguments}: {code}\n{out.getvalue()}\n{told.getvalue()}"
    return (json.loads(out.getvalue()) if out.getvalue() else {}), told.getvalue()
