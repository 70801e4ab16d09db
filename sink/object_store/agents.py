"""What agents answer that give credentials over HTTP, such as those of pod identities: it is never repeated.

An answer may repeat the request, and the token in that is known to nobody but AWS's SDK, which took it from
AWS_CONTAINER_AUTHORIZATION_TOKEN or from the file that AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names, and which changes.
"""

from __future__ import annotations

import logging
import re
from typing import Final

_ANSWER: Final = re.compile(r"(?<=from container metadata): .*", re.DOTALL)
_LOGGER: Final = "botocore.credentials"


def without_answer(said: str) -> str:
    """Return what the SDK says in an error, without what an agent has answered."""
    return _ANSWER.sub("", said)


def keep_answers_out_of_logs() -> None:
    """Have the SDK log without a traceback that credentials could not be renewed. May be called again.

    Whoever uses the SDK calls this: it warns by itself, long before anybody gets an error.
    """
    logging.getLogger(_LOGGER).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0] is not None:
        record.msg = f"{record.msg} ({record.exc_info[0].__name__})"
    record.exc_info = record.exc_text = None
    return True
