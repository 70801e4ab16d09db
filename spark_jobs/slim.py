"""What a task carries of the objects that it reads: a journal names the parts of thousands of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backup_avro.chain import Part, StoredObject
from backup_avro.selection import Slice


class Slimmer:
    """Takes out of slices what their task does not read; remembers first parts for who asks for each partition."""

    def __init__(self) -> None:
        self._firsts: dict[str, Part] = {}

    def __call__(self, slices: Iterable[Slice]) -> tuple[Slice, ...]:
        """Return slices, in their order, whose objects name no parts but the first, where the header ends, and theirs.

        A journal of a thousand partitions would otherwise travel to a thousand tasks with all of its parts.
        """
        pieces = tuple(slices)
        wanted: dict[str, dict[int, Part]] = {}
        for piece in pieces:
            wanted.setdefault(piece.item.key, {})[piece.part.start] = piece.part
        slim: dict[str, StoredObject] = {}
        for piece in pieces:
            key, item = piece.item.key, piece.item
            if key not in slim:
                first = self._first(item)
                parts = {first.start: first} | wanted[key]
                slim[key] = item if len(parts) == len(item.parts) else replace(item, parts=tuple(parts.values()))
        return tuple(replace(piece, item=slim[piece.item.key]) for piece in pieces)

    def _first(self, item: StoredObject) -> Part:
        if item.key not in self._firsts:
            self._firsts[item.key] = min(item.parts, key=lambda part: part.start)
        return self._firsts[item.key]
