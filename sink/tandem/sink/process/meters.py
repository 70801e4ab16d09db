"""Callbacks by which the pipeline reports events to a metrics collector, independent of any metrics format."""

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
    """Callbacks for measurements. They are called from several threads and must neither block nor raise.

    The defaults do nothing. `uploaded`: seconds until the store had a data object, tries included. `committed`: seconds
    from the start of a commit, with its uploads, to the entry in the chain, and that entry. `retried`: a request to the
    target is tried again. `skipped`: number of offsets at the end of a log that a reader skipped because the brokers
    had no readable record there.
    """

    uploaded: Callable[[float], None] = _nothing
    committed: Callable[[float, Entry], None] = _nothing
    retried: Callable[[Target], None] = _nothing
    skipped: Callable[[int], None] = _nothing


NOBODY = Meters()
