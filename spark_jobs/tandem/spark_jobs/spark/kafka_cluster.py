"""The address of a Kafka cluster as it is sent to Spark's workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.transcode.plain_transcoder import BATCH_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Client properties of a cluster, and the most bytes that one batch may decompress to. The repr hides secrets."""

    props: Mapping[str, Value]
    batch_limit: int = BATCH_LIMIT

    def __repr__(self) -> str:
        return f"ClusterAddress({self.props.get('bootstrap.servers')})"
