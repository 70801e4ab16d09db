"""How many random examples a property gets: more by an environment variable, for a campaign."""

from __future__ import annotations

import os

from hypothesis import settings

#: EXAMPLES=1000 has each of these properties look at so many examples, if that is more than it would.
_LEAST = int(os.environ.get("EXAMPLES", "0"))


def examples(count: int) -> settings:
    """Return the setting for `count` examples, or for EXAMPLES, if that is more."""
    return settings(max_examples=max(count, _LEAST))
