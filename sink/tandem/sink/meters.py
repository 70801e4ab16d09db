"""Where the pipeline tells what it did, for whoever counts: plain functions, so that nothing here knows a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tandem.backup_avro.chain.entries import Entry

Target = Literal["store", "brokers", "kms"]


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """Called from several threads; must neither block nor raise. By default nobody counts.

    `uploaded`: seconds until the store had a data object, tries included. `committed`: seconds from the start of a
    commit, with its uploads, to the entry in the chain, and that entry. `retried`: something is tried again. `skipped`:
    a reader went on at the end of a log over so many offsets in which brokers had nothing readable.
    """

    uploaded: Callable[[float], None] = _nothing
    committed: Callable[[float, Entry], None] = _nothing
    retried: Callable[[Target], None] = _nothing
    skipped: Callable[[int], None] = _nothing


NOBODY = Meters()
