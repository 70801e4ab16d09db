"""The coordination topic: messages that may be lost, repeated, late, out of order, or all gone; and who reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from simulation import runtime
from simulation.network import Network
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage, decode, encode
from tandem.controller.coordination.peer_state import PeerState


@dataclass(slots=True)
class Board:
    """The topic: what is on it, and the live readers."""

    messages: list[bytes] = field(default_factory=list)
    readers: list[Callable[[bytes], None]] = field(default_factory=list)

    def add(self, data: bytes) -> None:
        """Append, and hand to the readers."""
        self.messages.append(data)
        for reader in list(self.readers):
            reader(data)


class Coordination:
    """Stands for `controller.coordination.topic.CoordinationTopic` in one process.

    The fold behind it is the real one.
    """

    def __init__(
        self, context: Board, network: Network, *, peers: PeerState, identity: CoordinationMessage, wake: runtime.Event
    ) -> None:
        self._context = context
        self._network = network
        self._peers = peers
        self._identity = identity
        self._wake = wake
        self.caught_up = False
        self.echoed_mono: float | None = None
        self._inbox: runtime.Queue[tuple[bytes, bool]] = runtime.Queue()

    @property
    def failing(self) -> bool:
        """Whether a message would be lost."""
        return not self.caught_up or self._network.now < self._network.brokers_down_until

    def start(self) -> None:
        """Read all that is there, then what comes."""
        for data in self._context.messages:
            self._inbox.put((data, False))
        self._context.readers.append(self._deliver)
        runtime.Thread(self._run, name="coordination").start()

    def stop(self) -> None:
        """Read no more: the process is gone."""
        if self._deliver in self._context.readers:
            self._context.readers.remove(self._deliver)

    def _deliver(self, data: bytes) -> None:
        rng = self._network.random
        if self._network.now < self._network.brokers_down_until:  # it comes when the brokers answer again
            self._later(data, self._network.brokers_down_until)
            return
        weather = self._network.weather
        if rng.random() < weather.lost_message:
            return
        delay = rng.random() * (20.0 if rng.random() < weather.stray_message else 0.05)
        self._later(data, self._network.now + delay)
        if rng.random() < weather.stray_message:
            self._later(data, self._network.now + rng.random() * 30.0)

    def _later(self, data: bytes, when: float) -> None:
        def arrive() -> None:
            if not self._network.process.dead:
                self._inbox.put((data, True))

        self._network.runtime.at(when, arrive)

    def _run(self) -> None:
        while True:
            if self._inbox.empty():
                self.caught_up = True
            data, live = self._inbox.get()
            message = decode(data)
            if message.incarnation == self._identity.incarnation:
                self.echoed_mono = self._network.now
            self._peers.note_message(message, heard_mono=self._network.now if live else None)
            if live and message.event is not CoordinationEvent.PROGRESS:
                self._wake.set()

    def publish(self, event: CoordinationEvent, *, at: int, **fields: Any) -> None:
        """Send a message, if the brokers are there."""
        me = self._network.runtime.me()  # not from a dead process
        del me
        if self._network.now < self._network.brokers_down_until:
            return
        request = fields.pop("request_id", f"{self._network.random.getrandbits(64):016x}")
        self._context.add(encode(replace(self._identity, event=event, request_id=request, at=at, **fields)))

    def close(self, timeout: float) -> None:
        del timeout
        self.stop()
