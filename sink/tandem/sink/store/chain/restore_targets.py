"""Documents of the topics that restores created in a cluster: put by restores, read by instances and `status`.

Each run of a restore announces the names first, and has their ids stored when the topics exist. An announcement that
gets no ids ends after an hour: otherwise an application could never have a topic of that name backed up.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.restore_targets import RestoreTargets, decode_targets, encode_targets
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.sink.store.contract.object_store import ObjectInfo, ObjectMissingError, ObjectStore, StoreDeniedError

_LOG = structlog.get_logger()
#: Stands for the topic id of a topic that may still be created.
ANY: Final = ""
#: How long an announcement counts, in seconds by the store's clock: much longer than a restore takes to create topics.
_ANNOUNCED_S: Final = 3600.0


def announce_targets(store: ObjectStore, pair: str, plan: str, cluster_id: str, names: Iterable[str]) -> dict[str, str]:
    """Put the names of topics that are about to be created. Raises errors of the store.

    Where documents must be signed and this process has no key, nothing is put, and what to tell of each topic is
    returned: a restore goes on without, since it may be needed most where no key is at hand.
    """
    targets = RestoreTargets(pair=pair, plan=plan, cluster_id=cluster_id, topics=dict.fromkeys(sorted(names), ANY))
    try:
        if targets.topics:
            # A key of its own: what an earlier run announced is over, or is about another cluster.
            store.put_if_absent(layout.restore_targets_key(pair, plan, secrets.token_hex(8)), encode_targets(targets))
    except ConfigError as error:
        why = f"the pair backs this topic up if topics.patterns match it: no note of it could be stored: {error}"
        return dict.fromkeys(targets.topics, why)
    return {}


def identify_targets(store: ObjectStore, pair: str, plan: str, cluster_id: str, topic_ids: Mapping[str, str]) -> None:
    """Put the ids of the topics that runs of the plan have announced for this cluster. Raises errors of the store.

    Nothing is put where nothing was announced, or where the announcement has no valid signature.
    """
    announced = {
        name
        for _, targets in _notes(store, pair)
        if (targets.plan, targets.cluster_id) == (plan, cluster_id)
        for name, topic_id in targets.topics.items()
        if topic_id == ANY and name in topic_ids
    }
    if announced:
        topics = {name: topic_ids[name] for name in sorted(announced)}
        _put_named(store, RestoreTargets(pair=pair, plan=plan, cluster_id=cluster_id, topics=topics))


class AdoptedTopic(NamedTuple):
    """A note that a topic was removed from: the first digits of its plan's hash, the cluster, the topic's id or ANY."""

    plan: str
    cluster_id: str
    topic_id: str


def adopt_topic(store: ObjectStore, pair: str, topic: str) -> list[AdoptedTopic]:
    """Remove a topic from all documents of the pair that name it, so that patterns apply to it; return what they said.

    The other topics of a document are stored again before it is deleted, under a key of their own. Documents that can't
    be read count for nothing, and stay. Raises errors of the store.
    """
    removed = []
    # Announcements first: one that is stored again after the ids of its plan would count as a later restore's.
    for info, targets in sorted(_notes(store, pair), key=lambda note: ANY not in note[1].topics.values()):
        if topic not in targets.topics:
            continue
        # An announcement that is over must not begin anew.
        ended = {ANY} if info.modified < store.now() - timedelta(seconds=_ANNOUNCED_S) else set()
        rest = {name: of for name, of in targets.topics.items() if name != topic and of not in ended}
        if rest:
            _put_named(store, replace(targets, topics=rest))
        store.delete([info.key])
        removed.append(AdoptedTopic(targets.plan[:16], targets.cluster_id, targets.topics[topic]))
    return removed


def noted_topics(store: ObjectStore, pair: str) -> list[str]:
    """Return the names of all topics that restores of the pair noted, in any cluster. Raises errors of the store."""
    return sorted({name for _, targets in _notes(store, pair) for name in targets.topics})


def _put_named(store: ObjectStore, targets: RestoreTargets) -> None:
    """Put a document under the hash of its contents."""
    data = encode_targets(targets)
    ids = hashlib.sha256(data).hexdigest()[:16]
    store.put_if_absent(layout.restore_targets_key(targets.pair, targets.plan, ids), data)


def created_topics(store: ObjectStore, pair: str, cluster_id: str) -> dict[str, frozenset[str]]:
    """Return the ids of all topics that restores created in a cluster, by name; ANY: also one that has no id yet.

    Documents that can't be read are logged and ignored. Raises transient errors of the store.
    """
    try:
        known = [(info, targets) for info, targets in _notes(store, pair) if targets.cluster_id == cluster_id]
    except StoreDeniedError as error:
        _LOG.warning(
            "what restores created can't be read: it is backed up if it matches topics.patterns",
            error=error,
            remedy="print the instance's policy anew, with `tandem policy s3`",
        )
        return {}
    # An announcement is over when ids of the same plan were stored after it.
    identified: dict[tuple[str, str], datetime] = {}
    for info, targets in known:
        for name in (name for name, topic_id in targets.topics.items() if topic_id != ANY):
            place = targets.plan, name
            identified[place] = max(info.modified, identified.get(place, info.modified))
    found: dict[str, set[str]] = {}
    since = store.now() - timedelta(seconds=_ANNOUNCED_S) if known else None
    for info, targets in known:
        for name, topic_id in targets.topics.items():
            named_at = identified.get((targets.plan, name))
            over = (since is not None and info.modified < since) or (named_at is not None and named_at >= info.modified)
            if topic_id != ANY or not over:
                found.setdefault(name, set()).add(topic_id)
    return {name: frozenset(ids) for name, ids in found.items()}


def is_created(known: Mapping[str, Collection[str]], name: str, topic_id: str) -> bool:
    """Return whether a topic is one of those that `created_topics` returned."""
    return not {topic_id, ANY}.isdisjoint(known.get(name, ()))


def _notes(store: ObjectStore, pair: str) -> Iterator[tuple[ObjectInfo, RestoreTargets]]:
    """Yield each document of the pair with its listing, as they were listed before the first one was read."""
    for info in list(store.list(layout.restore_targets_prefix(pair))):
        for targets in _read(store, info.key):
            if targets.pair == pair:
                yield info, targets


def _read(store: ObjectStore, key: str) -> Iterator[RestoreTargets]:
    try:
        yield decode_targets(store.get(key), key)
    except ObjectMissingError:
        return
    except DamagedError as error:
        _LOG.error("what a restore created can't be read; it is backed up if it matches", error=error)
