"""The cluster for pipelines and the controller: guarded topics, topic ids, offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog

from tandem.backup_avro.chain.entries import GroupOffset, PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.sink.kafka.cluster.admin import ClusterAdmin, TopicInfo
from tandem.sink.kafka.cluster.consumer_groups import MOST, GroupListing
from tandem.sink.kafka.cluster.guarded_topics import ANY_GROUP, DeniedTopic, GroupPositions, GuardedTopics
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError
from tandem.sink.kafka.wire.unique_keys import unique
from tandem.sink.store.chain.restore_targets import is_created

_LOG = structlog.get_logger()
_TIERED = "remote.storage.enable"
_NAMED = 10
_MOST_NAMED = 200
DENIED = "not allowed: grant Describe on it"
TOO_LARGE = "no room for its offsets"
_LOOK_AGAIN = 20
"""Calls after which topics that are left out are judged again: a few minutes of an instance."""
#: Returns the ids of topics that restores created, by name.
Restored = Callable[[], Mapping[str, Collection[str]]]


class GuardedCluster:
    """Implements `sink.kafka.cluster.guarded_topics.ClusterView` for one configuration.

    Logs each missing and each denied topic once.
    """

    def __init__(
        self,
        admin: ClusterAdmin,
        config: Config,
        restored: Restored = dict,
        list_groups: Callable[[], GroupListing] = lambda: GroupListing(groups={}),
    ) -> None:
        """Take `restored`, which returns topics that restores created; called when a pattern matches a new topic.

        `list_groups` returns the cluster's groups of all types.
        """
        self._admin = admin
        self._config = config
        self._restored = restored
        self._list_groups = list_groups
        self._judged: dict[tuple[str, str], bool] = {}
        self._missing: frozenset[str] = frozenset()
        self._denied: frozenset[str] = frozenset()
        self._left_out: frozenset[str] = frozenset()
        self._tiered: frozenset[str] = frozenset()
        self._calls = 0

    def guarded(self) -> GuardedTopics:
        """Return the guarded topics that exist now, with their configuration, and those that are denied.

        Raises ClusterDeniedError if all are.
        """
        topics = self._config.topics
        undescribed: dict[str, ClusterDeniedError] = {}
        unconfigured: dict[str, ClusterDeniedError] = {}
        described = self._admin.topics(topics.include, topics.expressions, denied=undescribed)
        matching = [info for info in described if self._config.guards(info.name)]
        found = self._without_restored(matching)
        undescribed = {name: error for name, error in undescribed.items() if self._config.guards(name)}
        self._log_missing(frozenset(topics.include) - {info.name for info in found} - undescribed.keys())
        configs = self._admin.config([info.name for info in found], denied=unconfigured) if found else {}
        denied = undescribed | unconfigured
        if denied and not configs:
            raise denied[min(denied)]
        tiered = {name: _tiered(name) for name, config in configs.items() if config.get(_TIERED) == "true"}
        self._tiered = frozenset(tiered)
        denied |= tiered
        self._log_denied(denied)
        infos = {info.name: info for info in found}
        return GuardedTopics(
            topics=tuple(_topic(info, configs[info.name]) for info in found if info.name not in denied),
            denied=tuple(
                DeniedTopic(name=name, why=str(error), topic=_topic(infos[name], {}) if name in unconfigured else None)
                for name, error in sorted(denied.items())
            ),
            restored=tuple(sorted({info.name for info in matching} - {info.name for info in found})),
        )

    def _without_restored(self, found: Sequence[TopicInfo]) -> list[TopicInfo]:
        """Return `found` without topics that restores created. A guarded topic stays guarded.

        A topic is judged when it comes; one that is left out is judged again once in `_LOOK_AGAIN` calls, since
        `tandem restore adopt` may have removed the note.
        """
        self._calls += 1
        again = self._calls % _LOOK_AGAIN == 0
        left_out = {place for place, made in self._judged.items() if made}
        new = [
            info
            for info in found
            if (place := (info.name, info.topic_id)) not in self._judged or (again and place in left_out)
        ]
        if any(info.name not in self._config.topics.include for info in new):
            known = self._restored()
            for info in new:
                place = (info.name, info.topic_id)
                made = self._judged[place] = is_restored(self._config, info, known)
                if made and place not in left_out:
                    _LOG.warning(
                        "a topic that a restore created is not backed up",
                        topic=info.name,
                        remedy="name it in topics.include, or run `tandem restore adopt`, to have it backed up",
                    )
                elif not made and place in left_out:
                    _LOG.info("a topic that a restore created is backed up from now on", topic=info.name)
        return [info for info in found if not self._judged.get((info.name, info.topic_id), False)]

    def _log_missing(self, missing: frozenset[str]) -> None:
        for name in sorted(missing - self._missing):
            _LOG.warning("a topic of topics.include does not exist; waiting for it", topic=name)
        for name in sorted(self._missing - missing):
            _LOG.info("a missing topic is there now", topic=name)
        self._missing = missing

    def _log_denied(self, denied: Mapping[str, ClusterDeniedError]) -> None:
        for name, error in sorted(denied.items()):
            if name not in self._denied:
                _LOG.warning(
                    "a guarded topic can't be read; what is stored of it stays, and no generation becomes complete",
                    topic=name,
                    error=str(error.args[0]),
                    remedy=error.remedy,
                )
        for name in sorted(self._denied - denied.keys()):
            _LOG.info("a guarded topic is denied no longer", topic=name)
        self._denied = frozenset(denied)

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the present topic id of each name that exists, may be described, and is not in tiered storage."""
        found = self._admin.topics(names, denied={})
        return {info.name: info.topic_id for info in found if info.name not in self._tiered}

    def group_offsets(self, topics: Sequence[Topic]) -> GroupPositions:
        """Return the committed offsets of the guarded groups on these topics, None for those that can't be read.

        Groups that exceed the offset budget get an empty tuple, which drops their former offsets: these take room too.
        If a broker does not list its groups, `ANY_GROUP` is among those that can't be read.
        """
        ids = {topic.name: topic.topic_id for topic in topics}
        listing = self._list_groups()
        guards = self._config.groups.guards
        answer = self._admin.group_offsets(ids, filter(guards, listing.with_offsets()))
        unrecorded = {name: why for name, why in listing.without_offsets().items() if guards(name)}
        unrecorded |= {name: DENIED for name, why in answer.failed.items() if isinstance(why, ClusterDeniedError)}
        unrecorded |= dict.fromkeys(answer.left_out, TOO_LARGE)
        if answer.left_out != self._left_out:
            self._left_out = answer.left_out
            self._log_left_out()
        for node, error in listing.failed.items():
            _LOG.warning("a broker does not list its groups: those known stay", broker=node, error=error)
        for group, error in answer.failed.items():
            _LOG.warning("cannot read a consumer group's offsets", group=group, error=error)
        unknown: dict[str, Sequence[GroupOffset] | None] = dict.fromkeys(answer.failed)
        if listing.failed:
            unknown[ANY_GROUP] = None
        return GroupPositions(
            offsets={
                group: tuple(
                    GroupOffset(
                        key=PartitionKey(ids[tp.topic], tp.partition),
                        offset=item.offset,
                        epoch=item.leader_epoch,
                        metadata=item.metadata,
                    )
                    for tp, item in sorted(offsets.items())
                )
                for group, offsets in answer.groups.items()
            }
            | unknown
            | dict.fromkeys(answer.left_out, ()),
            unrecorded=_bounded(unrecorded),
        )

    def _log_left_out(self) -> None:
        if not self._left_out:
            _LOG.info("there is room for the offsets of all consumer groups again")
            return
        _LOG.warning(
            "the offsets of some consumer groups are not backed up: all together they would take too much of an entry",
            groups=sorted(self._left_out)[:_NAMED],
            count=len(self._left_out),
            most_bytes=MOST,
            remedy="leave out those that nobody needs with groups.include or groups.exclude",
        )


def _bounded(unrecorded: Mapping[str, str]) -> dict[str, str]:
    """Return the first groups by name, so that groups that anyone can make do not fill an entry of the chain."""
    found = dict(sorted(unrecorded.items())[:_MOST_NAMED])
    if len(unrecorded) > _MOST_NAMED:
        found[ANY_GROUP] = f"{len(unrecorded) - _MOST_NAMED} more"
    return found


def is_restored(config: Config, info: TopicInfo, known: Mapping[str, Collection[str]]) -> bool:
    """Return whether a restore created the topic and `topics.include` does not name it.

    `known`: see `restore_targets.created_topics`.
    """
    return info.name not in config.topics.include and is_created(known, info.name, info.topic_id)


def _tiered(name: str) -> ClusterDeniedError:
    """Return the error for a topic whose older segments are in remote storage (KIP-405); such a topic is left out.

    If the remote storage is slow, or has a quota, brokers answer a fetch with no records and no error, as at the log's
    end. Kafka allows tiered storage only for topics with `cleanup.policy=delete`.
    """
    return ClusterDeniedError(
        f"topic {name} is in tiered storage ({_TIERED}), where a segment that can't be fetched "
        f"in time looks like an empty log",
        code="TDM-I027",
        remedy="leave it out with topics.exclude, or switch tiered storage off for it",
    )


def _topic(info: TopicInfo, config: dict[str, str]) -> Topic:
    return Topic(
        name=info.name,
        topic_id=info.topic_id,
        partitions=len(info.partitions),
        replication_factor=info.replication_factor,
        config=config,
    )


def as_guarded(cluster_id: str, found: GuardedTopics, generations: Iterable[Generation]) -> GuardedPartitions:
    """Return the guarded partitions in the form that the rules need; denied topics are filled in from `generations`."""
    described = [*found.topics, *(one.topic for one in found.denied if one.topic is not None)]
    guarded = GuardedPartitions(
        cluster_id=cluster_id,
        topics=unique(((topic.topic_id, (topic.name, topic.partitions)) for topic in described), "topic id"),
        denied=frozenset(one.name for one in found.denied),
    )
    return guarded.with_unseen(frozenset(one.name for one in found.denied if one.topic is None), generations)
