"""Parsing of topic configs in `--topic-config`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.backup_avro.errors import ConfigError

_INT: Final = 2**31 - 1
_LONG: Final = 2**63 - 1

#: Topic configs whose values are integers (Kafka's LogConfig), with the widest bounds of any release. A restore plan
#: uses some of the values before the cluster can validate them.
_NUMBERS: Final = {
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131_072, 22),
    "delete.retention.ms": (0, _LONG),
    "file.delete.delay.ms": (0, _LONG),
    "flush.messages": (1, _LONG),
    "flush.ms": (0, _LONG),
    "index.interval.bytes": (0, _INT),
    "local.retention.bytes": (-2, _LONG),
    "local.retention.ms": (-2, _LONG),
    "max.compaction.lag.ms": (1, _LONG),
    "max.message.bytes": (0, _INT),
    "message.timestamp.after.max.ms": (0, _LONG),
    "message.timestamp.before.max.ms": (0, _LONG),
    "message.timestamp.difference.max.ms": (0, _LONG),
    "min.compaction.lag.ms": (0, _LONG),
    "min.insync.replicas": (1, _INT),
    "retention.bytes": (-1, _LONG),
    "retention.ms": (-1, _LONG),
    "segment.bytes": (14, _INT),
    "segment.index.bytes": (4, _INT),
    "segment.jitter.ms": (0, _LONG),
    "segment.ms": (1, _LONG),
}


def settings_in(option: str, items: Sequence[str] | None) -> dict[str, str]:
    """Return key -> value from an option that may be repeated.

    ConfigError names the option; it is raised for a text other than KEY=VALUE, a repeated key, or an invalid number.
    """
    found: dict[str, str] = {}
    for item in items or ():
        name, equals, text = item.partition("=")
        key, value = name.strip(), text.strip()
        if not (key and equals):
            raise ConfigError(
                f"{option} {item!r} is not KEY=VALUE",
                code="TDM-C035",
                remedy="for example cleanup.policy=compact,delete",
            )
        if key in found:
            raise ConfigError(
                f"{option} gives {key} twice: {found[key]} and {value}", code="TDM-C036", remedy="give it once"
            )
        if key in _NUMBERS:
            _check_number(f"{option} {item!r}", key, value)
        found[key] = value
    return found


def _check_number(place: str, key: str, value: str) -> None:
    least, most = _NUMBERS[key]
    digits = value.removeprefix("-")
    # Python's int() also accepts underscores and digits of other scripts; brokers don't.
    whole = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(_LONG))
    if not (whole and least <= int(value) <= most):
        unit = " of milliseconds" if key.endswith(".ms") else " of bytes" if key.endswith(".bytes") else ""
        example = "604800000 for 7 days" if key == "retention.ms" else "1048588" if key == "max.message.bytes" else None
        raise ConfigError(
            f"{place}: {key} is a whole number{unit} from {least} to {most}",
            code="TDM-C037",
            remedy="write it without a unit" + (f", e.g. {example}" if example else ""),
        )
