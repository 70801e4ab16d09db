"""Settings of a store besides its URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tandem.backup_avro.errors import ConfigError
from tandem.sink.encryption import key_text
from tandem.sink.encryption.encryption_settings import UNENCRYPTED, KeySettings

if TYPE_CHECKING:
    import stamina

OTHER_NAMES = {
    **dict.fromkeys(("gcs",), "write gs://bucket/prefix"),
    **dict.fromkeys(("azure", "abfs", "abfss", "wasb", "wasbs"), "write az://container/prefix, and store.account_name"),
}
"""URL schemes that users may expect, and what to write instead."""
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", re.ASCII)
"""Valid bucket names, including old ones, which may have more than 63 characters."""
CONTAINER = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-)){1,61}[a-z0-9]", re.ASCII)
"""Valid names of containers of Azure Blob Storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Settings of a store, of signing and of encryption; a file store needs only the latter two.

    `account_name` and `account_key` are those of Azure's storage account, `credentials_file` is Google's key file of a
    service account. Without key or file both libraries look in the environment and ask the platform for an identity.
    Of the settings of S3, theirs are the endpoint, the authorities, times and attempts.

    Without `access_key_id` the provider chain of the SDK is asked (environment, profile, web identity, instance).
    Sizes are bytes, times are seconds. `attempts` counts the first try too. The repr hides secrets.

    `checksums` when_required: only where S3 requires one (DeleteObjects); off: nowhere, so deletes go one by one. With
    `bucket_key` S3 asks KMS for a key of the bucket now and then, instead of one for each object.
    The settings name the private key and do not hold it: its file, or environment variable, is read at the first
    signature. `trusted_keys` are public keys, base64, separated by commas.
    Raises ConfigError that names the field.
    """

    endpoint_url: str | None = None
    region: str | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    ca_bundle: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    checksums: Literal["when_supported", "when_required", "off"] = "when_supported"
    server_side_encryption: Literal["none", "AES256", "aws:kms", "aws:kms:dsse"] = "none"
    kms_key_id: str | None = None
    bucket_key: bool = False
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    max_pool_connections: int = 32
    attempts: int = 5
    backoff_initial: float = 0.2
    backoff_max: float = 5.0
    signing_key_file: str | None = None
    signing_key_env: str | None = None
    trusted_keys: str | None = None
    require_signatures: bool = False
    encryption: KeySettings = UNENCRYPTED

    def __post_init__(self) -> None:
        """Refuse combinations that can't work."""
        for name, allowed in (
            ("addressing_style", ("auto", "path", "virtual")),
            ("checksums", ("when_supported", "when_required", "off")),
            ("server_side_encryption", ("none", "AES256", "aws:kms", "aws:kms:dsse")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name}: not one of {', '.join(allowed)}", code="TDM-S090", remedy=f"choose one for {name}"
                )
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError(
                "access_key_id and secret_access_key: one is set and the other is not",
                code="TDM-S091",
                remedy="set both, or none to use the environment, profile or instance",
            )
        if self.session_token is not None and self.access_key_id is None:
            raise ConfigError(
                "session_token: set without access_key_id", code="TDM-S092", remedy="set the key pair it belongs to"
            )
        self._check_encryption()
        for name in ("connect_timeout", "read_timeout", "max_pool_connections", "attempts"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: must be positive", code="TDM-S094", remedy=f"set {name} above 0")
        if self.backoff_initial < 0 or self.backoff_max < self.backoff_initial:
            raise ConfigError("backoff_max: below backoff_initial", code="TDM-S095", remedy="raise backoff_max")
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url)
        self._check_signing()

    def _check_signing(self) -> None:
        if self.signing_key_file is not None and key_text.is_key(self.signing_key_file):
            raise ConfigError(f"signing_key_file: {key_text.NOT_A_PATH}", code="TDM-S096")
        if self.signing_key_file is not None and self.signing_key_env is not None:
            raise ConfigError(
                "signing_key_file, signing_key_env: both are set", code="TDM-S097", remedy="set one of them"
            )
        if self.require_signatures and not self.trusted:
            raise ConfigError(
                "require_signatures: no key is trusted", code="TDM-S098", remedy="set trusted_keys to public keys"
            )

    def paced_attempts(self, on: type[Exception], attempts: int) -> Iterator[stamina.Attempt]:
        """Yield up to `attempts` attempts at one request, with pauses between them, while they fail with `on`."""
        import stamina  # noqa: PLC0415 (only stores over a network need it, and it takes a tenth of a second)

        initial, longest = self.backoff_initial, self.backoff_max
        return iter(
            stamina.retry_context(
                on, attempts=attempts, timeout=None, wait_initial=initial, wait_max=longest, wait_jitter=initial
            )
        )

    @property
    def trusted(self) -> tuple[str, ...]:
        """The public keys of `trusted_keys`."""
        return tuple(key.strip() for key in (self.trusted_keys or "").split(",") if key.strip())

    def _check_encryption(self) -> None:
        if self.kms_key_id is not None and not self.server_side_encryption.startswith("aws:kms"):
            raise ConfigError(
                "kms_key_id: needs server_side_encryption aws:kms", code="TDM-S099", remedy="set both or neither"
            )
        if self.bucket_key and self.server_side_encryption != "aws:kms":
            raise ConfigError(
                "bucket_key: needs server_side_encryption aws:kms", code="TDM-S100", remedy="set both or neither"
            )


def check_endpoint(endpoint_url: str) -> None:
    """Raise ConfigError unless `endpoint_url` is a URL without secrets: it is shown in messages."""
    try:
        parts = urlsplit(endpoint_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            "endpoint_url: not a URL such as https://host:port", code="TDM-S102", remedy="correct endpoint_url"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "endpoint_url: holds a user, query or fragment",
            code="TDM-S103",
            remedy="leave only scheme, host, port and path; keys go into access_key_id and secret_access_key",
        )
