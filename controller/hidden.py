"""Every value that no output may show: of the configuration, and of the environment that it lies in. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from controller.config import Config

_OF_SDKS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")
_LOGIN: Final = re.compile(r"^(?:[a-z0-9]+://)?[^:@]*:(.+)@")
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})


def hidden_of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what SDKs and HTTP clients take from the environment, whatever the configuration says."""
    for name in _OF_SDKS:
        if environ.get(name):
            yield environ[name]
    for name, text in environ.items():
        match = _LOGIN.search(text) if name.lower() in _PROXIES else None
        if match is not None:
            yield match[1]
            yield unquote(match[1])


def hidden(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets of a configuration, and what the variables hold that it names."""
    yield from config.secrets()
    named = (config.signing.key_env, config.encryption.key_env, *config.encryption.decrypt_key_envs)
    for name in named:
        if name is not None and environ.get(name):
            yield environ[name]
