"""librdkafka's properties for tokens from an OpenID Connect provider (`sasl.oauthbearer.method=oidc`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from tandem.backup_avro.errors import ConfigError

_PREFIX: Final = "sasl.oauthbearer."
_ID: Final = (f"{_PREFIX}client.id", f"{_PREFIX}client.credentials.client.id")
_SECRET: Final = (f"{_PREFIX}client.secret", f"{_PREFIX}client.credentials.client.secret")
PROPERTIES: Final = frozenset(
    {
        *_ID,
        *_SECRET,
        f"{_PREFIX}method",
        f"{_PREFIX}token.endpoint.url",
        f"{_PREFIX}scope",
        f"{_PREFIX}extensions",
        "https.ca.location",
        "https.ca.pem",
    }
)
"""The properties of librdkafka that are read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """The token endpoint and the client's credentials for it. The repr hides the secret."""

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    ca_location: str = ""
    ca_pem: str = ""


def settings_of(props: Mapping[str, str | float | bool]) -> OidcSettings:
    """Return the settings in librdkafka's properties. Raises ConfigError that names the wrong property."""

    def text(*names: str) -> str:
        return next((str(props[name]) for name in names if name in props), "")

    if text(f"{_PREFIX}method").lower() != "oidc":
        raise ConfigError(
            "kafka: sasl.mechanism is OAUTHBEARER, but nothing says where tokens come from",
            code="TDM-K026",
            remedy="set sasl.oauthbearer.method: oidc with its endpoint and client, or aws.msk.iam: true; "
            "docs/connections.md shows both",
        )
    for names in ((f"{_PREFIX}token.endpoint.url",), _ID, _SECRET):
        if not text(*names):
            raise ConfigError(
                f"kafka: {names[0]} is missing", code="TDM-K027", remedy="sasl.oauthbearer.method: oidc needs it"
            )
    endpoint = text(f"{_PREFIX}token.endpoint.url")
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"kafka: {_PREFIX}token.endpoint.url is no plain https:// URL",
            code="TDM-K028",
            remedy="write https://host/path; credentials go into sasl.oauthbearer.client.id and .client.secret",
        )
    return OidcSettings(
        endpoint=endpoint,
        client_id=text(*_ID),
        client_secret=text(*_SECRET),
        scope=text(f"{_PREFIX}scope"),
        extensions=_extensions(text(f"{_PREFIX}extensions")),
        ca_location=text("https.ca.location"),
        ca_pem=text("https.ca.pem"),
    )


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise ConfigError(
                f"kafka: {_PREFIX}extensions is no list of name=value", code="TDM-K029", remedy="write a=1,b=2"
            )
        found.append((name, value))
    return tuple(found)
