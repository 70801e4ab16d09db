"""Parsing and checking of the options of `tandem restore`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.backup_place import chosen, renames
from tandem.controller.cli.options.durations import moment_of
from tandem.controller.cli.options.key_format import KeyFormat, decode_key, keys_in_file
from tandem.controller.cli.options.topic_config import settings_in
from tandem.controller.cli.output import output
from tandem.controller.process.whole_file import write_whole

if TYPE_CHECKING:
    from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
    from tandem.spark_jobs.restore.plan.options import RestoreOptions
    from tandem.spark_jobs.restore.plan.plan import RestorePlan
    from tandem.spark_jobs.restore.records.partitioner import Partitioner
    from tandem.spark_jobs.restore.records.record_changes import RecordChanges


class Excluded(StrEnum):
    """Leave records with excluded keys out, or write tombstones for them."""

    DROP = "drop"
    TOMBSTONE = "tombstone"


class BatchCodec(StrEnum):
    """How the batches that a restore writes are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeArguments:
    """The values of the options that filter or change records during a restore, as given on the command line."""

    until_timestamp: str | None = None
    filter_timestamp: str | None = None
    latest: bool = False
    tombstones: bool = True
    key: Sequence[str] | None = None
    exclude_key: Sequence[str] | None = None
    exclude_keys_file: Path | None = None
    excluded: Excluded = Excluded.DROP
    key_format: KeyFormat = KeyFormat.UTF8
    repartition: str | None = None


def shape_of(given: ShapeArguments) -> RecordChanges:
    """Return the filters and changes to the records. ConfigError for options that are invalid, alone or together."""
    from tandem.spark_jobs.restore.records.record_changes import RecordChanges  # noqa: PLC0415 - loaded when the command runs, not for --help

    if not given.tombstones and not given.latest:
        raise ConfigError(
            "--no-tombstones requires --latest-per-key",
            code="TDM-R095",
            remedy="add --latest-per-key: without tombstones, older values would bring deleted keys back",
        )
    without = {decode_key("--exclude-key", text, given.key_format) for text in given.exclude_key or ()}
    if given.exclude_keys_file is not None:
        without.update(keys_in_file("--exclude-keys-file", given.exclude_keys_file, given.key_format))
    only = None if given.key is None else frozenset(decode_key("--key", text, given.key_format) for text in given.key)
    if given.excluded is Excluded.TOMBSTONE and not without:
        raise ConfigError("--excluded tombstone without a key", code="TDM-R096", remedy="name keys with --exclude-key")
    since = before = None
    if given.filter_timestamp is not None:
        since, before = _span(given.filter_timestamp)
    return RecordChanges(
        partitioner=None if given.repartition is None else _partitioner(given.repartition),
        keys=only,
        excluded=frozenset(without),
        as_tombstones=given.excluded is Excluded.TOMBSTONE,
        since=since,
        before=before,
        until=None if given.until_timestamp is None else moment_of("--until-timestamp", given.until_timestamp),
        latest=given.latest,
        tombstones=given.tombstones,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreArguments:
    """The values of the options of `tandem restore`, as given on the command line.

    Without `counts_known`, `partitions` also states how many partitions a topic had, not only how many it gets.
    """

    topics: Sequence[str] | None = None
    to: str | None = None
    rename: Sequence[str] | None = None
    patterns: Sequence[str] | None = None
    suffix: str = ""
    generation: int | None = None
    at: str | None = None
    commit: int | None = None
    checkpoint: str | None = None
    until: Sequence[str] | None = None
    shape: RecordChanges
    partitions: int | None = None
    rate: str | None = None
    compression: BatchCodec | None = None
    merge: bool = True
    append: bool = False
    offsets: str | None = None
    max_fill: int | None = None
    wait_cleaned: bool = False
    keep_load_config: bool = False
    consent: bool = False
    replication_factor: int | None = None
    topic_config: Sequence[str] | None = None
    leaves_record: bool = True
    counts_known: bool = True


def options_of(given: RestoreArguments) -> RestoreOptions:
    """Return the checked options of the restore. ConfigError for options that are invalid, alone or together."""
    from tandem.sink.transcode.batch import Compression  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.reading.wanted_state import StateRequest  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.plan.offset_mode import MOST_FILLERS  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.plan.options import RestoreOptions  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.plan.plan import TopicNaming  # noqa: PLC0415 - likewise

    if given.to is not None and (given.rename or given.patterns or given.suffix):
        raise ConfigError(
            "--to is not allowed with --map, --map-pattern or --suffix", code="TDM-R097", remedy="give one of them"
        )
    if given.partitions is not None and given.shape.partitioner is None and given.counts_known:
        raise ConfigError(
            "--partitions requires --repartition",
            code="TDM-R098",
            remedy="add --repartition with the producers' partitioner: murmur2 (Java) or crc32 (librdkafka)",
        )
    if given.append and given.topic_config:
        raise ConfigError(
            "--topic-config is not allowed with --append",
            code="TDM-R099",
            remedy="leave it out: an existing topic keeps its own configuration",
        )
    if given.append and given.keep_load_config:
        raise ConfigError(
            "--append is not allowed with --keep-load-config",
            code="TDM-R100",
            remedy="leave --keep-load-config out: the topics get their own configuration back",
        )
    if given.append and (given.partitions is not None or given.replication_factor is not None):
        raise ConfigError(
            "--append is not allowed with --partitions or --replication-factor",
            code="TDM-R101",
            remedy="leave them out: --append writes to topics that exist",
        )
    if given.offsets == "exact" and given.keep_load_config:
        raise ConfigError(
            "--offsets exact is not allowed with --keep-load-config",
            code="TDM-R131",
            remedy="leave --keep-load-config out: only under the recorded config are the fillers removed",
        )
    moment = None if given.at is None else moment_of("--at", given.at)
    StateRequest(generation=given.generation, at=moment, commit=given.commit, checkpoint=given.checkpoint).check("--")
    renamed = renames("--map", given.rename)
    return RestoreOptions(
        naming=TopicNaming(
            only=given.to, renamed=renamed, patterns=tuple(map(_pattern, given.patterns or ())), suffix=given.suffix
        ),
        topics=chosen("--topics", given.topics),
        generation=given.generation,
        at=moment,
        commit=given.commit,
        checkpoint=given.checkpoint,
        until=bounds(given.until or ()),
        shape=given.shape,
        partitions=given.partitions,
        topic_config=settings_in("--topic-config", given.topic_config),
        leaves_record=given.leaves_record,
        bytes_per_second=None if given.rate is None else _rate("--rate", given.rate),
        compression=None if given.compression is None else Compression[given.compression.name],
        merge=given.merge,
        append=given.append,
        offsets=None if given.offsets is None else _offset_mode(given.offsets),
        max_fill=MOST_FILLERS if given.max_fill is None else given.max_fill,
        wait_cleaned=given.wait_cleaned,
        keep_load_config=given.keep_load_config,
        consent=given.consent,
        replication_factor=given.replication_factor,
    )


def planned(file: Path, given: RestoreOptions, *, pair: str) -> RestoreOptions:
    """Return the options in a plan file. ConfigError if it can't be read, or other options choose a state as well."""
    from tandem.spark_jobs.restore.plan import plan_file  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.restore.plan.options import RestoreOptions  # noqa: PLC0415 - likewise

    if replace(given, consent=False, leaves_record=True, wait_cleaned=False) != RestoreOptions():
        raise ConfigError(
            "--apply is not allowed with options that choose what is restored",
            code="TDM-R102",
            remedy="leave them out: the plan file names everything",
        )
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"--apply {file}: can't be read: {error.strerror}",
            code="TDM-R103",
            remedy="name a file that --plan has written",
        ) from error
    found = plan_file.decode(data, f"--apply {file}", pair=pair)
    options = replace(found, leaves_record=given.leaves_record, wait_cleaned=given.wait_cleaned)
    output.note(f"plan {plan_file.id_of(data)} from {file}")
    return options


def write_plan(file: Path, plan: RestorePlan, options: RestoreOptions) -> None:
    """Write a plan to a new file with mode 0600: it may contain keys of records."""
    from tandem.spark_jobs.restore.plan import plan_file  # noqa: PLC0415 - loaded when the command runs, not for --help

    data = plan_file.encode(plan, options)
    try:
        write_whole(file, data, place=f"--plan {file}", mode=0o600)
    except FileExistsError as error:
        raise ConfigError(
            f"--plan {file}: {error.strerror}", code="TDM-R104", remedy="name a file that can be made anew"
        ) from error
    output.note(f"plan {plan_file.id_of(data)} is in {file}")


def _span(text: str) -> tuple[int | None, int | None]:
    first, found, last = text.partition("..")
    if not found or not (first or last):
        raise ConfigError(
            f"--filter-timestamp {text!r} is not FROM..TO",
            code="TDM-R108",
            remedy="either side may be left out, but not both",
        )
    since = moment_of("--filter-timestamp", first) if first else None
    before = moment_of("--filter-timestamp", last) if last else None
    if since is not None and before is not None and since >= before:
        raise ConfigError(
            f"--filter-timestamp {text!r} ends before it begins", code="TDM-R109", remedy="write the earlier time first"
        )
    return since, before


def _partitioner(text: str) -> Partitioner:
    from tandem.spark_jobs.restore.records.partitioner import Partitioner  # noqa: PLC0415 - loaded when the command runs, not for --help

    try:
        return Partitioner(text)
    except ValueError:
        known = " or ".join(item.value for item in Partitioner)
        raise ConfigError(f"--repartition {text!r} is unknown", code="TDM-R110", remedy=f"it is {known}") from None


def _offset_mode(text: str) -> OffsetMode:
    from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode  # noqa: PLC0415 - loaded when the command runs, not for --help

    try:
        return OffsetMode(text)
    except ValueError:
        known = " or ".join(item.value for item in OffsetMode)
        raise ConfigError(f"--offsets {text!r} is unknown", code="TDM-R126", remedy=f"it is {known}") from None


def _pattern(text: str) -> tuple[str, str]:
    pattern, found, replacement = text.rpartition("=")
    if not (pattern and found and replacement):
        raise ConfigError(
            f"--map-pattern {text!r} is not EXPRESSION=NEW", code="TDM-R111", remedy=r"for example '(.*)\.v1=\1.v2'"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"--map-pattern {text}: {error}", code="TDM-R112", remedy=r"for example '(.*)\.v1=\1.v2'"
        ) from error
    return pattern, replacement


def _rate(option: str, text: str) -> int:
    from tandem.controller.config.values import parse_rate  # noqa: PLC0415 - pydantic is not needed for --help

    try:
        return parse_rate(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} {error}",
            code="TDM-R113",
            remedy="bytes a second, e.g. 50MiB; without a bound, leave it out",
        ) from None


#: Kafka numbers partitions with 32 bits.
_LAST_PARTITION: Final = 2**31 - 1


def bounds(items: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return (topic, partition) -> offset of all --until. ConfigError as for `bound`, and for a repeated partition."""
    found: dict[tuple[str, int], int] = {}
    for item in items:
        place, offset = bound(item)
        if place in found:
            raise ConfigError(
                f"--until names {place[0]}:{place[1]} twice, up to {found[place]} and up to {offset}",
                code="TDM-R114",
                remedy="name each partition once",
            )
        found[place] = offset
    return found


def bound(text: str) -> tuple[tuple[str, int], int]:
    """Return ((topic, partition), offset) of one --until. ConfigError unless it is TOPIC:PARTITION=OFFSET."""
    place, found, offset = text.rpartition("=")
    topic, colon, partition = place.rpartition(":")
    number, end = number_in(partition, most=_LAST_PARTITION), number_in(offset)
    if not (topic and colon and found) or number is None or end is None:
        raise ConfigError(
            f"--until {text!r} is not TOPIC:PARTITION=OFFSET", code="TDM-R115", remedy="for example orders:0=1000"
        )
    return (topic, number), end
