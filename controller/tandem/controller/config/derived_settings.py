"""Settings of the store, of signatures and of decisions, made from the configuration.

Every command needs them: nothing here loads readers of logs, which only an instance has.
"""

from __future__ import annotations

from pathlib import Path

from tandem.backup_avro.chain.layout import check_name
from tandem.backup_avro.chain.signatures import Trust, parse_public
from tandem.backup_avro.errors import ConfigError
from tandem.controller.config.model import Config
from tandem.controller.decision.observation import Policy
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.read.progress.partition_progress import CONFIRM_CEILING_S
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.contract.object_store import ObjectStore

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
