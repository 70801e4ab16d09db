"""Start and end a pause: the store holds it, the coordination topic only makes the instances read it at once."""

from __future__ import annotations

import uuid

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.documents.pause import Pause, in_force
from tandem.backup_avro.errors import TandemError
from tandem.controller.config import Config
from tandem.controller.coordination.store_hints import SENDER, send_hint
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.pauses import PauseReader


def current(store: ObjectStore, pair: str) -> Pause | None:
    """Return the pause that is in force. Raises errors of the store."""
    return in_force(PauseReader(store, pair).refresh(), now_ms(store))


def put(store: ObjectStore, pair: str, *, until: int | None, by: str, reason: str) -> Pause:
    """Pause until `until` (ms by the store's clock), or end the pause if that is None. Raises errors of the store."""
    draft = Pause(number=0, pair=pair, at=now_ms(store), until=until, by=by, reason=reason)
    return PauseReader(store, pair).append(draft)


def hint(config: Config, pause: Pause) -> TandemError | None:
    """Tell the instances to read the pause at once; return the error if that fails. They read it regularly anyway."""

    def message(admin: ClusterAdmin) -> CoordinationMessage:
        return CoordinationMessage(
            event=CoordinationEvent.RESUME if pause.until is None else CoordinationEvent.PAUSE,
            pair=config.pair,
            instance=SENDER,
            incarnation=str(uuid.uuid4()),
            cluster_id=admin.cluster_id(),
            request_id=uuid.uuid4().hex,
            at=pause.at,
            reason=pause.reason,
        )

    return send_hint(config, message)
