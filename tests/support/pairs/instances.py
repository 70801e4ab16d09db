"""Pairs for tests: `tandem run` as real processes, watched through the chains in the store and through their logs.

    with Pair(folder, bootstrap=..., store=..., topics=["orders"]) as pair:
        a = pair.start("a")
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        a.kill()

Everything is waited for, nothing is slept for. A wait that fails shows the last words of every process; the logs stay
in the folder. Every process is gone when the `with` ends, however it ends.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

import yaml

from support.pages import documents
from support.pairs.cli_shell import Shell
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.signatures import Signer
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.documents.turn_request import sign_request
from tandem.controller.coordination.topic_reader import send
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import REGION, S3Server
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.store import ObjectStore, StoreAccess, StoreTransientError, open_store
from tandem.sink.store.chain.chain_reader import ChainReader

WAIT_S = 90.0
QUICK: dict[str, Any] = {"flush": {"interval": "500ms"}, "coordination": {"heartbeat_interval": "500ms"}}
"""Sections for a pair that shall take several turns in a test."""
_POLL_S = 0.2
_LAST_LINES = 25
_MAIN = "import sys; from tandem.controller.cli.main import main; sys.exit(main())"
_T = TypeVar("_T")

Ends = Mapping[tuple[str, int], int]
Settings = dict[str, Any]


def store_section(root: str, server: S3Server, *, endpoint_url: str | None = None) -> Settings:
    """The `store:` section for a root on a sandbox's S3 server; by way of `endpoint_url` if given."""
    return {
        "root": root,
        "endpoint_url": endpoint_url or server.endpoint_url,
        "addressing_style": "path",
        "region": REGION,
        "access_key_id": server.key.access_key,
        "secret_access_key": server.key.secret_key,
    }


def store_settings(server: S3Server, **more: Any) -> StoreAccess:
    """How a test reaches any root on a sandbox's S3 server; `more` are other settings."""
    section = store_section("", server)
    del section["root"]
    return StoreAccess(**section, **more)


class Instance:
    """One process of `tandem run`; its log is JSON lines."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.expected_to_run = True

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def text(self) -> str:
        """All that it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield its log lines."""
        for line in self.text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def said(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return the lines whose event contains `event` and that carry these fields."""
        return [
            line
            for line in self.lines()
            if event in line["event"] and all(line.get(key) == value for key, value in fields.items())
        ]

    def ended_with(self) -> dict[str, Any]:
        """Return the line of the error that ended it, with `error`, `code` and `remedy`: its last line."""
        last = json.loads(self.text().splitlines()[-1])
        assert last["event"] == "ended with an error", last
        assert self.said("ended with an error") == [last]
        return last  # type: ignore[no-any-return]

    @property
    def role(self) -> str:
        """The role it was last in, by its log."""
        return next((line["now"] for line in reversed(self.said("role")) if "now" in line), "Passive")

    @property
    def incarnation(self) -> str:
        """The id of this process life."""
        return str(next(line["incarnation"] for line in self.lines() if "incarnation" in line))

    def kill(self) -> None:
        self.expected_to_run = False
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 40.0) -> int:
        """SIGTERM; return the exit code."""
        self.expected_to_run = False
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def end(self, timeout_s: float = 150.0) -> int:
        """Return the exit code of a process that is to end by itself."""
        self.expected_to_run = False
        return self.process.wait(timeout_s)

    def last_words(self) -> str:
        """Return the end of its log for a message."""
        state = "runs" if self.alive else f"ended with exit code {self.process.returncode}"
        return f"--- {self.log} ({state})\n" + "\n".join(self.text().splitlines()[-_LAST_LINES:])


class Pair:
    """A pair with a name of its own, short times, and its own coordination topic."""

    def __init__(
        self,
        folder: Path,
        *,
        bootstrap: str,
        store: Settings,
        topics: Sequence[str] | Mapping[str, Any] = (),
        **sections: Any,
    ) -> None:
        """Use `folder` for configuration and logs. `topics` are names, or the whole section.

        `sections` win over the settings below, key by key.
        """
        self._folder = folder
        self.name = f"pair-{secrets.token_hex(4)}"
        self.settings: Settings = {
            "pair": self.name,
            "topics": dict(topics) if isinstance(topics, Mapping) else {"include": list(topics)},
            "kafka": {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1000},
            "store": store,
            "coordination": {
                "topic": f"{self.name}-coordination",
                "replication_factor": 1,
                "heartbeat_interval": "1s",
            },
            "flush": {"interval": "1s"},
            "liveness": {"timeout": "20s"},
            "peer": {"timeout": "20s"},
            "handover": {"timeout": "20s"},
            "rotation": {"interval": "1d"},
            "groups": {"interval": "5s"},
            "log": {"level": "info"},
        }
        merge(self.settings, sections)
        self._bootstrap = bootstrap
        self._store: ObjectStore | None = None
        self._reader: ChainReader | None = None
        self._shell: Shell | None = None
        self._began: dict[str, int] = {}
        self.instances: list[Instance] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Kill what still runs."""
        for instance in self.instances:
            if instance.alive:
                instance.kill()
        if self._shell is not None:
            self._shell.close()
        if self._store is not None:
            self._store.close()

    # --- processes --------------------------------------------------------------------------------------------------

    def config(self, name: str, **sections: Any) -> Path:
        """Write the configuration of an instance and return the file."""
        settings = json.loads(json.dumps(self.settings))
        settings["instance"] = name
        merge(settings, sections)
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return path

    def start(self, name: str, *, prelude: str = "", **sections: Any) -> Instance:
        """Start a process of instance `name`; `sections` hold for it alone.

        `prelude` is Python that runs in the process first: for what no user may switch.
        """
        life = self._began[name] = self._began.get(name, 0) + 1
        config = self.config(name, **sections)
        log = self._folder / f"{name}-{life}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{prelude}\n{_MAIN}", "run", "--config", config.name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                cwd=self._folder,
            )
        instance = Instance(name, process, log)
        self.instances.append(instance)
        return instance

    def tandem(self, *arguments: str, timeout_s: float = 2 * WAIT_S) -> subprocess.CompletedProcess[str]:
        """Run another command of Tandem to its end, with the settings of the pair; its JSON is as the schemas say."""
        done = subprocess.run(
            self._command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_environment(),
            cwd=self._folder,
            check=False,
        )
        documents.check_output(arguments, done.stdout)
        return done

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Begin another command in a process group of its own, to be killed with all that it starts."""
        with (self._folder / "command.log").open("ab") as output:
            return subprocess.Popen(
                self._command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                cwd=self._folder,
                start_new_session=True,
            )

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _MAIN, *self._words(*arguments)]

    def _words(self, *arguments: str) -> list[str]:
        config = self._folder / "command.yaml"
        settings = {key: value for key, value in self.settings.items() if key != "log"}
        config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return [*arguments, "--config", str(config)]

    def status(self) -> dict[str, Any]:
        """Return what `tandem status` says, however healthy.

        It is asked for again and again until something holds; one interpreter does not load all its modules each time.
        """
        if self._shell is None:
            self._shell = Shell(self._folder, _environment())
        arguments = "status", "-o", "json"
        done = self._shell.run(self._words(*arguments))
        assert done.out, done.err
        documents.check_output(arguments, done.out)
        found: dict[str, Any] = json.loads(done.out)
        return found

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, what: str, done: Callable[[], _T | Literal[False] | None], *, timeout_s: float = WAIT_S) -> _T:
        """Return what `done` returns once that is true; a store that does not answer is asked again."""
        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(StoreTransientError):
                if outcome := done():
                    return outcome
            dead = [item.name for item in self.instances if item.expected_to_run and not item.alive]
            if dead or time.monotonic() > deadline:
                why = f"{' and '.join(dead)} ended" if dead else f"waited {timeout_s:.0f} s in vain"
                words = "\n".join(item.last_words() for item in self.instances)
                raise AssertionError(f"{why} until {what}\n{self._chains()}\n{words}")
            time.sleep(_POLL_S)

    def _chains(self) -> str:
        try:
            return "\n".join(
                f"generation {g.number} of {g.instance}: seq {g.seq}, complete {g.complete}, sealed {g.sealed}, "
                f"clearing {g.clearing is not None}, cleared {g.cleared is not None}, taints {len(g.taints)}"
                for g in self.history()
            )
        except Exception as error:  # noqa: BLE001 - the message about the wait must come out
            return f"chains: {error}"

    # --- what the store says ----------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The root of the store."""
        return str(self.settings["store"]["root"])

    @property
    def store_settings(self) -> StoreAccess:
        """How this test reaches the store: as the instances do, but for times, and without much patience."""
        section, keys = self.settings["store"], self.settings.get("encryption", {}).items()
        if self.root.startswith("file:"):
            return StoreAccess()
        return StoreAccess(
            **{
                name: value
                for name, value in section.items()
                if name not in {"root", "connect_timeout", "read_timeout"}
            },
            attempts=2,
            encryption=KeySettings(
                **{name: tuple(value) if isinstance(value, list) else value for name, value in keys}
            ),
        )

    @property
    def store(self) -> ObjectStore:
        """The store as this test sees it."""
        if self._store is None:
            self._store = open_store(self.root, self.store_settings)
        return self._store

    def history(self) -> list[Generation]:
        """Return all generations, cleared ones too, read on to their heads."""
        if self._reader is None:
            self._reader = ChainReader(self.store, self.name)
        self._reader.refresh()
        return self._reader.history()

    def move(self, root: str) -> None:
        """Look under another root from now on, as do all processes that are started; the store of before stays open."""
        self.settings["store"]["root"] = root
        self._store = None
        self.forget()

    def forget(self) -> None:
        """Read chains from their start next time, as whoever has seen nothing of what was there before."""
        self._reader = None

    def generation(self, number: int) -> Generation | None:
        """Return a generation, None if nobody claimed it yet."""
        return next((g for g in self.history() if g.number == number), None)

    def complete(self, number: int) -> Generation | None:
        """Return a generation if it is COMPLETE."""
        found = self.generation(number)
        return found if found is not None and found.complete else None

    def live(self) -> list[Generation]:
        """Return the generations that are not wholly cleared."""
        return [g for g in self.history() if not g.gone]

    def covered(self, ends: Ends) -> Generation | None:
        """Return the newest COMPLETE generation if its positions reach `ends`."""
        newest = max((g for g in self.live() if g.complete), key=lambda g: g.number, default=None)
        if newest is None:
            return None
        reached = {
            (newest.topics[key.topic_id].name, key.partition): position.offset
            for key, position in newest.positions.items()
        }
        return newest if all(reached.get(place, -1) >= end for place, end in ends.items()) else None

    def objects_of(self, name: str) -> list[str]:
        """Return the keys of all that instance `name` has stored besides its chains."""
        return [info.key for info in self.store.list(f"{self.name}/{name}/")]

    def entries(self, number: int) -> list[Entry]:
        """Return a chain's entries in order."""
        state = self.generation(number)
        assert state is not None
        assert self._reader is not None
        return [entry for entry, _ in self._reader.entries(number, 1, state.seq)]

    def kinds(self, number: int) -> list[str]:
        """Return the kinds of a chain's entries in order."""
        return [entry.kind.value for entry in self.entries(number)]

    def data_prefix(self, name: str, number: int) -> str:
        """Return the folder of a generation's data objects."""
        return layout.data_prefix(self.name, name, number)

    # --- requests ---------------------------------------------------------------------------------------------------

    def activate(self, target: str, generation: int, *, signer: Signer | None = None) -> None:
        """Ask `target` to build `generation`, as a person would by `tandem failover`, who signs that with `signer`."""
        message = CoordinationMessage(
            event=CoordinationEvent.ACTIVATE,
            pair=self.name,
            instance="operator",
            incarnation="operator",
            cluster_id=self.history()[0].claim.cluster_id,
            request_id=f"request-{generation}",
            at=round(time.time() * 1000),
            target=target,
            generation=generation,
            reason="failover",
        )
        send(
            {"bootstrap.servers": self._bootstrap},
            message if signer is None else sign_request(message, signer),
            topic=self.settings["coordination"]["topic"],
            partitions=1,
            timeout_s=30.0,
        )


class PairMaker(Protocol):
    """Makes a pair on the shared broker and S3 server, or on others. Its processes end with the test."""

    def __call__(
        self,
        topics: Sequence[str] | Mapping[str, Any] = (),
        *,
        kafka: KafkaServer | None = None,
        s3: S3Server | None = None,
        **sections: Any,
    ) -> Pair:
        """Make a pair with an empty root of its own; `sections` win over its short settings."""
        ...


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TANDEM_"))}
    return kept | {"AWS_EC2_METADATA_DISABLED": "true"}


def merge(settings: Settings, more: Mapping[str, Any]) -> None:
    """Put `more` over `settings`, section by section; a key with the value None is taken out."""
    for key, value in more.items():
        if value is None:
            settings.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(settings.get(key), dict):
            merge(settings[key], value)
        else:
            settings[key] = value
