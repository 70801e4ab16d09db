"""The newest results as tables in Markdown: `python -m bench.table [FILE]`.

Those of a whole run, those of `--restores`, and those beside the peer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_RATIOS: Final = ("seconds", "cpu_s", "peak_mb")


def main() -> None:
    """Print them."""
    folder = Path(__file__).parent / "results"
    newest = [sorted(folder.glob(pattern))[-1:] for pattern in ("????-??-??.json", "*-restores.json", "*-peer.json")]
    paths = [Path(sys.argv[1])] if len(sys.argv) > 1 else [path for found in newest for path in found]
    sys.stdout.write("\n".join(_tables(path) for path in paths))


def _tables(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"{document['date']}, `{document['command']}` at {document['commit']}, {document['machine']['cores']} cores:"
    ]
    lines += ["", *(_beside(document) if path.stem.endswith("-peer") else _alone(document))]
    lines += ["", "| target | figure | wanted | |", "|---|---:|---:|---|"]
    for item in document["targets"]:
        lines.append(
            f"| {item['name']} | {item['figure']} | {item['target']} | {'met' if item['met'] else '**missed**'} |"
        )
    return "\n".join(lines) + "\n"


def _middle(row: dict[str, Any]) -> dict[str, Any]:
    """Return the run of the median time."""
    middle: dict[str, Any] = sorted(row["runs"], key=lambda item: item["seconds"])[len(row["runs"]) // 2]
    return middle


def _beside(document: dict[str, Any]) -> Iterator[str]:
    """A line for each backup and each restore: the peer's figures, and ours with their ratio."""
    yield "| case | what | peer: s, CPU s, MB | Tandem: s, CPU s, MB | time | CPU | memory | stored MB |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    found = {(row["case"], row["what"]): _middle(row) for row in document["rows"]}
    for case in dict.fromkeys(case for case, _ in found):
        for what in ("backup", "restore"):
            theirs, ours = found[case, f"{what}, peer"], found[case, f"{what}, tandem"]
            both = [f"{run['seconds']:.2f}, {run['cpu_s']:.2f}, {run['peak_mb']:.0f}" for run in (theirs, ours)]
            # Below the clock's tick nothing can be said of processor time.
            ratios = [f"{ours[of] / theirs[of]:.2f}" if theirs[of] > 0.1 else "" for of in _RATIOS]
            stored = f"{theirs['stored_mb']:.1f}, {ours['stored_mb']:.1f}" if what == "backup" else ""
            yield f"| {case} | {what} | {' | '.join([*both, *ratios, stored])} |"


def _alone(document: dict[str, Any]) -> Iterator[str]:
    """A line for each figure."""
    yield from (
        "| case | what | records/s | MB/s | seconds | CPU s | peak MB |",
        "|---|---|---:|---:|---:|---:|---:|",
    )
    for row in document["rows"]:
        run = _middle(row)
        rate, mb = run["records"] / run["seconds"], run["bytes"] / run["seconds"] / 1e6
        yield (
            f"| {row['case']} | {row['what']} | {rate:,.0f} | {mb:,.0f} | {run['seconds']:.2f} | {run['cpu_s']:.2f} "
            f"| {run['peak_mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
