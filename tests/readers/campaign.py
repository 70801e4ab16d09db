"""The order of events: write, hand over, write, read; restore; read, write on, read again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from readers.applications import Application
from readers.environments import InstallationError
from readers.expected import Moment
from readers.process import Answer, Outcome, run_job
from readers.scene import Scene

_HALF, _ALL, _MORE = 250, 487, 574
_TOGETHER: Final = 2
#: The phases in which an application tells its state, and what has been written and read by then.
_TOLD: Final[Mapping[str, Moment]] = {
    "source": Moment(last=_ALL, unread=0),
    "restore": Moment(last=_ALL, unread=_ALL),
    "goes on": Moment(last=_MORE, unread=_ALL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table. `excepted` says why the case need not hold; `faults` are what was not as it should be."""

    title: str
    version: str
    case: str
    source_s: float | None
    restore_s: float | None
    state_right: bool
    goes_on_right: bool
    excepted: str | None
    faults: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether the application came to its end on the restore."""
        return self.restore_s is not None

    @property
    def passed(self) -> bool:
        """Whether the row is as it should be."""
        return self.excepted is not None or not self.faults


class Campaign:
    """Runs applications in `folder`, which keeps their logs."""

    def __init__(self, applications: Sequence[Application], folder: Path, say: Callable[[str], None]) -> None:
        self._applications = applications
        self._folder = folder
        self._say = say
        self._lost: dict[str, str] = {}
        self._outcomes: dict[tuple[str, str], Outcome] = {}

    def run(self) -> list[Row]:
        """Return the table, a line for each application and case. Raises BackupFailedError, TandemError."""
        self._each("install", self._install)
        with ExitStack() as stack:
            scene = Scene(self._folder, stack, self._say)
            source, target = scene.source.bootstrap, scene.target.bootstrap
            scene.create_topics(self._running)
            scene.start_backup()
            self._do("first half", source, phase="write", first=0, last=_HALF)
            scene.hand_over()
            self._do("second half", source, phase="write", first=_HALF, last=_ALL)
            self._do("source", source, phase="read", first=0, last=_ALL)
            scene.end_backup(self._running)
            scene.source.stop()
            scene.restore()
            for item in self._running:
                if not item.kept:
                    shutil.rmtree(self._state(item))
            self._do("restore", target, phase="read", first=0, last=_ALL)
            self._do("more", target, phase="write", first=_ALL, last=_MORE)
            self._do("goes on", target, phase="read", first=0, last=_MORE)
        return [row for item in self._applications for row in self._rows(item)]

    @property
    def _running(self) -> list[Application]:
        return [item for item in self._applications if item.name not in self._lost]

    def _each(self, what: str, work: Callable[[Application], Any]) -> None:
        self._say(what)
        with ThreadPoolExecutor(_TOGETHER) as pool:
            list(pool.map(work, self._running))

    def _install(self, item: Application) -> None:
        try:
            item.environment.install()
        except InstallationError as error:
            self._lost[item.name] = f"could not be installed: {error}"
            self._say(f"{item.title}: {self._lost[item.name]}")

    def _state(self, item: Application) -> Path:
        return self._folder / "state" / item.name

    def _do(self, step: str, bootstrap: str, **job: Any) -> None:
        """Let all applications do the same job."""

        def work(item: Application) -> None:
            log = self._folder / "logs" / f"{item.name}-{step.replace(' ', '-')}.log"
            log.parent.mkdir(exist_ok=True)
            outcome = run_job(item, bootstrap, self._state(item), log, job)
            self._outcomes[item.name, step] = outcome
            if outcome.fault:
                self._say(f"{item.title}, {step}: {outcome.fault}")

        self._each(f"{step}: {job['phase']} {job['first']} to {job['last'] - 1}", work)

    def _rows(self, item: Application) -> Iterator[Row]:
        outcomes = {step: self._outcomes.get((item.name, step), Outcome(answers={})) for step in _TOLD}
        cases = list(dict.fromkeys(case for outcome in outcomes.values() for case in outcome.answers)) or ["-"]
        for case in cases:
            told = {step: outcome.answers.get(case) for step, outcome in outcomes.items()}
            wrong = {step: why for step, answer in told.items() if (why := self._wrong(item, case, step, answer))}
            faults = [self._lost[item.name]] if item.name in self._lost else list(wrong.values())
            yield Row(
                title=item.title,
                version=item.environment.versions(),
                case="" if case in {"-", "read"} else case,
                source_s=told["source"].ready_s if told["source"] else None,
                restore_s=told["restore"].ready_s if told["restore"] else None,
                state_right="restore" not in wrong and "source" not in wrong,
                goes_on_right="goes on" not in wrong,
                excepted=item.exceptions.get(case),
                faults=tuple(faults),
            )

    def _wrong(self, item: Application, case: str, step: str, answer: Answer | None) -> str | None:
        """Return what is wrong with an answer, None if nothing is."""
        if answer is None:
            return f"{step}: told nothing, see {self._folder}/logs"
        if answer.ready_s is None:
            return f"{step}: waits for ever"
        wanted = item.expectation(case, _TOLD[step])
        if answer.state == wanted:
            return None
        return f"{step}: {_difference(answer.state, wanted)}"


def _difference(told: Any, wanted: Any) -> str:
    """Return in one line where two states differ."""
    if isinstance(told, dict) and isinstance(wanted, dict):
        keys = sorted(key for key in told.keys() | wanted.keys() if told.get(key) != wanted.get(key))
        first = keys[0]
        return f"{len(keys)} of {len(wanted)} keys differ, {first} is {told.get(first)}, not {wanted.get(first)}"
    if isinstance(told, list) and isinstance(wanted, list):
        return f"{len(told)} items, not {len(wanted)}: {str(told)[:80]}, not {str(wanted)[:80]}"
    return f"{told}, not {wanted}"
