"""The keys that each generation's objects are encrypted with, and whether the configuration names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError
from tandem.sink.encryption.key_ring import KeyRing


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredKey:
    """A key that the configuration names, and where. Its id tells nothing about it."""

    key_id: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysDocument:
    """`tandem keys`. `current` is the key for new objects, None if they are not encrypted."""

    pair: str
    root: str
    current: str | None
    at_hand: tuple[ConfiguredKey, ...]
    uses: tuple[KeyUse, ...]
    damaged: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredKeys:
    """The keys that a command's configuration names, as read on this host. `unreadable` is why they can't be read."""

    uses: tuple[KeyUse, ...]
    unreadable: str | None = None


def key_use(generations: Iterable[Generation], at_hand: Collection[str]) -> tuple[KeyUse, ...]:
    """Return the keys that each generation needs, ordered by number and key."""
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


def look_at_keys(keys: KeyRing, generations: Iterable[Generation]) -> ConfiguredKeys | None:
    """Read the keys that the configuration names; None if it names none, as no object is to be opened here then."""
    try:
        at_hand = keys.places()
    except ConfigError as error:
        return ConfiguredKeys(uses=key_use(generations, ()), unreadable=str(error))
    return ConfiguredKeys(uses=key_use(generations, at_hand)) if at_hand else None
