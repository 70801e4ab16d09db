"""Who asks, and asking for consent: what commands need that let something go or leave a document behind."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import Final

import typer

from tandem.backup_avro.errors import RefusedError

_LONGEST: Final = 200


def asker() -> str:
    """Return `user@host` of whoever runs the command, for documents that outlive it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for the user id, as in many containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def consent(question: str, *, yes: bool) -> None:
    """Ask unless `yes`. Raises RefusedError without a terminal, typer.Abort if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise RefusedError(
            "there is no terminal to ask for consent", remedy="read what it costs, then run it again with --yes"
        )
    typer.confirm(question, abort=True, err=True)


def one_line(text: str, *, otherwise: str = "") -> str:
    """Return a reason as one short line."""
    return " ".join(text.split())[:_LONGEST] or otherwise
