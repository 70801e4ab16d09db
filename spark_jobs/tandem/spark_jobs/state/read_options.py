"""The options of `spark.read.format("kafka_backup")`, checked. Pure. docs/data-source.md has the table for users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from tandem.backup_avro.chain.entries import Topic
from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.documents import connector_layout
from tandem.backup_avro.documents.connector_layout import ConnectorReading, OverlapPreference
from tandem.backup_avro.documents.name_lists import names_in
from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.selection.moments import parse_moment
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.process import sourced_secret
from tandem.sink.process.sourced_secret import SecretSource, SourcedSecret
from tandem.sink.store import StoreAccess
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.connector.connector_reader import ConnectorReader, refuse_states
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.reading.wanted_state import StateRequest

STORE_PREFIX: Final = "store."
KEYS_PREFIX: Final = "encryption."
#: The fewest tasks that a small backup is cut into, if its objects are large enough: several per core of a laptop.
MIN_PARTITIONS: Final = 16
#: The largest timestamp (ms) that Spark's microseconds can represent.
MAX_MS: Final = ((1 << 63) - 1) // 1000

_OWN: Final = (
    "root",
    "pair",
    "topics",
    "topicsPattern",
    "partitions",
    "generation",
    "at",
    "commit",
    "checkpoint",
    "startOffset",
    "endOffset",
    "startTimestamp",
    "endTimestamp",
    "latestPerKey",
    "tombstones",
    "includeSource",
    "minPartitions",
    "pushFilters",
    "layout",
    "emptyAsNull",
    "instance",
    "prefer",
    "leaveOut",
    "index",
)
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token", "account_key")
_PLACES: Final = {"env": SecretSource.VARIABLE, "file": SecretSource.FILE}
#: The layouts of the files below the root.
LAYOUTS: Final = ("tandem", "connector")
_TRUE: Final = {"true": True, "false": False}

Place = tuple[str, int]
"""A topic's name and the number of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBounds:
    """A bound by partition, and one for all partitions without a bound of their own; None: no bound."""

    each: Mapping[Place, int] = field(default_factory=dict)
    every: int | None = None

    def of(self, place: Place) -> int | None:
        """Return the bound of a partition."""
        return self.each.get(place, self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """Whole numbers in [low, high); None: no bound."""

    low: int | None = None
    high: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether the range has a bound."""
        return self.low is not None or self.high is not None

    def meets(self, first: int, last: int) -> bool:
        """Return whether at least one of the numbers from `first` to `last` lies in the range."""
        return (self.low is None or self.low <= last) and (self.high is None or first < self.high)

    def within(self, other: NumberRange) -> NumberRange:
        """Return the intersection of two ranges."""
        return NumberRange(
            low=max((bound for bound in (self.low, other.low) if bound is not None), default=None),
            high=min((bound for bound in (self.high, other.high) if bound is not None), default=None),
        )


ALL: Final = NumberRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options. If `topics`, `pattern` and `partitions` are all empty, all topics are read.

    `start` and `end` bound offsets, and `times` bounds record timestamps (ms, set by producers or brokers); a record
    without a timestamp is in no range. They filter the records of the state that `state_request` names, and
    `latest_per_key` applies to the remaining records. `tombstones` False removes records without a value as the last
    step. `index` is the index of a connector's files.
    """

    address: StoreAddress
    pair: str
    state_request: StateRequest = field(default_factory=StateRequest)
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    partitions: frozenset[Place] = frozenset()
    start: OffsetBounds = field(default_factory=OffsetBounds)
    end: OffsetBounds = field(default_factory=OffsetBounds)
    times: NumberRange = ALL
    latest_per_key: bool = False
    tombstones: bool = True
    include_source: bool = False
    min_partitions: int = MIN_PARTITIONS
    push_filters: bool = False
    index: Path | None = None

    @property
    def named(self) -> frozenset[str]:
        """The topics that are named. A named topic must exist in the backup, even if the cluster has deleted it."""
        return self.topics | {topic for topic, _ in self.partitions}

    def wants(self, topic: Topic) -> bool:
        """Return whether the options select a topic."""
        return self._wants(topic.name, removed=topic.removed)

    def _wants(self, name: str, *, removed: bool = False) -> bool:
        if not (self.named or self.pattern is not None):
            return True
        return name in self.named or (
            self.pattern is not None and not removed and re.fullmatch(self.pattern, name) is not None
        )

    def reader(self) -> ChainReader | ConnectorReader:
        """Return the reader that finds states at the address."""
        if self.address.connector is not None:
            return ConnectorReader(self.address, wants=self._wants, index=self.index)
        return ChainReader(self.address.open(), self.pair)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of `spark.read`. Their names are case-insensitive; an unknown name raises ConfigError.

    `store.<name>` are the fields of StoreAccess; missing credentials are taken from where AWS SDKs look for them.
    Messages never show a value of `store.*`.
    """
    given = {name.lower(): value for name, value in options.items()}
    store = {name.removeprefix(STORE_PREFIX): given.pop(name) for name in list(given) if name.startswith(STORE_PREFIX)}
    keys = {name.removeprefix(KEYS_PREFIX): given.pop(name) for name in list(given) if name.startswith(KEYS_PREFIX)}
    path = given.pop("path", None)
    root = given.get("root", path)
    unknown = sorted(given.keys() - {name.lower() for name in _OWN})
    if unknown:
        raise ConfigError(
            f"kafka_backup: unknown option {unknown[0]!r}",
            code="TDM-P027",
            remedy=f"known are {', '.join(_OWN)}, {STORE_PREFIX}* (fields of the store's settings) and {KEYS_PREFIX}*",
        )
    reading = _reading(given)
    if reading is not None and given.get("pair"):
        raise ConfigError(
            "kafka_backup: pair is not allowed with layout",
            code="TDM-P028",
            remedy="a connector's files are of no pair",
        )
    pair = given.get("pair") if reading is None else connector_layout.PAIR
    for name, value in (("root", root), ("pair", pair)):
        if not value:
            raise ConfigError(
                f"kafka_backup: option {name!r} is missing", code="TDM-P029", remedy=f'add .option("{name}", …)'
            )
    settings = replace(parse_store(store), encryption=parse_keys(keys))
    found = SourceOptions(
        address=StoreAddress(root=str(root), settings=settings, connector=reading),
        pair=str(pair),
        state_request=_state_request(given),
        topics=_names("topics", given.get("topics")),
        pattern=_pattern(given.get("topicspattern")),
        partitions=frozenset(_place("partitions", item) for item in _names("partitions", given.get("partitions"))),
        start=_bounds("startOffset", given.get("startoffset")),
        end=_bounds("endOffset", given.get("endoffset")),
        times=NumberRange(
            low=_time("startTimestamp", given.get("starttimestamp")),
            high=_time("endTimestamp", given.get("endtimestamp")),
        ),
        latest_per_key=_flag("latestPerKey", given.get("latestperkey"), otherwise=False),
        tombstones=_flag("tombstones", given.get("tombstones"), otherwise=True),
        include_source=_flag("includeSource", given.get("includesource"), otherwise=False),
        min_partitions=_number("minPartitions", given.get("minpartitions")) or MIN_PARTITIONS,
        index=Path(given["index"]) if given.get("index") else None,
        push_filters=_flag("pushFilters", given.get("pushfilters"), otherwise=False),
    )
    if reading is not None:
        refuse_states(found.state_request, "kafka_backup: option ")
    if found.partitions and (found.topics or found.pattern is not None):
        raise ConfigError(
            "kafka_backup: partitions is not allowed with topics or topicsPattern",
            code="TDM-P030",
            remedy="partitions names all that is read, e.g. orders:0,orders:3",
        )
    return found


def _reading(given: Mapping[str, str]) -> ConnectorReading | None:
    """Return how a connector's files are decoded and chosen, None for the layout of Tandem's own objects."""
    name = given.get("layout", LAYOUTS[0])
    if name not in LAYOUTS:
        raise ConfigError(
            f"kafka_backup: layout {name!r} is unknown", code="TDM-P031", remedy=f"it is {' or '.join(LAYOUTS)}"
        )
    options = ("emptyAsNull", "instance", "prefer", "leaveOut", "index")
    if name != connector_layout.PAIR:
        alone = next((option for option in options if option.lower() in given), None)
        if alone is not None:
            raise ConfigError(
                f"kafka_backup: {alone} requires layout", code="TDM-P032", remedy="it is for the layout connector"
            )
        return None
    return reading_of(
        empty_as_null=_flag("emptyAsNull", given.get("emptyasnull"), otherwise=False),
        instances=_items(given.get("instance", "")),
        prefer=given.get("prefer"),
        left_out=_items(given.get("leaveout", "")),
        place="kafka_backup: option ",
    )


def reading_of(
    *, empty_as_null: bool, instances: Iterable[str], prefer: str | None, left_out: Iterable[str], place: str
) -> ConnectorReading:
    """Return how a connector's files are decoded and chosen. Raises ConfigError for contradictory options.

    `instances` are names, or TOPIC=NAME for single topics. `place` precedes an option's name in messages.
    """
    every: set[str] = set()
    single: dict[str, str] = {}
    for item in instances:
        topic, found, name = item.rpartition("=")
        if not name or (found and not topic):
            raise ConfigError(
                f"{place}instance {item!r} is neither NAME nor TOPIC=NAME", code="TDM-P033", remedy="correct it"
            )
        if not found:
            every.add(name)
        elif single.setdefault(topic, name) != name:
            raise ConfigError(
                f"{place}instance names {single[topic]} and {name} for {topic}",
                code="TDM-P034",
                remedy="name one: a copy is whole",
            )
    if len(every) > 1:
        raise ConfigError(
            f"{place}instance names {' and '.join(sorted(every))} for all topics",
            code="TDM-P035",
            remedy="name one, or TOPIC=NAME",
        )
    if prefer is not None and prefer not in list(OverlapPreference):
        raise ConfigError(
            f"{place}prefer {prefer!r} is unknown", code="TDM-P036", remedy=f"it is {' or '.join(OverlapPreference)}"
        )
    return ConnectorReading(
        empty_as_null=empty_as_null,
        instance=next(iter(every), None),
        instances=tuple(sorted(single.items())),
        prefer=None if prefer is None else OverlapPreference(prefer),
        left_out=frozenset(left_out),
    )


def _names(option: str, text: str | None) -> frozenset[str]:
    return frozenset(() if text is None else names_in(f"kafka_backup: option {option}", [text]))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _state_request(given: Mapping[str, str]) -> StateRequest:
    at = given.get("at")
    state_request = StateRequest(
        generation=_number("generation", given.get("generation"), remedy="`tandem status` lists generations"),
        at=None if at is None else parse_moment("kafka_backup: option at", at),
        commit=_number("commit", given.get("commit"), remedy="it is the number of a chain entry"),
        checkpoint=given.get("checkpoint"),
    )
    state_request.check("kafka_backup: option ")
    return state_request


def _number(name: str, text: str | None, *, remedy: str = "write a number above 0") -> int | None:
    if text is None:
        return None
    if not (number := number_in(text)):
        raise ConfigError(f"kafka_backup: {name} {text!r} is no number", code="TDM-P037", remedy=remedy)
    return number


def _flag(name: str, text: str | None, *, otherwise: bool) -> bool:
    if text is None:
        return otherwise
    if text.lower() not in _TRUE:
        raise ConfigError(
            f"kafka_backup: {name} {text!r} is neither true nor false", code="TDM-P038", remedy="correct it"
        )
    return _TRUE[text.lower()]


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"kafka_backup: topicsPattern {text!r} is no regular expression: {error}",
            code="TDM-P039",
            remedy="it is matched against whole names, as topics.patterns of the configuration",
        ) from None
    return text


def _place(name: str, text: str) -> Place:
    topic, found, partition = text.rpartition(":")
    number = number_in(partition)
    if not (topic and found) or number is None:
        raise ConfigError(
            f"kafka_backup: {name} {text!r} is not TOPIC:PARTITION",
            code="TDM-P040",
            remedy="write e.g. orders:0,orders:3",
        )
    return topic, number


def _bounds(name: str, text: str | None) -> OffsetBounds:
    if text is None:
        return OffsetBounds()
    if (every := number_in(text)) is not None:
        return OffsetBounds(every=every)
    each: dict[Place, int] = {}
    for item in _items(text) or [text]:
        place, found, offset = item.rpartition("=")
        end = number_in(offset)
        if not found or end is None:
            raise ConfigError(
                f"kafka_backup: {name} {item!r} is neither an offset nor TOPIC:PARTITION=OFFSET",
                code="TDM-P041",
                remedy="write e.g. 1000, or orders:0=1000,orders:1=900",
            )
        each[_place(name, place)] = end
    return OffsetBounds(each=each)


def _time(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    at = number_in(text)
    if at is None:
        at = parse_moment(f"kafka_backup: option {name}", text)
    if not 0 <= at <= MAX_MS:
        raise ConfigError(
            f"kafka_backup: {name} {text!r} is out of range", code="TDM-P042", remedy="records have no time before 1970"
        )
    return at


def parse_store(options: Mapping[str, str]) -> StoreAccess:
    """Parse store settings from text. ConfigError names the option, never its value.

    A credential's name with `_file` or `_env` appended names the file or the environment variable that holds the
    credential, on this machine and on Spark's workers.
    """
    known = {item.name: item for item in fields(StoreAccess) if item.name != "encryption"}
    values: dict[str, object] = {}
    for name, text in options.items():
        secret, _, kind = name.rpartition("_")
        if name in _SECRETS:
            known_place = isinstance(text, SourcedSecret)
            values[name] = text if known_place else sourced_secret.typed(text, key=f"{STORE_PREFIX}{name}")
            continue
        if secret in _SECRETS and kind in _PLACES:
            if secret in options:
                raise ConfigError(
                    f"kafka_backup: {STORE_PREFIX}{secret} and {STORE_PREFIX}{name} are both set",
                    code="TDM-P043",
                    remedy="keep one",
                )
            values[secret] = sourced_secret.read_again(f"{STORE_PREFIX}{secret}", _PLACES[kind], text)
            continue
        if name not in known:
            raise ConfigError(
                f"kafka_backup: unknown option {STORE_PREFIX}{name}",
                code="TDM-P044",
                remedy=f"known are {', '.join(sorted(known))}",
            )
        values[name] = _converted(f"{STORE_PREFIX}{name}", known[name], text)
    return StoreAccess(**values)  # type: ignore[arg-type]  # converted by the type of each field


def parse_keys(options: Mapping[str, str]) -> KeySettings:
    """Parse key settings from text; lists are separated by commas. ConfigError names the option."""
    known = {item.name: item for item in fields(KeySettings)}
    values: dict[str, object] = {}
    for name, text in options.items():
        if name not in known:
            raise ConfigError(
                f"kafka_backup: unknown option {KEYS_PREFIX}{name}",
                code="TDM-P045",
                remedy=f"known are {', '.join(sorted(known))}",
            )
        is_list = known[name].default == ()
        values[name] = tuple(_items(text)) if is_list else _converted(f"{KEYS_PREFIX}{name}", known[name], text)
    return KeySettings(**values)  # type: ignore[arg-type]  # converted by the type of each field


def _converted(option: str, field: Field[Any], text: str) -> object:
    kind = str(field.type).partition(" ")[0]
    try:
        return _CONVERTERS.get(kind, str)(text)
    except (KeyError, ValueError):
        raise ConfigError(f"kafka_backup: option {option} is no {kind}", code="TDM-P046", remedy="correct it") from None


#: Converters by the first word of a field's type; fields of all other types stay text.
_CONVERTERS: Final[Mapping[str, Callable[[str], object]]] = {
    "bool": lambda text: _TRUE[text.lower()],
    "int": int,
    "float": float,
}


def referenced(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with each secret replaced by a reference to its file or variable, if it has one.

    Spark keeps options in its plans, and its workers resolve the references.
    """
    found: dict[str, str] = {}
    for name, value in options.items():
        reference = value.reference() if isinstance(value, SourcedSecret) else None
        if reference is None:
            found[name] = value
        else:
            found[f"{name}_{'env' if reference[0] is SecretSource.VARIABLE else 'file'}"] = reference[1]
    return found


def store_options(settings: StoreAccess) -> dict[str, str]:
    """Return the options from which `parse_store` builds these settings; default values are left out.

    Secrets among them keep the place they were read from, for `referenced`.
    """
    values = {item.name: (getattr(settings, item.name), item.default) for item in fields(settings)}
    keys = settings.encryption
    del values["encryption"]
    return {
        f"{KEYS_PREFIX}{item.name}": ",".join(value) if isinstance(value, tuple) else _text(value)
        for item in fields(keys)
        if (value := getattr(keys, item.name))
    } | {
        f"{STORE_PREFIX}{name}": _text(value)
        for name, (value, default) in values.items()
        if value is not None and value != default
    }


def _text(value: object) -> str:
    if isinstance(value, SourcedSecret):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
