"""Store the outcome of a job, for `tandem status` and the metrics of the instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.backup_avro.errors import TandemError
from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from tandem.backup_avro.documents.outcome import JobOutcome
    from tandem.sink.store import ObjectStore


def keep_outcome(store: ObjectStore, outcome: Callable[[int], JobOutcome]) -> None:
    """Store the outcome that `outcome` returns for the present time of the store's clock (ms).

    If the store refuses the write or does not answer, the function prints a warning and raises nothing: the run itself
    is what matters. If the run failed for the same reason, its own error is the one that the caller raises.
    """
    from tandem.sink.store.chain import outcomes  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise

    try:
        outcomes.put_outcome(store, outcome(now_ms(store)))
    except TandemError as error:
        output.warn(f"the result could not be kept in the store: {error}")
