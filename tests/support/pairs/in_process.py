"""Commands of a pair in the process of the test, which has a Spark session already."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from support.pairs.instances import Pair
from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.main import run


def tandem(pair: Pair, *arguments: str, expected: ExitCode = ExitCode.OK) -> tuple[dict[str, Any], str]:
    """Run a command in this process; return its document (empty if there is none) and what it told people."""
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        code = run([*arguments, "-c", str(pair.config("a")), "-o", "json"])
    assert code == expected, f"{arguments}: {code}\n{out.getvalue()}\n{told.getvalue()}"
    return (json.loads(out.getvalue()) if out.getvalue() else {}), told.getvalue()
