"""Two instances of one pair as processes of their own, what they take, and what their store says."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from bench.measured import cpu_s_of, resident_of, stat
from tandem.backup_avro.chain.generation import Generation
from tandem.controller.config.derived_settings import store_of
from tandem.controller.config.loading import load
from tandem.controller.config.model import Config
from tandem.sink.store.chain.chain_reader import ChainReader

_MAIN: Final = "import sys; from tandem.controller.cli.main import main; sys.exit(main())"
_PATIENCE_S: Final = 1_800.0


class PairProcesses:
    """A pair with the settings that it has by itself, but for `sections`. `close` kills what still runs.

    `own` are sections of one instance alone, by its name.
    """

    def __init__(
        self, folder: Path, sections: Mapping[str, Any], *, own: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._folder = folder
        self._sections = {"instances": ["a", "b"], "coordination": {"replication_factor": 1}, **sections}
        self._own = own or {}
        self.config = self.configure("command")
        self._chains = ChainReader(store_of(self.config), self.config.pair)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def configure(self, name: str) -> Config:
        """Write the configuration of an instance, or of commands, and return it."""
        path = self._folder / f"{name}.yaml"
        document = {"instance": "b" if name == "b" else "a", **self._sections, **self._own.get(name, {})}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        path.chmod(0o600)
        return load(path, {})

    def start(self, instance: str) -> None:
        """Start `tandem run`; what it writes goes into a file of the folder."""
        self.configure(instance)
        with (self._folder / f"{instance}.log").open("ab") as log:
            self.processes[instance] = subprocess.Popen(
                [sys.executable, "-c", _MAIN, "run", "-c", str(self._folder / f"{instance}.yaml")],
                stdout=log,
                stderr=log,
            )

    def end(self, instance: str) -> None:
        """SIGTERM, and wait until it has ended."""
        process = self.processes.pop(instance)
        process.terminate()
        process.wait(_PATIENCE_S)

    def kill(self, instance: str) -> None:
        """SIGKILL."""
        process = self.processes.pop(instance)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Kill what still runs."""
        for instance in list(self.processes):
            self.kill(instance)

    def command(self, *words: str) -> None:
        """Run a command of Tandem; raise RuntimeError with its output if it fails."""
        with self.begin(*words) as command:
            said, _ = command.communicate()
        if command.returncode:
            raise RuntimeError(f"tandem {' '.join(words)} failed:\n{said}"[-4000:])

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command of Tandem; its `stdout` is all that it says."""
        command = [sys.executable, "-c", _MAIN, *words, "-c", str(self._folder / "command.yaml")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def complete(self, number: int) -> bool:
        """Tell whether a generation is COMPLETE."""
        found = self.generation(number)
        return found is not None and found.complete

    def sequence(self, number: int) -> int:
        """Return the number of the last entry of a generation's chain."""
        found = self.generation(number)
        return found.seq if found is not None else 0

    def generation(self, number: int) -> Generation | None:
        """Return a generation as its chain has it now; None if nobody has claimed it."""
        self._chains.refresh()
        return next((found for found in self._chains.history() if found.number == number), None)

    def wait(self, what: str, over: Callable[[], object], *, every_s: float = 1.0) -> float:
        """Call `over` until it is true; return the seconds. RuntimeError with the logs: it takes too long."""
        began = time.monotonic()
        while not over():
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() - began > _PATIENCE_S:
                logs = "".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))
                raise RuntimeError(f"{what} is not reached:\n{logs}")
            time.sleep(every_s)
        return time.monotonic() - began

    def cpu_s(self, instance: str) -> float:
        """Return the processor time that an instance has used."""
        return cpu_s_of(stat(self.processes[instance].pid))

    def memory_mb(self, instance: str) -> float:
        """Return what is resident of an instance, in MiB as `measured.peak_mb`."""
        return resident_of(stat(self.processes[instance].pid)) / 2**20


@contextmanager
def again_and_again(work: Callable[[], None], *, every_s: float) -> Iterator[None]:
    """Do work in a thread, first after `every_s`, until the `with` ends."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
