"""The stage: broker, S3 server, gates, topics, and both instances, which are started again when they end.

All of it is driven by one thread. Whatever stands on the stage is gone when the `with` ends, however it ends.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient
from support.clusters.brokers import Listeners
from support.pairs.instances import Instance, Pair, store_section

from chaos.crew import Topics, make_topics
from chaos.facts import Place
from chaos.faults import Blow, Fault, Scale
from chaos.gates import Gate, Gates, Mode
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.errors import ExitCode, TandemError
from tandem.controller.coordination.topic_reader import send
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.server import LocalServer
from tandem.controller.sandbox.sigv4 import S3Key
from tandem.sink.store import ObjectStore, open_store

NAMES: Final = ("a", "b")
SCALE: Final = Scale(spread=4.0, shortest=1.5, longest=6.0, timeout=8.0)

# Times of the pair, in seconds; SCALE.timeout is longer than each time-out but that of the writers.
PAIR: Final[Mapping[str, Any]] = {
    "flush": {"interval": "1s"},
    "rotation": {"interval": "12s"},
    "liveness": {"timeout": "5s"},
    "peer": {"timeout": "5s"},
    "handover": {"timeout": "5s"},
    "shutdown": {"grace": "5s"},
    "scan": {"chunk_duration": "2s"},
}
THROUGH_GATES: Final[Mapping[str, Any]] = {
    "kafka": {"socket.timeout.ms": 5000, "reconnect.backoff.max.ms": 500},
    "store": {"connect_timeout": "2s", "read_timeout": "4s"},
}

# Small segments, cleaned at once; tombstones live just long enough for the tombstone rule to hold.
_CLEANED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "60000",
    "file.delete.delay.ms": "1000",
}
TOPICS: Final[Topics] = {
    "steady": (3, _CLEANED),
    "stamped": (2, _CLEANED | {"message.timestamp.type": "LogAppendTime"}),
    "aged": (2, _CLEANED | {"cleanup.policy": "compact,delete", "retention.ms": "45000"}),
}
PLACES: Final[tuple[Place, ...]] = tuple((topic, n) for topic, (count, _) in TOPICS.items() for n in range(count))
STAMPED: Final = frozenset({"stamped"})
# Where nothing but compaction takes records away.
COMPACTED: Final = tuple(place for place in PLACES if place[0] != "aged")

_ADMIN: Any = kafka_admin  # it has more than its types say
_SERVER_S = 90.0
_LEAVE_S = 20.0
_RESTART_S = 2.0
_BUCKET = "chaos"


@dataclass(slots=True, kw_only=True)
class Slot:
    """The place of one instance: the process that counts, and those that should not be there."""

    name: str
    running: Instance | None = None
    extra: list[Instance] = field(default_factory=list)
    away: bool = False
    ended: float = 0.0
    lives: int = 0


class Stage:
    """Sets everything up in `folder`; use it in a `with`. `note` gets one line for what is worth telling."""

    def __init__(self, folder: Path, *, note: Callable[[str], None]) -> None:
        self.folder = folder
        self.note = note
        self._stack = ExitStack()
        self._active: set[Fault] = set()
        self.slots = {name: Slot(name=name) for name in NAMES}
        self.exits: list[str] = []
        self.crashes: list[str] = []

    def __enter__(self) -> Self:
        """Bring up servers, gates and topics; the pair comes by `up`."""
        with ExitStack() as stack:
            gates = stack.enter_context(Gates())
            self.gates = {
                f"{name}>{server}": gates.open(f"{name}>{server}", partial(self._target, name, server))
                for name in NAMES
                for server in ("kafka", "s3")
            }
            self.kafka = self._new_kafka(self.folder / "kafka")
            stack.callback(self.kafka.stop)
            self.s3 = S3Server(
                self.folder / "s3",
                bucket=_BUCKET,
                key=S3Key(access_key=f"key-{secrets.token_hex(4)}", secret_key=secrets.token_urlsafe(24)),
            )
            stack.callback(self.s3.stop)
            self.kafka.start(timeout_s=_SERVER_S)
            self.s3.start(timeout_s=_SERVER_S)
            make_topics(self.kafka.bootstrap, TOPICS)
            section = store_section(f"s3://{_BUCKET}/root", self.s3)
            self.pair = stack.enter_context(
                Pair(self.folder / "pair", bootstrap=self.kafka.bootstrap, store=section, topics=list(TOPICS), **PAIR)
            )
            (self.folder / "pair").mkdir()
            # With less patience than an instance has: whoever looks must not hang with a server that is suspended.
            settings = replace(self.pair.store_settings, connect_timeout=2.0, read_timeout=4.0, attempts=1)
            self.store: ObjectStore = open_store(self.pair.root, settings)
            stack.callback(self.store.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Take everything down; what is suspended is resumed or killed."""
        self._stack.close()

    # --- servers ----------------------------------------------------------------------------------------------------

    def _new_kafka(self, folder: Path) -> KafkaServer:
        """One listener for writers and judges, and one for each instance, whose clients are led through its gate."""
        listeners = Listeners.through({name: self.gates[f"{name}>kafka"].address for name in NAMES})
        self._behind = listeners.behind
        overrides = {
            **listeners.overrides,
            "log.retention.check.interval.ms": "2000",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
        }
        return KafkaServer(folder, ports=listeners.ports, overrides=overrides)

    def _target(self, name: str, server: str) -> str:
        return self.s3.address("s3") if server == "s3" else self._behind[name]

    def admin(self) -> AdminClient:
        """Return an admin client that goes past the gates."""
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})

    # --- instances --------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Start each instance that does not run."""
        for slot in self.slots.values():
            if slot.running is None:
                self._start(slot)

    def tend(self) -> None:
        """Start what ended by itself again, as Kubernetes would, and remember how it ended."""
        for slot in self.slots.values():
            if slot.running is not None and not slot.running.alive and not slot.away:
                if not slot.ended:
                    slot.ended = time.monotonic()
                    self._ended(slot.running)
                if time.monotonic() - slot.ended >= _RESTART_S:
                    self._start(slot)
            for extra in list(slot.extra):
                if not extra.alive:
                    self._ended(extra)
                    slot.extra.remove(extra)

    def _ended(self, instance: Instance) -> None:
        last = next((f"{line['error']} [{line['code']}]" for line in instance.said("ended with an error")), "")
        code = instance.process.returncode
        if code == ExitCode.ERROR or code < 0:  # an error that was not foreseen, or a signal that nobody here sent
            self.crashes.append(f"{instance.log}: {last or f'exit code {code}'}")
        self.exits.append(f"{instance.log.stem}: exit code {code} {last}".strip())
        self.note(self.exits[-1])

    def _start(self, slot: Slot) -> None:
        slot.running = self._new(slot)
        slot.away, slot.ended = False, 0.0

    def _new(self, slot: Slot) -> Instance:
        slot.lives += 1
        sections: dict[str, Any] = {section: dict(values) for section, values in THROUGH_GATES.items()}
        sections["kafka"]["bootstrap.servers"] = self.gates[f"{slot.name}>kafka"].address
        sections["store"]["endpoint_url"] = f"http://{self.gates[f'{slot.name}>s3'].address}"
        return self.pair.start(slot.name, **sections)

    @property
    def settled(self) -> bool:
        """Whether both instances run, and nobody else under their names."""
        return all(slot.running is not None and slot.running.alive and not slot.extra for slot in self.slots.values())

    # --- faults -----------------------------------------------------------------------------------------------------

    @property
    def store_in_reach(self) -> bool:
        """Whether the S3 server is meant to answer now."""
        return not any(fault.victim == "s3" for fault in self._active)

    def begin(self, fault: Fault, newest: int) -> None:
        """Do it. `newest` is the highest generation that was seen."""
        self._active.add(fault)
        match fault.blow:
            case Blow.KILL | Blow.PAUSE | Blow.LEAVE | Blow.TWIN | Blow.STALE_TWIN:
                self._begin_instance(fault, self.slots[fault.victim])
            case Blow.SERVER_KILL:
                self._server(fault).kill()
            case Blow.SERVER_STOP:
                self._server(fault).stop()
            case Blow.SERVER_PAUSE:
                self._server(fault).suspend()
            case Blow.NETWORK:
                assert fault.mode is not None
                self._gate(fault).set(fault.mode)
            case Blow.FAILOVER | Blow.TOPIC_DELETED | Blow.TOPIC_EMPTIED:
                self._operate(fault, newest)

    def _begin_instance(self, fault: Fault, slot: Slot) -> None:
        assert slot.running is not None
        match fault.blow:
            case Blow.KILL:
                slot.away = True
                slot.running.kill()
            case Blow.LEAVE:
                slot.away = True
                slot.running.process.send_signal(signal.SIGTERM)
            case Blow.PAUSE:
                slot.running.process.send_signal(signal.SIGSTOP)
            case Blow.TWIN | Blow.STALE_TWIN:
                if fault.blow is Blow.STALE_TWIN:
                    slot.running.process.send_signal(signal.SIGSTOP)
                slot.extra.append(slot.running)
                self._start(slot)

    def end(self, fault: Fault) -> None:
        """Undo it, as far as that is not the pair's own work."""
        self._active.discard(fault)
        match fault.blow:
            case Blow.KILL | Blow.PAUSE | Blow.LEAVE | Blow.TWIN | Blow.STALE_TWIN:
                self._end_instance(fault, self.slots[fault.victim])
            case Blow.SERVER_KILL | Blow.SERVER_STOP | Blow.SERVER_PAUSE:
                self._server(fault).start(timeout_s=_SERVER_S)
            case Blow.NETWORK:
                self._gate(fault).set(Mode.OPEN)
            case Blow.FAILOVER | Blow.TOPIC_DELETED | Blow.TOPIC_EMPTIED:
                pass

    def _end_instance(self, fault: Fault, slot: Slot) -> None:
        assert slot.running is not None
        match fault.blow:
            case Blow.KILL:
                self._start(slot)
            case Blow.LEAVE:
                self._see_off(slot.running)
                self._start(slot)
            case Blow.PAUSE:
                slot.running.process.send_signal(signal.SIGCONT)
            case Blow.TWIN:  # the first one goes, and the second one takes its place
                for first in slot.extra:
                    first.kill()
                slot.extra.clear()
            case Blow.STALE_TWIN:
                for first in slot.extra:
                    first.process.send_signal(signal.SIGCONT)

    def _see_off(self, instance: Instance) -> None:
        try:
            code = instance.process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self.exits.append(f"{instance.log.stem}: still there {_LEAVE_S:.0f} s after SIGTERM")
            self.note(self.exits[-1])
            instance.kill()
        else:
            if code != 0:
                self._ended(instance)

    def heal(self) -> None:
        """End what is not ended, and every process too many."""
        for fault in list(self._active):
            self.end(fault)
        for slot in self.slots.values():
            for extra in slot.extra:
                if extra.alive:
                    extra.process.send_signal(signal.SIGTERM)
            for extra in slot.extra:
                self._see_off(extra)
            slot.extra.clear()
        self.tend()

    def _server(self, fault: Fault) -> LocalServer:
        return self.kafka if fault.victim == "kafka" else self.s3

    def _gate(self, fault: Fault) -> Gate:
        return self.gates[fault.victim]

    # --- the coordination topic -------------------------------------------------------------------------------------

    @property
    def coordination(self) -> str:
        """The name of the pair's topic."""
        return str(self.pair.settings["coordination"]["topic"])

    def _operate(self, fault: Fault, newest: int) -> None:
        """Ask or destroy; brokers that are away at that moment are no reason to stop."""
        admin = self.admin()  # its futures end with it
        try:
            match fault.blow:
                case Blow.FAILOVER:
                    self._ask(NAMES[round(fault.at * 10) % 2], newest + 1)
                case Blow.TOPIC_DELETED:
                    for future in admin.delete_topics([self.coordination], operation_timeout=10).values():
                        future.result(timeout=15)
                case _:
                    self._empty(admin)
        except (KafkaException, TandemError, TimeoutError) as error:
            self.note(f"{fault}: not done: {type(error).__name__}: {error}")

    def _empty(self, admin: AdminClient) -> None:
        """Delete all records; brokers do that only to topics that may delete."""
        everything = ConfluentPartition(self.coordination, 0, -1)
        for policy in ("compact,delete", "compact"):
            resource = _ADMIN.ConfigResource(
                _ADMIN.ConfigResource.Type.TOPIC,
                self.coordination,
                incremental_configs=[
                    _ADMIN.ConfigEntry("cleanup.policy", policy, incremental_operation=_ADMIN.AlterConfigOpType.SET)
                ],
            )
            for altered in admin.incremental_alter_configs([resource], request_timeout=10).values():
                altered.result(timeout=15)
            if policy != "compact":
                for deleted in admin.delete_records([everything], operation_timeout=10).values():
                    deleted.result(timeout=15)

    def _ask(self, target: str, generation: int) -> None:
        message = CoordinationMessage(
            event=CoordinationEvent.ACTIVATE,
            pair=self.pair.name,
            instance="operator",
            incarnation="operator",
            cluster_id=self.kafka.cluster_id or "",
            request_id=secrets.token_hex(8),
            at=round(time.time() * 1000),
            target=target,
            generation=generation,
            reason="chaos",
        )
        send(
            {"bootstrap.servers": self.kafka.bootstrap, "log_level": 0},
            message,
            topic=self.coordination,
            partitions=1,
            timeout_s=10.0,
        )
