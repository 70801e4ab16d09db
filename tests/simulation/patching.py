"""Puts virtual time and simulated threads in the place of real ones in the production modules. Done once, for good.

Only names of modules are replaced (`threading`, `queue`, `time`, `secrets`, `uuid`, thread pools) and a handful of
constants, scaled to a log of a hundred records whose tombstones live twenty seconds. No production function is.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import uuid
from types import ModuleType
from typing import Any

import structlog

from simulation import runtime
from sink.merge_plan import MergeRules

MODULES = (
    "controller.checkpoints",
    "controller.coordination",
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
    "sink.offer_lane",
    "sink.offers",
    "sink.pipeline",
    "sink.roll",
    "sink.survey",
    "sink.tail",
    "sink.takings",
    "sink.worker_lane",
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
    "sink.object_store.file",
    "sink.object_store.probing",
    "sink.source.cluster",
    "sink.source.connection",
    "sink.worker",
)

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
_MERGE_RULES = MergeRules(fan_in=3, smallest=600, own_bytes=150, limit=6000, most_runs=7, grace_ms=8_000)

# What is measured in seconds or offsets of a real cluster, scaled down with delete.retention.ms.
_CONSTANTS: dict[str, dict[str, Any]] = {
    "sink.scan": {"MIN_CHUNK": 4, "_FIRST_RATE": 5},
    "sink.track": {"SHORTEST_RETENTION_S": 10.0},
    "sink.pipeline": {"SHORTEST_RETENTION_S": 10.0, "_IDLE_POLL_S": 0.5, "_SCAN_POLL_S": 0.2, "_PROOF_INTERVAL_S": 0.5},
    "sink.chain.writer": {"_SNAPSHOT_ENTRIES": 11},
    "sink.merge": {"_AFTER": 2},
    "sink.roll": {"OWN_BYTES": 60},
    "sink.drafts": {"_HEAD_FRESH_MS": 2_000},
    "sink.lanes": {"DAMAGED_RETRY_S": 1.0},
    "sink.tail": {"DAMAGED_RETRY_S": 1.0},
    "sink.promise": {"SHORTEST_RETENTION_S": 10.0},
    "sink.offer_lane": {"_LOOK_S": 0.5, "_SKEW_MS": 200},
    "sink.base": {"DAMAGED_RETRY_S": 1.0},
    "sink.takings": {"SHORTEST_RETENTION_S": 10.0},
    "sink.worker_lane": {
        "_FIRST_OFFSETS": 8,
        "_FEWEST_OFFSETS": 4,
        "_MOST_OFFSETS": 64,
        "_SMALL_OFFSETS": 4,
        "_SHORT_S": 0.5,
        "_LONG_S": 2.0,
        "_REST_S": 1.0,
    },
    "controller.keeper": {"_LOOK_S": 15.0},
    "controller.wiring": {"MergeRules": lambda **_: _MERGE_RULES},
    "controller.watch": {"_RETRY_S": 1.0},
    "controller.tasks": {"_LONGEST_REST_S": 5.0},
    "controller.runs": {"_ANSWER_POLL_S": 0.5},
    "controller.instance": {"_ASK_AGAIN_S": 3.0, "_LEAVE_S": 1.0},
}


# Pure functions of bytes that every process and the judge call on the same bytes.
_REMEMBERED = (
    ("sink.chain.reader", "decode_entry"),
    ("simulation.board", "decode"),
)


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
        setattr(module, attribute, functools.lru_cache(maxsize=512)(getattr(module, attribute)))
    silence()


def silence() -> None:
    """Log nothing: thousands of histories are run."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )


def speak(write: Any) -> None:
    """Log every line of every process to `write`."""

    def render(_: Any, level: str, event: dict[str, Any]) -> str:
        text = event.pop("event")
        current = runtime.here().current
        who = f"{current.process.name}/{current.name}" if current is not None else "-"
        return f"{who:24} {level:7} {text} " + " ".join(f"{key}={value}" for key, value in event.items())

    class _Logger:
        def msg(self, message: str) -> None:
            write(message)

        debug = info = warning = error = critical = exception = msg

    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Logger(),
        cache_logger_on_first_use=False,
    )


def unpatched(module: ModuleType) -> list[str]:
    """Return the names of real clocks and threads that a module still has."""
    return [name for name, stand_in in _STANDS_FOR.items() if getattr(module, name, stand_in) is not stand_in]
