"""The state of the backup that is read: the user's request, the state found for it, and its warnings. Pure.

Shared by all readers of a backup: restore, the data source, `tandem records`, `tandem export`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.backup_avro.chain.entries import PartitionKey, Topic, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.selection.one_history import Records, select_one_history
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection, select, select_cut
from tandem.backup_avro.selection.state_as_of import LAGGING_MS, GenerationAsOf, KnownMoment, known, select_as_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """The requested state: the newest one, unless one of `at`, `commit` and `checkpoint` is set; at most one may be.

    `at`: the last moment at or before this time (ms by the store's clock). `commit`: a chain entry of `generation`.
    `checkpoint`: a named cut, which excludes `generation`. `generation` None: any.
    """

    generation: int | None = None
    at: int | None = None
    commit: int | None = None
    checkpoint: str | None = None

    def check(self, prefix: str = "") -> None:
        """Raise ConfigError if the fields contradict each other; `prefix` precedes the options' names, e.g. `--`."""
        states = {"at": self.at, "commit": self.commit, "checkpoint": self.checkpoint}
        given = [f"{prefix}{name}" for name, value in states.items() if value is not None]
        if self.checkpoint is not None and self.generation is not None:
            raise ConfigError(
                f"{prefix}checkpoint is not allowed with {prefix}generation",
                code="TDM-P080",
                remedy="leave the generation out: the checkpoint names it",
            )
        if self.commit is not None and self.generation is None:
            raise ConfigError(
                f"{prefix}commit requires {prefix}generation",
                code="TDM-P081",
                remedy="name the generation too: each one numbers its entries from 1",
            )
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} each say which state", code="TDM-P082", remedy="give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyState:
    """A state without a chain: the selection, notes for the user, and the way its records are decoded.

    `reading` is part of a plan's identity: the same files, decoded in another way, are another plan.
    """

    selection: Selection
    notes: tuple[str, ...]
    reading: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundState:
    """The generations that hold the requested state.

    With a `cut` the first of `generations` is the one that holds it, as of the entry that completed it. With a `past`,
    it describes `generations` as of the moment, the first one being the one that the selection rests on; `asked` is the
    requested time (ms). `basis` are the chain entries that were read, if they are not those of `generations`. `number`
    is the generation to rest on, None: the best. `damaged` are the generations that could not be read, with the reason.
    With `merge`, records that others hold beyond it are added; `records` reads the records that prove that generations
    have read one log, None: no comparison. With a `ready` state there are no generations, and nothing else is set.
    """

    generations: Sequence[Generation]
    number: int | None = None
    cut: Mapping[PartitionKey, int] | None = None
    past: Sequence[GenerationAsOf] = ()
    asked: int | None = None
    basis: Mapping[int, int] | None = None
    damaged: Mapping[int, str] = field(default_factory=dict)
    merge: bool = True
    records: Records | None = None
    ready: ReadyState | None = None

    def select(self, *, wanted: Callable[[Topic], bool], removed: bool) -> Selection:
        """Select the records to read. With `removed`, topics that the cluster has deleted are included (see `select`).

        Raises RefusedError if no generation is suitable.
        """
        if self.ready is not None:
            kept = tuple(item for item in self.ready.selection.partitions if wanted(item.topic))
            return replace(self.ready.selection, partitions=kept)
        if self.cut is not None:
            return select_cut(self.generations[0], self.cut, wanted=wanted)
        if self.past:
            return self._one_history(lambda states: self._select_past(states, wanted=wanted))
        return self._one_history(
            lambda states: select(states, number=self.number, wanted=wanted, merge=self.merge, removed=removed)
        )

    def _select_past(self, states: Sequence[Generation], *, wanted: Callable[[Topic], bool]) -> Selection:
        by_number = {state.number: state for state in states}
        first, *others = (replace(item, generation=by_number[item.number]) for item in self.past)
        return select_as_of(first, others if self.merge else (), freely=self.number is None, wanted=wanted)

    def _one_history(self, choose: Callable[[Sequence[Generation]], Selection]) -> Selection:
        if self.records is None:
            return choose(self.generations)
        return select_one_history(self.generations, choose, self.records, number=self.number)

    def known(self, selection: Selection) -> KnownMoment | None:
        """Return the moment of a selection and the partitions that lag behind it; None if the state is not a moment."""
        return known(selection, self.past) if self.past else None

    def doubts(self, selection: Selection) -> list[str]:
        """Return what the user should know about a selection of this state before relying on it."""
        return list(self.notes) + doubts(
            generation=selection.generation,
            partitions=sorted(selection.partitions, key=lambda item: (item.topic.name, item.key.partition)),
            incomplete=selection.incomplete,
            past=self.known(selection),
            asked=self.asked,
            damaged=self.damaged,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of a state without a chain."""
        return () if self.ready is None else self.ready.notes

    def basis_of(self, selection: Selection) -> Mapping[int, int]:
        """Return generation -> the last chain entry read, for each generation that the selection rests on."""
        read = self.basis if self.basis is not None else {state.number: state.seq for state in self.generations}
        return {number: seq for number, seq in read.items() if number in selection.used}


def doubts(
    *,
    generation: int,
    partitions: Sequence[PartitionSelection],
    incomplete: Iterable[str],
    past: KnownMoment | None,
    asked: int | None,
    damaged: Mapping[int, str],
) -> list[str]:
    """Return what the user should know about a state before relying on it; `partitions` in the order of reading."""
    found = [f"generation {number} can't be read: {why}" for number, why in sorted(damaged.items())]
    found += [f"{name} is incomplete in generation {generation} and is left out" for name in incomplete]
    found += _lagging(partitions, past, asked)
    removed = dict.fromkeys(item.topic.name for item in partitions if item.topic.removed)
    found += [f"{name} was deleted from the cluster; this is its last backup" for name in removed]
    found += [f"{item.topic.name}-{item.key.partition}: {item.warning}" for item in partitions if item.warning]
    return found + _expired(partitions)


def _expired(partitions: Iterable[PartitionSelection]) -> list[str]:
    """Return a warning per topic whose records of this state may have expired: by age or size, so mostly the oldest."""
    lost: dict[str, list[PartitionSelection]] = {}
    for item in partitions:
        if item.expired is not None:
            lost.setdefault(item.topic.name, []).append(item)
    found = []
    for name, items in lost.items():
        more = f" and of {len(items) - 1} more partitions" if len(items) > 1 else ""
        found.append(
            f"{name}: `tandem retention` has let go of records since that this state may have held (of partition "
            f"{items[0].key.partition} below offset {items[0].expired}{more}): it is not all that was there then"
        )
    return found


def _lagging(partitions: Iterable[PartitionSelection], past: KnownMoment | None, asked: int | None) -> list[str]:
    """Return a warning per partition whose end was not known at the moment: records written by then are missing."""
    if past is None:
        return []
    found = []
    if asked is not None and asked - past.at > LAGGING_MS:
        found.append(f"the last moment before {iso(asked)} is {iso(past.at)}: what was written in between is missing")
    return found + [
        f"{item.topic.name}-{item.key.partition} was last known to be at its end "
        f"{past.lagging[item.key] / 1000:.0f} s before the moment"
        for item in partitions
        if item.key in past.lagging
    ]
