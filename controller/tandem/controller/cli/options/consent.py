"""Consent, and the user's name for documents: for commands that delete something or leave a document behind."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import Annotated, Final

import typer

from tandem.backup_avro.errors import RefusedError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
"""The option of every command that asks. It answers that question and does nothing else."""
_LONGEST: Final = 200


def asker() -> str:
    """Return `user@host` of the user that runs the command, for documents that outlive it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for the user id, as in many containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def consent(question: str, *, yes: bool) -> None:
    """Ask for consent unless `yes`. Raises RefusedError without a terminal, typer.Abort if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise RefusedError(
            "there is no terminal to ask for consent",
            code="TDM-C020",
            remedy="read the consequences above, then run it again with --yes",
        )
    typer.confirm(question, abort=True, err=True)


def one_line(text: str, *, otherwise: str = "") -> str:
    """Return a reason as one line of limited length; `otherwise` if it is empty."""
    return " ".join(text.split())[:_LONGEST] or otherwise
