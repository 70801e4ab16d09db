"""A process that runs command lines one after the other, in one interpreter and with one Spark session for all.

Requests come on stdin, one JSON list of words a line; answers go to the first stdout: exit code, stdout, stderr.
"""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

_LONGEST_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a command."""

    code: int
    out: str
    err: str


class Shell:
    """The other end: runs commands in `folder` with `environ`, after the Python of `prelude`."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *, prelude: str = "") -> None:
        self.folder = folder
        self._owes = ""  # the command whose answer would be taken for the next one's
        self._log = (folder / "shell.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{prelude}\nfrom {__name__} import serve\nserve()"],
            cwd=folder,
            env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def run(self, words: list[str]) -> Done:
        """Run `tandem` with these words to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert not self._owes, f"an earlier command has not answered: {self._owes}"
        self._owes = " ".join(words)
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _LONGEST_S)
        assert ready, f"tandem {' '.join(words)}: not ended within {_LONGEST_S:.0f} s"
        answer = self._process.stdout.readline()
        self._owes = ""
        assert answer, f"tandem {' '.join(words)}: the interpreter died; see {self.folder}/shell.log"
        return Done(**json.loads(answer))

    def close(self) -> None:
        """End the process, and Spark with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        self._log.close()


def serve() -> None:
    """Answer until stdin ends."""
    from tandem.controller.cli.main import run  # noqa: PLC0415 - only in the process of its own
    from tandem.spark_jobs.spark.session import build_session  # noqa: PLC0415 - likewise

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spark = None
    for line in sys.stdin:
        words = json.loads(line)
        if spark is None and words[0] in {"restore", "verify", "retention", "export", "drill", "catch-up"}:
            spark = build_session("local[2,4]", name="commands")  # commands leave one alone that they find
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err):
            code = run(words)
        said = {name: stream.buffer.getvalue().decode() for name, stream in (("out", out), ("err", err))}
        json.dump({"code": code, **said}, answers)
        answers.write("\n")
        answers.flush()
    if spark is not None:
        spark.stop()
