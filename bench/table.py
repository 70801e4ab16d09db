"""The newest results as tables in Markdown: `python -m bench.table [FILE]`.

Those of a whole run, those of `--restores`, and those beside the peer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from bench.outcome import Row, rows_of

_FIGURES: Final = attrgetter("seconds", "cpu_s", "peak_mb")


def main() -> None:
    """Print them."""
    folder = Path(__file__).parent / "results"
    newest = [sorted(folder.glob(pattern))[-1:] for pattern in ("????-??-??.json", "*-restores.json", "*-peer.json")]
    paths = [Path(sys.argv[1])] if len(sys.argv) > 1 else [path for found in newest for path in found]
    sys.stdout.write("\n".join(_tables(path) for path in paths))


def _tables(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = rows_of(document)
    lines = [
        f"{document['date']}, `{document['command']}` at {document['commit']}, {document['machine']['cores']} cores:"
    ]
    lines += ["", *(_beside(rows) if path.stem.endswith("-peer") else _alone(rows))]
    lines += ["", "| target | figure | wanted | |", "|---|---:|---:|---|"]
    for item in document["targets"]:
        lines.append(
            f"| {item['name']} | {item['figure']} | {item['target']} | {'met' if item['met'] else '**missed**'} |"
        )
    return "\n".join(lines) + "\n"


def _beside(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each backup and each restore: the peer's figures, and ours with their ratio."""
    yield "| case | what | peer: s, CPU s, MB | Tandem: s, CPU s, MB | time | CPU | memory | stored MB |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    found = {(row.case, row.what): row.middle for row in rows}
    for case in dict.fromkeys(case for case, _ in found):
        for what in ("backup", "restore"):
            theirs, ours = found[case, f"{what}, peer"], found[case, f"{what}, tandem"]
            both = [f"{run.seconds:.2f}, {run.cpu_s:.2f}, {run.peak_mb:.0f}" for run in (theirs, ours)]
            pairs = zip(_FIGURES(ours), _FIGURES(theirs), strict=True)
            # Below the clock's tick nothing can be said of processor time.
            ratios = [f"{our / their:.2f}" if their > 0.1 else "" for our, their in pairs]
            stored = f"{theirs.stored_mb:.1f}, {ours.stored_mb:.1f}" if what == "backup" else ""
            yield f"| {case} | {what} | {' | '.join([*both, *ratios, stored])} |"


def _alone(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each figure."""
    yield "| case | what | records/s | MB/s | seconds | CPU s | peak MB |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for row in rows:
        run = row.middle
        yield (
            f"| {row.case} | {row.what} | {run.rate:,.0f} | {run.mb_per_s:,.0f} | {run.seconds:.2f} | {run.cpu_s:.2f} "
            f"| {run.peak_mb:.0f} |"
        )


if __name__ == "__main__":
    main()
