"""Topics that other systems keep, and what they are called unless somebody chose otherwise.

Kafka's own `__consumer_offsets` is none of them: it is read through the admin API (`groups`), and never restored raw.
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
    # `config.storage.topic`, `offset.storage.topic`, `status.storage.topic`: in the examples of Kafka, of images, of
    # charts and operators, with a name of the cluster before or after them.
    Preset.CONNECT: (r"_?([A-Za-z0-9.-]+[._-])?connect([._-][A-Za-z0-9.-]+)?[._-](configs?|offsets?|status(es)?)",),
    # `<application.id>-<store>-changelog`.
    Preset.STREAMS: (r".+-changelog",),
}


def patterns_of(presets: Iterable[Preset]) -> tuple[str, ...]:
    """Return the expressions that match whole names of the presets' topics."""
    return tuple(pattern for preset in presets for pattern in _PATTERNS[preset])
