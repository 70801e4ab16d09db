"""The last heads that this machine has read of each pair, and those of them that the store has lost since.

Each remembered head must be in the store for ever: no part of Tandem deletes or replaces an entry of a chain, not even
of a generation that was cleared, swept or erased from. So only a bucket that was set back, cut or emptied lacks one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import structlog

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head, RolledBackError
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError
from tandem.controller.config import Config
from tandem.controller.config.model import NO_STATE
from tandem.controller.local_state.state_file import ContentError, StateFile, StateFileError, default_folder
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.chain.chain_reader import ChainReader

_RATED = RatedLog(structlog.get_logger())
_VERSION: Final = 1
MOST_BYTES: Final = 4 << 20
MOST_PLACES: Final = 256
"""Pairs that are remembered, by place and first claim; the one that was not read for longest is forgotten first."""
MOST_HEADS: Final = 64
"""Generations of a pair that are remembered, the newest ones. Ended ones are not, so there are hardly ever ten."""
_LONGEST_NAME: Final = 2000
_FORGOTTEN_MS: Final = 400 * 86_400_000
"""Time since a pair was last read after which it is forgotten: more than a year, for a yearly look."""
_FRESH_MS: Final = 86_400_000
"""Time after which the file is written although no head is new, so that a pair that is still read is not forgotten."""
ACCEPT_REMEDY: Final = (
    "bring the newer state back from the bucket's versions or a replica, and find out who put it back; if this state "
    "is meant, `tandem status --accept-heads` takes it as the newest"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHead:
    """A head, and when this machine first read the chain up to it: ms by its own clock."""

    head: Head
    at: int

    def describe_loss(self) -> str:
        """Return a sentence about this head, which the store lacks."""
        return (
            f"entry {self.head.seq} of generation {self.head.generation} was in the store when this machine read it at "
            f"{iso(self.at)}, and is not any more: the bucket is in an older state, or it is another one"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The heads of one pair, by generation. `origin` is the hash of its first claim, empty if that is not there.

    Two pairs of one name in two buckets of one name (a test system's and a real one's) differ by it, and so does a pair
    that was begun anew after all of it was deleted.
    """

    root: str
    pair: str
    origin: str
    seen: int = 0
    heads: Mapping[int, SeenHead] = field(default_factory=dict)

    def is_same(self, other: _Place) -> bool:
        return (self.root, self.pair, self.origin) == (other.root, other.pair, other.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """What a reading of the store found: present heads, ended generations, and generations whose head is lost."""

    present: Mapping[int, Head]
    ended: frozenset[int]
    lost: frozenset[int]

    def merged(self, stored: _Place, checked: _Place, now: int) -> _Place:
        """Return what is to be remembered. `checked` has the heads that were compared; `stored` may be newer.

        Lost heads stay until a person accepts the loss. A head that another process has stored meanwhile was not
        compared here, so it stays too.
        """
        heads = dict(stored.heads)
        for number, head in self.present.items():
            before = heads.get(number)
            replaces = before is None or (before.head != head and before == checked.heads.get(number))
            if replaces and number not in self.lost:
                heads[number] = SeenHead(head=head, at=now)
        for number in self.ended - self.lost:
            if heads.get(number) == checked.heads.get(number):
                heads.pop(number, None)
        newest = dict(sorted(heads.items())[-MOST_HEADS:])
        return replace(stored, seen=now, heads=newest)


class RecalledHeads:
    """The remembered heads as of a moment before the store is read, so that each was in the store before that."""

    def __init__(self, memory: RememberedHeads, places: Iterable[_Place], root: str, pair: str) -> None:
        self._memory = memory
        self._places = [place for place in places if (place.root, place.pair) == (root, pair)]
        self._blank = _Place(root=root, pair=pair, origin="")

    def compare(self, reader: ChainReader, generations: Iterable[Generation]) -> tuple[SeenHead, ...]:
        """Return the remembered heads that the store lacks, ascending, and remember the present ones.

        `generations` are what the last refresh of `reader` returned. Generations that can't be read are left out, as
        the reader names them. A store without any claim of the pair lacks all of it, which every command says anyway.
        Raises the store's errors.
        """
        if not reader.numbers or max(len(self._blank.root), len(self._blank.pair)) > _LONGEST_NAME:
            return ()
        known = self._place_of(reader.origin())
        live = {state.number: Head.of(state) for state in generations}
        lost = tuple(
            seen
            for number, seen in sorted(known.heads.items())
            if live.get(number) != seen.head and number not in reader.damaged and _lacks(reader, seen.head)
        )
        newest = {state.number: Head.of(state) for state in reader.history() if state.number == reader.newest}
        over = known.heads.keys() - live.keys() - reader.damaged.keys() - {reader.newest}
        found = _Comparison(
            present=newest | live,
            ended=frozenset(over),
            lost=frozenset(seen.head.generation for seen in lost),
        )
        self._memory.note(known, found)
        return lost

    def _place_of(self, origin: str | None) -> _Place:
        """Return what is known of the pair that began with the claim `origin`; without one, of the last one read."""
        if origin is None:
            return max(self._places, key=lambda place: place.seen, default=self._blank)
        return next((place for place in self._places if place.origin == origin), replace(self._blank, origin=origin))


def _lacks(reader: ChainReader, head: Head) -> bool:
    """Whether the store lacks this very entry. One that can't be checked counts as there: its reader names it."""
    try:
        reader.require(head)
    except RolledBackError:
        return True
    except DamagedError:
        return False
    return False


class RememberedHeads:
    """The heads that this machine remembers, in `file`; None: nothing is remembered.

    What keeps the file from being used is logged as a warning with its code, and never raised.
    """

    def __init__(self, file: StateFile | None, *, now: Callable[[], int] = lambda: round(time.time() * 1000)) -> None:
        self._file = file
        self._now = now

    def recall(self, root: str, pair: str) -> RecalledHeads:
        """Return the heads of a pair below `root`, as `store.url` has it. Call it before the store is read."""
        try:
            places = [] if self._file is None else _places(self._file.read())
        except ContentError as error:  # the next update begins a new file
            _warn(error)
            places = []
        except StateFileError as error:
            _warn(error)
            return NOTHING_REMEMBERED.recall(root, pair)
        return RecalledHeads(self, places, root.rstrip("/"), pair)

    def find_losses(self, reader: ChainReader) -> tuple[SeenHead, ...]:
        """Read the chains of `reader`, and remember their heads; return those of before that the store lacks.

        None if a newer release wrote one of the chains, which the caller will meet. Raises the store's errors.
        """
        recalled = self.recall(reader.store.url, reader.pair)
        try:
            return recalled.compare(reader, reader.refresh(tolerant=True))
        except NewerFormatError:
            return ()

    def require(self, reader: ChainReader) -> None:
        """Compare the chains as `find_losses` does. Raises RolledBackError if a head is lost."""
        for loss in self.find_losses(reader):
            raise RolledBackError(loss.describe_loss(), code="TDM-V023", remedy=ACCEPT_REMEDY)

    def note(self, known: _Place, found: _Comparison) -> None:
        """Remember what a comparison with `known` found."""
        now = self._now()
        after = found.merged(known, known, now)
        if after.heads == known.heads and abs(now - known.seen) < _FRESH_MS:
            return

        def change(places: list[_Place]) -> list[_Place]:
            stored = next(filter(known.is_same, places), replace(known, heads={}))
            return [*(place for place in places if not known.is_same(place)), found.merged(stored, known, now)]

        self._update(change)

    def forget(self, root: str, pair: str) -> int:
        """Forget all heads of a pair below `root`; return how many there were."""
        gone: list[_Place] = []

        def change(places: list[_Place]) -> list[_Place]:
            gone[:] = [place for place in places if (place.root, place.pair) == (root.rstrip("/"), pair)]
            return [place for place in places if place not in gone]

        self._update(change)
        return sum(len(place.heads) for place in gone)

    def _update(self, change: Callable[[list[_Place]], list[_Place]]) -> None:
        if self._file is None:
            return
        try:
            self._file.update(lambda content: _content(change(_places(content)), self._now()))
        except StateFileError as error:
            _warn(error)


NOTHING_REMEMBERED: Final = RememberedHeads(None)


def remembered_heads(config: Config, environ: Mapping[str, str] = os.environ) -> RememberedHeads:
    """Return the heads that this machine remembers, where `state.dir` says."""
    named = config.state.dir
    if named == NO_STATE:
        return NOTHING_REMEMBERED
    try:
        folder = default_folder(environ) if named is None else Path(named)
    except StateFileError as error:
        _warn(error)
        return NOTHING_REMEMBERED
    return RememberedHeads(StateFile(folder / "heads.json", most=MOST_BYTES))


def _warn(error: StateFileError) -> None:
    _RATED.warning(
        "the heads that this machine has seen can't be compared or remembered",
        code=error.code,
        error=str(error.args[0]),
        remedy=error.remedy,
    )


def _content(places: Iterable[_Place], now: int) -> dict[str, Any]:
    kept = sorted((place for place in places if now - place.seen < _FORGOTTEN_MS), key=lambda place: place.seen)
    return {
        "version": _VERSION,
        "places": [
            {
                "root": place.root,
                "pair": place.pair,
                "origin": place.origin,
                "seen": place.seen,
                "heads": [[str(seen.head), seen.at] for _, seen in sorted(place.heads.items())],
            }
            for place in kept[-MOST_PLACES:]
        ],
    }


def _places(content: Mapping[str, Any] | None) -> list[_Place]:
    """Return the places of a file's content. Raises StateFileError if this release has not written it."""
    if content is None:
        return []
    try:
        places = _decoded(content["places"]) if content["version"] == _VERSION else None
    except (ConfigError, KeyError, TypeError, ValueError):
        places = None
    if places is None:
        raise StateFileError(
            "heads.json in state.dir has another form than this release writes",
            code="TDM-V020",
            remedy="use the newer release that wrote it, or delete it",
        )
    return places


def _decoded(places: Iterable[Mapping[str, Any]]) -> list[_Place]:
    found = []
    for place in places:
        heads = [(Head.parse("a remembered head", text), int(at)) for text, at in place["heads"]]
        found.append(
            _Place(
                root=str(place["root"]),
                pair=str(place["pair"]),
                origin=str(place["origin"]),
                seen=int(place["seen"]),
                heads={head.generation: SeenHead(head=head, at=at) for head, at in heads},
            )
        )
    return found
