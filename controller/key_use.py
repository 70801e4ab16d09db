"""Which keys the objects of each generation need. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from backup_avro.fold import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """What one key is needed for in one generation: stored objects and their bytes.

    Without a `key_id` they are not encrypted. `at_hand`: the configuration names the key, or none is needed.
    """

    generation: int
    instance: str
    key_id: str | None
    objects: int
    bytes: int
    at_hand: bool


def key_use(generations: Iterable[Generation], at_hand: Collection[str]) -> tuple[KeyUse, ...]:
    """Return what each generation needs, by number and key."""
    found: list[KeyUse] = []
    for state in generations:
        objects: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for item in state.objects.values():
            key_id = "" if item.envelope is None else item.envelope.key_id
            objects[key_id] += 1
            size[key_id] += item.bytes
        found += [
            KeyUse(
                generation=state.number,
                instance=state.instance,
                key_id=key_id or None,
                objects=objects[key_id],
                bytes=size[key_id],
                at_hand=not key_id or key_id in at_hand,
            )
            for key_id in sorted(objects)
        ]
    return tuple(sorted(found, key=lambda one: one.generation))
