"""Releases: a person allows deleting records that the cluster no longer has. `<root>/<pair>/releases/<number>.json`.

A release names one topic id and the generations up to a number, so it never applies to records that are stored later.
It is numbered from 1 on without gaps, put if absent, never changed and never taken back. It applies only where the
clearing rules would keep a partition for ever (`coverage.clearing`): it never replaces coverage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.backup_avro.chain.entries import JsonObject, PartitionKey, from_iso, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import is_int64
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Which records a person released: `partitions` None means all; `through` is the last generation that it covers.

    `topic` is the name the topic had, for people; `at` is in ms since the epoch by the store's clock.
    """

    number: int
    pair: str
    topic: str
    topic_id: str
    partitions: tuple[int, ...] | None
    through: int
    at: int
    by: str
    reason: str

    def names(self, generation: int, key: PartitionKey) -> bool:
        """Whether the release applies to this partition of this generation."""
        return (
            generation <= self.through
            and key.topic_id == self.topic_id
            and (self.partitions is None or key.partition in self.partitions)
        )


def released(releases: Iterable[Release], generation: Generation) -> frozenset[PartitionKey]:
    """Return the partitions of `generation` that some release names."""
    named = [r for r in releases if r.through >= generation.number and r.topic_id in generation.topics]
    return frozenset(key for release in named for key in generation.positions if release.names(generation.number, key))


def encode_release(release: Release) -> bytes:
    """Return the bytes to store: equal ones for equal releases."""
    document: JsonObject = {
        "v": VERSION,
        "enc": None,
        "number": release.number,
        "pair": release.pair,
        "topic": release.topic,
        "topic_id": release.topic_id,
        "through": release.through,
        "at": iso(release.at),
        "by": release.by,
        "reason": release.reason,
    }
    if release.partitions is not None:
        document["partitions"] = list(release.partitions)
    return pack(canonical(document))


def decode_release(data: bytes, where: str) -> Release:
    """Parse a release. DamagedError names `where`; NewerFormatError if a newer release of Tandem wrote it."""
    fields = Fields.of_stored(data, where)
    partitions = fields.take_field("partitions", list, None)
    at = fields.take_field("at", str)
    try:
        moment = from_iso(at)
    except ValueError as error:
        raise DamagedError(f"{where}: {at!r} is not a time", code="TDM-A068") from error
    if partitions is not None and not all(map(is_int64, partitions)):
        raise DamagedError(f"{where}: a list of partition numbers was expected", code="TDM-A069")
    release = Release(
        number=fields.take_field("number", int),
        pair=fields.take_field("pair", str),
        topic=fields.take_field("topic", str),
        topic_id=fields.take_field("topic_id", str),
        partitions=None if partitions is None else tuple(partitions),
        through=fields.take_field("through", int),
        at=moment,
        by=fields.take_field("by", str),
        reason=fields.take_field("reason", str),
    )
    fields.refuse_other_fields()
    return release
