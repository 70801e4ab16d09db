"""Reduce the objects that a task carries: a journal names the parts of thousands of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tandem.backup_avro.chain.entries import Part, StoredObject
from tandem.backup_avro.selection.restorable_state import Slice


def with_used_parts_only(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Return the slices, in their order, with each object's parts reduced to those that the slices use.

    Otherwise a journal of a thousand partitions would be sent to a thousand tasks, each time with all of its parts.
    """
    pieces = tuple(slices)
    wanted: dict[str, dict[int, Part]] = {}
    for piece in pieces:
        wanted.setdefault(piece.item.key, {})[piece.part.start] = piece.part
    slimmed: dict[str, StoredObject] = {}
    for piece in pieces:
        key, item = piece.item.key, piece.item
        if key not in slimmed:
            parts = tuple(wanted[key].values())
            slimmed[key] = item if len(parts) == len(item.parts) else replace(item, parts=parts)
    return tuple(replace(piece, item=slimmed[piece.item.key]) for piece in pieces)
