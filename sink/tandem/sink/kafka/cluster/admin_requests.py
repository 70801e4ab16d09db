"""What admin requests ask for: offsets to look up, chunks of a size that brokers take, changes of configs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its names are public, but not marked for re-export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

LATEST = "latest"
EARLIEST = "earliest"
PARTITIONS_AT_ONCE = 2_000
_Item = TypeVar("_Item")


def offset_spec(at: str | int) -> Any:  # noqa: ANN401 - an OffsetSpec, whose makers have no types
    """Return what asks for the offset at LATEST, EARLIEST or a timestamp in ms."""
    if at == LATEST:
        return OffsetSpec.latest()  # type: ignore[no-untyped-call]  # no types there
    if at == EARLIEST:
        return OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # no types there
    return OffsetSpec.for_timestamp(int(at))


def chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Yield the items in runs of `size`, the last one shorter."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def by_partitions(topics: Iterable[NewTopic]) -> Iterator[list[NewTopic]]:
    """Yield the topics in runs whose partitions fit in a request: a controller takes 10,000 in all."""
    chunk: list[NewTopic] = []
    partitions = 0
    for topic in topics:
        if chunk and partitions + topic.num_partitions > PARTITIONS_AT_ONCE:
            yield chunk
            chunk, partitions = [], 0
        chunk.append(topic)
        partitions += topic.num_partitions
    if chunk:
        yield chunk


def config_change(name: str, changes: Mapping[str, str | None]) -> ConfigResource:
    """Return the change of a topic's config: these keys are set, and those with None removed."""
    remove, write = AlterConfigOpType.DELETE, AlterConfigOpType.SET
    entries = [
        ConfigEntry(key, value or "", incremental_operation=remove if value is None else write)
        for key, value in changes.items()
    ]
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)


def is_set_on_topic(entry: ConfigEntry) -> bool:
    """Return whether a setting of a topic is its own, not a default of the broker."""
    source = entry.source  # a number in some releases
    return ConfigSource(source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


def open_admin(config: Mapping[str, object]) -> Any:  # noqa: ANN401 - confluent-kafka has no types
    """Return an AdminClient. Raises KafkaException, ValueError and TypeError for a config that it refuses."""
    return AdminClient(dict(config))  # type: ignore[arg-type]  # it takes callables too


def close_admin(client: Any) -> None:  # noqa: ANN401 - confluent-kafka has no types
    """Close the connections of an AdminClient."""
    if hasattr(client, "__exit__"):  # older releases have none
        client.__exit__(None, None, None)
