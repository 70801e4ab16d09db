"""What a versioned bucket still holds of deleted objects that may have had records of the keys, and its deletion."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tandem.backup_avro.errors import PermanentError
from tandem.backup_avro.json_fields import UNLESS_NONE
from tandem.sink.store import ObjectStore
from tandem.sink.store.contract.former_versions import FormerVersion, versions_of
from tandem.spark_jobs.erasure.erasure_plan import may_hold

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerCopies:
    """Former versions, in a versioned bucket, of deleted objects of the topic, and of all journals.

    Whether the keys are in them is not known: they are encrypted with a key that a chain named, or were never read.
    `deleted` of them are gone for good; `bytes` counts those that are left. `error` says why the rest could not be
    listed or deleted.
    """

    versions: int = 0
    bytes: int = 0
    deleted: int = 0
    error: str | None = field(default=None, metadata=UNLESS_NONE)


def find_former_copies(
    store: ObjectStore, pair: str, topic: str, *, needed: Collection[str], purge: bool
) -> FormerCopies:
    """List the former versions of objects that no chain names, and delete them if `purge` is set.

    `needed` are the objects that chains and checkpoints name: a former version of one may be the only copy left. Raises
    StoreTransientError; what the store refuses is told in the result.
    """
    versions = versions_of(store)
    if versions is None:
        return FormerCopies()
    left: list[FormerVersion] = []
    deleted, error = 0, None
    try:
        found = versions.list_former(f"{pair}/")
        left.extend(one for one in found if one.key not in needed and may_hold(one.key, topic))
        while purge and left:
            versions.delete_former(left[:_AT_ONCE])
            deleted += len(left[:_AT_ONCE])
            del left[:_AT_ONCE]
    except PermanentError as refused:
        error = str(refused.args[0])
    return FormerCopies(versions=len(left), bytes=sum(one.size for one in left), deleted=deleted, error=error)
