"""The order of events: write twice, hand over, write, read; restore; read, write on, read again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from readers.applications import Application
from readers.environments import InstallationError
from readers.judge import ALL, FIRST, MORE, SECOND, Row, judge
from readers.process import Outcome, run_job
from readers.scene import Scene

_TOGETHER: Final = 2


class Campaign:
    """Runs applications in `folder`, which keeps their logs. `restore_options` are for `tandem restore`."""

    def __init__(
        self,
        applications: Sequence[Application],
        folder: Path,
        say: Callable[[str], None],
        restore_options: Sequence[str] = (),
    ) -> None:
        self._restore_options = restore_options
        self._applications = applications
        self._folder = folder
        self._say = say
        self._lost: dict[str, str] = {}
        self._outcomes: dict[str, dict[str, Outcome]] = {}

    def run(self) -> list[Row]:
        """Return the table, a line for each application and case. Raises BackupFailedError, TandemError."""
        self._each("install", self._install)
        with ExitStack() as stack:
            scene = Scene(self._folder, stack, self._say)
            source, target = scene.source.bootstrap, scene.target.bootstrap
            scene.create_topics(self._running)
            scene.start_backup()
            self._do("first part", source, phase="write", first=0, last=FIRST)
            # The second part ends the segments with the first one, and the cleaner comes before the next generation.
            self._do("second part", source, phase="write", first=FIRST, last=SECOND)
            scene.hand_over()
            self._do("third part", source, phase="write", first=SECOND, last=ALL)
            self._do("source", source, phase="read", first=0, last=ALL)
            scene.end_backup(self._running)
            scene.source.stop()
            scene.restore(self._restore_options)
            for item in self._running:
                if not item.kept:
                    shutil.rmtree(self._state(item))
            self._do("restore", target, phase="read", first=0, last=ALL)
            self._do("more", target, phase="write", first=ALL, last=MORE)
            self._do("goes on", target, phase="read", first=0, last=MORE)
        return [
            row
            for item in self._applications
            for row in judge(item, self._outcomes.get(item.name, {}), self._lost.get(item.name))
        ]

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
            self._outcomes.setdefault(item.name, {})[step] = outcome
            if outcome.fault:
                self._say(f"{item.title}, {step}: {outcome.fault}")

        self._each(f"{step}: {job['phase']} {job['first']} to {job['last'] - 1}", work)
