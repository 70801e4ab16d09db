"""Where the processor time of a catch-up goes: `python -m bench.cases.flames FOLDER THOUSANDSxSIZExKIND [...]`.

Each word is one case, as `600x1000xjson`: a topic is filled, read by `bench.cases.catch_up` under `perf record`, and a
flame graph is written to FOLDER. Prints a row of shares of the samples for each. Needs perf, `inferno-collapse-perf`
and `inferno-flamegraph` on the path (`cargo install inferno`). What the broker's process takes is not in it.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.load import Load, fill
from bench.servers import BenchKafka

#: What a sample is counted as, by the beginning of the name of the library that it was taken in.
_PARTS: Final = (
    ("compression", "backend_c."),
    ("transcoding, CRC", "_twin."),
    ("SHA-256 of objects", "libcrypto."),
    ("kernel", "[kernel"),
    ("copies, memory", "libc."),
    ("Python", ("python", "libpython")),
    ("the rest", ""),
)


def main() -> None:
    """Print a table, and write an SVG for each case."""
    folder = Path(sys.argv[1])
    names = [name for name, _ in _PARTS]
    print("|", " | ".join(["case", *names]), "|\n|---|" + "--:|" * len(names), flush=True)
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as stack:
        kafka = BenchKafka(Path(name) / "kafka")
        kafka.start()
        stack.callback(kafka.kill)
        for number, word in enumerate(sys.argv[2:]):
            thousands, size, kind = word.split("x")
            load = Load(records=int(thousands) * 1_000, size=int(size), kind=kind, distinct=True)
            fill(kafka.bootstrap, load)
            case = Path(name) / str(number)
            case.mkdir()
            shares = _recorded(kafka, load, case, folder / f"flame-{load.topic}.svg")
            row = [f"{shares[part]:.0%}" for part in names]
            print("|", " | ".join([load.topic, *row]), "|", flush=True)


def _recorded(kafka: BenchKafka, load: Load, folder: Path, graph: Path) -> dict[str, float]:
    """Run a case under perf, write its graph, and return the share of the samples in each part."""
    (folder / "store").mkdir()
    data = folder / "perf.data"
    store = json.dumps({"root": (folder / "store").as_uri()})
    subprocess.run(
        [
            *("perf", "record", "--quiet", "--event", "cpu-clock", "--freq", "499", "--call-graph", "fp"),
            *("--output", str(data), "--", sys.executable, "-m", "bench.cases.catch_up"),
            *(kafka.bootstrap, load.topic, "zstandard", store),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    script = subprocess.run(["perf", "script", "--input", str(data)], check=True, capture_output=True)
    stacks = subprocess.run(["inferno-collapse-perf"], input=script.stdout, check=True, capture_output=True)
    title = f"catch-up of {load.records:,} records of {load.size} B, {load.kind}"
    drawn = subprocess.run(
        ["inferno-flamegraph", "--title", title, "--minwidth", "0.5"],
        input=stacks.stdout,
        check=True,
        capture_output=True,
    )
    graph.write_bytes(drawn.stdout)
    counted = collections.Counter(_libraries(script.stdout.decode(errors="replace")))
    return {part: counted[part] / counted.total() for part, _ in _PARTS}


def _libraries(script: str) -> Iterator[str]:
    """Yield the part that each sample was taken in: its first frame ends with the library, in brackets."""
    for sample in script.split("\n\n"):
        frames = [line for line in sample.splitlines() if line.startswith("\t")]
        if frames:
            library = Path(frames[0].rpartition("(")[2].rstrip(")")).name
            yield next(part for part, begins in _PARTS if library.startswith(begins))


if __name__ == "__main__":
    main()
