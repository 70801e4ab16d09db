"""Which records of a Fetch response belong to aborted transactions, so that `read_committed` leaves them out (KIP-98).

The compiled twin follows the same rules in `_twin.pyx`.
"""

from __future__ import annotations

import struct
from typing import Final

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.varint import decode_long
from tandem.sink.transcode import batch as layout

_CONTROL_KEY: Final = struct.Struct(">hh")  # version, type


class AbortedTransactions:
    """Tracks, batch by batch, the producers whose records belong to an aborted transaction.

    A fetch response lists its aborted transactions as (producer id, first offset). A transaction is open from the first
    batch that reaches its first offset to its producer's next ABORT marker. Protocol guide, "Fetch".
    """

    __slots__ = ("_aborted", "_listed")

    def __init__(self, listed: tuple[tuple[int, int], ...]) -> None:
        self._listed = sorted(listed, key=lambda entry: entry[1], reverse=True)
        self._aborted: set[int] = set()

    def open_up_to(self, offset: int) -> None:
        """Open each listed transaction that begins at `offset` or below."""
        while self._listed and self._listed[-1][1] <= offset:
            self._aborted.add(self._listed.pop()[0])

    def is_aborted(self, producer_id: int) -> bool:
        """Return whether the records of a producer belong to an aborted transaction now."""
        return producer_id in self._aborted

    def end_transaction(self, producer_id: int) -> None:
        """End the transaction of a producer, at its ABORT marker."""
        self._aborted.discard(producer_id)


def is_abort_marker(covered: bytes) -> bool:
    """Return whether the first record of a control batch is an ABORT marker."""
    _, pos = decode_long(covered, layout.CRC_COVERED.size)
    _, pos = decode_long(covered, pos + 1)  # the timestamp's distance, after the attributes
    _, pos = decode_long(covered, pos)
    size, pos = decode_long(covered, pos)
    if size < _CONTROL_KEY.size or pos + size > len(covered):
        raise DamagedError("its control record has no type", code="TDM-B031")
    kind: int = _CONTROL_KEY.unpack_from(covered, pos)[1]
    return kind == layout.ABORT_MARKER
