"""Puts virtual time and simulated threads in the place of real ones in the production modules. Done once, for good.

Only names of modules are replaced (`threading`, `queue`, `time`, `secrets`, `uuid`, thread pools) and a handful of
constants, scaled to a log of a hundred records whose tombstones live twenty seconds. No production function is, but for
speed: loggers are silent, frozen dataclasses assign plainly, and pure functions of bytes remember.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import sys
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any

from simulation import runtime
from sink.merge_plan import MergeRules
from sink.pipeline import PipelinePolicy

MODULES = (
    "controller.checkpoints",
    "controller.coordination",
    "controller.errand",
    "controller.instance",
    "controller.keeper",
    "controller.lookout",
    "controller.pausing",
    "controller.runs",
    "controller.tasks",
    "controller.watch",
    "sink.base",
    "sink.chain.pins",
    "sink.chain.reader",
    "sink.chain.writer",
    "sink.clear",
    "sink.clock",
    "sink.commit",
    "sink.confirm",
    "sink.drafts",
    "sink.lanes",
    "sink.merge",
    "sink.newcomers",
    "sink.offer_lane",
    "sink.offers",
    "sink.pipeline",
    "sink.roll",
    "sink.survey",
    "sink.tail",
    "sink.takings",
    "sink.worker_lane",
    "spark_jobs.retention",
    "spark_jobs.sweep",
    "spark_jobs.sweep_records",
)

# Not in a simulated process: the real clients, stores, commands and servers.
_ELSEWHERE = (
    "backup_avro.compression",
    "controller.http",
    "controller.http_server",
    "controller.log",
    "controller.mailbox",
    "controller.metrics.collector",
    "controller.setup",
    "sink.encryption.key_ring",
    "sink.object_store.clock",
    "sink.object_store.file",
    "sink.object_store.probing",
    "sink.object_store.signed",
    "sink.rates",
    "sink.source.cluster",
    "sink.source.connection",
    "sink.source.msk",
    "sink.source.tokens",
    "sink.worker",
)

_OURS = ("sink.", "controller.", "backup_avro.", "spark_jobs.")

DELETE_RETENTION_S = 20.0


class _Secrets:
    """Stands for the module `secrets`: drawn from the seed."""

    @staticmethod
    def token_hex(size: int) -> str:
        """Return random hex digits."""
        return f"{runtime.here().random.getrandbits(8 * size):0{2 * size}x}"

    @staticmethod
    def token_bytes(size: int) -> bytes:
        """Return random bytes."""
        return runtime.here().random.getrandbits(8 * size).to_bytes(size, "big")


class _Uuids:
    """Stands for the module `uuid`."""

    UUID = uuid.UUID

    @staticmethod
    def uuid4() -> uuid.UUID:
        """Return a random id."""
        return uuid.UUID(int=runtime.here().random.getrandbits(128), version=4)


_STANDS_FOR: dict[str, object] = {
    "threading": runtime.Threading,
    "queue": runtime.Queues,
    "time": runtime.Time,
    "secrets": _Secrets,
    "uuid": _Uuids,
    "ThreadPoolExecutor": runtime.Executor,
    "Future": runtime.Future,
}

# An object's header alone has more than a kilobyte.
REWRITE_GRACE_MS = 8_000
_MERGE_RULES = MergeRules(fan_in=3, smallest=600, own_bytes=150, limit=6000, most_runs=7, grace_ms=REWRITE_GRACE_MS)

# What is measured in seconds or offsets of a real cluster, scaled down with delete.retention.ms.
_CONSTANTS: dict[str, dict[str, Any]] = {
    "sink.scan": {"MIN_CHUNK": 4, "_FIRST_RATE": 5},
    "sink.track": {"SHORTEST_RETENTION_S": 10.0, "SKEW_S": 1.0},
    "sink.pipeline": {"SHORTEST_RETENTION_S": 10.0, "_IDLE_POLL_S": 0.5, "_SCAN_POLL_S": 0.2, "_PROOF_INTERVAL_S": 0.5},
    "sink.chain.writer": {"_SNAPSHOT_ENTRIES": 11},
    "sink.merge": {"_AFTER": 2},
    "sink.newcomers": {"_LONGEST_REST_S": 2.0},
    "sink.roll": {"OWN_BYTES": 60},
    "sink.drafts": {"_HEAD_FRESH_MS": 2_000, "SHORTEST_RETENTION_S": 10.0, "_PATIENCE_S": 10.0},
    "sink.lanes": {"DAMAGED_RETRY_S": 1.0},
    "sink.tail": {"DAMAGED_RETRY_S": 1.0},
    "sink.promise": {"SHORTEST_RETENTION_S": 10.0},
    "sink.offer_lane": {"_LOOK_S": 0.5, "_SKEW_MS": 200},
    "sink.base": {"DAMAGED_RETRY_S": 1.0, "_LONGEST_REST_S": 8.0, "_PATIENCE_S": 1.0, "_SILENCE_S": 4.0},
    "sink.takings": {"SHORTEST_RETENTION_S": 10.0},
    "sink.worker_lane": {
        "_FIRST_OFFSETS": 8,
        "_FEWEST_OFFSETS": 4,
        "_MOST_OFFSETS": 64,
        "_SMALL_OFFSETS": 4,
        "_SHORT_S": 0.5,
        "_LONG_S": 2.0,
        "_REST_S": 1.0,
        "_LONGEST_REST_S": 8.0,
    },
    "controller.keeper": {"_LOOK_S": 15.0},
    "controller.wiring": {
        "CONFIRM_CEILING_S": 8.0,
        "MergeRules": lambda **_: _MERGE_RULES,
        "PipelinePolicy": functools.partial(PipelinePolicy, parallel_scans=2),
    },
    "controller.watch": {"_RETRY_S": 1.0},
    "controller.tasks": {"_LONGEST_REST_S": 5.0},
    "controller.runs": {"_ANSWER_POLL_S": 0.5},
    "controller.asking": {"_AGAIN_S": 3.0},
    "controller.spoilt_builds": {"_FIRST_REST_S": 1.0, "_LONGEST_REST_S": 8.0},
    "controller.instance": {"_LEAVE_S": 1.0},
}


# Pure functions of bytes that every process and the judge call on the same bytes.
_REMEMBERED = (
    ("sink.chain.reader", "decode_claim"),
    ("sink.chain.reader", "decode_entry"),
    ("sink.chain.reader", "sha256_hex"),
    ("simulation.board", "decode"),
)

_forget: list[Callable[[], None]] = []


def apply() -> None:
    """Patch all modules."""
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute, stand_in in _STANDS_FOR.items():
            if hasattr(module, attribute):
                setattr(module, attribute, stand_in)
    for name, module in sorted(sys.modules.items()):
        if name.startswith(("sink.", "controller.", "backup_avro.")) and name not in MODULES + _ELSEWHERE:
            assert not unpatched(module), f"{name} would read a real clock or start real threads"
    for name, constants in _CONSTANTS.items():
        module = importlib.import_module(name)
        for attribute, value in constants.items():
            assert hasattr(module, attribute), f"{name} has no {attribute} any more"
            setattr(module, attribute, value)
    for name, attribute in _REMEMBERED:
        module = importlib.import_module(name)
        remembering = functools.lru_cache(maxsize=512)(getattr(module, attribute))
        setattr(module, attribute, remembering)
        _forget.append(remembering.cache_clear)
    for module in (module for name, module in sorted(sys.modules.items()) if name.startswith(_OURS)):
        for logger in {"_LOG", "_RATED"} & vars(module).keys():
            setattr(module, logger, _Log())
    for cls in _frozen_classes():
        thaw(cls)


def forget() -> None:
    """Let go of what was remembered of a history: no other one has the same bytes."""
    for clear in _forget:
        clear()


def _frozen_classes() -> list[type[Any]]:
    """Return the frozen dataclasses of all modules that were imported."""
    found: dict[type[Any], None] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_OURS):
            for item in vars(module).values():
                if isinstance(item, type) and item.__module__ == name and "__dataclass_params__" in vars(item):
                    found[item] = None
    return [cls for cls in found if vars(cls)["__dataclass_params__"].frozen]


def thaw(cls: type[Any]) -> None:
    """Have the constructor of a frozen dataclass assign its fields plainly: the detour was an eighth of all the time.

    Everything else stays. That nobody changes a frozen value is for mypy and the other tests to say.
    """
    fields = [(item.name, item.type, copy.copy(item)) for item in dataclasses.fields(cls)]
    after = {"__post_init__": None} if hasattr(cls, "__post_init__") else {}  # so that the constructor calls it
    twin = dataclasses.make_dataclass(cls.__name__, fields, namespace=after, kw_only=False)
    cls.__init__ = vars(twin)["__init__"]
    for name in ("__setattr__", "__delattr__"):
        if name in vars(cls):
            delattr(cls, name)


class _Log:
    """Stands for the loggers of all modules. Silent until `speak`: thousands of histories are run that nobody reads."""

    write: Callable[[str], None] | None = None

    def debug(self, text: str, **fields: object) -> None:
        """Nobody asks for these."""

    def info(self, text: str, **fields: object) -> None:
        """Tell what happens."""
        if _Log.write is not None:
            self._tell("info", text, fields)

    def warning(self, text: str, **fields: object) -> None:
        """Tell what may need somebody."""
        if _Log.write is not None:
            self._tell("warning", text, fields)

    def error(self, text: str, **fields: object) -> None:
        """Tell what needs somebody."""
        if _Log.write is not None:
            self._tell("error", text, fields)

    def flush(self) -> None:
        """Nothing was left out."""

    def _tell(self, level: str, text: str, fields: dict[str, object]) -> None:
        assert _Log.write is not None
        current = runtime.here().current
        who = f"{current.process.name}/{current.name}" if current is not None else "-"
        _Log.write(f"{who:24} {level:7} {text} " + " ".join(f"{key}={value}" for key, value in fields.items()))


def speak(write: Callable[[str], None]) -> None:
    """Log every line of every process to `write`."""
    _Log.write = write


def unpatched(module: ModuleType) -> list[str]:
    """Return the names of real clocks and threads that a module still has."""
    return [name for name, stand_in in _STANDS_FOR.items() if getattr(module, name, stand_in) is not stand_in]
