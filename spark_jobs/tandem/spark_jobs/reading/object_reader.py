"""Read slices: fetch an object, check its SHA-256, then yield uncompressed block bodies cut to [low, high).

No byte is decoded before its checksum has been verified: either that of the whole object, which `ObjectReader` keeps
for further slices of it, or, where little of many journals is read, that of a journal's part; the container header,
which the part lacks, is known from the generation's OPEN. Encrypted bytes are decrypted after the check, so the chain
vouches for them too. A job that reads very many slices side by side can't hold all their objects: it reads them again,
run by run, and compares each run with the bytes that were checked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Final, TypeAlias

from tandem.backup_avro.chain.entries import Opening, Part, StoredObject, sha256_hex
from tandem.backup_avro.documents.connector_layout import ConnectorReading, place_of
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.container import (
    Codec,
    ContainerBlock,
    ContainerHeader,
    decode_header,
    decompress,
    iter_blocks,
)
from tandem.backup_avro.record.current import decode_body
from tandem.backup_avro.record.record_spans import Span
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.backup_avro.record.version_1 import ConvertedBody, decoder_for, layout_of
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store import (
    ObjectMissingError,
    ObjectStore,
    OutsizedObjectError,
    StoreAccess,
    StoreDeniedError,
    open_store,
    stored_blocks,
)
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.encrypted_objects import Plain, open_object, read_parts
from tandem.sink.transcode.implementation_choice import best_bodies

#: Bytes of checked objects that one reader keeps. A larger object is kept too while it is the most recent one.
CACHE_BYTES: Final = 128 * 1024 * 1024


class MissingObjectError(DamagedError):
    """An object that the chain lists is not in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """The location of a store and its access settings; it is sent to the tasks. Its repr hides secrets.

    With a `connector`, the objects there are a connector's files, not those of a pair.
    """

    root: str
    settings: StoreAccess
    connector: ConnectorReading | None = None

    def open(self) -> ObjectStore:
        """Return this process's store for this address; it is opened once and never closed."""
        return _open(self.root, self.settings)

    def reader(self, *, cache_bytes: int = CACHE_BYTES, apart: bool = False) -> ObjectReader:
        """Return a new reader that fetches and checks objects of this store."""
        return ObjectReader(self.open(), cache_bytes=cache_bytes, apart=apart, connector=self.connector)


def require_pair(address: StoreAddress, pair: str) -> None:
    """Raise ConfigError if the pair has no generation, before Spark is started. Raises errors of the store too."""
    store = address.open()
    if ChainReader(store, pair).exists():
        return
    place = None
    with suppress(StoreDeniedError):  # without the right to list, no hint can be given
        place = next((found for info in islice(store.list(""), _LOOKED_AT) if (found := place_of(info.key))), None)
    if place is None:
        raise ConfigError(
            f"pair {pair} has no generation under {address.root}", code="TDM-P056", remedy="check pair and store.root"
        )
    raise ConfigError(
        f"pair {pair} has no generation under {address.root}, but there are a connector's files, of {place.topic}",
        code="TDM-P057",
        remedy="restore, verify, records and export read them with --layout connector",
    )


#: The number of keys that are searched for a connector's files if there is no pair: one page of a listing.
_LOOKED_AT: Final = 1000


@cache
def _open(root: str, settings: StoreAccess) -> ObjectStore:
    return open_store(root, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Whole Avro-encoded records in offset order, uncompressed; at least one. `first` is the offset of the first."""

    body: bytes
    records: int
    first: int

    def spans(self) -> Iterator[Span]:
        """Yield the span of each record, as `backup_avro.record.record_spans.spans` does. Raises DamagedError."""
        return best_bodies().spans(self.body, self.records)


class ObjectReader:
    """Fetches and checks objects of one store. Not safe to share between threads; each task makes its own.

    With `apart`, parts of journals are fetched one by one: a partition's share of a thousand journals, not the whole
    journals. With a `connector`, objects are its files, and their records are converted to the current schema.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        cache_bytes: int = CACHE_BYTES,
        apart: bool = False,
        connector: ConnectorReading | None = None,
    ) -> None:
        self._connector = connector
        self._store = store
        self._cache_bytes = cache_bytes
        self._apart = apart
        self._kept: OrderedDict[str, Plain] = OrderedDict()

    def fetch(self, item: StoredObject) -> Plain:
        """Return the whole object, decrypted. Raises DamagedError if size or SHA-256 differ from the chain's.

        Also raises MissingObjectError, and errors of keys.
        """
        kept = self._kept.get(item.key)
        if kept is not None:
            self._kept.move_to_end(item.key)
            return kept
        with self._present(item):
            stored = self._whole(item)
        if self._connector is None:
            check_bytes(item, stored)
        elif len(stored) != item.bytes or sha256_hex(stored) != item.sha256:
            raise _changed(item)
        data = self._kept[item.key] = open_object(keys_of(self._store), item, stored)
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > self._cache_bytes:
            self._kept.popitem(last=False)
        return data

    def _whole(self, item: StoredObject) -> bytes:
        if self._connector is None:
            return get_whole(self._store, item)
        try:
            return self._store.get(item.key, most=item.bytes)
        except OutsizedObjectError:
            raise _changed(item) from None

    @contextmanager
    def _present(self, item: StoredObject) -> Iterator[None]:
        try:
            yield
        except ObjectMissingError as error:
            if self._connector is not None:
                raise MissingObjectError(
                    f"{item.key} was deleted since it was first read", code="TDM-P058", remedy=_STILL
                ) from error
            raise MissingObjectError(
                f"{item.key} is in the chain, but not in the store {self._store.url}",
                code="TDM-P059",
                remedy="its generation may have been cleared meanwhile: plan again; else see `tandem verify`",
            ) from error

    def bodies(self, piece: Slice, *, share: tuple[int, int] = (0, 1), newest_first: bool = False) -> Iterator[Body]:
        """Yield the records of `piece` with offsets in [low, high), block by block; yield nothing if there are none.

        With a `share` (i, n), only the blocks that begin in the i-th of n equal ranges of the part's bytes are read.
        With `newest_first` the last block comes first; the order inside of a block does not change. Raises DamagedError
        that names the object.
        """
        data, begin = self._checked(piece)
        part = piece.part
        with _written_so(piece.item):
            header, turned = self._headed(piece, data)
            blocks = _shared(iter_blocks(data, header, begin, begin + part.end - part.start), begin, part, share)
            if newest_first:
                bodies = _decoded(reversed(list(blocks)), header, turned)
                yield from cut_backwards(bodies, piece.low, piece.high, last=self._last(part))
            else:
                yield from cut(_decoded(blocks, header, turned), piece.low, piece.high, last=self._last(part))

    def _checked(self, piece: Slice) -> tuple[Plain, int]:
        """Fetch the bytes that hold the slice's part, checked; return them and the position of the part in them."""
        item, part = piece.item, piece.part
        if not self._alone(item):
            return self.fetch(item), part.start
        with self._present(item):
            (data,) = read_parts(self._store, item, [part])
        return data, 0

    def _alone(self, item: StoredObject) -> bool:
        return self._apart and item.separable

    def _headed(self, piece: Slice, data: Plain) -> tuple[ContainerHeader, Turned]:
        if self._connector is None:
            return (header_of(_opening(piece)) if self._alone(piece.item) else open_container(data)), None
        header = decode_header(data)
        return header, turned_by(header, empty_as_null=self._connector.empty_as_null)

    def _last(self, part: Part) -> int:
        """Return an upper bound of the offsets in the data: a connector's file may reach beyond the slice's part."""
        return part.last if self._connector is None else LONG_MAX


@contextmanager
def _written_so(item: StoredObject) -> Iterator[None]:
    """Make a DamagedError that occurs after a correct checksum name the object."""
    try:
        yield
    except MissingObjectError:
        raise
    except DamagedError as error:
        raise DamagedError(f"{item.key}: {error}", code=error.code, remedy=_REMEDY) from error


_RESTORE_IT: Final = "restore the object from the bucket's versions or a replica, or use another generation"
_STILL: Final = "give the command again when nobody writes there any more"
_REMEDY: Final = "its checksum is right, so it was written this way: report it, and use another generation"


def _changed(item: StoredObject) -> DamagedError:
    return DamagedError(f"{item.key} was changed since it was first read", code="TDM-P062", remedy=_STILL)


def get_whole(store: ObjectStore, item: StoredObject) -> bytes:
    """Return the stored bytes of an object, not yet checked.

    Raises the store's errors, and DamagedError as `check_bytes` does if the object is larger than the chain says. This
    is found before the bytes are read, because a replaced object may have any size.
    """
    try:
        return store.get(item.key, most=item.bytes)
    except OutsizedObjectError as error:
        raise _of_another_size(item, error.size) from None


def check_bytes(item: StoredObject, data: bytes) -> None:
    """Raise DamagedError unless size and SHA-256 of `data` are those of the chain."""
    if len(data) != item.bytes:
        raise _of_another_size(item, len(data))
    found = sha256_hex(data)
    if found != item.sha256:
        raise DamagedError(
            f"{item.key} has the SHA-256 {found}, the chain says {item.sha256}", code="TDM-P063", remedy=_RESTORE_IT
        )


def _of_another_size(item: StoredObject, size: int) -> DamagedError:
    return DamagedError(
        f"{item.key} has {size} bytes, the chain says {item.bytes}", code="TDM-P064", remedy=_RESTORE_IT
    )


def open_container(data: Plain) -> ContainerHeader:
    """Decode an object's header. DamagedError unless its schema is the current `AvroKafkaRecord`."""
    header = decode_header(data)
    if _decoder(header.schema_json) is not decode_body:
        raise DamagedError("the schema in the header is not the one of a generation's objects", code="TDM-P065")
    return header


def _opening(piece: Slice) -> Opening:
    assert piece.opening is not None
    return piece.opening


@cache
def header_of(opening: Opening) -> ContainerHeader:
    """Return the header that each object of a generation begins with. DamagedError for an unknown codec."""
    if opening.codec not in list(Codec):
        raise DamagedError(f"its generation's OPEN names the codec {opening.codec}", code="TDM-P066")
    return stored_blocks.header_of(opening)


_decoder = cache(decoder_for)
_layout_of = cache(layout_of)

Turned: TypeAlias = Callable[[bytes, int], ConvertedBody] | None
"""Converts bodies of an older schema version to the current one; None if no conversion is needed."""


def turned_by(header: ContainerHeader, *, empty_as_null: bool) -> Turned:
    """Return the function that converts a file's bodies to the current schema; None if they already have it.

    Raises DamagedError for any other schema.
    """
    layout = _layout_of(header.schema_json)
    return None if layout is None else partial(best_bodies().modern, layout=layout, empty_as_null=empty_as_null)


def _shared(
    blocks: Iterable[ContainerBlock], begin: int, part: Part, share: tuple[int, int]
) -> Iterator[ContainerBlock]:
    """Yield the blocks that begin in a share of the part's bytes; the part begins at `begin`."""
    number, of = share
    size = part.end - part.start
    low, high = begin + size * number // of, begin + size * (number + 1) // of
    for block in blocks:
        if block.start >= high:
            return
        if block.start >= low:
            yield block


def _decoded(blocks: Iterable[ContainerBlock], header: ContainerHeader, turned: Turned) -> Iterator[Body]:
    codec: Codec = header.codec
    for block in blocks:
        if not block.count:
            continue
        body = decompress(block, codec)
        if turned is not None:
            body = turned(body, block.count).body
        yield Body(body=body, records=block.count, first=first_offset(body))


def cut(bodies: Iterable[Body], low: int, high: int, *, last: int) -> Iterator[Body]:
    """Yield the records in [low, high) of bodies in ascending offset order; `last` is the last offset in all of them.

    Only bodies at an edge of the range are cut by the spans of their records.
    """
    for body, after in _with_next(bodies, last + 1):
        if body.first >= high:
            return
        if after <= low:
            continue
        if body.first >= low and after <= high:
            yield body
            continue
        trimmed = _trim(body, low, high)
        if trimmed is not None:
            yield trimmed


def cut_backwards(bodies: Iterable[Body], low: int, high: int, *, last: int) -> Iterator[Body]:
    """Yield what `cut` does, for bodies in descending offset order."""
    after = last + 1
    for body in bodies:
        if body.first < high and after > low:
            whole = body.first >= low and after <= high
            kept = body if whole else _trim(body, low, high)
            if kept is not None:
                yield kept
        if body.first <= low:
            return
        after = body.first


def _with_next(bodies: Iterable[Body], end: int) -> Iterator[tuple[Body, int]]:
    """Pair each body with the first offset of the next one, the last one with `end`."""
    before: Body | None = None
    for body in bodies:
        if before is not None:
            yield before, body.first
        before = body
    if before is not None:
        yield before, end


def _trim(body: Body, low: int, high: int) -> Body | None:
    kept = [(span[2], span[1], span[-1]) for span in body.spans() if low <= span[2] < high]
    if not kept:
        return None
    if len(kept) == body.records:
        return body
    first, start, _ = kept[0]
    return Body(body=body.body[start : kept[-1][-1]], records=len(kept), first=first)


def first_offset(body: bytes) -> int:
    """Return the offset of the first record of a body."""
    reader = BinaryReader(memoryview(body)[:_PREFIX])
    reader.sized()
    reader.int64()
    return reader.int64()


#: A record begins with its topic (at most 249 bytes and their length), partition and offset.
_PREFIX: Final = 512
