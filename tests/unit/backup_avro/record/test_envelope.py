"""The envelope of encrypted objects: what the format says, and that nothing that was touched opens."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from golden import encrypted
from hypothesis import given
from hypothesis import strategies as st

from tandem.backup_avro.chain.entries import StoredObject
from tandem.backup_avro.chain.json_codec import canonical, dump_object, load_object
from tandem.backup_avro.errors import DamagedError, NewerFormatError
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.envelope import CHUNK_SIZE, MAGIC, TAG_SIZE, Envelope, decode, is_encrypted

KEY = bytes(range(32))
DATA_KEY = bytes(range(1, 33))
CHUNK = 1024
NAME = "shop/a/generation=00000001/journal/00000000000000000001+0011223344556677.avro"


def envelope(*, wrapping_key: bytes = b"", chunk_size: int = CHUNK) -> Envelope:
    """An envelope with small chunks."""
    wrapped = chunk_cipher.wrap(DATA_KEY, chunk_cipher.wrapping_key(KEY))
    return Envelope(key_id=chunk_cipher.key_id(KEY), data_key=wrapped, wrapping_key=wrapping_key, chunk_size=chunk_size)


def plain(size: int) -> bytes:
    """Bytes of which no two chunks are alike."""
    return b"".join(number.to_bytes(4, "big") for number in range(-(-size // 4)))[:size]


def opened(data: bytes, name: str = NAME, it: Envelope | None = None) -> bytes:
    """What is in an object."""
    return bytes(chunk_cipher.open_whole(it or envelope(), DATA_KEY, data, name=name))


SIZES = st.one_of(st.integers(0, 4 * CHUNK), st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]))


@given(size=SIZES, cuts=st.lists(st.integers(0, 4 * CHUNK), max_size=6))
def test_what_is_sealed_in_any_pieces_opens_again(size: int, cuts: list[int]) -> None:
    """Sizes at the borders of chunks among them; the size of the object is what the envelope says."""
    data = plain(size)
    sealer = chunk_cipher.Sealer(envelope(), DATA_KEY, name=NAME, size=size)
    borders = [0, *sorted(min(cut, size) for cut in cuts), size]
    for start, end in itertools.pairwise(borders):
        sealer.write(data[start:end])
    stored = bytes(sealer.finish())
    assert stored == chunk_cipher.seal(envelope(), DATA_KEY, data, name=NAME)
    assert len(stored) == envelope().stored_size(size)
    assert envelope().plain_size(len(stored)) == size
    assert opened(stored) == data


@given(size=SIZES, start=st.integers(0, 4 * CHUNK), length=st.integers(0, 4 * CHUNK))
def test_any_range_opens_by_itself(size: int, start: int, length: int) -> None:
    """Only the chunks that hold it are read."""
    data = plain(size)
    start = min(start, size)
    end = min(start + length, size)
    stored = bytes(chunk_cipher.seal(envelope(), DATA_KEY, data, name=NAME))
    stretch = envelope().chunk_range(len(stored), start, end)
    chunks = max(1, -(-end // CHUNK) - stretch.first)
    assert stretch.end - stretch.start <= chunks * (CHUNK + TAG_SIZE)
    found = chunk_cipher.open_chunks(
        envelope(),
        DATA_KEY,
        stored[stretch.start : stretch.end],
        name=NAME,
        stored=len(stored),
        first=stretch.first,
    )
    assert found[start - stretch.plain : end - stretch.plain] == data[start:end]


def test_no_byte_of_an_object_can_be_flipped() -> None:
    """Header, chunks and tags: every single byte."""
    stored = bytes(chunk_cipher.seal(envelope(wrapping_key=b"blob"), DATA_KEY, plain(2 * CHUNK + 5), name=NAME))
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1
        with pytest.raises(DamagedError):
            opened(bytes(damaged), it=envelope(wrapping_key=b"blob"))


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_an_object_cut_at_a_border_of_chunks_does_not_open(chunks: int) -> None:
    """The last chunk says that it is the last one, so those before it don't pass for the whole."""
    it = envelope()
    stored = bytes(chunk_cipher.seal(it, DATA_KEY, plain(4 * CHUNK), name=NAME))
    with pytest.raises(DamagedError, match=f"chunk {chunks - 1} "):
        opened(stored[: it.size + chunks * (CHUNK + TAG_SIZE)])


@pytest.mark.parametrize("left", [0, 1, TAG_SIZE - 1, TAG_SIZE, CHUNK])
def test_an_object_cut_elsewhere_does_not_open(left: int) -> None:
    """Less than a tag, less than a chunk, nothing at all."""
    stored = bytes(chunk_cipher.seal(envelope(), DATA_KEY, plain(2 * CHUNK), name=NAME))
    with pytest.raises(DamagedError):
        opened(stored[: envelope().size + left])


def test_a_range_cut_short_within_a_tag_is_damage() -> None:
    """What a store hands over of a range may be less than was asked for."""
    stored = bytes(chunk_cipher.seal(envelope(), DATA_KEY, plain(2 * CHUNK), name=NAME))
    begin = envelope().size
    whole = CHUNK + TAG_SIZE
    for size, chunk in ((0, 0), (TAG_SIZE - 1, 0), (whole + 3, 1), (whole + TAG_SIZE - 1, 1)):
        with pytest.raises(DamagedError, match=f"chunk {chunk} is cut short"):
            chunk_cipher.open_chunks(envelope(), DATA_KEY, stored[begin : begin + size], name=NAME, stored=len(stored))


def test_chunks_don_t_open_in_another_place() -> None:
    """Two chunks of one object changed places, and one was doubled."""
    it = envelope()
    stored = bytes(chunk_cipher.seal(it, DATA_KEY, plain(3 * CHUNK), name=NAME))
    whole = CHUNK + TAG_SIZE
    header, chunks = stored[: it.size], [stored[it.size + n * whole : it.size + (n + 1) * whole] for n in range(3)]
    for order in ((1, 0, 2), (0, 0, 2), (0, 1, 1), (0, 2), (2, 1, 0)):
        with pytest.raises(DamagedError):
            opened(header + b"".join(chunks[n] for n in order))


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("shop/", "shop2/"),
        NAME.replace("/a/", "/b/"),
        NAME.replace("00000001/", "00000002/"),
        NAME.replace("6677", "6678"),
        "",
    ],
)
def test_an_object_does_not_open_under_another_name(name: str) -> None:
    """Of another pair, instance, generation or nonce, even with the same data key."""
    stored = bytes(chunk_cipher.seal(envelope(), DATA_KEY, plain(100), name=NAME))
    with pytest.raises(DamagedError, match="TDM-A080"):
        opened(stored, name)


def test_the_header_must_be_the_chain_s() -> None:
    """Another object's header, valid by itself, is no match."""
    other = replace(envelope(), key_id="0" * 16)
    stored = bytes(chunk_cipher.seal(other, DATA_KEY, plain(100), name=NAME))
    with pytest.raises(DamagedError, match=r"^its header is not the one that the chain has"):
        opened(stored)


@given(
    blob=st.binary(max_size=300),
    power=st.integers(10, 24),
    data_key=st.binary(min_size=40, max_size=40),
    key_id=st.binary(min_size=8, max_size=8),
)
def test_a_header_comes_back(blob: bytes, power: int, data_key: bytes, key_id: bytes) -> None:
    """With what follows it, and by way of the chain's JSON."""
    it = Envelope(key_id=key_id.hex(), data_key=data_key, wrapping_key=blob, chunk_size=1 << power)
    header = it.encode()
    assert len(header) == it.size
    assert decode(header + b"rest") == it
    item = replace(encrypted_item(), envelope=it)
    assert load_object(json.loads(canonical(dump_object(item))), "here") == item
    for size in range(len(header)):
        with pytest.raises(DamagedError) as caught:
            decode(header[:size])
        what = "this is no encrypted object: the magic bytes are missing"
        assert str(caught.value) == (what if size < len(MAGIC) else "the header of an encrypted object is cut short")


def encrypted_item() -> StoredObject:
    """The golden object, as the chain has it."""
    return load_object(json.loads((encrypted.FOLDER / "local.json").read_bytes()), "golden")


def test_what_no_header_can_say_is_refused() -> None:
    """Both by who makes one, and as damage by who reads one."""
    good = envelope()
    for bad in ("xyz", "G" * 16, "X" * 16, "0" * 24):
        with pytest.raises(ValueError, match=r"^a key id that is not 16 hex digits"):
            replace(good, key_id=bad)
    for bad in ({"chunk_size": 1000}, {"chunk_size": 512}, {"chunk_size": 0}):
        with pytest.raises(ValueError, match="chunk size"):
            replace(good, **bad)
    with pytest.raises(ValueError, match="wrapped data key of 3"):
        replace(good, data_key=b"abc")
    with pytest.raises(ValueError, match="wrapping key of 7000"):
        replace(good, wrapping_key=bytes(7000))
    assert decode(replace(good, wrapping_key=bytes(6144)).encode()).wrapping_key == bytes(6144)
    header = bytearray(good.encode())
    header[len(MAGIC) + 9] = 30
    with pytest.raises(DamagedError, match="chunk size"):
        decode(bytes(header))
    with pytest.raises(DamagedError, match="no encrypted object"):
        decode(b"Obj\x01" + bytes(100))
    header = bytearray(good.encode())
    header[len(MAGIC)] = 2
    with pytest.raises(NewerFormatError, match="version 2") as newer:
        decode(bytes(header))
    assert newer.value.remedy == "use a newer release"


def test_sizes_that_no_object_has_are_damage() -> None:
    """They come from a chain."""
    it = envelope()
    for size in (0, it.size, it.size + TAG_SIZE - 1, it.size + CHUNK + TAG_SIZE + 1, it.size + CHUNK + 2 * TAG_SIZE):
        with pytest.raises(DamagedError, match=f"{size} bytes"):
            it.plain_size(size)
    with pytest.raises(DamagedError, match="there are 10"):
        it.chunk_range(it.stored_size(10), 5, 11)


def test_an_envelope_in_a_chain_must_be_one() -> None:
    """Base64, sizes, and nothing that is not known."""
    document = json.loads((encrypted.FOLDER / "local.json").read_bytes())
    for field, value in (("data_key", "!"), ("key_id", "abc"), ("chunk_size", 5), ("more", 1)):
        bad = {**document, "envelope": {**document["envelope"], field: value}}
        with pytest.raises(DamagedError, match="envelope"):
            load_object(bad, "entry 3")


def test_a_data_key_opens_only_with_the_key_that_wrapped_it() -> None:
    """RFC 3394 has a check of its own."""
    wrapped = chunk_cipher.wrap(DATA_KEY, chunk_cipher.wrapping_key(KEY))
    assert chunk_cipher.unwrap(wrapped, chunk_cipher.wrapping_key(KEY)) == DATA_KEY
    with pytest.raises(DamagedError, match=r"^its data key was changed since it was wrapped"):
        chunk_cipher.unwrap(wrapped, chunk_cipher.wrapping_key(bytes(31) + b"x"))


def test_golden_files_are_what_is_written_and_read() -> None:
    """Every release must read them; this one writes them still."""
    assert {path.name: path.read_bytes() for path in encrypted.FOLDER.iterdir()} == encrypted.files()
    for name, it in encrypted.envelopes().items():
        data = (encrypted.FOLDER / f"{name}.avro.sealed").read_bytes()
        assert is_encrypted(data)
        assert decode(data) == it
        assert (
            chunk_cipher.open_whole(it, encrypted.DATA_KEY, data, name=encrypted.NAME) == encrypted.PLAIN.read_bytes()
        )
        item = load_object(json.loads((encrypted.FOLDER / f"{name}.json").read_bytes()), "golden")
        assert item.envelope == it
        assert item.plain_bytes == encrypted.PLAIN.stat().st_size
    assert not is_encrypted(encrypted.PLAIN.read_bytes())


def test_new_objects_have_chunks_of_64_kib() -> None:
    """Small enough for a journal's parts, which are read one by one, and large enough to cost little."""
    assert Envelope(key_id="0" * 16, data_key=bytes(40)).chunk_size == CHUNK_SIZE == 64 << 10
