"""Build the `PairView` of a command: store and brokers are asked, each with a time limit.

Only the store is required. `health` and `overview` judge and describe the view.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import policy_of, store_settings, trust_of
from tandem.controller.coordination.heads import missing
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic import partition_of
from tandem.controller.coordination.topic_reader import ANSWER_S, NoTopicError, TopicReader, partition_count
from tandem.controller.local_state.remembered_heads import NOTHING_REMEMBERED, RememberedHeads
from tandem.controller.process.timed_call import TimedCall
from tandem.controller.status.pair_view import Brokers, Gap, LogEnd, PairView, view_of_store
from tandem.controller.watch.guarded_cluster import is_restored
from tandem.controller.watch.store_watch import StoreView
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import LATEST
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.wire.unique_keys import unique
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain import pins, restore_targets
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.pauses import PauseReader
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.sink.store.contract.lifecycle_rules import lifecycle_rules

_MESSAGES_S = 10.0
_STORE_CONNECT_S = 3.0
_STORE_READ_S = 10.0
_STORE_ATTEMPTS = 2
_EVERYTHING = "the instances and of the logs' ends"


def store_for_looking(config: Config, *, place: str = "store.root") -> ObjectStore:
    """Open the store for a read-only command. `place` is the setting or option that named it, for messages."""
    # Retries are not logged: either one succeeds, or the error is reported.
    logging.getLogger("stamina").setLevel(logging.ERROR)
    return impatient_store(config, place=place)


def impatient_store(config: Config, *, place: str = "store.root") -> ObjectStore:
    """Open the store with shorter timeouts and fewer attempts than an instance: a person waits for the answer."""
    settings = store_settings(config)
    return open_store(
        config.store.root,
        replace(
            settings,
            connect_timeout=min(_STORE_CONNECT_S, settings.connect_timeout),
            read_timeout=min(_STORE_READ_S, settings.read_timeout),
            attempts=_STORE_ATTEMPTS,
        ),
        place=place,
    )


def read_chains(reader: ChainReader) -> StoreView:
    """Read all chains up to their heads; a damaged one affects no other. Raises the store's errors."""
    began = time.monotonic()
    found = tuple(reader.refresh(tolerant=True))
    damaged = {number: str(error) for number, error in reader.damaged.items()}
    return StoreView(began_mono=began, generations=found, numbers=tuple(reader.numbers), damaged=damaged)


def view_pair(
    config: Config,
    store: ObjectStore,
    *,
    s3_only: bool = False,
    reader: ChainReader | None = None,
    brokers_s: float | None = None,
    remembered: RememberedHeads = NOTHING_REMEMBERED,
) -> PairView:
    """Return the present view of a pair. Raises the store's errors; silent brokers become `gaps` of the view.

    A caller that looks repeatedly passes a `reader`, which keeps the chains, so that only new entries are read. The
    brokers have `brokers_s` seconds in all; without it only each single request has a limit. The chains are compared
    with the heads in `remembered`, which then has the present ones.
    """
    began = time.monotonic()
    asked = None if s3_only else TimedCall(lambda: _ask_brokers(config, store), name="brokers")
    reader = reader or ChainReader(store, config.pair)
    recalled = remembered.recall(store.url, config.pair)
    try:
        chains = read_chains(reader)
        losses = recalled.compare(reader, chains.generations)
        held = pins.list_pins(store, config.pair) if chains.generations else []
        releases = ReleaseReader(store, config.pair).refresh(tolerant=True) if chains.generations else ()
        pause = PauseReader(store, config.pair).refresh()
        rules = lifecycle_rules(store, f"{config.pair}/") or ()
    finally:
        answer = _Answer() if asked is None else _awaited(asked, brokers_s, time.monotonic() - began)
    peers = answer.peers
    known = () if peers is None else peers.heads()
    if missing(known, chains.generations, numbers=chains.numbers):
        # These heads may have been published after the chains were read; an entry is stored before it is published.
        chains = read_chains(reader)
    lost = missing(known, chains.generations, numbers=chains.numbers)
    found = replace(chains, releases=releases, pause=pause)
    return replace(
        view_of_store(found, config=config, policy=policy_of(config), root=store.url, at=now_ms(store)),
        pins=held,
        expiring=rules,
        heard=None if peers is None else peers.last_heard(),
        requests=() if peers is None else peers.requests(),
        brokers=answer.brokers,
        gaps=answer.gaps,
        lost_heads=lost,
        published_under={} if peers is None else peers.roots(lost),
        remembered_losses=losses,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    brokers: Brokers | None = None
    peers: PeerState | None = None
    gaps: tuple[Gap, ...] = ()


def _awaited(asked: TimedCall[_Answer], brokers_s: float | None, waited_s: float) -> _Answer:
    try:
        return asked.result(None if brokers_s is None else brokers_s - waited_s)
    except TimeoutError:
        gap = Gap(
            message=f"nothing is known of {_EVERYTHING}: no answer of the brokers within {brokers_s:g} s",
            remedy="ask with a longer --timeout, or see whether the brokers in kafka.bootstrap.servers run",
        )
        return _Answer(gaps=(gap,))


def _ask_brokers(config: Config, store: ObjectStore) -> _Answer:
    props: dict[str, Value] = dict(config.kafka.reveal())
    all_down = False
    try:
        with ClusterAdmin(props, timeout_s=ANSWER_S) as admin:
            try:
                return _collect_answers(config, store, props, admin, admin.cluster_id())
            finally:
                all_down = admin.all_down
    except TandemError as error:
        # The broker that was asked may be one of several, and hang.
        if isinstance(error, ClusterUnreachableError) and not all_down:
            from tandem.sink.kafka.cluster.hedged_admin import HedgedAdmin  # noqa: PLC0415 - a fifth of a second

            with suppress(TandemError), HedgedAdmin(props, timeout_s=ANSWER_S) as hedged:
                return _collect_answers(config, store, props, hedged, hedged.cluster_id())
        return _Answer(gaps=(_gap(_EVERYTHING, error),))


def _collect_answers(
    config: Config, store: ObjectStore, props: dict[str, Value], admin: ClusterAdmin, cluster_id: str
) -> _Answer:
    gaps: list[Gap] = []
    brokers = None
    try:
        brokers = ask_cluster(config, admin, cluster_id, store)
        try:
            missing: dict[TopicPartition, TandemError] = {}
            brokers = replace(brokers, ends=log_ends(config, admin, brokers.guarded, missing=missing))
            if missing:
                gaps.append(gap_of_ends(brokers.ends, missing))
        except TandemError as error:
            gaps.append(_gap("the logs' ends", error))
    except TandemError as error:
        gaps.append(_gap("the guarded topics", error))
    peers: PeerState | None = None
    try:
        peers = listen(config, props, partition_count(admin, config.coordination.topic))
    except NoTopicError as error:
        peers = PeerState(pair=config.pair, instances=config.instances)
        gaps.append(_gap("the instances", error))
    except TandemError as error:
        gaps.append(_gap("the instances", error))
    return _Answer(brokers=brokers, peers=peers, gaps=tuple(gaps))


def gap_of_ends(known: Collection[object], missing: Mapping[TopicPartition, TandemError]) -> Gap:
    """Return the gap of a view that has the `known` ends of logs and lacks others; the first error is named."""
    return _gap(f"the ends of {len(missing)} of {len(known) + len(missing)} logs", missing[min(missing)])


def _gap(what: str, error: TandemError) -> Gap:
    why = str(error.args[0]) if error.args else type(error).__name__
    return Gap(message=f"nothing is known of {what}: {why}", remedy=error.remedy)


def ask_cluster(config: Config, admin: ClusterAdmin, cluster_id: str, store: ObjectStore) -> Brokers:
    """Return the guarded topics that the cluster has, without the logs' ends. Raises errors of cluster and store."""
    listed = admin.topics(config.topics.include, config.topics.expressions)
    found = {info.name: info for info in listed if config.guards(info.name)}
    # After the topics were listed: a restore records its target topics in the store before it creates them.
    known = restore_targets.created_topics(store, config.pair, cluster_id)
    topics = {name: info for name, info in found.items() if not is_restored(config, info, known)}
    guarded = GuardedPartitions(
        cluster_id=cluster_id,
        topics=unique(
            ((info.topic_id, (name, len(info.partitions))) for name, info in sorted(topics.items())), "topic id"
        ),
    )
    return Brokers(
        guarded=guarded,
        missing=tuple(sorted(frozenset(config.topics.include) - topics.keys())),
        restored=tuple(sorted(found.keys() - topics.keys())),
    )


def log_ends(
    config: Config,
    admin: ClusterAdmin,
    guarded: GuardedPartitions,
    *,
    missing: dict[TopicPartition, TandemError] | None = None,
) -> dict[tuple[str, int], LogEnd]:
    """Return the log ends by topic name and partition, but for unseen topics. Raises errors of the cluster.

    If `missing` is given, it receives the errors of partitions without a leader that answers, as long as others do.
    """
    seen = (topic for topic_id, topic in guarded.topics.items() if topic_id not in guarded.unseen)
    wanted: dict[tuple[str, int], str | int] = {
        (name, number): LATEST for name, count in seen for number in range(count)
    }
    if not wanted:
        return {}
    committed = config.isolation_level == "read_committed"
    # Watermarks first: records that are written between the two answers must not look held back by a transaction.
    high: dict[TopicPartition, tuple[int, int]] = {}
    if committed:
        high = admin.list_offsets(wanted, read_committed=False, missing=missing)
        wanted = {place: when for place, when in wanted.items() if missing is None or place not in missing}
    stable = admin.list_offsets(wanted, read_committed=committed, missing=missing)
    return {
        (tp.topic, tp.partition): LogEnd(stable=offset, high=max(offset, high.get(tp, (offset, 0))[0]))
        for tp, (offset, _) in stable.items()
    }


def listen(config: Config, props: dict[str, Value], partitions: int) -> PeerState:
    """Return the state folded from the pair's partition of the coordination topic, from its beginning to its end."""
    peers = PeerState(pair=config.pair, instances=config.instances, trust=trust_of(config))
    where = partition_of(config.pair, partitions)
    with TopicReader(props, topic=config.coordination.topic, partitions=[where]) as topic_reading:
        topic_reading.rewind(None, timeout_s=ANSWER_S)
        for topic_record in topic_reading.read_to_end(timeout_s=_MESSAGES_S):
            if topic_record.message is not None:
                peers.note_message(topic_record.message, appended_at=topic_record.appended_at)
    return peers


def published_heads(config: Config) -> tuple[Head, ...]:
    """Return the heads on the coordination topic. Raises errors of the cluster, ConfigError if there is none."""
    props: dict[str, Value] = dict(config.kafka.reveal())
    with ClusterAdmin(props, timeout_s=ANSWER_S) as admin:
        count = partition_count(admin, config.coordination.topic)
    heads = listen(config, props, count).heads()
    if not heads:
        raise ConfigError(
            f"no head of pair {config.pair} is on the topic {config.coordination.topic}",
            code="TDM-I047",
            remedy="check pair and kafka.bootstrap.servers, or give --expect-head",
        )
    return heads
