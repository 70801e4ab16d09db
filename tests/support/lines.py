"""Lines that campaigns tell while they run."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Write a line at once, whoever reads the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
