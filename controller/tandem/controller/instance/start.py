"""Open the parts of an instance: store, brokers, coordination topic; each is waited for if it may come back.

A fault that only a person can repair (a wrong password, a missing bucket, a store that ignores `If-None-Match`, another
cluster's backups under the same root) ends the process with its message and exit code instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.errors import RefusedError, TransientError
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import trust_of
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic import CoordinationTopic, log_refused
from tandem.controller.watch.guarded_cluster import GuardedCluster
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.kafka.cluster.group_listing import list_groups
from tandem.sink.kafka.cluster.hedged_admin import HedgedAdmin
from tandem.sink.store.chain import restore_targets
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity, now_ms
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.store.signed_store import signer_of

_LOG = structlog.get_logger()
_RETRY_S = 2.0
_FIRST_CONTACT_S = 8.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceParts:
    """The opened and checked parts of an instance."""

    identity: Identity
    props: dict[str, Value] = field(repr=False)
    store: ObjectStore
    reader: ChainReader
    cluster: GuardedCluster
    peers: PeerState
    coordination: CoordinationTopic

    def publish(self, event: CoordinationEvent, **fields: Any) -> None:  # noqa: ANN401 (fields of the message)
        """Send a message, dated by the store's clock. A failure is only logged: messages are hints."""
        self.coordination.publish(event, at=now_ms(self.store), **fields)


class StoppedEarlyError(Exception):
    """The process was told to stop before all parts were up; not an error."""


def set_up(
    config: Config,
    open_store: Callable[[], ObjectStore],
    *,
    incarnation: str,
    stop: threading.Event,
    wake: threading.Event,
) -> InstanceParts:
    """Return the parts. Raises StoppedEarlyError, and PermanentError on a fault that does not pass by waiting.

    `open_store` is called here, again after a failure: some credential providers are asked then, and may be away.
    """
    me = config.require_instance()
    store = _persist(stop, "store", open_store)
    _LOG.info("starting", store=store.url, brokers=config.kafka["bootstrap.servers"])
    for warning in _persist(stop, "store", lambda: store.probe(f"{config.pair}/")):
        _LOG.warning("the store is usable, but not as it should be", reason=warning)
    keys = keys_of(store)
    _persist(stop, "KMS", lambda: keys.check(config.pair))
    if keys.encrypts:
        _LOG.info("new objects are encrypted", key=keys.current())
    props: dict[str, Value] = dict(config.kafka.reveal())
    admin = HedgedAdmin(props)
    # A shorter timeout than later on, so that a wrong address is reported soon.
    with HedgedAdmin(props, timeout_s=_FIRST_CONTACT_S) as first:
        cluster_id = _persist(stop, "brokers", first.cluster_id)
    reader = ChainReader(store, config.pair)
    _persist(stop, "store", lambda: reader.refresh(tolerant=True))
    _check_same(config, reader, cluster_id)
    peers = PeerState(
        pair=config.pair,
        instances=config.instances,
        incarnation=incarnation,
        trust=trust_of(config),
        refused=log_refused,
    )
    coordination = CoordinationTopic(
        props,
        config.coordination,
        admin=admin,
        peers=peers,
        identity=CoordinationMessage(
            event=CoordinationEvent.PROGRESS,
            pair=config.pair,
            instance=me,
            incarnation=incarnation,
            cluster_id=cluster_id,
            request_id="",
            at=0,
        ),
        signer=signer_of(store, "a request for a turn"),
    )
    _persist(stop, "coordination topic", lambda: coordination.start(wake))
    return InstanceParts(
        identity=Identity(pair=config.pair, instance=me, incarnation=incarnation, cluster_id=cluster_id),
        props=props,
        store=store,
        reader=reader,
        cluster=GuardedCluster(
            admin,
            config,
            partial(restore_targets.created_topics, store, config.pair, cluster_id),
            partial(list_groups, props),
        ),
        peers=peers,
        coordination=coordination,
    )


def _persist(stop: threading.Event, what: str, call: Callable[[], _T]) -> _T:
    """Repeat `call` until it succeeds; transient errors are logged when they begin and when they end.

    `what` names the awaited part in messages. Raises StoppedEarlyError once `stop` is set, and errors of `call` that
    are not transient.
    """
    failed = False
    while not stop.is_set():
        try:
            outcome = call()
        except TransientError as error:
            if not failed:
                _LOG.warning(f"the {what} can't be reached, waiting", error=error)
            failed = True
            stop.wait(_RETRY_S)
        else:
            if failed:
                _LOG.info(f"the {what} can be reached again")
            return outcome
    raise StoppedEarlyError


def _check_same(config: Config, reader: ChainReader, cluster_id: str) -> None:
    for state in reader.history():
        if state.claim.cluster_id != cluster_id:
            raise RefusedError(
                f"pair {config.pair} under {reader.store.url} backs up cluster {state.claim.cluster_id}, "
                f"but the brokers belong to cluster {cluster_id}",
                code="TDM-I035",
                remedy="choose another `pair` or `store.root` for this cluster",
            )
        opening = state.opening
        if opening is not None and not state.gone and opening.isolation_level != config.isolation_level:
            raise RefusedError(
                f"isolation_level is {config.isolation_level}, but generation {state.number} of pair {config.pair} "
                f"was begun with {opening.isolation_level}",
                code="TDM-I036",
                remedy="one pair keeps one isolation level; set it back, or begin another pair",
            )
