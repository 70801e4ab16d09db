"""The changes that a restore makes to records: filters, tombstones, target partitions. Pure.

Whichever records are left out, the written ones keep their order within each partition of the target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import TypedDict

from tandem.backup_avro.chain.entries import sha256_hex
from tandem.backup_avro.chain.json_codec import canonical
from tandem.spark_jobs.restore.records.partitioner import Partitioner


class ShapeDocument(TypedDict):
    """What a restore changes about records; keys appear as hashes only. The plan's hash rests on these names."""

    keys: str | None
    excluded: str
    asTombstones: bool
    since: int | None
    before: int | None
    until: int | None
    latest: bool
    tombstones: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChanges:
    """The changes that the user asks for. The default changes nothing. Timestamps are producers', in ms; -1 is none.

    `partitioner`: assigns keys to partitions if the target has another number of them; None: it must have the same.
    `keys`: only records with these keys (None: all). `excluded`: keys whose records are left out, or, with
    `as_tombstones`, become tombstones without headers. `since` and `before`: only records with timestamps in
    [since, before), a selection and no state of the topic. `until`: of each partition the records before the first one
    with a later timestamp. `latest`: of each key only the newest record of its partition; without `tombstones`, no
    record of keys whose newest record is one, unless the key is excluded `as_tombstones`; records without a key stay.
    """

    partitioner: Partitioner | None = None
    keys: frozenset[bytes] | None = None
    excluded: frozenset[bytes] = frozenset()
    as_tombstones: bool = False
    since: int | None = None
    before: int | None = None
    until: int | None = None
    latest: bool = False
    tombstones: bool = True

    @property
    def selects(self) -> bool:
        """Whether any record may be left out or changed."""
        mine = {item.name: getattr(self, item.name) for item in fields(self)}
        return any(mine[item.name] != item.default for item in fields(self) if item.name != "partitioner")

    def document(self) -> ShapeDocument:
        """Return the fields that decide which records are written, for the plan's hash."""
        return {
            "keys": None if self.keys is None else _hash(self.keys),
            "excluded": _hash(self.excluded),
            "asTombstones": self.as_tombstones,
            "since": self.since,
            "before": self.before,
            "until": self.until,
            "latest": self.latest,
            "tombstones": self.tombstones,
        }

    def describe(self) -> list[str]:
        """Return the changes as text, for the user."""
        found = []
        if self.keys is not None:
            found.append(f"only records with one of {len(self.keys)} keys")
        if self.excluded:
            what = "tombstones in the place of" if self.as_tombstones else "without"
            found.append(f"{what} records with one of {len(self.excluded)} keys")
        if self.since is not None or self.before is not None:
            found.append("only records whose producers' timestamps lie in a span: a selection, no state of the topic")
        if self.until is not None:
            found.append("of each partition what comes before the first record with a later producer's timestamp")
        if self.latest:
            found.append(f"of each key only the newest record{'' if self.tombstones else ', without tombstones'}")
        return found

    def in_vain(self, *, records: int, left_out: int) -> list[str]:
        """Return a text for each option whose keys matched no record: `records` were written, `left_out` were not.

        Of several keys, or of keys beside another selection, it is not counted which of them matched a record.
        """
        found = []
        if self.keys is not None and not records:
            found.append(f"none of the {len(self.keys)} keys was met: no record was restored")
        if self.excluded and not self.as_tombstones and not left_out:
            found.append(f"none of the {len(self.excluded)} excluded keys was met: no record was left out")
        return found


def _hash(keys: Collection[bytes]) -> str:
    return sha256_hex(b"".join(len(key).to_bytes(4, "big") + key for key in sorted(keys)))


#: The changes of a plain restore, none: every record is written, into the partition that it had.
NOTHING = RecordChanges()


def key_hash(shape: RecordChanges, counts: Mapping[str, int]) -> str:
    """Return a hash of the changes and of the partition counts of topics that are re-partitioned."""
    partitioner = shape.partitioner.value if shape.partitioner is not None and counts else None
    return sha256_hex(canonical({**shape.document(), "partitioner": partitioner, "counts": dict(counts)}))
