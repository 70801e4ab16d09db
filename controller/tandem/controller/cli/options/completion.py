"""What Tab offers for values that only the store knows: topics, checkpoints, generations, topics of restores.

Each function returns the names that begin with what is typed. It reads the store of the command line typed so far, or
of the configuration that would count, and returns nothing if that takes longer than a moment or fails: a shell waits,
and has no place for an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from tandem.controller.process.timed_call import TimedCall

if TYPE_CHECKING:
    from tandem.backup_avro.chain.generation import Generation
    from tandem.controller.config import Config
    from tandem.sink.store import ObjectStore

LIMIT_S: Final = 1.5
"""Longest time that Tab waits for the store, in seconds."""

_Names = Callable[["ObjectStore", str], Iterable[str]]


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of topics in the backup; behind a comma the list typed so far is kept, as in `A,B`."""
    return _listed(context, incomplete, _topics)


def checkpoint_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return ids of checkpoints."""
    return _offered(context, incomplete, _checkpoints)


def generation_numbers(context: typer.Context, incomplete: str) -> list[str]:
    """Return numbers of generations, the newest first."""
    return _offered(context, incomplete, _generations)


def generation_pairs(context: typer.Context, incomplete: str) -> list[str]:
    """Return numbers of generations; behind a comma the one typed so far is kept, as in `N,M`."""
    return _listed(context, incomplete, _generations)


def generations_and_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return what `tandem describe` describes."""
    return _offered(context, incomplete, _generations_and_topics)


def created_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of topics that restores created, which `tandem restore adopt` takes."""
    return _offered(context, incomplete, _created)


def _listed(context: typer.Context, incomplete: str, names: _Names) -> list[str]:
    listed, comma, last = incomplete.rpartition(",")
    return [f"{listed}{comma}{name}" for name in _offered(context, last, names)]


def _offered(context: typer.Context, incomplete: str, names: _Names) -> list[str]:
    logging.disable(logging.CRITICAL)
    try:
        settings = _configuration(context)
        found = TimedCall(lambda: _read(settings, names), name="completion").result(LIMIT_S)
    except Exception:  # noqa: BLE001 - whatever it is, the shell offers nothing
        return []
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def _configuration(context: typer.Context) -> Config:
    from tandem.controller.cli.options.invocation import read  # noqa: PLC0415 - only when Tab is pressed at such a value

    given, before = context.params, context.find_root().params
    place = {f"--{name}": given[name] for name in ("root", "pair") if given.get(name) is not None}
    overrides: list[Any] = [*(before.get("overrides") or ()), *(given.get("overrides") or ())]
    config = given.get("config") or before.get("config")
    return read(context, config, overrides, options=place, store_alone=True).config


def _read(settings: Config, names: _Names) -> list[str]:
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - as above

    store = store_for_looking(settings)
    try:
        return list(names(store, settings.pair))
    finally:
        store.close()


def _chains(store: ObjectStore, pair: str) -> Sequence[Generation]:
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - as above

    return ChainReader(store, pair).refresh(tolerant=True)


def _topics(store: ObjectStore, pair: str) -> Iterable[str]:
    return _topics_of(_chains(store, pair))


def _generations(store: ObjectStore, pair: str) -> Iterable[str]:
    return _numbers_of(_chains(store, pair))


def _generations_and_topics(store: ObjectStore, pair: str) -> Iterable[str]:
    found = _chains(store, pair)
    return [*_numbers_of(found), *_topics_of(found)]


def _created(store: ObjectStore, pair: str) -> Iterable[str]:
    from tandem.sink.store.chain.restore_targets import noted_topics  # noqa: PLC0415 - as above

    return noted_topics(store, pair)


def _topics_of(found: Sequence[Generation]) -> list[str]:
    return sorted({topic.name for generation in found for topic in generation.topics.values()})


def _numbers_of(found: Sequence[Generation]) -> list[str]:
    return [str(generation.number) for generation in reversed(found)]


def _checkpoints(store: ObjectStore, pair: str) -> Iterable[str]:
    from tandem.sink.store.chain.checkpoints import list_checkpoints  # noqa: PLC0415 - as above

    return sorted(found.request.id for found in list_checkpoints(store, pair).checkpoints)
