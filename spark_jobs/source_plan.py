"""What `spark.read.format("kafka_backup")` reads: its options, and the slices of a selection cut into tasks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Final

from backup_avro.chain import Topic
from backup_avro.errors import ConfigError
from backup_avro.selection import Selection, Slice
from sink.object_store import StoreSettings
from spark_jobs.read import StoreAddress

STORE_PREFIX: Final = "store."
#: Bytes of stored objects that one Spark partition reads, unless a single object is larger.
TASK_BYTES: Final = 16 * 1024 * 1024

_OWN: Final = ("root", "pair", "topics", "generation")
_TRUE: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, checked. `topics` empty: all. `generation` None: the newest that is complete and untainted."""

    address: StoreAddress
    pair: str
    topics: frozenset[str] = frozenset()
    generation: int | None = None

    def wants(self, topic: Topic) -> bool:
        """Whether a topic is asked for."""
        return not self.topics or topic.name in self.topics


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of `spark.read`. Their names are case-insensitive; unknown ones are ConfigError.

    `store.<name>` are the fields of StoreSettings; credentials left out are looked for where AWS SDKs look for them.
    Messages never show a value of `store.*`.
    """
    given = {name.lower(): value for name, value in options.items()}
    store = {name.removeprefix(STORE_PREFIX): given.pop(name) for name in list(given) if name.startswith(STORE_PREFIX)}
    path = given.pop("path", None)
    root = given.get("root", path)
    unknown = sorted(given.keys() - set(_OWN))
    if unknown:
        raise ConfigError(
            f"kafka_backup: unknown option {unknown[0]!r}",
            remedy=f"known are {', '.join(_OWN)} and {STORE_PREFIX}* (fields of the store's settings)",
        )
    for name, value in (("root", root), ("pair", given.get("pair"))):
        if not value:
            raise ConfigError(f"kafka_backup: option {name!r} is missing", remedy=f'add .option("{name}", …)')
    return SourceOptions(
        address=StoreAddress(root=str(root), settings=parse_store(store)),
        pair=given["pair"],
        topics=frozenset(name.strip() for name in given.get("topics", "").split(",") if name.strip()),
        generation=_generation(given.get("generation")),
    )


def _generation(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"kafka_backup: generation {text!r} is no number", remedy="`tandem status` lists generations")
    return int(text)


def parse_store(options: Mapping[str, str]) -> StoreSettings:
    """Return store settings from text. ConfigError names the option, never its value."""
    known = {item.name: item for item in fields(StoreSettings)}
    values: dict[str, object] = {}
    for name, text in options.items():
        if name not in known:
            raise ConfigError(
                f"kafka_backup: unknown option {STORE_PREFIX}{name}", remedy=f"known are {', '.join(sorted(known))}"
            )
        default = known[name].default
        try:
            values[name] = _converter(None if default is MISSING else default)(text)
        except (KeyError, ValueError):
            kind = type(default).__name__
            raise ConfigError(f"kafka_backup: option {STORE_PREFIX}{name} is no {kind}", remedy="correct it") from None
    return StoreSettings(**values)  # type: ignore[arg-type]  # converted by the type of each field's default


def _converter(default: object) -> Callable[[str], object]:
    match default:
        case bool():
            return lambda text: _TRUE[text.lower()]
        case int():
            return int
        case float():
            return float
        case _:
            return str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """What one Spark partition reads, in this order: slices of one object stand together."""

    slices: tuple[Slice, ...]


def plan_tasks(selection: Selection, *, task_bytes: int = TASK_BYTES) -> list[ReadTask]:
    """Cut a selection into tasks: one per object, small objects together. All slices of an object are in one task.

    Order: by topic, partition, offset of an object's first slice. Bytes are those of the objects, not of their slices,
    as an object is read whole for its checksum.
    """
    by_object: dict[str, list[Slice]] = {}
    for partition in sorted(selection.partitions, key=lambda item: (item.topic.name, item.key.partition)):
        for piece in partition.slices:
            by_object.setdefault(piece.item.key, []).append(piece)
    return [ReadTask(slices=tuple(group)) for group in _packed(by_object.values(), task_bytes)]


def _packed(objects: Iterable[list[Slice]], task_bytes: int) -> Iterable[list[Slice]]:
    held: list[Slice] = []
    held_bytes = 0
    for slices in objects:
        size = slices[0].item.bytes
        if held and held_bytes + size > task_bytes:
            yield held
            held, held_bytes = [], 0
        held = held + slices
        held_bytes += size
    if held:
        yield held
