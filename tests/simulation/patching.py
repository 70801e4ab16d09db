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
from tandem.sink.pipeline import PipelinePolicy
from tandem.sink.write.merge_plan import MergeRules

MODULES = (
    "tandem.controller.status.checkpoint_view",
    "tandem.controller.coordination.topic",
    "tandem.controller.coordination.peer_state",
    "tandem.controller.process.timed_call",
    "tandem.controller.instance.loop",
    "tandem.controller.instance.execute",
    "tandem.controller.instance.message_watch",
    "tandem.controller.instance.observe",
    "tandem.controller.watch.checkpoint_keeper",
    "tandem.controller.status.outside_view",
    "tandem.controller.coordination.pause_request",
    "tandem.controller.instance.pipelines",
    "tandem.controller.instance.act",
    "tandem.controller.instance.task_board",
    "tandem.controller.watch.store_watch",
    "tandem.sink.read.scan.local_ranges",
    "tandem.sink.read.skip.copied_records",
    "tandem.sink.store.chain.pins",
    "tandem.sink.store.chain.chain_reader",
    "tandem.sink.store.chain.chain_writer",
    "tandem.sink.write.clear_generation",
    "tandem.sink.write.compare_copies",
    "tandem.sink.write.vanished_keys_check",
    "tandem.sink.process.clock",
    "tandem.sink.process.memory_budget",
    "tandem.sink.write.commit",
    "tandem.sink.write.confirm",
    "tandem.sink.commit_draft",
    "tandem.sink.read.reader_context",
    "tandem.sink.write.merge",
    "tandem.sink.read.new_partitions",
    "tandem.sink.read.scan.spark_ranges",
    "tandem.sink.read.scan.range_reader",
    "tandem.sink.read.scan.scan_lane",
    "tandem.sink.pipeline",
    "tandem.sink.write.object_buffer",
    "tandem.sink.read.survey",
    "tandem.sink.read.tail",
    "tandem.sink.read.scan.accept_ranges",
    "tandem.sink.read.scan.worker_ranges",
    "tandem.spark_jobs.retention.retention_job",
    "tandem.spark_jobs.retention.sweep",
    "tandem.spark_jobs.retention.sweep_partition",
)

# Not in a simulated process: the real clients, stores, commands and servers.
_ELSEWHERE = (
    "tandem.backup_avro.record.compression",
    "tandem.controller.http.health",
    "tandem.controller.local_state.remembered_heads",
    "tandem.controller.local_state.state_file",
    "tandem.controller.process.whole_file",
    "tandem.controller.http.host_names",
    "tandem.controller.http.server",
    "tandem.sink.process.log",
    "tandem.controller.cli.output.output",
    "tandem.controller.coordination.topic_reader",
    "tandem.controller.metrics.page",
    "tandem.controller.instance.start",
    "tandem.sink.encryption.key_ring",
    "tandem.sink.store.contract.store_clock",
    "tandem.sink.store.file_store",
    "tandem.sink.store.contract.probe",
    "tandem.sink.store.signed_store",
    "tandem.sink.store.chain.restore_targets",
    "tandem.sink.process.rates",
    "tandem.sink.kafka.cluster.admin",
    "tandem.sink.kafka.cluster.hedged_admin",
    "tandem.sink.kafka.fetch.answer_shares",
    "tandem.sink.kafka.wire.connections",
    "tandem.sink.kafka.cluster.group_listing",
    "tandem.sink.kafka.auth.msk",
    "tandem.sink.kafka.auth.renewed_files",
    "tandem.sink.kafka.auth.tokens",
    "tandem.sink.read.scan.worker_processes",
)

_OURS = "tandem."

DELETE_RETENTION_S = 20.0


class _Secrets:
    """Stands for the module `secrets`: drawn from the seed."""

    @staticmethod
    def token_hex(size: int) -> str:
        """Return random hex digits."""
        return f"{runtime.here().random.getrandbits(8 * size):0{2 * size}x}"

    @staticmethod
    def token_bytes(size: int) -> bytes:
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
    "tandem.backup_avro.selection.vanished_keys": {"_BEST_EFFORT_MS": 10_000},
    "tandem.sink.read.progress.next_scan_range": {"MIN_CHUNK": 4, "_FIRST_RATE": 5},
    "tandem.sink.read.progress.partition_progress": {"_FIRST_OFFSETS": 6},
    "tandem.sink.read.progress.tombstone_guarantee": {"SHORTEST_RETENTION_S": 10.0, "SKEW_S": 1.0},
    "tandem.sink.pipeline": {
        "SHORTEST_RETENTION_S": 10.0,
        "_IDLE_POLL_S": 0.5,
        "_SCAN_POLL_S": 0.2,
        "_PROOF_INTERVAL_S": 0.5,
    },
    "tandem.sink.store.chain.chain_writer": {"_SNAPSHOT_ENTRIES": 11},
    "tandem.sink.write.merge": {"_AFTER": 2},
    "tandem.sink.read.new_partitions": {"_LONGEST_REST_S": 2.0},
    "tandem.sink.write.object_buffer": {"OWN_BYTES": 60},
    "tandem.sink.commit_draft": {"_HEAD_FRESH_MS": 2_000, "SHORTEST_RETENTION_S": 10.0, "_PATIENCE_S": 10.0},
    "tandem.sink.read.reader_context": {"DAMAGED_RETRY_S": 1.0, "NAMED_PATIENCE_S": 30.0},
    "tandem.sink.read.tail": {"DAMAGED_RETRY_S": 1.0},
    "tandem.sink.read.scan.range_time_limit": {"SHORTEST_RETENTION_S": 10.0},
    "tandem.sink.read.scan.spark_ranges": {"_LOOK_S": 0.5},
    "tandem.sink.read.scan.local_ranges": {
        "DAMAGED_RETRY_S": 1.0,
        "_LONGEST_REST_S": 8.0,
        "_PATIENCE_S": 1.0,
        "_SILENCE_S": 4.0,
    },
    "tandem.sink.read.scan.accept_ranges": {"SHORTEST_RETENTION_S": 10.0, "_SKEW_MS": 200},
    "tandem.sink.read.scan.worker_ranges": {
        "_FIRST_OFFSETS": 8,
        "_FEWEST_OFFSETS": 4,
        "_MOST_OFFSETS": 64,
        "_SMALL_OFFSETS": 4,
        "_SHORT_S": 0.5,
        "_LONG_S": 2.0,
        "_REST_S": 1.0,
        "_LONGEST_REST_S": 8.0,
    },
    "tandem.controller.watch.checkpoint_keeper": {"_LOOK_S": 15.0},
    "tandem.controller.config.derived_settings": {"CONFIRM_CEILING_S": 8.0},
    "tandem.controller.instance.wiring": {
        "MergeRules": lambda **_: _MERGE_RULES,
        "PipelinePolicy": functools.partial(PipelinePolicy, parallel_scans=2),
    },
    "tandem.controller.watch.store_watch": {"_RETRY_S": 1.0},
    "tandem.controller.instance.act": {"_MARKED_WITHIN_S": 6.0},
    "tandem.controller.instance.task_board": {"_LONGEST_REST_S": 5.0, "_STALLED_S": 20.0},
    "tandem.controller.instance.pipelines": {"_ANSWER_POLL_S": 0.5},
    "tandem.controller.coordination.turn_request": {"_AGAIN_S": 3.0},
    "tandem.controller.decision.spoilt_builds": {"_FIRST_REST_S": 1.0, "_LONGEST_REST_S": 8.0},
    "tandem.controller.instance.loop": {"_LEAVE_S": 1.0},
}


# Pure functions of bytes that every process and the judge call on the same bytes.
_REMEMBERED = (
    ("tandem.sink.store.chain.chain_reader", "decode_claim"),
    ("tandem.sink.store.chain.chain_reader", "decode_entry"),
    ("tandem.sink.store.chain.chain_reader", "sha256_hex"),
    ("simulation.board", "decode"),
)

_forget: list[Callable[[], None]] = []


def apply() -> None:
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute, stand_in in _STANDS_FOR.items():
            if hasattr(module, attribute):
                setattr(module, attribute, stand_in)
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_OURS) and not name.startswith("tandem.spark_jobs.") and name not in MODULES + _ELSEWHERE:
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
