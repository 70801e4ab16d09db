"""Running one job of an application to its end, or until it has waited for too long."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from readers.applications import Application
from readers.environments import environment_of
from readers.programs.job import MARK

_LIMIT_S: Final = 100.0
_LAST_LINES: Final = 60
#: The line that names an exception, of Python, Java or JavaScript.
_CAUSE: Final = re.compile(r"Error|Exception|^\w+(\.\w+)*\.[A-Z]\w+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an application told of one case: `ready_s` is None if it waited for ever."""

    ready_s: float | None
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answers of one job by case; `fault` says why there may be none."""

    answers: Mapping[str, Answer]
    fault: str | None = None


def run_job(application: Application, bootstrap: str, folder: Path, log: Path, job: Mapping[str, Any]) -> Outcome:
    """Run the program with its local state in `folder`; its output goes to `log`."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {
        "bootstrap": bootstrap,
        "name": application.name,
        "folder": str(folder),
        "options": dict(application.options),
        **job,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*application.environment.command(application.program), json.dumps(words)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment_of(application.environment),
            start_new_session=True,
        )
        fault = None
        try:
            process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            fault = f"did not end within {_LIMIT_S:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text("utf-8", errors="replace")
    answers = {}
    for line in text.splitlines():
        if line.startswith(MARK):
            told = json.loads(line.removeprefix(MARK))
            answers[told["case"]] = Answer(ready_s=told["ready_s"], state=told["state"])
    if not answers:
        lines = [line for line in text.splitlines() if line.strip()][-_LAST_LINES:]
        cause = next((line for line in reversed(lines) if _CAUSE.search(line)), "")
        fault = "\n".join([f"{fault or f'ended with {process.returncode}'} {cause.strip()}".strip(), *lines])
    return Outcome(answers=answers, fault=None if answers else fault)
