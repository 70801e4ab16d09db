"""The secret values of a configuration and of its environment variables, which no output may show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.controller.config import Config


def values_to_mask(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets of a configuration, and the values of the environment variables that it names."""
    yield from config.secrets()
    named = (config.signing.key_env, config.encryption.key_env, *config.encryption.decrypt_key_envs)
    for name in named:
        if name is not None and environ.get(name):
            yield environ[name]
