"""The examples below a command's help."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """Return the text after a command's options; its lines are not wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
