"""DescribeShareGroupOffsets (KIP-932, Kafka 4.1), unknown to kafka-python: the topics that share groups read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.protocol.api_message import ApiMessage

_FIELDS = __package__


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_FIELDS):  # type: ignore[misc,call-arg]  # untyped base
    """The request; its fields are in the JSON file of its name."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_FIELDS):  # type: ignore[misc,call-arg]  # untyped base
    """The response; its fields are in the JSON file of its name."""


def positions_request(groups: Iterable[str]) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Build a request for the start offsets of these groups in all topics. Their coordinator answers it."""
    group = DescribeShareGroupOffsetsRequest.DescribedShareGroup
    return DescribeShareGroupOffsetsRequest(groups=[group(group_id=name, topics=None) for name in groups])


def topics_read(answer: Any) -> dict[str, tuple[str, ...]]:  # noqa: ANN401 - kafka-python has no types
    """Return the topics, by group, in which groups have a position; groups that the broker refuses are left out."""
    return {
        group.group_id: tuple(sorted(topic.topic_name for topic in group.topics))
        for group in answer.groups or ()
        if not group.error_code
    }
