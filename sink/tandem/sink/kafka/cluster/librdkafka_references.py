"""Works around a leak in confluent-kafka: it never releases one reference to each topic id of `describe_topics`.

90 bytes leak for each topic of each call: an instance that guards 1,000 topics would grow by 800 MB a day. No other
public API returns topic ids over the connection that exists anyway. See docs/decisions/0045.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import confluent_kafka

#: The newest release known to have the leak. Before raising this, check a new release: test_left_behind_topics.py.
_SEEN_IN: Final = (2, 16, 1)


def _references(description: Any) -> int:  # noqa: ANN401 - confluent-kafka has no types for it
    held = description.topic_id
    return sys.getrefcount(held)


#: The reference count of an id that only its description holds, and this module while it counts.
_OWN: Final = _references(SimpleNamespace(topic_id=object()))


@cache
def _forgets(version: str) -> bool:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) <= _SEEN_IN


def release_extra_reference(description: Any, *, version: str = str(confluent_kafka.__version__)) -> None:  # noqa: ANN401 - see above
    """Release the one leaked reference to the topic id of a description that no other code has seen yet.

    Does nothing if the reference count differs from that of this fault, or the release is newer than the ones tested.
    """
    if _forgets(version) and description.topic_id is not None and _references(description) == _OWN + 1:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(description.topic_id))
