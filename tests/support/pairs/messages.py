"""Messages of the coordination topic, folded."""

from __future__ import annotations

from typing import Any

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.controller.coordination.peer_state import PeerState


def message(
    instance: str = "b", event: CoordinationEvent = CoordinationEvent.PROGRESS, life: str = "1", **how: Any
) -> CoordinationMessage:
    """A message of one incarnation."""
    fields: dict[str, Any] = {
        "event": event,
        "pair": "shop",
        "instance": instance,
        "incarnation": f"{instance}-{life}",
        "cluster_id": "c",
        "request_id": "r",
        "at": 0,
    }
    return CoordinationMessage(**(fields | how))


def peers(**how: Any) -> PeerState:
    """Instance a, incarnation a-1."""
    return PeerState(pair="shop", instances=("a", "b"), incarnation="a-1", **how)
