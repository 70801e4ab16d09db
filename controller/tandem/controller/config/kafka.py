"""The `kafka:` section: librdkafka properties, passed through under their own names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Self

from pydantic import ConfigDict, RootModel, SecretStr, ValidationInfo, model_validator

from tandem.controller.config import rules
from tandem.controller.config.values import Secret

SECRET_WORDS: Final = (
    "password",
    "passphrase",
    "secret",
    "token",
    "key.pem",
    "oauthbearer.config",
    "jaas.config",
    "user.info",
    "keystore.key",
    "proxy",
)
"""Parts of the names of properties whose values are secrets. The last ones are from snippets for other clients."""
_PUBLIC: Final = frozenset({"sasl.oauthbearer.token.endpoint.url"})
_SECRET: Final = re.compile("|".join(map(re.escape, SECRET_WORDS)))
PROPERTY: Final = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)*")
_CREDENTIALS: Final = re.compile(r"://\S*@")  # a password may contain the characters that end a host name
_INT: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)

# Properties of librdkafka that end in `.file`: librdkafka itself reads the file.
_OWN_FILES: Final = frozenset(
    {
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.jwt.template.file",
        "sasl.oauthbearer.assertion.private.key.file",
    }
)
_TAKEN: Final = {
    "isolation.level": "set isolation_level at the top level instead",
    "metadata.broker.list": "write bootstrap.servers instead",
    "client.rack": "leave it out: a scan must read from leaders, not from the nearest follower",
    "group.id": "leave it out: Tandem keeps its positions in the store",
    "group.instance.id": "leave it out: Tandem keeps its positions in the store",
    "transactional.id": "leave it out: Tandem chooses it",
    "auto.offset.reset": "leave it out: Tandem decides where it reads on",
    "enable.auto.commit": "leave it out: Tandem keeps its positions in the store",
    "enable.auto.offset.store": "leave it out: Tandem keeps its positions in the store",
}


def is_secret(key: str) -> bool:
    """Return whether the value of property `key` is a secret and must never be shown."""
    return bool(_SECRET.search(key)) and not is_secret_file(key) and key not in _PUBLIC


def is_secret_file(key: str) -> bool:
    """Return whether Tandem (not librdkafka) reads the file at `key` as the value of the property without `.file`."""
    return key.endswith(".file") and key not in _OWN_FILES


def reserved_properties() -> Mapping[str, str]:
    """Return the properties that only Tandem may set, each with its remedy."""
    return _TAKEN


class KafkaProperties(RootModel[dict[str, str | bool | int | Secret]]):
    """librdkafka properties with typed values; secrets are `SecretStr`, chosen by the property's name."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _types(cls, data: object) -> object:
        """Convert text to bool, int or `SecretStr`; join lists with commas."""
        if not isinstance(data, dict):
            return data
        typed: dict[str, object] = {}
        problems: list[rules.Problem] = []
        for key, value in data.items():
            try:
                typed[str(key)] = _typed(str(key), value)
            except ValueError as error:
                problems.append((f"kafka.{key}", str(error)))
        rules.refuse(problems)
        return typed

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        required = not rules.checks_store_only(info)
        rules.refuse(rules.bootstrap_servers(self.root.get("bootstrap.servers"), required=required))
        return self

    def __getitem__(self, key: str) -> str | bool | int | SecretStr:
        return self.root[key]

    def get(self, key: str) -> str | bool | int | SecretStr | None:
        """Return the value of `key`, secrets still wrapped, or None."""
        return self.root.get(key)

    def reveal(self) -> dict[str, str | bool | int]:
        """Return a plain dict for a client's constructor, secrets in the clear. Never log it."""
        return {
            key: value.get_secret_value() if isinstance(value, SecretStr) else value for key, value in self.root.items()
        }


def _typed(key: str, value: object) -> object:
    if key in _TAKEN:
        raise ValueError(f"is not yours to set; {_TAKEN[key]}")
    if not PROPERTY.fullmatch(key):
        raise ValueError("is not the name of a librdkafka property, such as bootstrap.servers")
    if isinstance(value, dict):
        raise ValueError(f"is nested; librdkafka's names are flat: write `{key}.…:` in one key")  # noqa: TRY004 - pydantic reads ValueError
    if value is None:
        raise ValueError("has no value")
    if isinstance(value, SecretStr):
        return value
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in value)
    if is_secret(key):
        return SecretStr(str(value))
    if "PRIVATE KEY-----" in str(value):
        raise ValueError("holds a private key; put that into ssl.key.pem, which is never shown")
    if _CREDENTIALS.search(str(value)) or (key == "bootstrap.servers" and "@" in str(value)):
        raise ValueError("must not hold credentials; they belong into the sasl.… properties, which are never shown")
    if isinstance(value, str):
        if value in {"true", "false"}:
            return value == "true"
        return int(value) if _INT.fullmatch(value) else value
    return value
