"""The tick of one instance: observe, decide, act. Everything slow runs in other threads."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import structlog

from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import ExitCode, RefusedError
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import policy_of
from tandem.controller.coordination.heartbeat import message_fields
from tandem.controller.decision.decide import Decision, Reason, decide
from tandem.controller.decision.observation import Role
from tandem.controller.decision.role_machine import RoleMachine
from tandem.controller.instance.execute import Executor
from tandem.controller.instance.message_watch import MessageWatch
from tandem.controller.instance.observe import Observer
from tandem.controller.instance.start import InstanceParts
from tandem.controller.local_state.remembered_heads import remembered_heads
from tandem.controller.status.instance_view import InstanceView, heartbeat_of
from tandem.controller.watch.store_watch import StoreView, StoreWatch
from tandem.sink.process.meters import NOBODY, Meters
from tandem.sink.read.progress.reading_progress import PartitionReading

_LOG = structlog.get_logger()
_LEAVE_S = 3.0


def new_incarnation() -> str:
    """Return a new id for the life of one process."""
    return str(uuid.uuid4())


class Instance:
    """One running incarnation. `run` returns when `stop` is set, and raises when the instance must not go on.

    `give_back` is called twice a turn: when a generation is COMPLETE, and when a former one is cleared. The memory of
    the scan, of reading objects back and of the former Active's pipeline is free by then.
    """

    def __init__(
        self,
        config: Config,
        parts: InstanceParts,
        *,
        stop: threading.Event,
        wake: threading.Event,
        meters: Meters = NOBODY,
        give_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._parts = parts
        self._stop = stop
        self._wake = wake
        self._policy = policy_of(config)
        self._machine = RoleMachine()
        heartbeat_s = self._policy.heartbeat_s
        watch = StoreWatch(
            parts.reader,
            interval_s=min(heartbeat_s, self._policy.flush_interval_s),
            wake=wake,
            remembered=remembered_heads(config),
        )
        self._executor = Executor(config, parts, watch=watch, meters=meters, give_back=give_back)
        self._messages = MessageWatch(config, parts, watch)
        self._observer = Observer(
            config,
            parts,
            watch=watch,
            executor=self._executor,
            messages=self._messages,
            meters=meters,
        )
        self._heartbeat_mono = 0.0
        self._ticked_mono = time.monotonic()
        self._last: Decision | None = None

    def run(self) -> ExitCode:
        """Tick until `stop` is set, then commit and leave. Raises RefusedError or DamagedError if it must not go on."""
        self._observer.start()
        _LOG.info("running", first=self._config.first, peer=self._config.peer_instance)
        tick_s = min(1.0, self._policy.heartbeat_s)
        task_board = self._executor.task_board
        try:
            while not self._stop.is_set():
                if self._observer.damage is not None:
                    raise self._observer.damage
                self._tick()
                if self._machine.role is Role.HALTED:
                    raise task_board.fenced or RefusedError(
                        "another process with this instance name has taken over",
                        code="TDM-I034",
                        remedy="run one process per instance name",
                    )
                if task_board.refused is not None:
                    raise task_board.refused
                self._wake.wait(tick_s)
                self._wake.clear()
        finally:
            self._leave()
        return ExitCode.OK

    def view(self) -> InstanceView:
        """Return the present view of the instance. Sends no request; for any thread."""
        return self._observer.view(self._machine.role, self._last, ticked_mono=self._ticked_mono)

    def readings(self) -> Mapping[int, Sequence[PartitionReading]]:
        """Return the reading progress of each generation that is read, by number, ascending; for any thread."""
        return self._executor.runs.readings()

    def _tick(self) -> None:
        self._ticked_mono = time.monotonic()
        view = self._observer.collect_views()
        # Published heads are checked first, so that no chain is taken over before it is known whether it lost entries.
        known = view is not None and self._knows_heads(view)
        if view is not None:
            self._messages.check_remembered(view)
            self._messages.compare_terms(view)
        if view is not None and self._may_decide() and known:
            seen = self._observer.observe(view)
            decision = decide(self._machine.role, seen, self._policy)
            self._apply(decision)
            self._executor.carry_out(decision, seen)
        if time.monotonic() - self._heartbeat_mono >= self._policy.heartbeat_s:
            self._heartbeat_mono = time.monotonic()
            self._parts.publish(CoordinationEvent.PROGRESS, **message_fields(heartbeat_of(self.view())))

    def _knows_heads(self, view: StoreView) -> bool:
        """Check published heads; return whether each is found or lost, or `liveness.timeout` was waited for that.

        No decision depends on the result, and a writer on the topic can publish heads that never existed, one after
        the other, so the wait is bounded.
        """
        waited_s = time.monotonic() - self._observer.started_mono
        return self._messages.check_heads(view) or self._last is not None or waited_s >= self._policy.liveness_timeout_s

    def _may_decide(self) -> bool:
        """Return whether the coordination topic has been read to its end, or `liveness.timeout` was waited for that.

        No message is needed for a correct decision: without them the chains decide, and the store fences.
        """
        if self._last is not None or self._parts.coordination.caught_up:
            return True
        waited_s = time.monotonic() - self._observer.started_mono
        if waited_s < self._policy.liveness_timeout_s:
            return False
        _LOG.warning(
            "the coordination topic can't be read; going on by the chains alone",
            topic=self._config.coordination.topic,
            waited_s=round(waited_s),
            remedy="look at the partitions of that topic; turns come late and requests are not heard until it is back",
        )
        return True

    def _apply(self, decision: Decision) -> None:
        before = self._machine.role
        trigger = self._machine.move_to(decision.role)
        if trigger is not None:
            _LOG.info("role", was=before.value, now=decision.role.value, trigger=trigger)
            self._heartbeat_mono = 0.0
        if self._last is None or self._last.reason is not decision.reason:
            _LOG.info("decision", role=decision.role.value, reason=decision.why)
            if decision.reason is Reason.TWIN_ALIVE:
                _LOG.warning(
                    "another process runs under this instance name; waiting until it is gone",
                    others=sorted(self._parts.peers.twin(self._parts.identity.instance).incarnations),
                    remedy="run one process per instance name: stop one of them",
                )
        self._last = decision

    def _leave(self) -> None:
        grace_s = self._config.shutdown.grace.total_seconds()
        deadline = time.monotonic() + max(1.0, grace_s - _LEAVE_S)
        _LOG.info("leaving: committing what was read", grace_s=grace_s)
        clean = self._executor.drain_and_stop(deadline)
        self._observer.stop()
        self._executor.task_board.close()
        self._parts.publish(CoordinationEvent.LEAVING, reason="stopped" if self._stop.is_set() else "halted")
        self._parts.coordination.close(min(_LEAVE_S, grace_s))
        (_LOG.info if clean else _LOG.warning)("left", clean=clean)
