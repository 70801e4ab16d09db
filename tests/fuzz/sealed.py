"""Readers of what is signed or encrypted: what somebody may do who writes to the bucket, with or without a key."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from golden import encrypted
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from fuzz import corpus, hostile
from fuzz.surface import WHERE, Surface
from tandem.backup_avro.chain import json_codec, layout
from tandem.backup_avro.chain.entries import StoredObject, sha256_hex
from tandem.backup_avro.chain.signatures import Signer, unseal
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record import chunk_cipher, envelope
from tandem.backup_avro.record.compression import gzip
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.store import StoreAccess
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.signed_store import SignedStore
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.verify.verify_plan import check_object, plan_objects

_TOPIC: Final = TopicSpec("orders", 2)
_RING: Final = KeyRing(KeySettings(key_env="KEY"), environment={"KEY": encrypted.KEY_TEXT})

# --- signed documents -------------------------------------------------------------------------------------------------

_PLACE: Final = layout.entry_key(PAIR, 7, 3)
_ELSEWHERE: Final = (layout.entry_key(PAIR, 7, 4), layout.entry_key(PAIR, 8, 3), layout.entry_key("other", 7, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What lies at a place. `ours`: the writer's own key has signed it there, whatever it is."""

    data: bytes
    require: bool
    ours: bool


@cache
def _signers() -> tuple[Signer, Signer]:
    """One who is trusted, and one who is not."""
    return Signer.generate(), Signer.generate()


@cache
def _documents() -> tuple[bytes, ...]:
    """Entries as they are stored, small and packed ones, without their signatures."""
    return tuple(unseal(data)[0] for data in corpus.load()["entry"])


@cache
def _signed() -> tuple[bytes, ...]:
    """Entries that were signed for the place that is read, for others, and by somebody else."""
    owner, stranger = _signers()
    here = [owner.seal(_PLACE, data) for data in _documents()]
    there = [owner.seal(place, data) for place in _ELSEWHERE for data in _documents()[:3]]
    return (*here, *there, *(stranger.seal(_PLACE, data) for data in _documents()[:3]), *_documents())


def _twisted_signed(rng: random.Random) -> Signed:
    require = rng.random() < 0.7
    if rng.random() < 0.6:
        return Signed(data=hostile.bytes_of(rng, _signed()), require=require, ours=False)
    # Signed by the key of a writer, or nothing behind the signature would ever be reached.
    document = hostile.document_of(rng, corpus.load()["entry document"])
    body = gzip(document) if rng.random() < 0.3 else json_codec.pack(document)
    data = _signers()[0].seal(_PLACE, body)
    if rng.random() < 0.3:
        data = hostile.bytes_of(rng, [data])
    return Signed(data=data, require=require, ours=unseal(data)[0] == body)


def _entry_of(job: Signed) -> object:
    """Read an entry by way of a store that asks for signatures."""
    settings = StoreAccess(trusted_keys=_signers()[0].public, require_signatures=job.require)
    data = SignedStore(MemoryStore(objects={_PLACE: job.data}), settings).get(_PLACE)
    if job.require and not job.ours and data not in _documents():
        raise AssertionError(f"believed what nobody has signed: {data!r:.200}")
    return json_codec.decode_entry(data, WHERE)


# --- encrypted objects ------------------------------------------------------------------------------------------------


@cache
def _headers() -> tuple[bytes, ...]:
    return tuple(path.read_bytes()[:200] for path in sorted(encrypted.FOLDER.glob("*.sealed")))


def _twisted_header(rng: random.Random) -> bytes:
    data = hostile.bytes_of(rng, _headers())
    return data[: rng.randrange(30)] if rng.random() < 0.1 else data


def _header(data: bytes) -> object:
    """Read a header, and lay out objects of all sizes by what it says."""
    found = envelope.decode(data)
    if envelope.decode(found.encode()) != found:
        raise AssertionError(f"written again it is another one: {found}")
    return found.chunks(0), found.chunks(1 << 62), list(_laid_out(found))


def _laid_out(found: envelope.Envelope) -> Iterator[object]:
    for size in (0, found.size, found.size + 16, found.size + found.chunk_size + 33, (1 << 63) - 1):
        for start, end in ((0, 0), (0, 1), (found.chunk_size, found.chunk_size + 1), (5, 1 << 62), (-1, 3)):
            try:
                stretch = found.chunk_range(size, start, end)
            except DamagedError:
                continue
            if not found.size <= stretch.start <= stretch.end <= size:
                raise AssertionError(f"{stretch} of {size} bytes, {found}")
            yield stretch


@cache
def _entry_with_objects() -> bytes:
    """An entry with encrypted objects: with a key of a file, and with one of a KMS."""
    store, _ = _sealed_backup()
    key = next(key for key in sorted(store.objects) if b'"envelope"' in store.objects[key])
    document = json.loads(json_codec.unpack(store.objects[key], key))
    objects = [json.loads(path.read_bytes()) for path in sorted(encrypted.FOLDER.glob("*.json"))]
    return json_codec.canonical(document | {"objects": [*document["objects"], *objects]})


def _twisted_envelope(rng: random.Random) -> bytes:
    """Twist the envelope of one object in an entry, with a right sum."""
    document = json.loads(_entry_with_objects())
    item = rng.choice(document["objects"])
    inner = hostile.document_of(rng, [json_codec.canonical(item["envelope"])])
    item["envelope"] = _MARK
    return json_codec.pack(inner.join(json_codec.canonical(document).split(f'"{_MARK}"'.encode())))


_MARK: Final = "an envelope"


def _envelopes(data: bytes) -> object:
    """Read an entry, and find the chunks of its objects by their envelopes."""
    entry = json_codec.decode_entry(data, WHERE)
    return [list(_laid_out(item.envelope)) for item in entry.objects if item.envelope is not None]


@cache
def _sealed_backup() -> tuple[MemoryStore, tuple[Slice, ...]]:
    """A backup with encrypted objects of several chunks, one for each partition and a journal, and its slices."""
    store = MemoryStore(keys=_RING)
    backup = Backup.begun(
        store,
        [*records("orders", 0, range(2000)), *records("orders", 1, range(30))],
        topics=[_TOPIC],
        block_records=20,
        codec=Codec.NULL,
    )
    backup.commit([*records("orders", 0, range(2000, 2030)), *records("orders", 1, range(30, 50))], journal=True)
    backup.complete()
    state = ChainReader(store, PAIR).load(1)
    return store, tuple(
        Slice(generation=1, opening=state.opening, item=item, part=part, low=part.first, high=part.last + 1)
        for item, part in state.live_parts()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A slice of an object, the bytes that lie there, and how they are read."""

    piece: Slice
    data: bytes
    apart: bool
    whole: bool


def _twisted_sealed(rng: random.Random) -> Sealed:
    """Hurt the bytes, what the chain says of them, or both, as somebody would who can make links and sums right."""
    store, slices = _sealed_backup()
    piece = rng.choice(slices)
    item, data = piece.item, store.objects[piece.item.key]
    if rng.random() < 0.8:
        data = hostile.bytes_of(rng, [data, *(store.objects[other.item.key] for other in slices)])
    if rng.random() < 0.5:
        item = replace(item, envelope=_other(rng, item))
    if rng.random() < 0.8:  # with the right size and sum, or no chunk would ever be opened
        item = replace(item, bytes=len(data), sha256=sha256_hex(data))
    if rng.random() < 0.1:
        item = replace(item, bytes=rng.choice((0, -1, 1, (1 << 63) - 1)))
    part = piece.part
    if rng.random() < 0.3:
        part = replace(
            part, start=rng.choice((0, part.start, 1 << 50, -5)), end=rng.choice((part.end, part.end + 7, 1 << 62, 0))
        )
        item = replace(item, parts=tuple(part if one == piece.part else one for one in item.parts))
    return Sealed(
        piece=replace(piece, item=item, part=part), data=data, apart=rng.random() < 0.5, whole=rng.random() < 0.3
    )


def _other(rng: random.Random, item: StoredObject) -> envelope.Envelope:
    """Return another envelope that can be read, of this key or of others."""
    found = item.envelope
    assert found is not None
    match rng.randrange(6):
        case 0:
            return replace(found, data_key=rng.randbytes(40))
        case 1:
            return replace(found, chunk_size=1 << rng.randint(10, 24))
        case 2:
            return replace(found, key_id="00112233445566ff")
        case 3:
            return replace(found, wrapping_key=rng.randbytes(rng.choice((1, 6144))))
        case 4:  # somebody's own data key, wrapped as it should be
            return replace(
                found, data_key=chunk_cipher.wrap(rng.randbytes(32), chunk_cipher.wrapping_key(encrypted.KEY))
            )
        case _:
            return found


def _opened(job: Sealed) -> object:
    """Read a slice of an object as restores do, or the whole of it as a verification does."""
    item = job.piece.item
    store = MemoryStore(objects={item.key: job.data}, keys=_RING)
    if job.whole:
        state = ChainReader(_sealed_backup()[0], PAIR).load(1)
        found: list[Any] = [
            check_object(replace(check, item=item), job.data, _RING)
            for check in plan_objects([state])
            if check.item.key == item.key
        ]
        return found
    return [body.records for body in ObjectReader(store, apart=job.apart).bodies(job.piece)]


SURFACES: Final = (
    Surface(name="signed entry", twist=_twisted_signed, read=_entry_of),
    Surface(name="header of an encrypted object", twist=_twisted_header, read=_header),
    Surface(name="envelope in a chain", twist=_twisted_envelope, read=_envelopes),
    Surface(name="encrypted object", twist=_twisted_sealed, read=_opened),
)
