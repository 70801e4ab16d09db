"""Finds the secrets that SDKs and HTTP clients take from the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

OF_SDKS: Final = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"),
    *("AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN"),
)
"""Variables in which the SDKs of the clouds look for secrets."""
_SCHEME: Final = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


def hidden_of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets that SDKs and HTTP clients take from the environment, independent of the configuration."""
    for name in OF_SDKS:
        if environ.get(name):
            yield environ[name]
    for name, text in environ.items():
        if name.lower().endswith("_proxy"):  # HTTP clients know one for each scheme, and one for all
            yield from hidden_of_proxy(text)


def hidden_of_proxy(url: str) -> Iterator[str]:
    """Yield the password in a proxy's URL, verbatim and decoded; without one the user name, which may be a token.

    The text may have no scheme, or be no URL at all: clients repeat text that they can't parse. A password with a
    character that ends a URL's authority, such as a slash, is taken as intended: up to the last `@`.
    """
    match = _SCHEME.match(url)
    try:
        authority = urlsplit(url if match else f"//{url}").netloc
    except ValueError:
        authority = ""
    for text in (authority, url[match.end() :] if match else url):
        user, _, password = text.rpartition("@")[0].partition(":")
        secret = password or user
        if secret:
            yield secret
            yield unquote(secret)
