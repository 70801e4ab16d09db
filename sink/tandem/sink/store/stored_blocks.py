"""Reads the Avro blocks of one part of a data object from its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandem.backup_avro.chain.entries import Opening, Part, StoredObject
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import (
    Codec,
    ContainerHeader,
    decode_header,
    decompress,
    encode_header,
    iter_blocks,
)
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.store.encrypted_objects import Plain, read_range

_WINDOW: Final = 1 << 20


def header_of(opening: Opening) -> ContainerHeader:
    """Return the header of all objects of a generation, which its OPEN determines."""
    return decode_header(encode_header(codec=Codec(opening.codec), sync=bytes.fromhex(opening.sync)))


def blocks_backwards(
    store: ObjectStore, item: StoredObject, part: Part, header: ContainerHeader
) -> Iterator[tuple[bytes, int]]:
    """Yield the uncompressed blocks of a part with their numbers of records, the last one first.

    A megabyte is read at a time. Raises DamagedError that names the object, the store's errors and those of keys.
    """
    end, size = part.end, _WINDOW
    while end > part.start:
        start = max(part.start, end - size)
        data = read_range(store, item, start, end)
        at = 0 if start == part.start else _first_block(data, header)
        if at >= len(data):
            size *= 4
            continue
        yield from _bodies(item, data, header, at)
        end, size = start + at, _WINDOW


def _first_block(data: Plain, header: ContainerHeader) -> int:
    """Return the offset of the first whole block in the data; the end of the data if there is none."""
    at = data.find(header.sync)
    return len(data) if at < 0 else at + len(header.sync)


def _bodies(item: StoredObject, data: Plain, header: ContainerHeader, at: int) -> Iterator[tuple[bytes, int]]:
    try:
        for block in reversed(list(iter_blocks(data, header, at))):
            yield decompress(block, header.codec), block.count
    except DamagedError as error:
        raise DamagedError(f"{item.key}: {error}", code=error.code, remedy=error.remedy) from error
