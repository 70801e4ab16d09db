"""Keeps the answers of credential sources (agents over HTTP, commands of profiles) out of messages and logs.

An agent's answer may repeat the request with its token, which only AWS's SDK knows: it took the token from
AWS_CONTAINER_AUTHORIZATION_TOKEN or from the file that AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names, which changes.
A command's complaint may quote its input.
"""

from __future__ import annotations

import logging
import re
from typing import Final

_ANSWER: Final = re.compile(r"(from (?:container metadata|custom-process)): .*", re.DOTALL)
_LOGGER: Final = "botocore.credentials"


def without_answer(said: str) -> str:
    """Return the SDK's error text without the answer of an agent or a command."""
    return _ANSWER.sub(r"\1", said)


def keep_answers_out_of_logs() -> None:
    """Make the SDK log failed renewals of credentials without a traceback. Idempotent.

    Every user of the SDK calls this: the SDK logs the warning by itself, long before a request fails.
    """
    logging.getLogger(_LOGGER).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[0] is not None:
        record.msg = f"{record.msg} ({record.exc_info[0].__name__})"
    record.exc_info = record.exc_text = None
    return True
