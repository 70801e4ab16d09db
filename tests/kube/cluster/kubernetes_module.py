"""Writes the go.mod of a module that builds the commands of k8s.io/kubernetes out of Go modules.

The released module replaces its staging modules by folders of its repository, which a module that requires it cannot
do; each staging module has a release of the same number instead (v0.34.4 for v1.34.4).
"""

import re
import sys
from pathlib import Path


def main(released: str, version: str) -> None:
    """Prints the go.mod for the released go.mod and its version (without v)."""
    source = Path(released).read_text(encoding="utf-8")
    staged = "v0." + version.split(".", 1)[1]
    needs = [("k8s.io/kubernetes", f"v{version}")]
    for block in re.findall(r"^require \((.*?)^\)", source, re.DOTALL | re.MULTILINE):
        for name, wanted in re.findall(r"^\s+(\S+) (v\S+)", block, re.MULTILINE):
            needs.append((name, staged if wanted == "v0.0.0" else wanted))
    staging = re.findall(r"^\s+(k8s.io/\S+) => \./staging", source, re.MULTILINE)
    lines = ["module example.org/kubernetes", "go 1.24.0", "godebug default=go1.24", "require ("]
    lines += [*(f"\t{name} {wanted}" for name, wanted in needs), ")", "replace ("]
    lines += [*(f"\t{name} => {name} {staged}" for name in staging), ")"]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
