"""Reading from the store what happened to a pair, cleared generations too. A damaged chain costs no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backup_avro import layout
from backup_avro.chain import Entry
from backup_avro.chain_json import decode_claim
from backup_avro.errors import DamagedError
from controller.chronicle import Chronicler, Happening, in_order
from sink.chain.reader import ChainReader
from sink.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Annals:
    """What happened, oldest first; `damaged` says by generation why its chain could not be read to its end."""

    happenings: tuple[Happening, ...]
    damaged: dict[int, str]


def read_annals(store: ObjectStore, pair: str, *, only: int | None, routine: bool) -> Annals:
    """Read all chains, or that of generation `only`. Raises ConfigError if that does not exist, and store errors."""
    reader = _Annalist(store, pair, routine=routine)
    damaged: dict[int, str] = {}
    if only is None:
        try:
            reader.refresh()
        except DamagedError:
            known = {state.number for state in reader.history()}
            numbers = [number for number in range(1, reader.newest + 1) if number not in known]
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
    return Annals(happenings=tuple(in_order(chronicles)), damaged=damaged)


class _Annalist(ChainReader):
    """A reader that notes what passes by on the way to the heads."""

    def __init__(self, store: ObjectStore, pair: str, *, routine: bool) -> None:
        super().__init__(store, pair, ended=True, whole=True)
        self._routine = routine
        self.chroniclers: dict[int, Chronicler] = {}

    def entries(self, number: int, first: int, last: int) -> Iterator[tuple[Entry, str]]:
        """Yield what the reader's own method does."""
        key = layout.claim_key(self.pair, number)
        chronicler = Chronicler(decode_claim(self.store.get(key), key), routine=self._routine)
        self.chroniclers[number] = chronicler
        for entry, sha256 in super().entries(number, first, last):
            yield entry, sha256
            chronicler.take(entry)  # After it was checked: what breaks a rule of the chain never happened.
