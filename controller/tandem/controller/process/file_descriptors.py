"""The limit of files and connections that the process may have open."""

from __future__ import annotations

import resource
from typing import Final

import structlog

from tandem.backup_avro.errors import ConfigError

_LOG = structlog.get_logger()

#: Descriptors that an instance with one broker uses in a handover, and a few more; docs/resources.md has the counts.
LEAST: Final = 96
#: Enough for a few brokers and browsers.
COMFORTABLE: Final = 256
_MOST: Final = 65_536


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it; log a warning if that is low.

    Soft limits are low for programs that use select(), which this one does not. Raises ConfigError if the limit is too
    low: clients that can't open a socket fail with errors that do not name the cause.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        raise ConfigError(
            f"{soft} files may be open, an instance takes {LEAST} at least",
            code="TDM-I039",
            remedy=f"raise the hard limit to {COMFORTABLE} or more (ulimit -Hn, LimitNOFILE=)",
        )
    if soft != resource.RLIM_INFINITY and soft < COMFORTABLE:
        _LOG.warning(
            "the limit of open files is low, connections may fail",
            limit=soft,
            remedy=f"raise the hard limit to {COMFORTABLE} or more (ulimit -Hn, LimitNOFILE=)",
        )
    return soft
