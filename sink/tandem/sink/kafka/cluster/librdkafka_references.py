"""What confluent-kafka forgets to let go of: a reference to each topic id that `describe_topics` brings.

90 bytes for each topic of each look, for ever: an instance that guards 1,000 topics would grow by 800 MB a day. Nothing
else that a public API offers tells topic ids over the connection that is there anyway. See docs/decisions/0045.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import confluent_kafka

#: The newest release that was seen to do so. Whoever raises it looks first: test_left_behind_topics.py.
_SEEN_IN: Final = (2, 16, 1)


def _references(description: Any) -> int:  # noqa: ANN401 - confluent-kafka has no types for it
    held = description.topic_id
    return sys.getrefcount(held)


#: How many there are to an id that nobody but its description holds, and this module while it counts.
_OWN: Final = _references(SimpleNamespace(topic_id=object()))


@cache
def _forgets(version: str) -> bool:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) <= _SEEN_IN


def release_extra_reference(description: Any, *, version: str = str(confluent_kafka.__version__)) -> None:  # noqa: ANN401 - see above
    """Let go of the one reference too many to the topic id of a description that nobody else has seen yet.

    Does nothing if the count is any other than that of this fault, or the release is newer than those that were tried.
    """
    if _forgets(version) and description.topic_id is not None and _references(description) == _OWN + 1:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(description.topic_id))
