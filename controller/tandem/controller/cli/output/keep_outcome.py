"""Keeping what a run came to in the store, for `tandem status` and the metrics of the instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.backup_avro.errors import TandemError
from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from tandem.backup_avro.documents.outcome import JobOutcome
    from tandem.sink.store import ObjectStore


def keep_outcome(store: ObjectStore, outcome: Callable[[int], JobOutcome]) -> None:
    """Put what `outcome` makes of the time by the store's clock (ms).

    Whoever may only read the store, or gets no answer of it, is told, and loses nothing else: the run was what
    mattered. If that is what the run failed of, its error is the one to be raised.
    """
    from tandem.sink.store.chain import outcomes  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise

    try:
        outcomes.put_outcome(store, outcome(now_ms(store)))
    except TandemError as error:
        output.warn(f"the result could not be kept in the store: {error}")
