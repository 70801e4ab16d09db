"""What encryption costs on one core, beside what is done to every object anyway: `python -m bench.cases.sealing`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tandem.backup_avro.chain.entries import sha256_hex
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.envelope import CHUNK_SIZE, Envelope

_SIZE = 64 << 20
_ROUNDS = 9
_NAME = "shop/a/generation=00000001/journal/00000000000000000001+0011223344556677.avro"


def rate(work: Callable[[], object], size: int = _SIZE) -> float:
    """Return MB per second of processor time, the middle one of some rounds."""
    rates = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        work()
        rates.append(size / (time.process_time() - began) / 1e6)
    return sorted(rates)[_ROUNDS // 2]


def main() -> None:
    """Seal and open an object of 64 MiB with chunks of several sizes."""
    data = os.urandom(_SIZE)
    data_key = os.urandom(32)
    print("| what | MB/s of processor time |\n|---|---:|")
    for chunk in (CHUNK_SIZE // 4, CHUNK_SIZE, 4 * CHUNK_SIZE):
        envelope = Envelope(key_id="0" * 16, data_key=bytes(40), chunk_size=chunk)
        stored = chunk_cipher.seal(envelope, data_key, data, name=_NAME)

        def seal(envelope: Envelope = envelope) -> object:
            return chunk_cipher.seal(envelope, data_key, data, name=_NAME)

        def reopen(envelope: Envelope = envelope, stored: bytearray = stored) -> object:
            return chunk_cipher.open_whole(envelope, data_key, stored, name=_NAME)

        print(f"| seal, chunks of {chunk >> 10} KiB | {rate(seal):,.0f} |")
        print(f"| open, chunks of {chunk >> 10} KiB | {rate(reopen):,.0f} |")
    print(f"| SHA-256 | {rate(lambda: sha256_hex(data)):,.0f} |")
    print(f"| a copy | {rate(lambda: bytearray(data)):,.0f} |")


if __name__ == "__main__":
    main()
