"""Keeping what a run came to in the store, for `tandem status` and the metrics of the instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backup_avro.errors import TandemError
from controller.cli import output

if TYPE_CHECKING:
    from backup_avro.outcome import Outcome
    from sink.object_store import ObjectStore


def keep_outcome(store: ObjectStore, outcome: Outcome) -> None:
    """Put an outcome. Whoever may only read the store is told, and loses nothing else: the run was what mattered."""
    from sink.chain import outcomes  # noqa: PLC0415 - loaded when the command runs, not for --help

    try:
        outcomes.put(store, outcome)
    except TandemError as error:
        output.warn(f"the result could not be kept in the store: {error}")


def ended_at(store: ObjectStore) -> int | None:
    """Return when a run ended, by the store's clock in ms; None, and a warning, if the store does not tell.

    It may be what the run failed of, whose error is the one to be raised.
    """
    from sink.chain.writer import now_ms  # noqa: PLC0415 - loaded when the command runs, not for --help

    try:
        return now_ms(store)
    except TandemError as error:
        output.warn(f"the result could not be kept in the store: {error}")
        return None
