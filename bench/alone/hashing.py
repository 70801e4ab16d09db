"""A hash for each record, by Tandem and by OpenSSL: `python -m bench.alone.hashing` (needs cc and libssl-dev)."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import tandem.sink.transcode

_WAYS: Final = ("Tandem's", "OpenSSL, one context for all", "OpenSSL, one call on a copy")
_SIZES: Final = (20, 100, 1_000, 10_000, 1_000_000)
_BYTES: Final = 200_000_000
_ROUNDS: Final = 5


def main() -> None:
    """Print a table of ns for each message. All ways take turns, and come to the same hash."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "hashing"
        source = Path(__file__).with_suffix(".c")
        header = Path(tandem.sink.transcode.__file__).parent
        subprocess.run(["cc", "-O2", f"-I{header}", "-o", str(program), str(source), "-lcrypto"], check=True)
        print("| bytes of a record |", " | ".join(f"{way}, ns" for way in _WAYS), "|\n|--:|" + "--:|" * len(_WAYS))
        for size in _SIZES:
            times: dict[int, list[float]] = {way: [] for way in range(len(_WAYS))}
            hashes: set[str] = set()
            for _ in range(_ROUNDS):
                for way, found in times.items():
                    words = [str(program), str(size), str(_BYTES // (size + 200)), str(way)]
                    took, digest = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
                    found.append(float(took))
                    hashes.add(digest)
            assert len(hashes) == 1, "they differ"
            print(f"| {size:,} |", " | ".join(f"{statistics.median(found):,.0f}" for found in times.values()), "|")


if __name__ == "__main__":
    main()
