"""Where a machine keeps what can be made, or fetched, again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def tandem_cache(environment: Mapping[str, str] | None = None) -> Path:
    """Return Tandem's cache folder. XDG_CACHE_HOME is used if it is absolute (XDG Base Directory Specification)."""
    environment = os.environ if environment is None else environment
    base = Path(environment.get("XDG_CACHE_HOME") or "")
    return (base if base.is_absolute() else Path.home() / ".cache") / "tandem"
