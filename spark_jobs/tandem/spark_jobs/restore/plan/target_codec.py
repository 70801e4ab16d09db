"""Chooses the compression codec of the batches that a restore writes: one that the topic's own batches had.

Clients are installed with the codecs that their topics need (kafkajs, kafka-python and aiokafka come with gzip alone),
so a restore that brings in another one makes a topic that its applications cannot read. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandem.sink.transcode.batch import Compression

#: The values of `compression.type` that name a codec; `producer` names none.
_RECORDED: Final[Mapping[str, Compression]] = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
#: The codecs by the speed and the size of what they make of a batch; all of them can be written.
_BEST_FIRST: Final = (Compression.ZSTD, Compression.LZ4, Compression.SNAPPY, Compression.GZIP, Compression.NONE)


def codec_names(codecs: int) -> list[str]:
    """Return the names of `codecs`, which are bits as in `Part.codecs`; bits of unknown codecs have none."""
    return [codec.name.lower() for codec in Compression if codecs >> codec & 1]


def choose_codec(config: Mapping[str, str], codecs: int, wanted: Compression | None) -> Compression:
    """Return the codec for a topic's batches.

    The first that applies: `wanted`, the user's choice; the codec that the topic's `compression.type` names, because
    its brokers compress every batch with it; the best one of `codecs`, those that the topic's batches had (bits as in
    `Part.codecs`); none, which every client reads.
    """
    if wanted is not None:
        return wanted
    recorded = _RECORDED.get(config.get("compression.type", ""))
    if recorded is not None:
        return recorded
    return next((codec for codec in _BEST_FIRST if codecs >> codec & 1), Compression.NONE)
