"""Why a generation keeps partitions whose records the log, or the cluster, has lost: reasons, as CLEARING records them.

A reason is a sentence for people. Its beginning, numbers and likely cause are read back from it (`loss_of`), so that
views have them as fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation

CUT_OFF_KEPT: Final = "the log was truncated; the records that were cut off are kept"
"""Why a partition stays for good: once a generation is SEALED, only CLEARING records this, with this reason."""
TOPIC_GONE_KEPT: Final = "the cluster no longer has it, or it is no longer guarded; its last backup is kept"
NOT_PROVEN_KEPT: Final = (
    "the cluster no longer has it, or it is no longer guarded, and no record shows that a newer generation has read "
    "the same log; its records are kept"
)
"""Why a partition stays until it is released, or its topic is guarded again. Only CLEARING records this."""
_VANISHED: Final = "keys vanished: "
_LOG_START: Final = "the log start moved to "
_CAUSE: Final = "; likely cause: "
_FOUND: Final = re.compile(_VANISHED + r"(\d{1,18}), which generation (\d{1,18}) lacks")
_MOVED: Final = re.compile(_LOG_START + r"(\d{1,18}) ")


class LossCause(StrEnum):
    """What probably took the records, for scripts; part of the public interface."""

    POLICY_CHANGED = "policy changed"
    """A policy that deletes was in force for a while, or still is."""
    LOG_START_MOVED = "log start moved"
    """It moved though no copy has seen a policy that deletes: in between, or as segments or disks were lost."""
    LEADER_CHANGED = "leader changed"
    """Neither of these, but the partition had another leader, or its leader was started again."""
    LOG_CUT = "log cut"
    """The log ended below what had been read: an unclean election, or lost files."""
    TOPIC_GONE = "topic gone"
    """The topic was deleted, created anew, or is not guarded any more."""
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLoss:
    """A partition that stays for records that were lost. `keys`, if they were counted, are not in `missing_in`."""

    key: PartitionKey
    cause: LossCause
    reason: str
    keys: int | None = None
    missing_in: int | None = None


def vanished_reason(count: int, newer: int, offsets: Iterable[int], *, cause: LossCause = LossCause.NOT_KNOWN) -> str:
    """Return the reason for which a partition stays that ends with keys which generation `newer` should have."""
    some = ", ".join(map(str, offsets))
    return (
        f"{_VANISHED}{count}, which generation {newer} lacks though no tombstone deleted them; their last records are "
        f"kept, at offsets {some}{'' if count <= some.count(',') + 1 else ', ...'}{_CAUSE}{cause.value}"
    )


def log_start_reason(log_start: int) -> str:
    """Return the reason for which a partition stays that holds records below the log start of all that cover it."""
    return f"{_LOG_START}{log_start} though the policy is compact alone; the records below are kept"


def loss_of(key: PartitionKey, reason: str) -> KeptLoss | None:
    """Return what a reason tells; None if it is not about lost records."""
    found = _FOUND.match(reason)
    if found is not None:
        _, said, cause = reason.rpartition(_CAUSE)
        known = LossCause(cause) if said and cause in set(LossCause) else LossCause.NOT_KNOWN
        return KeptLoss(key=key, cause=known, reason=reason, keys=int(found[1]), missing_in=int(found[2]))
    if _MOVED.match(reason) is not None:
        return KeptLoss(key=key, cause=LossCause.LOG_START_MOVED, reason=reason)
    gone = LossCause.TOPIC_GONE
    causes = {CUT_OFF_KEPT: LossCause.LOG_CUT, TOPIC_GONE_KEPT: gone, NOT_PROVEN_KEPT: gone}
    return KeptLoss(key=key, cause=causes[reason], reason=reason) if reason in causes else None


def is_of_keys(reason: str) -> bool:
    """Whether a reason tells that a log lost keys that nobody deleted."""
    return reason.startswith((_VANISHED, _LOG_START))


def kept_losses(state: Generation) -> list[KeptLoss]:
    """Return the partitions that CLEARING or CLEARED keeps because records were lost, in order."""
    outcome = state.clearing or state.cleared
    stays = {} if outcome is None else outcome.stays
    found = (loss_of(key, reason) for key, reason in sorted(stays.items()))
    return [loss for loss in found if loss is not None]


def keeps_lost_keys(state: Generation, key: PartitionKey) -> bool:
    """Whether `state` keeps a partition because the log lost keys, so that no record below a log start has expired.

    Not so where the policy has always deleted: what lies below the log start has expired, whatever else was lost.
    """
    outcome = state.clearing or state.cleared
    kept = outcome is not None and is_of_keys(outcome.stays.get(key, ""))
    return kept and state.compacted_since(key) is not None


def vanished_keys(state: Generation) -> dict[PartitionKey, int]:
    """Return the partitions that `state` keeps because the log lost keys, with the numbers of keys."""
    return {loss.key: loss.keys for loss in kept_losses(state) if loss.keys is not None}


def found_lost(state: Generation, key: PartitionKey, *, guarded: bool) -> str | None:
    """Return why CLEARED kept records that the log has lost, as only brokers or the records could tell; None if not.

    NOT_PROVEN_KEPT counts only while the partition is not `guarded`; once it is, brokers can be asked.
    """
    why = "" if state.cleared is None else state.cleared.stays.get(key, "")
    lost = why == CUT_OFF_KEPT or why.startswith(_VANISHED) or (why == NOT_PROVEN_KEPT and not guarded)
    return why if lost else None
