"""Topics that a restore creates under another name than their source's: `<pair>/restores/targets/<plan>….json`.

In the guarded cluster such a topic may match the pair's patterns. It is a copy, no topic of an application: instances
leave it out unless `topics.include` names it. The names are stored before the topics are created, and the ids once they
are known, so that no listing of topics comes in between and a later topic of that name is not left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.backup_avro.chain.document_limits import LISTS
from tandem.backup_avro.chain.entries import JsonObject
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTargets:
    """The `topics` of a plan in a cluster: name -> topic id, empty as long as the topic may still be created."""

    pair: str
    plan: str
    cluster_id: str
    topics: Mapping[str, str]


def encode_targets(targets: RestoreTargets) -> bytes:
    """Return the bytes to store: equal ones for equal targets."""
    document: JsonObject = {
        "v": VERSION,
        "pair": targets.pair,
        "plan": targets.plan,
        "cluster_id": targets.cluster_id,
        "topics": dict(targets.topics),
    }
    return pack(canonical(document))


def decode_targets(data: bytes, where: str) -> RestoreTargets:
    """Parse the bytes that `encode_targets` wrote. DamagedError names `where`."""
    fields = Fields.of_stored(data, where, LISTS)
    topics: dict[str, Any] = fields.take_field("topics", dict)
    if not all(isinstance(topic_id, str) for topic_id in topics.values()):
        raise DamagedError(f"{where}: field topics does not hold topic ids", code="TDM-A070")
    targets = RestoreTargets(
        pair=fields.take_field("pair", str),
        plan=fields.take_field("plan", str),
        cluster_id=fields.take_field("cluster_id", str),
        topics=topics,
    )
    fields.refuse_other_fields()
    return targets
