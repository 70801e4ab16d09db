"""Build the parts from the configuration: store, cluster, policies. The only module that knows both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tandem.backup_avro.chain.entries import Opening
from tandem.backup_avro.chain.layout import check_name
from tandem.backup_avro.chain.signatures import Trust, parse_public
from tandem.backup_avro.errors import ConfigError
from tandem.controller.config import Config
from tandem.controller.decision.observation import Policy
from tandem.controller.process import memory_allocator
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.pipeline import PipelinePolicy
from tandem.sink.process import log
from tandem.sink.read.partition_progress import CONFIRM_CEILING_S
from tandem.sink.read.scan.worker_processes import WorkerSettings
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.object_store import ObjectStore
from tandem.sink.write.merge_plan import MergeRules

_Value = TypeVar("_Value", bound=Value | None)
_SURVEY_S = 10.0
_FLUSHES = 3
"""Flush intervals within which due records are stored."""


def store_of(config: Config) -> ObjectStore:
    """Open the store that the configuration names. Sends nothing yet."""
    return open_store(config.store.root, store_settings(config), place="store.root")


def store_settings(config: Config) -> StoreAccess:
    """Return the store's settings with secrets in plain text, and where the keys of data objects are."""
    store = config.store

    def reveal(name: str) -> str | None:
        value = getattr(store, name)
        return None if value is None else value.get_secret_value()  # it knows where it was read

    return StoreAccess(
        endpoint_url=store.endpoint_url,
        region=store.region,
        addressing_style=store.addressing_style,
        ca_bundle=None if store.ca_bundle is None else str(store.ca_bundle),
        access_key_id=reveal("access_key_id"),
        secret_access_key=reveal("secret_access_key"),
        session_token=reveal("session_token"),
        account_name=store.account_name,
        account_key=reveal("account_key"),
        credentials_file=None if store.credentials_file is None else str(store.credentials_file),
        checksums=store.checksums,
        server_side_encryption=store.server_side_encryption,
        kms_key_id=store.kms_key_id,
        bucket_key=store.bucket_key,
        connect_timeout=store.connect_timeout.total_seconds(),
        read_timeout=store.read_timeout.total_seconds(),
        signing_key_file=None if config.signing.key_file is None else str(config.signing.key_file),
        signing_key_env=config.signing.key_env,
        trusted_keys=",".join(trusted_keys(config)) or None,
        require_signatures=config.signing.require,
        encryption=KeySettings(**config.encryption.model_dump()),
    )


def trusted_keys(config: Config) -> tuple[str, ...]:
    """Return the trusted public keys. Raises ConfigError with the file and line of a text that is no key."""
    place = config.signing.trusted_file
    if place is None:
        return config.signing.trusted
    try:
        lines = Path(place).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
        raise ConfigError(
            f"signing.trusted_file: {place}: {why}", code="TDM-I037", remedy="correct it, or mount the file"
        ) from None
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                parse_public(text)
            except ConfigError as error:
                raise ConfigError(f"{place}:{number}: {error.args[0]}", code=error.code, remedy=error.remedy) from None
            found.append(text)
    if config.signing.require and not (found or config.signing.trusted):
        raise ConfigError(
            f"{place}: no public key, and signing.require is set", code="TDM-I038", remedy="write one a line"
        )
    return (*config.signing.trusted, *found)


def trust_of(config: Config) -> Trust:
    """Return the keys whose signatures are accepted. Raises ConfigError as `trusted_keys`."""
    return Trust.of(trusted_keys(config), require=config.signing.require)


def policy_of(config: Config) -> Policy:
    """Return the settings that decisions depend on."""
    return Policy(
        first=check_name(config.first, "first"),
        rotation_interval_s=config.rotation.interval.total_seconds(),
        liveness_timeout_s=config.liveness.timeout.total_seconds(),
        peer_timeout_s=config.peer.timeout.total_seconds(),
        handover_timeout_s=config.handover.timeout.total_seconds(),
        heartbeat_s=config.coordination.heartbeat_interval.total_seconds(),
        flush_interval_s=config.flush.interval.total_seconds(),
        quiet_s=CONFIRM_CEILING_S + _FLUSHES * config.flush.interval.total_seconds(),
        recovery_window_s=config.recovery.window.total_seconds(),
    )


def pipeline_policy_of(config: Config) -> PipelinePolicy:
    """Return the settings by which pipelines read and commit."""
    flush_s = config.flush.interval.total_seconds()
    return PipelinePolicy(
        flush_interval_s=flush_s,
        max_objects=config.commit.max_objects,
        object_size=config.object.target_size,
        block_size=config.object.block_size,
        codec=config.object.codec,
        compression_level=config.object.compression_level,
        memory_budget=config.memory.budget,
        chunk_ceiling_s=config.scan.chunk_duration.total_seconds(),
        scan_rate=config.scan.rate_limit,
        survey_interval_s=min(_SURVEY_S, flush_s),
        groups_interval_s=config.groups.interval.total_seconds() if config.groups.enabled else None,
        offers_patience_s=config.scan.patience.total_seconds() if config.scan.by == "spark" else None,
        merge=MergeRules(
            limit=config.object.target_size // 2, grace_ms=round(config.grace.rewrite.total_seconds() * 1000)
        ),
    )


def workers_of(config: Config, props: Mapping[str, Value]) -> WorkerSettings:
    """Return the settings of worker processes with secrets in plain text: only a pipe of this process carries them."""
    settings = store_settings(config)
    return WorkerSettings(
        props={name: _plain(value) for name, value in props.items()},
        root=config.store.root,
        settings=replace(
            settings,
            access_key_id=_plain(settings.access_key_id),
            secret_access_key=_plain(settings.secret_access_key),
            session_token=_plain(settings.session_token),
            account_key=_plain(settings.account_key),
        ),
        prepare=partial(
            _prepare_worker,
            {"pair": config.pair, "instance": config.require_instance()},
            level=config.log.level,
            fmt=config.log.format,
            secrets=log.secrets(),
        ),
        batch_limit=config.memory.largest_batch,
    )


def _plain(value: _Value) -> _Value | str:
    """Return a secret as a plain `str`, which pickle keeps as it is; other values unchanged."""
    return str(value) if isinstance(value, str) else value


def _prepare_worker(lines: Mapping[str, object], *, level: str, fmt: log.Format, secrets: tuple[str, ...]) -> None:
    memory_allocator.set_up()
    log.register_secrets(secrets)
    log.configure_instance(level=level, fmt=fmt)
    log.bind(**lines)


def opening_of(config: Config, sync: bytes) -> Opening:
    """Return the settings that a new generation fixes for its life."""
    return Opening(isolation_level=config.isolation_level, codec=config.object.codec, sync=sync.hex())
