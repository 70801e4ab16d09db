"""Lists the groups of a cluster, of all types and in all states. librdkafka lists classic and consumer groups alone.

Each broker answers ListGroups for the groups that it coordinates, so all brokers are asked. Kafka protocol guide,
"ListGroups"; types: classic, consumer (KIP-848), share (KIP-932), streams (KIP-1071).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import ListGroupsRequest

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.cluster.consumer_groups import GroupListing, GroupType
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterDeniedError,
    ClusterRequestError,
    ClusterTransientError,
    ClusterUnreachableError,
)
from tandem.sink.kafka.errors.error_codes import PASSING, ErrorCode, ErrorMeaning, name_of
from tandem.sink.kafka.wire import connections, share_groups

#: The types by the names that ListGroups v5 has, in lower case.
_TYPES: Final = {kind.value: kind for kind in GroupType}
#: Protocol types that only groups of one type have; older versions of ListGroups name no type.
_OF_PROTOCOL: Final = {"share": GroupType.SHARE, "streams": GroupType.STREAMS}
_WITH_TYPES: Final = 5
#: Share groups of one broker whose topics are looked up; more are not named anyway.
_MOST_DESCRIBED: Final = 200


def list_groups(props: Mapping[str, client_config.Value], *, timeout_s: float = 30.0) -> GroupListing:
    """Return the groups that the brokers coordinate, and why brokers did not answer, within `timeout_s`.

    Connections are opened for this call, and closed. Raises ClusterUnreachableError and ClusterAuthenticationError if
    no broker at all can be reached, ConfigError.
    """
    servers = client_config.servers_of(props)
    deadline = time.monotonic() + timeout_s
    net, manager = connections.open_for_questions(props)
    try:
        try:
            net.run(manager.reach, timeout_s)
        except kafka_errors.KafkaError as error:
            raise connections.explain(manager.worst_error or error, servers) from error
        asked = [broker.node_id for broker in manager.cluster.brokers()]
        return net.run(_ask_all, manager, asked, deadline)  # type: ignore[no-any-return]  # kafka-python has no types
    finally:
        manager.close()
        net.close()


async def _ask_all(manager: Any, nodes: Iterable[int], deadline: float) -> GroupListing:  # noqa: ANN401 - no types
    """Ask all `nodes` at once, then wait for each: a broker that is down delays no other."""
    left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
    sent = {node: manager.send(ListGroupsRequest(), node_id=node, request_timeout_ms=left_ms) for node in nodes}
    groups: dict[str, GroupType | str] = {}
    failed: dict[int, TandemError] = {}
    topics: dict[str, tuple[str, ...]] = {}
    for node, future in sent.items():
        try:
            answer = await manager.wait_for(future, max(1.0, (deadline - time.monotonic()) * 1000))
        except kafka_errors.KafkaError as error:
            failed[node] = ClusterUnreachableError(
                f"broker {node} did not list its groups: {str(error) or type(error).__name__}",
                code="TDM-K069",
                remedy="see whether the broker runs; what is known of its groups is kept",
            )
            continue
        if answer.error_code != ErrorCode.NONE:
            failed[node] = _refused(node, answer.error_code)
            continue
        found = listed(answer)
        groups.update(found)
        shares = sorted(name for name, kind in found.items() if kind is GroupType.SHARE)[:_MOST_DESCRIBED]
        if shares:
            topics.update(await _topics_of(manager, node, shares, deadline))
    return GroupListing(groups=groups, failed=failed, topics=topics)


async def _topics_of(
    manager: Any,  # noqa: ANN401 - kafka-python has no types
    node: int,
    shares: Iterable[str],
    deadline: float,
) -> dict[str, tuple[str, ...]]:
    """Return the topics of share groups from their coordinator; none where it does not say, as before Kafka 4.1."""
    left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
    request = share_groups.positions_request(shares)
    try:
        answer = await manager.wait_for(manager.send(request, node_id=node, request_timeout_ms=left_ms), left_ms)
    except kafka_errors.KafkaError:
        return {}
    return share_groups.topics_read(answer)


def listed(answer: Any) -> dict[str, GroupType | str]:  # noqa: ANN401 - kafka-python has no types
    """Return the groups of one broker's answer: name -> type, or the broker's own word for a type of later releases."""
    found: dict[str, GroupType | str] = {}
    for group in answer.groups or ():
        if answer.API_VERSION >= _WITH_TYPES and group.group_type:
            found[group.group_id] = _TYPES.get(group.group_type.lower(), group.group_type)
        else:
            found[group.group_id] = _OF_PROTOCOL.get(group.protocol_type, GroupType.CLASSIC)
    return found


def _refused(node: int, code: int) -> TandemError:
    known = ErrorCode.of(code)
    text = f"broker {node} did not list its groups: {name_of(code)}"
    if known.meaning is ErrorMeaning.DENIED:
        return ClusterDeniedError(text, code="TDM-K070", remedy="grant the principal Describe on the groups")
    if known.meaning in PASSING:
        return ClusterTransientError(text, code="TDM-K071")
    return ClusterRequestError(text, code="TDM-K072", remedy=known.remedy)
