"""The newest results as tables in Markdown: `python -m bench.table [FILE]`.

Those of a whole run, and those of `--restores`, which may be newer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Print them."""
    folder = Path(__file__).parent / "results"
    newest = [sorted(folder.glob(pattern))[-1:] for pattern in ("????-??-??.json", "*-restores.json")]
    paths = [Path(sys.argv[1])] if len(sys.argv) > 1 else [path for found in newest for path in found]
    sys.stdout.write("\n".join(_tables(path) for path in paths))


def _tables(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"{document['date']}, `{document['command']}` at {document['commit']}, {document['machine']['cores']} cores:"
    ]
    lines += [
        "",
        "| case | what | records/s | MB/s | seconds | CPU s | peak MB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in document["rows"]:
        run = sorted(row["runs"], key=lambda item: item["seconds"])[len(row["runs"]) // 2]
        rate, mb = run["records"] / run["seconds"], run["bytes"] / run["seconds"] / 1e6
        lines.append(
            f"| {row['case']} | {row['what']} | {rate:,.0f} | {mb:,.0f} | {run['seconds']:.2f} | {run['cpu_s']:.2f} "
            f"| {run['peak_mb']:.0f} |"
        )
    lines += ["", "| target | figure | wanted | |", "|---|---:|---:|---|"]
    for item in document["targets"]:
        lines.append(
            f"| {item['name']} | {item['figure']} | {item['target']} | {'met' if item['met'] else '**missed**'} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
