"""Comparison of a store's chains with the heads that this machine has read before, for commands of any kind.

A command that writes by what the store says refuses a store that was set back; one that only shows it, or that a person
may need just then, warns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from tandem.backup_avro.chain.heads import Head
    from tandem.controller.config import Config
    from tandem.controller.status.pair_view import PairView
    from tandem.sink.store import ObjectStore
    from tandem.sink.store.chain.chain_reader import ChainReader


def require_known_heads(settings: Config, store: ObjectStore) -> ChainReader:
    """Return a reader that has read the pair's chains, and remember their heads.

    Raises RolledBackError if the store lacks an entry that this machine has read before, and the store's errors.
    """
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - loaded when the command runs
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    reader = ChainReader(store, settings.pair)
    remembered_heads(settings).require(reader)
    return reader


def warn_if_rolled_back(seen: PairView) -> None:
    """Warn of each entry that was published, or that this machine has read before, and that the store lacks."""
    from tandem.controller.status.health import rolled_back  # noqa: PLC0415 - loaded when the command runs

    for problem in rolled_back(seen):
        output.warn(problem.message)


def warn_of_lost_heads(settings: Config, store: ObjectStore) -> tuple[Head, ...]:
    """Warn of each entry that `require_known_heads` would refuse the store for, and return them."""
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - loaded when the command runs
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    losses = remembered_heads(settings).find_losses(ChainReader(store, settings.pair))
    for loss in losses:
        output.warn(loss.describe_loss())
    return tuple(loss.head for loss in losses)
