"""The whole command line as the `tandem` command builds it, for tests that look at all of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import typer.main

from tandem.controller.cli.main import COMMANDS, module_of


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that a person can call, groups' own ones too, by its name on the line."""
    for name in COMMANDS:
        yield from _below(name, top(name))


def top(name: str) -> Any:
    """A command, or a group, below `tandem`."""
    return typer.main.get_command(importlib.import_module(module_of(name)).app)


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield name, command
    for word, one in inner.items():
        yield from _below(f"{name} {word}", one)


def parse(words: Sequence[str]) -> None:
    """Parse what stands behind `tandem`, and run nothing. Raises what the parser raises; KeyError for no command."""
    name, *rest = words
    if name not in COMMANDS:
        raise KeyError(name)
    command, parent = top(name), None
    while True:
        context = command.make_context(name, list(rest), parent=parent)
        inner = getattr(command, "commands", {})
        left = [*getattr(context, "_protected_args", ()), *context.args]
        if not inner or not left:
            return
        name, *rest = left
        if name not in inner:
            raise KeyError(name)
        command, parent = inner[name], context
