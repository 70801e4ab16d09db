"""The offset map of a restore: rows of source offsets and target offsets, in pages in the store. Pure.

There is one row for each record batch, and for each source partition in it. Inside of a row offsets may have gaps:
compaction and the markers of transactions left them in the source. A reader that needs the target offset of one record
reads the row's source records again; the row's hash proves that these are the restored ones.

A page is an object that names the one before it, so a task's progress needs to name its last one only. Pages of
transactions that were never committed are not named anywhere.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import LISTS
from tandem.backup_avro.chain.integers import is_int64
from tandem.backup_avro.chain.json_codec import Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError

_VERSION: Final = 1
#: Columns of a row, without and with a hash of the offsets.
_COLUMNS: Final = (6, 7)
#: When a task's progress holds this many rows, they are moved into a page.
PAGE_ROWS: Final = 256
#: Most rows of one page, a few megabytes: a transaction may have a row for each of its records.
LARGEST_PAGE: Final = 1 << 16
_PAGE: Final = re.compile(r"[\w.=-]{1,256}\+[0-9]{1,10}\+[0-9a-f]{1,64}\.json", re.ASCII)


class OffsetRow(NamedTuple):
    """The `records` of one source partition with offsets in [first, last] that lie in one batch of the target.

    They have the target offsets base, base + 1, … of the partition `target`. `digest` is the hash of their source
    offsets, None where there are no gaps, or where the row was written before digests existed. A row is a tuple,
    because there are many.
    """

    partition: int
    first: int
    last: int
    target: int
    base: int
    records: int
    digest: int | None = None

    @property
    def dense(self) -> bool:
        """Whether the row has a record at each offset from the first to the last."""
        return self.last - self.first + 1 == self.records

    @classmethod
    def of(
        cls, runs: Sequence[tuple[int, int]], *, partition: int, target: int, records: int, base: int = 0
    ) -> OffsetRow:
        """Return the row of `records` records, which have the offsets of at least one run (first, last), ascending."""
        digest = digest_of(runs) if len(runs) > 1 else None
        return cls(partition, runs[0][0], runs[-1][1], target, base, records, digest)

    @property
    def end(self) -> int:
        """The target offset after the row's last record."""
        return self.base + self.records


def stretches(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Fold ascending offsets into runs without a gap, (first, last) each."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and offset == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs


def digest_of(runs: Sequence[tuple[int, int]]) -> int:
    """Return 63 bits of a hash of the offsets in these runs."""
    data = struct.pack(f"<{2 * len(runs)}q", *chain.from_iterable(runs))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def restore_id(plan: str, targets: Mapping[str, str]) -> str:
    """Return the id of the restore of a plan into topics with these ids. Resumed runs have the same id."""
    text = "\n".join([plan, *(f"{name}={topic_id}" for name, topic_id in sorted(targets.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def dump_rows(rows: Iterable[OffsetRow]) -> list[list[int]]:
    """Return rows as a JSON document."""
    return [[*row[:-1]] if row.digest is None else [*row[:-1], row.digest] for row in rows]


def load_rows(found: Iterable[Any], where: str) -> tuple[OffsetRow, ...]:
    """Return rows from JSON. DamagedError names `where`."""
    rows = []
    for number, item in enumerate(found):
        if not (isinstance(item, list) and len(item) in _COLUMNS and all(map(is_int64, item))):
            raise DamagedError(f"{where}: item {number} is no row of an offset map", code="TDM-R053")
        rows.append(OffsetRow(*item))
    return tuple(rows)


def page_key(pair: str, restore: str, *, topic_id: str, task: int, nonce: str) -> str:
    """Return the object key of a page."""
    return f"{_folder(pair, restore)}{topic_id}+{task}+{nonce}.json"


def is_page(key: str, pair: str, restore: str) -> bool:
    """Return whether `key` is a valid key of a page of this restore's map.

    Keys come from documents that other principals can write, which may name any object.
    """
    folder = _folder(pair, restore)
    return key.startswith(folder) and _PAGE.fullmatch(key, len(folder)) is not None


def _folder(pair: str, restore: str) -> str:
    return f"{layout.restore_prefix(pair, restore)}offsets/"


def encode_page(rows: Iterable[OffsetRow], previous: str | None) -> bytes:
    """Return the bytes of a page; `previous` is the key of the one before it."""
    return pack(canonical({"v": _VERSION, "previous": previous, "rows": dump_rows(rows)}))


def decode_page(data: bytes, where: str) -> tuple[tuple[OffsetRow, ...], str | None]:
    """Return a page's rows and the key of the page before it. DamagedError names `where`."""
    fields = Fields.of_stored(data, where, LISTS)
    previous = fields.take_field("previous", str, None)
    rows = load_rows(fields.take_field("rows", list), where)
    fields.refuse_other_fields()
    return rows, previous
