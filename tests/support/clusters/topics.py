"""Topics that tests make on the shared broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class TopicMaker(Protocol):
    """Makes a topic and returns its name when its partitions have leaders."""

    def __call__(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        compacted: bool = True,
        delete_retention_ms: int = 86_400_000,
        config: Mapping[str, str] | None = None,
        bootstrap: str | None = None,
    ) -> str:
        """Make a topic on the shared broker, or on that at `bootstrap`; `config` wins over the settings below."""
        ...
