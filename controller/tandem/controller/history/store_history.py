"""Read the past events of a pair from the store, cleared generations too. A damaged chain affects no other.

A command reads all chains at once. An instance, which has other work, reads a few entries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry, sha256_hex
from tandem.backup_avro.chain.json_codec import decode_claim
from tandem.backup_avro.errors import DamagedError
from tandem.controller.history.events import HistoryEvent, HistoryRecorder, in_order
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import ObjectMissingError


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvents:
    """Past events, oldest first; `damaged` has, by generation, why its chain could not be read to its end."""

    happenings: tuple[HistoryEvent, ...]
    damaged: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`tandem history`."""

    pair: str
    root: str
    damaged: Mapping[int, str]
    events: tuple[HistoryEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedHistory(History):
    """`/history`: what `tandem history` has, read by and by.

    `unread`: how many entries of each generation are not read yet, None if that is not known; `trouble`: why none is.
    """

    unread: Mapping[int, int | None] | None
    trouble: str | None


def read_past_events(store: ObjectStore, pair: str, *, only: int | None, routine: bool) -> PastEvents:
    """Read all chains, or that of generation `only`. Raises ConfigError if that does not exist, and store errors."""
    reader = _RecordingReader(store, pair, routine=routine)
    damaged: dict[int, str] = {}
    if only is None:
        try:
            reader.refresh()
        except DamagedError:
            known = {state.number for state in reader.history()}
            numbers = [number for number in reader.numbers if number not in known]
        else:
            numbers = []
    else:
        numbers = [only]
    for number in numbers:
        try:
            reader.load(number)
        except DamagedError as error:
            damaged[number] = str(error)
            if number in reader.chroniclers:
                reader.chroniclers[number].damaged(str(error))
    chronicles = [chronicler.happenings for _, chronicler in sorted(reader.chroniclers.items())]
    return PastEvents(happenings=tuple(in_order(chronicles)), damaged=damaged)


class _RecordingReader(ChainReader):
    """A chain reader that records the events of all entries that it reads."""

    def __init__(self, store: ObjectStore, pair: str, *, routine: bool) -> None:
        super().__init__(store, pair, ended=True, whole=True)
        self._routine = routine
        self.chroniclers: dict[int, HistoryRecorder] = {}

    def entries(self, number: int, first: int, last: int) -> Iterator[tuple[Entry, str]]:
        """Yield the same entries as the base class, and record their events."""
        key = layout.claim_key(self.pair, number)
        chronicler = HistoryRecorder(decode_claim(self.store.get(key), key), routine=self._routine)
        self.chroniclers[number] = chronicler
        for entry, sha256 in super().entries(number, first, last):
            yield entry, sha256
            chronicler.record_entry(
                entry
            )  # After the reader's check: an entry that breaks a rule of the chain is no event.


class GradualHistory:
    """Past events of the newest generations, read a few entries at a time, the newest chain first. Not thread-safe.

    Commits and confirmations are left out. Only the hash links are checked, not the rules of chains, which would need
    the folded state of each generation.
    """

    def __init__(self, store: ObjectStore, pair: str, *, generations: int) -> None:
        self._reader = ChainReader(store, pair)
        self._most = generations
        self._chains: dict[int, _Chain] = {}
        self._ended: dict[int, int] = {}
        self._unread: dict[int, int | None] = {}
        self._damaged: dict[int, str] = {}

    def read_on(self, heads: Mapping[int, int], numbers: Sequence[int], *, entries: int) -> bool:
        """Read at most `entries` entries of one chain; return whether there were any. Raises the store's errors.

        `heads` are the last entry numbers of the generations not wholly cleared; `numbers` are all, ascending.
        """
        wanted = numbers[-self._most :]
        for number in [number for number in self._chains if number not in wanted]:
            del self._chains[number]
            self._ended.pop(number, None)
        read = next((number for number in reversed(wanted) if self._advance(number, heads, entries)), None)
        self._unread = {number: self._left(number, heads) for number in numbers}
        return read is not None

    @property
    def past_events(self) -> PastEvents:
        """The past events of the newest generations that were read so far."""
        chains = [chain for _, chain in sorted(self._chains.items())]
        return PastEvents(
            happenings=tuple(in_order([chain.chronicler.happenings for chain in chains])),
            damaged=dict(sorted(self._damaged.items())),
        )

    @property
    def unread(self) -> Mapping[int, int | None]:
        """By generation, the number of entries not read yet, None if it is unknown; generations with 0 are left out."""
        return {number: left for number, left in self._unread.items() if left != 0}

    def _head(self, number: int, heads: Mapping[int, int]) -> int:
        if number in heads:
            return heads[number]
        if number not in self._ended:
            self._ended[number] = self._reader.head(number)
        return self._ended[number]

    def _left(self, number: int, heads: Mapping[int, int]) -> int | None:
        if number in self._damaged:
            return 0
        chain = self._chains.get(number)
        return None if chain is None else max(0, self._head(number, heads) - chain.seq)

    def _advance(self, number: int, heads: Mapping[int, int], entries: int) -> bool:
        left = self._left(number, heads)
        if left == 0:
            return False
        try:
            chain = self._chains.get(number) or self._begin(number)
            left = self._left(number, heads) or 0
            for entry, sha256 in self._reader.entries(number, chain.seq + 1, chain.seq + min(left, entries)):
                chain.record_entry(entry, sha256)
        except (DamagedError, ObjectMissingError) as error:
            self._damaged[number] = str(error)
            if number in self._chains:
                self._chains[number].chronicler.damaged(str(error))
        return True

    def _begin(self, number: int) -> _Chain:
        key = layout.claim_key(self._reader.pair, number)
        data = self._reader.store.get(key)
        chronicler = HistoryRecorder(decode_claim(data, key), routine=False)
        found = self._chains[number] = _Chain(number=number, chronicler=chronicler, sha256=sha256_hex(data))
        return found


@dataclass(slots=True, kw_only=True)
class _Chain:
    number: int
    chronicler: HistoryRecorder
    sha256: str
    seq: int = 0

    def record_entry(self, entry: Entry, sha256: str) -> None:
        if entry.prev_sha256 != self.sha256:
            raise DamagedError(
                f"generation {self.number}, chain entry {entry.seq}: it is not linked to the one before",
                code="TDM-I018",
            )
        self.chronicler.record_entry(entry)
        self.seq, self.sha256 = entry.seq, sha256
