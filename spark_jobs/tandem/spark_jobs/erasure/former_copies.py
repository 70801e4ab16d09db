"""What a versioned bucket still holds of deleted objects that may have had records of the keys, and its deletion."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tandem.backup_avro.errors import PermanentError
from tandem.backup_avro.json_fields import UNLESS_NONE
from tandem.sink.store import ObjectStore
from tandem.sink.store.contract.former_versions import FormerVersion, FormerVersions, versions_of
from tandem.spark_jobs.erasure.erasure_plan import may_hold


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
    try:
        found = versions.list_former(f"{pair}/")
        listed = [one for one in found if one.key not in needed and may_hold(one.key, topic)]
    except PermanentError as refused:
        return FormerCopies(error=str(refused.args[0]))
    left, error = _purge(versions, listed) if purge else (listed, None)
    return FormerCopies(
        versions=len(left), bytes=sum(one.size for one in left), deleted=len(listed) - len(left), error=error
    )


def _purge(versions: FormerVersions, listed: Iterable[FormerVersion]) -> tuple[list[FormerVersion], str | None]:
    """Delete what can be deleted; return what stays, as under an Object Lock, and the first error."""
    left: list[FormerVersion] = []
    error = None
    for one in listed:
        # Without its marker, a version that stays would be the present object again.
        if one.marker and left and left[-1].key == one.key:
            left.append(one)
            continue
        try:
            versions.delete_former(one)
        except PermanentError as refused:
            error = error or str(refused.args[0])
            left.append(one)
    return left, error
