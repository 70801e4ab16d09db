"""Keys of data objects."""

from __future__ import annotations

from golden.encrypted import KEY_TEXT

from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing


def ring(new: str = KEY_TEXT, *old: str) -> KeyRing:
    """Keys from an environment."""
    texts = {f"OLD{n}": text for n, text in enumerate(old)}
    return KeyRing(KeySettings(key_env="NEW", decrypt_key_envs=tuple(texts)), environment={"NEW": new, **texts})
