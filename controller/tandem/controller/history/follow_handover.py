"""Request a handover and follow it: the request goes to the coordination topic, its effect is read from S3."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.coordination_message import CoordinationMessage
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.coordination.peer_state import LastHeard, PeerState
from tandem.controller.coordination.topic import partition_of
from tandem.controller.coordination.topic_reader import ANSWER_S, TopicReader, partition_count, send
from tandem.controller.history.handover_progress import HandoverPlan, HandoverStanding, handover_standing
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms

_SEND_S = 10.0


class HandoverWatch:
    """One handover request and its progress; use it in a `with`. Entering and `send` raise errors of the brokers."""

    def __init__(
        self, config: Config, store: ObjectStore, asked: HandoverPlan, *, guarded: GuardedPartitions, requested_at: int
    ) -> None:
        self._props: dict[str, Value] = dict(config.kafka.reveal())
        self._topic = config.coordination.topic
        self._pair = config.pair
        self._asked = asked
        self._guarded = guarded
        self._requested_at = requested_at
        self._store = store
        self._known_pins: pins.KnownPins = {}
        self._reader = ChainReader(store, config.pair, ended=True)
        self._peers = PeerState(pair=config.pair, instances=config.instances)
        with ClusterAdmin(self._props, timeout_s=ANSWER_S) as admin:
            self._partitions = partition_count(admin, self._topic)
        self._topic_reading = TopicReader(
            self._props, topic=self._topic, partitions=[partition_of(self._pair, self._partitions)]
        )

    def __enter__(self) -> Self:
        """Position the topic reader at the time of the request."""
        self._topic_reading.rewind(self._requested_at, timeout_s=ANSWER_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the connections."""
        self._topic_reading.__exit__(kind, error, _)

    def send(self, message: CoordinationMessage) -> int:
        """Send the request; return its offset."""
        _, offset = send(self._props, message, topic=self._topic, partitions=self._partitions, timeout_s=_SEND_S)
        return offset

    def read_standing(self) -> HandoverStanding:
        """Read the new chain entries; return where the handover stands. Raises the store's errors and DamagedError."""
        self._reader.refresh()
        states = {state.number: state for state in self._reader.history()}
        former = states.get(self._asked.former or 0)
        held: list[int] = []
        if former is not None and former.sealed and not former.gone:
            found = pins.list_pins(self._store, self._pair, known=self._known_pins)
            held = [former.number for pin in pins.pins_on(found, former.number, now_ms(self._store)) if pin.lasting]
        return handover_standing(self._asked, self._requested_at, states, self._guarded, held=held)

    def generation(self, number: int) -> Generation | None:
        """Return a generation as the last `read_standing` has read it; None if it does not exist."""
        return next((state for state in self._reader.history() if state.number == number), None)

    def read_heartbeats(self, seconds: float) -> None:
        """Read heartbeats for `seconds`. Brokers that do not answer in that time raise nothing."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            topic_record = self._topic_reading.poll(min(left, 0.2))
            if topic_record is not None and topic_record.message is not None:
                self._peers.note_message(topic_record.message, appended_at=topic_record.appended_at)

    def last_heard(self, instance: str) -> LastHeard | None:
        """Return the last heartbeat state of an instance since the request; None if no message of it came."""
        return self._peers.last_heard().get(instance)
