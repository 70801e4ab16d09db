"""`python -m chart`: writes the golden renderings anew (`make chart-golden`)."""

from __future__ import annotations

from chart.matrix import KEPT, MATRIX
from chart.rendering import GOLDEN, rendered

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.yaml"):
        old.unlink()
    for name in KEPT:
        (GOLDEN / f"{name}.yaml").write_text(rendered(MATRIX[name]))
