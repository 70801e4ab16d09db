"""The types of `tandem retention`: the observation, and the steps of a plan. `retention_plan` has the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.json_fields import in_json
from tandem.sink.store import ObjectInfo, UploadInfo
from tandem.sink.store.chain.pins import Pin


class RetentionAction(StrEnum):
    """What a step does, in the order in which steps are carried out."""

    EXPIRE = "expire"
    REPLACED = "delete replaced"
    ORPHANS = "delete orphans"
    LEFTOVERS = "delete leftovers"
    CLEAR = "clear abandoned"
    UPLOADS = "abort uploads"
    PINS = "remove ended pins"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """Limits in ms. `older_than` replaces the recorded retention.ms of topics whose policy is `delete`.

    `max_bytes` is the most bytes of each of these topics in a generation. `sweeps`: compacted topics are swept as well.
    `abandoned_after`: a generation that is not complete and got no entry for so long counts as abandoned. `slack` is
    the largest difference between two clocks of one store (several servers behind one address).
    """

    grace: int = 86_400_000
    older_than: int | None = None
    abandoned_after: int = 7 * 86_400_000
    slack: int = 60_000
    max_bytes: int | None = None
    sweeps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreObservation:
    """The contents of the store. The listing is older than the states.

    So an object that was listed and is in no chain was not committed when it was listed. `states` are all generations,
    including cleared ones; `objects` and `uploads` lie under their data prefixes. `strange` are folders that belong to
    no claim.
    """

    pair: str
    at: int
    states: tuple[Generation, ...]
    objects: Mapping[int, tuple[ObjectInfo, ...]] = field(default_factory=dict)
    uploads: Mapping[int, tuple[UploadInfo, ...]] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DoomedObject:
    """A stored object that goes."""

    key: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """One thing to do with stored objects, unfinished uploads or pins of one generation (None: of any)."""

    action: RetentionAction
    generation: int | None
    instance: str | None
    reason: str
    objects: tuple[DoomedObject, ...] = ()
    uploads: tuple[UploadInfo, ...] = ()
    pins: tuple[Pin, ...] = ()
    topics: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the step's objects."""
        return tuple(item.key for item in self.objects)

    @property
    @in_json
    def bytes(self) -> int:
        """Bytes of the objects."""
        return sum(item.bytes for item in self.objects)

    @property
    @in_json
    def count(self) -> int:
        """The number of objects, uploads or pins."""
        return len(self.objects) + len(self.uploads) + len(self.pins)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptItem:
    """Something that one might expect to go, and why it stays."""

    what: str
    generation: int | None
    reason: str
    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """The steps, in the order in which they are carried out, and the items that stay. `at` is the store's time (ms)."""

    pair: str
    at: int
    steps: tuple[RetentionStep, ...]
    kept: tuple[KeptItem, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all objects that the steps name."""
        return sum(step.bytes for step in self.steps)


def steps_still_due(step: RetentionStep, again: Iterable[RetentionStep]) -> RetentionStep | None:
    """Return the objects, uploads and pins of `step` that the steps planned `again` contain too, None without any.

    A clearing is returned as the new plan has it, because a generation is cleared as a whole or not at all.
    """
    same = [other for other in again if (other.action, other.generation) == (step.action, step.generation)]
    if step.action is RetentionAction.CLEAR:
        return same[0] if same else None
    keys = {key for other in same for key in other.keys}
    uploads = {upload for other in same for upload in other.uploads}
    pins = {pin for other in same for pin in other.pins}
    left = replace(
        step,
        objects=tuple(item for item in step.objects if item.key in keys),
        uploads=tuple(upload for upload in step.uploads if upload in uploads),
        pins=tuple(pin for pin in step.pins if pin in pins),
    )
    return left if left.count else None
