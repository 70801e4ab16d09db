"""Presets: patterns for the default names of topics in which other systems keep their state.

Kafka's own `__consumer_offsets` is not among them: offsets are read through the admin API (`groups`), and the topic is
never restored raw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


class Preset(StrEnum):
    """A system whose topics are guarded."""

    SCHEMA_REGISTRY = "schema-registry"
    CONNECT = "connect"
    STREAMS = "streams"


_PATTERNS: Final[Mapping[Preset, tuple[str, ...]]] = {
    # `kafkastore.topic` of Confluent's registry, also the default of Karapace and Redpanda.
    Preset.SCHEMA_REGISTRY: (r"_schemas",),
    # `config.storage.topic`, `offset.storage.topic`, `status.storage.topic`: names from the examples of Kafka, images,
    # charts and operators, with the name of the Connect cluster as prefix or suffix.
    Preset.CONNECT: (r"_?([A-Za-z0-9.-]+[._-])?connect([._-][A-Za-z0-9.-]+)?[._-](configs?|offsets?|status(es)?)",),
    # `<application.id>-<store>-changelog`.
    Preset.STREAMS: (r".+-changelog",),
}


def patterns_of(presets: Iterable[Preset]) -> tuple[str, ...]:
    """Return the regular expressions of the presets; each matches whole topic names."""
    return tuple(pattern for preset in presets for pattern in _PATTERNS[preset])
