"""Whether all lines on stderr of this process must be JSON documents, those of the command line, too.

`log` sets it, the command line asks. In a module of its own, because the log's libraries take longer to import than
`tandem --help` may take.
"""

from __future__ import annotations


class _Process:
    only_json = False


def only_json() -> bool:
    """Return whether every line on stderr must be a JSON document."""
    return _Process.only_json


def set_only_json(*, wanted: bool) -> None:
    """Say whether every line on stderr must be a JSON document."""
    _Process.only_json = wanted
