"""The state folded from the messages on the coordination topic: the only fold, for instances and commands. Pure.

Nothing here is authority. Messages are noted in offset order; memory is bounded, whatever is written to the topic.
Times are ms by the store's clock, which instances stamp their messages with; those named `*_mono` are monotonic seconds
of the process that reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.chain.signatures import SignatureError, Trust
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.documents.turn_request import check_request
from tandem.controller.coordination.bounded_memory import INCARNATIONS, STRANGERS, BoundedMap, drop_unused_parts
from tandem.controller.coordination.heads import PublishedHeads
from tandem.controller.coordination.heartbeat import Heartbeat, heartbeat_in
from tandem.controller.decision.observation import Activation, Peer, Twin

_HINTS = (CoordinationEvent.PAUSE, CoordinationEvent.RESUME, CoordinationEvent.CHECKPOINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHeard:
    """The last state heard of an instance. `heartbeat` is the last PROGRESS of its newest process, if there is one.

    `at` is the time in its last message, or the time at which the broker appended it, if that is known and earlier.
    `left`: its last message was LEAVING. `twin_at`: when a process sent a message under this name although another
    process had sent one after it, which shows that two processes run at once.
    """

    instance: str
    incarnation: str
    at: int
    left: bool = False
    heartbeat: Heartbeat | None = None
    twin_at: int | None = None


@dataclass(slots=True, kw_only=True)
class _Process:
    """One incarnation. `heard_mono` and `heartbeat_mono` are when its last message and its last heartbeat came.

    Both are None if all its messages are older than the reading process. `turn` is the number of the last message that
    made it the newest process.
    """

    incarnation: str
    at: int = 0
    turn: int = 0
    left: bool = False
    heartbeat: Heartbeat | None = None
    heard_mono: float | None = None
    heartbeat_mono: float | None = None


@dataclass(slots=True, kw_only=True)
class _Sender:
    """The state of one sender name. Beyond `INCARNATIONS` processes, those that have left are forgotten first."""

    processes: BoundedMap[str, _Process] = field(
        default_factory=lambda: BoundedMap(INCARNATIONS, gone=lambda process: process.left)
    )
    twin_at: int | None = None

    def newest(self, *, but: str | None = None) -> _Process | None:
        """Return the process that sent a message last, other than `but`; None if there is none.

        A LEAVING of a process whose successor was already heard does not make it the newest again.
        """
        others = (process for process in self.processes if process.incarnation != but)
        return max(others, key=lambda process: process.turn, default=None)

    def twin_seen(self, incarnation: str, at: int) -> int | None:
        """Return the new `twin_at` after a message of `incarnation` other than LEAVING, sent at `at`."""
        newest = self.newest()
        if newest is None or newest.incarnation == incarnation or self.processes.get(incarnation) is None:
            return self.twin_at
        return None if newest.left else at


class PeerState:
    """Folds the messages of one pair. One thread calls `note`; any thread may call the other methods.

    `incarnation` is that of the reading process, if it is an instance, so that it does not count as its own twin. An
    ACTIVATE that `trust` rejects is ignored and passed to `refused`.
    """

    def __init__(
        self,
        *,
        pair: str,
        instances: Collection[str],
        incarnation: str | None = None,
        trust: Trust | None = None,
        refused: Callable[[CoordinationMessage, SignatureError], None] = lambda _, __: None,
    ) -> None:
        self._pair = pair
        self._instances = frozenset(instances)
        self._incarnation = incarnation
        self._trust = trust or Trust()
        self._refused = refused
        self._lock = threading.Lock()
        self._noted = 0
        of_pair = self._instances.__contains__
        self._senders: BoundedMap[str, _Sender] = BoundedMap(STRANGERS, kept=of_pair)
        self._requests: BoundedMap[str, tuple[Activation, CoordinationMessage]] = BoundedMap(STRANGERS, kept=of_pair)
        self._hints: dict[CoordinationEvent, BoundedMap[str, str]] = {
            event: BoundedMap(STRANGERS, kept=of_pair) for event in _HINTS
        }
        self._heads = PublishedHeads()

    def note_message(
        self, message: CoordinationMessage, *, heard_mono: float | None = None, appended_at: int | None = None
    ) -> None:
        """Fold one message. `heard_mono` is None if it was written before this process began to read.

        `appended_at` is when the broker appended it (ms), None if its record has only the sender's timestamp.
        """
        if message.pair != self._pair or not self._counts(message):
            return
        of_pair = message.instance in self._instances
        at = message.at if appended_at is None else min(message.at, appended_at)
        message = drop_unused_parts(message, of_pair=of_pair)
        said = heartbeat_in(message)
        with self._lock:
            if of_pair:
                self._heads.note(said)
            if message.event in self._hints:
                self._hints[message.event].note(message.instance, message.request_id)
            if (
                message.event is CoordinationEvent.ACTIVATE
                and message.target is not None
                and message.generation is not None
            ):
                request = Activation(
                    request_id=message.request_id,
                    target=message.target,
                    generation=message.generation,
                    reason=message.reason or "",
                    by_person=not of_pair,
                    at=message.at,
                )
                self._requests.note(message.instance, (request, replace(message, at=at)))
            self._record_heartbeat(message, said, at, heard_mono)

    def _counts(self, message: CoordinationMessage) -> bool:
        """Whether a message counts: an ACTIVATE without a valid signature does not, if signatures are required."""
        try:
            if message.event is CoordinationEvent.ACTIVATE:
                check_request(message, self._trust)
        except SignatureError as error:
            self._refused(message, error)
            return False
        return True

    def _record_heartbeat(
        self, message: CoordinationMessage, said: Heartbeat, at: int, heard_mono: float | None
    ) -> None:
        sender = self._senders.get(message.instance) or _Sender()
        self._senders.note(message.instance, sender)
        newest, known = sender.newest(), sender.processes.get(message.incarnation)
        leaves = message.event is CoordinationEvent.LEAVING
        sender.twin_at = None if leaves and known is not None else sender.twin_seen(message.incarnation, at)
        process = known or _Process(incarnation=message.incarnation)
        sender.processes.note(message.incarnation, process)
        if not leaves or known is None or known is newest:
            self._noted += 1
            process.turn = self._noted
        process.at, process.left = at, leaves
        if message.event is CoordinationEvent.PROGRESS:
            process.heartbeat = said
        if heard_mono is not None:
            process.heard_mono = heard_mono
            if message.event is CoordinationEvent.PROGRESS:
                process.heartbeat_mono = heard_mono

    def last_heard(self) -> dict[str, LastHeard]:
        """Return the last state heard of each sender, by name; senders outside the pair are among them."""
        with self._lock:
            found = ((name, sender, sender.newest()) for name, sender in self._senders.as_dict().items())
            return {
                name: LastHeard(
                    instance=name,
                    incarnation=newest.incarnation,
                    at=newest.at,
                    left=newest.left,
                    heartbeat=newest.heartbeat,
                    twin_at=sender.twin_at,
                )
                for name, sender, newest in found
                if newest is not None
            }

    def own_state_as_heard(self, instance: str, heartbeat: Heartbeat, at: int) -> LastHeard:
        """Return the `LastHeard` that others would have of the reading instance if it sent this heartbeat at `at`."""
        assert self._incarnation is not None
        with self._lock:
            sender = self._senders.get(instance) or _Sender()
            return LastHeard(
                instance=instance,
                incarnation=self._incarnation,
                at=at,
                heartbeat=heartbeat,
                twin_at=sender.twin_seen(self._incarnation, at),
            )

    def peer(self, instance: str) -> Peer:
        """Return the state of another instance that decisions depend on."""
        with self._lock:
            sender = self._senders.get(instance) or _Sender()
            heard = [process.heard_mono for process in sender.processes if process.heard_mono is not None]
            newest = sender.newest()
            return Peer(
                instance=instance,
                heard_mono=max(heard, default=None),
                left=newest is not None and newest.left,
            )

    def current_heartbeat(self, instance: str) -> Heartbeat | None:
        """Return the last heartbeat of an instance's newest process; None if it has left, or sent none in this run.

        Heartbeats of earlier processes, or of one that has left, are not current: the fault that they report may have
        been corrected since.
        """
        with self._lock:
            newest = (self._senders.get(instance) or _Sender()).newest()
            stays = newest is not None and not newest.left and newest.heartbeat_mono is not None
            return newest.heartbeat if newest is not None and stays else None

    def twin(self, instance: str) -> Twin:
        """Return the state of the other processes that run under the reading instance's name."""
        with self._lock:
            sender = self._senders.get(instance) or _Sender()
            newest = sender.newest(but=self._incarnation)
            if newest is None:
                return Twin()
            staying = [one for one in sender.processes if one.incarnation != self._incarnation and not one.left]
            heard = {one.incarnation: one.heard_mono for one in staying if one.heard_mono is not None}
            return Twin(
                known=not newest.left,
                heard_mono=max(heard.values(), default=None),
                left=not staying,
                incarnations=heard,
            )

    def activations(self) -> tuple[Activation, ...]:
        """Return the last ACTIVATE of each remembered sender, in the form that decisions need."""
        with self._lock:
            return tuple(request for request, _ in self._requests)

    def requests(self) -> tuple[CoordinationMessage, ...]:
        """Return the same requests as messages; `at` is the broker's append time, if that is known and earlier."""
        with self._lock:
            return tuple(message for _, message in self._requests)

    def hints(self, *events: CoordinationEvent) -> frozenset[str]:
        """Return the request ids of the last message of each of `events` of each remembered sender.

        Remembered are PAUSE, RESUME and CHECKPOINT.
        """
        with self._lock:
            return frozenset(request_id for event in events for request_id in self._hints[event])

    def heads(self) -> tuple[Head, ...]:
        """Return the last head of each generation that an instance of the pair has published."""
        with self._lock:
            return tuple(self._heads)

    def roots(self, heads: Iterable[Head]) -> dict[int, str]:
        """Return, by generation, the root under which each of `heads` or a later head was published, if known."""
        with self._lock:
            found = ((head.generation, self._heads.root_with(head)) for head in heads)
            return {generation: root for generation, root in found if root is not None}
