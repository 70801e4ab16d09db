"""What comes out of a compressed stream is in memory once, while it grows, too; the pieces make no difference."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard

from tandem.backup_avro.errors import DamagedError, TooLargeError
from tandem.backup_avro.record import compression

MIB = 1 << 20
Both = tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]


def unsized_zstd(data: bytes) -> bytes:
    """A frame that does not state its size, as Java writes it."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def whole(unpack: Callable[[bytes, int], compression.Decompressed]) -> Callable[[bytes, int], bytes]:
    """All that there is, or what is wrong with it."""

    def strict(data: bytes, limit: int) -> bytes:
        found = unpack(data, limit)
        if found.flaw is not None:
            raise found.flaw
        return found.plain

    return strict


STREAMS: dict[str, Both] = {
    "gzip": (compression.gzip, compression.gunzip),
    "gzip batch": (compression.gzip, whole(compression.gunzip_batch)),
    "deflate": (compression.deflate, compression.inflate),
    "snappy": (compression.snappy_stream, whole(compression.unsnappy_batch)),
    "lz4": (compression.lz4_frame, whole(compression.unlz4_batch)),
    "zstd": (unsized_zstd, compression.unzstd),
    "zstd batch": (unsized_zstd, whole(compression.unzstd_batch)),
}
every = pytest.mark.parametrize("name", STREAMS)


@every
def test_it_is_in_memory_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that are joined at the end, and buffers that are doubled, take as much again."""
    monkeypatch.setattr(compression, "_PIECE", MIB, raising=False)
    pack, unpack = STREAMS[name]
    packed = pack(bytes(80 * MIB))
    tracemalloc.start()
    try:
        size = len(unpack(packed, 80 * MIB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A buffer grows by an eighth; zstandard takes at least 512 bytes, which stand for up to 22 MB.
    assert size == 80 * MIB
    assert peak < 1.125 * size + 24 * MIB + 2 * len(packed), f"{peak / MIB:.0f} MiB"


@every
@pytest.mark.parametrize("piece", [1, 100, 4000, 32 * MIB])
def test_pieces_make_no_difference(name: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor to the bound, nor to what is cut short: to the byte."""
    monkeypatch.setattr(compression, "_PIECE", piece)
    pack, unpack = STREAMS[name]
    rng = random.Random(1)
    for plain in (b"", b"x", bytes(9000), rng.randbytes(5000), rng.randbytes(40) * 200):
        packed = pack(plain)
        assert unpack(packed, len(plain)) == plain
        if plain:
            with pytest.raises(TooLargeError, match=f"more than {len(plain) - 1} bytes"):
                unpack(packed, len(plain) - 1)
            with pytest.raises(DamagedError):
                unpack(packed[:-1], MIB)


@pytest.mark.parametrize("name", ["gzip batch", "snappy", "zstd"])
def test_several_frames_share_one_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each in pieces."""
    monkeypatch.setattr(compression, "_PIECE", 1000)
    pack, unpack = STREAMS[name]
    packed = pack(bytes(3000)) + pack(b"y" * 5000)
    assert unpack(packed, 8000) == bytes(3000) + b"y" * 5000
    with pytest.raises(TooLargeError):
        unpack(packed, 7999)
