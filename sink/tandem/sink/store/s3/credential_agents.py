"""What those answer that give credentials, agents over HTTP and commands of profiles: it is never repeated.

An agent's answer may repeat the request, and the token in that is known to nobody but AWS's SDK, which took it from
AWS_CONTAINER_AUTHORIZATION_TOKEN or from the file that AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names, and which changes.
A command may complain of what it was given, or has been given.
"""

from __future__ import annotations

import logging
import re
from typing import Final

_ANSWER: Final = re.compile(r"(from (?:container metadata|custom-process)): .*", re.DOTALL)
_LOGGER: Final = "botocore.credentials"


def without_answer(said: str) -> str:
    """Return what the SDK says in an error, without what an agent or a command has answered."""
    return _ANSWER.sub(r"\1", said)


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
