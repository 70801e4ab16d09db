"""Reading, setting and deleting committed offsets of consumer groups on the target cluster.

It uses kafka-python's admin client, which can delete single offsets; librdkafka's can't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeVar

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata, TopicPartition

from tandem.backup_avro.errors import RefusedError, TandemError
from tandem.sink.kafka.auth.client_config import Value, servers_of
from tandem.sink.kafka.errors.broker_errors import code_of, meaning_of
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterRequestError, ClusterTransientError
from tandem.sink.kafka.errors.error_codes import PASSING, ErrorMeaning
from tandem.sink.kafka.wire import connections
from tandem.spark_jobs.restore.groups.group_plan import GroupMove, OffsetBefore
from tandem.spark_jobs.restore.progress.batch_producer import client_settings

_T = TypeVar("_T")
_NOTHING: Final = -1


class TargetGroups:
    """One cluster's groups.

    Opening raises ClusterUnreachableError, ClusterAuthenticationError, ConfigError; methods raise
    ClusterTransientError, ClusterDeniedError, ClusterRequestError, and RefusedError for a group that has members.
    """

    def __init__(self, props: Mapping[str, Value]) -> None:
        config = {
            name: value for name, value in client_settings(props).items() if name in KafkaAdminClient.DEFAULT_CONFIG
        }
        servers = servers_of(props)
        try:
            self._admin: Any = KafkaAdminClient(**config)
        except kafka_errors.KafkaError as error:
            raise connections.explain(error, servers) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """Return a group's committed offsets: (topic, partition) -> (offset, metadata); empty if it does not exist."""
        try:
            found = self._call(f"read the offsets of group {group}", lambda: self._admin.list_group_offsets(group))
        except ClusterRequestError as error:
            if meaning_of(error.__cause__) is ErrorMeaning.NO_GROUP:
                return {}
            raise
        return {
            (place.topic, place.partition): (item.offset, item.metadata or "")
            for place, item in found.get(group, {}).items()
            if item.offset > _NOTHING
        }

    def commit(self, group: str, moves: Iterable[GroupMove]) -> None:
        """Set a group's offsets; the error of any partition is raised."""
        self._set(group, {(item.topic, item.partition): (item.offset, item.metadata) for item in moves})

    def put_back(self, group: str, found: Iterable[OffsetBefore]) -> None:
        """Set a group's offsets to those in `found`, and delete those that were not committed then."""
        items = list(found)
        self._set(
            group,
            {(item.topic, item.partition): (item.offset, item.metadata) for item in items if item.offset is not None},
        )
        gone = [TopicPartition(item.topic, item.partition) for item in items if item.offset is None]
        if gone:
            doing = f"remove offsets of group {group}"
            try:
                self._look(doing, self._call(doing, lambda: self._admin.delete_group_offsets(group, gone)))
            except ClusterRequestError as error:
                if meaning_of(error.__cause__) is not ErrorMeaning.NO_GROUP:
                    raise

    def _set(self, group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        if offsets:
            doing = f"set the offsets of group {group}"
            wanted = {
                TopicPartition(*place): OffsetAndMetadata(offset, metadata, -1)
                for place, (offset, metadata) in offsets.items()
            }
            self._look(doing, self._call(doing, lambda: self._admin.alter_group_offsets(group, wanted)))

    def _look(self, doing: str, answers: Mapping[Any, Any]) -> None:
        for place, error in sorted(answers.items()):
            if error is not kafka_errors.NoError:
                raise _explained(f"{doing}, {place.topic}-{place.partition}", error())

    def _call(self, doing: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except kafka_errors.KafkaError as error:
            raise _explained(doing, error) from error


def _explained(doing: str, error: BaseException) -> TandemError:
    text = f"could not {doing}: {type(error).__name__}"
    code = code_of(error)
    meaning = None if code is None else code.meaning
    if meaning is ErrorMeaning.IN_USE:
        return RefusedError(
            f"{text}: the group has members", code="TDM-R020", remedy="stop its consumers, and try again"
        )
    if meaning is ErrorMeaning.DENIED:
        return ClusterDeniedError(
            text, code="TDM-R021", remedy="grant Describe, Read and Delete on the group and Read on its topics"
        )
    if meaning in PASSING or getattr(error, "retriable", False):
        return ClusterTransientError(text, code="TDM-R022")
    return ClusterRequestError(f"{text}: {error}", code="TDM-R023", remedy=None if code is None else code.remedy)
