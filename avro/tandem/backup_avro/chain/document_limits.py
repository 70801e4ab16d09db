"""How large stored documents may be: a writer to the bucket must not be able to exhaust a reader's memory.

Each bound is at least three times the size needed by the largest backup that Tandem is made for: ten thousand
partitions, a terabyte. No larger document is written, so no larger one has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

#: Pins: two hundred bytes. Every process of a pair reads all of them together, every 30 s.
PIN: Final = 4 << 10
#: Claims, pauses, releases, results, outcomes of checkpoints: a few hundred bytes, and a reason typed by hand.
SMALL: Final = 1 << 20
#: Range offers and checkpoint requests: an object per 64 MiB of a terabyte, or an offset and a name per partition.
#: Pages of offset maps: 65,536 rows of seven numbers. Names of topics that a restore created.
LISTS: Final = 16 << 20
#: Chain entries as they are stored. A SNAPSHOT names all live objects. Merging leaves seven journals of each of four
#: sizes, with a part of 320 bytes for each partition: 90 MB of JSON, 27 MB packed. A terabyte in objects of their own
#: adds a third of that. A million objects (64 TB) are 548 MB of JSON and 20 million values: such a chain continues
#: without a SNAPSHOT. The other documents of restores have this bound too: their records name offsets of groups, as
#: entries do, and each task; notes about groups are far smaller.
ENTRY: Final = 128 << 20
#: The same bound for an entry's uncompressed JSON.
ENTRY_JSON: Final = 512 << 20
#: Values in one document. A SNAPSHOT as above has 5 million. A list of empty lists takes 20 times its JSON in memory.
VALUES: Final = 1 << 24

_KIND: Final = re.compile(
    r"[^/]+/(?:(?P<lists>checkpoints/[^/]+$|[^/]+/generation=[0-9]+/offers/|restores/(?:[^/]+/offsets|targets)/)"
    r"|(?P<entry>generations/[^/]+/|restores/)|(?P<pin>pins/)"
    r"|(?P<small>(?:generations|pauses|releases|results|checkpoints)/))"
)
_TOO_MANY: Final = f"its JSON has more than {VALUES} values"
_BYTES: Final = {"entry": ENTRY, "lists": LISTS, "pin": PIN, "small": SMALL}


def most_bytes(key: str) -> int | None:
    """Return the most bytes that the document under `key` may have as stored, signature included; None: no document."""
    match = _KIND.match(key)
    return None if match is None or match.lastgroup is None else _BYTES[match.lastgroup]


def problem_of(data: bytes, most: int) -> str | None:
    """Return why a document's JSON exceeds a reader's limits, None if it does not. `most` is in bytes."""
    if len(data) > most:
        return _too_long(most)
    return _TOO_MANY if len(data) > VALUES and _values(data) > VALUES else None


def problem_of_items(items: Iterable[bytes], most: int) -> str | None:
    """Return as `problem_of` why a JSON document with all `items` in lists exceeds the limits, as soon as it does.

    No item is kept. The JSON around the items is not counted, except for one separator after each.
    """
    size = values = 0
    for item in items:
        size += len(item) + 1
        values += _values(item) + 1
        if size > most:
            return _too_long(most)
        if values > VALUES:
            return _TOO_MANY
    return None


def _too_long(most: int) -> str:
    return f"its JSON has more than {most} bytes"


def _values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
