"""How many files and connections the process may have open."""

from __future__ import annotations

import resource
from typing import Final

import structlog

from tandem.backup_avro.errors import ConfigError

_LOG = structlog.get_logger()

#: What an instance of one broker takes in a handover, and a little more; docs/resources.md has what was counted.
LEAST: Final = 96
#: Enough for a few brokers and browsers.
COMFORTABLE: Final = 256
_MOST: Final = 65_536


def raise_limit() -> int:
    """Raise the soft limit of open files as far as the hard one allows, and return it; warn if that is little.

    Soft limits are low for programs that wait with select(), which nothing here does. Raises ConfigError if it is too
    little: clients that can't open a socket fail in ways that name anything but the cause.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise ConfigError(
            f"{soft} files may be open, an instance takes {LEAST} at least",
            remedy=f"raise the hard limit to {COMFORTABLE} or more (ulimit -Hn, LimitNOFILE=)",
        )
    if soft != resource.RLIM_INFINITY and soft < COMFORTABLE:
        _LOG.warning(
            "few files may be open, connections may fail for want of them",
            limit=soft,
            remedy=f"raise the hard limit to {COMFORTABLE} or more (ulimit -Hn, LimitNOFILE=)",
        )
    return soft
