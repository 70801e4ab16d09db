"""What encryption costs on one core, beside what is done to every object anyway: `python -m bench.alone.sealing`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from bench.measured import rates
from tandem.backup_avro.chain.entries import sha256_hex
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.envelope import CHUNK_SIZE, Envelope

_SIZE = 64 << 20
_NAME = "shop/a/generation=00000001/journal/00000000000000000001+0011223344556677.avro"


def main() -> None:
    """Seal and open an object of 64 MiB with chunks of several sizes."""
    data = os.urandom(_SIZE)
    data_key = os.urandom(32)
    works: dict[str, Callable[[], object]] = {}
    for chunk in (CHUNK_SIZE // 4, CHUNK_SIZE, 4 * CHUNK_SIZE):
        envelope = Envelope(key_id="0" * 16, data_key=bytes(40), chunk_size=chunk)
        seal = partial(chunk_cipher.seal, envelope, data_key, data, name=_NAME)
        works[f"seal, chunks of {chunk >> 10} KiB"] = seal
        works[f"open, chunks of {chunk >> 10} KiB"] = partial(
            chunk_cipher.open_whole, envelope, data_key, seal(), name=_NAME
        )
    works["SHA-256"] = partial(sha256_hex, data)
    works["a copy"] = partial(bytearray, data)
    print("| what | MB/s of processor time |\n|---|---:|")
    for what, rate in rates(works, _SIZE).items():
        print(f"| {what} | {rate:,.0f} |")


if __name__ == "__main__":
    main()
