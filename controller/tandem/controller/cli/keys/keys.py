"""`tandem keys`: which keys the objects of each generation need, and which are at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table
from tandem.controller.cli.output.slow_notice import patience

if TYPE_CHECKING:
    from tandem.controller.status.key_use import KeyUse

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=examples("tandem keys -c a.yaml", "tandem keys -c a.yaml -o json"))
def keys(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show which keys the data objects of each generation need.

    Keys are named by ids from which nothing about them follows. A key that no generation needs any more, nor any
    checkpoint that was made when it was in use, can be taken out of the configuration. Exit code 3 if a key is needed
    that is not at hand, or a chain is damaged.
    """
    from tandem.controller.status.key_use import ConfiguredKey, KeysDocument, key_use  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import read_chains  # noqa: PLC0415 - likewise
    from tandem.sink.encryption.key_ring import keys_of  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    settings, store = opened(context, config, overrides, root=root, pair=pair)
    at_hand: dict[str, str] = {}
    current = None
    try:
        try:
            at_hand, current = keys_of(store).places(), keys_of(store).current()
        except ConfigError as error:
            output.warn(str(error))
        with patience("reading the chains"):
            chains = read_chains(ChainReader(store, settings.pair))
    finally:
        store.close()
    uses = key_use(chains.generations, at_hand)
    output.show(
        kind="Keys",
        body=KeysDocument(
            pair=settings.pair,
            root=settings.store.root,
            current=current,
            at_hand=tuple(ConfiguredKey(key_id=key_id, place=place) for key_id, place in at_hand.items()),
            uses=uses,
            damaged=chains.damaged,
        ),
        output=output_,
        tables=_tables(at_hand, current, uses),
    )
    for number, why in chains.damaged.items():
        output.warn(f"generation {number} can't be read: {why}")
    if chains.damaged or not all(use.at_hand for use in uses):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _tables(at_hand: Mapping[str, str], current: str | None, uses: tuple[KeyUse, ...]) -> Iterator[Table | str]:
    if at_hand:
        yield Table(
            columns=("key", "from", "for"),
            rows=[
                (key_id, place, "new objects" if key_id == current else "reading") for key_id, place in at_hand.items()
            ],
        )
    else:
        yield "no key is at hand: new objects are not encrypted"
    if uses:
        yield Table(
            columns=("generation", "instance", "key", "objects", "size", "at hand"),
            rows=[
                (
                    use.generation,
                    use.instance,
                    use.key_id or "not encrypted",
                    use.objects,
                    output.size(use.bytes),
                    "yes" if use.at_hand else "NO",
                )
                for use in uses
            ],
            right=frozenset({"generation", "objects", "size"}),
        )
