"""What each role may do and what not, as it was meant: the rows of docs/roles.md.

The integration test tries each of them on real servers, a unit test holds them against the policies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.controller.roles.kafka import Acl, AclResource, PairScope, scope_of
from tandem.controller.roles.role import CredentialRole

PAGE: Final = Path(__file__).parents[3] / "docs" / "roles.md"
PAIR, PREFIX, BUCKET = "orders", "prod", "backups"
ROOT: Final = f"s3://{BUCKET}/{PREFIX}"
COORDINATION: Final = "_compacted_log_backup_coordination"
GUARDED, MATCHED, EXPRESSION = "customers", "orders.eu", r"orders\..*"
TARGET, SCRATCH, OTHER, GROUP = f"{GUARDED}.restored", f"{GUARDED}.drill-00c0ffee", "secrets", "billing"
PROGRESS: Final = "_tandem_restore_progress"
#: One credential for each role, two for the writers.
CREDENTIALS: Final[Mapping[str, tuple[CredentialRole, str | None]]] = {
    f"{role}-{name}" if name else str(role): (role, name)
    for role in CredentialRole
    for name in (("a", "b") if role is CredentialRole.WRITER else (None,))
}
_SETTING: Final = "ROLES_PAGE"


def _roles(*names: str) -> frozenset[str]:
    unknown = {*names} - CREDENTIALS.keys()
    assert not unknown, unknown
    return frozenset(names)


NOBODY: Final = _roles()
EVERYBODY: Final = frozenset(CREDENTIALS)
WRITERS: Final = _roles("writer-a", "writer-b")
READS_DATA: Final = _roles("janitor", "verify", "reader", "restore", "restore-groups", "drill")
PINS: Final = WRITERS | READS_DATA - _roles("restore-groups")
# SeaweedFS lets whoever may put an object end uploads of it.
_CATCH_UP: Final = _roles("catch-up")
KEEPS_RESULTS: Final = _roles("janitor", "verify", "drill")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Action:
    """One row. `key` is a whole key, of `ListBucket` a prefix; None: the bucket itself.

    `besides` are those whom no policy allows it, and SeaweedFS does.
    """

    name: str
    action: str
    key: str | None
    allowed: frozenset[str]
    besides: frozenset[str] = frozenset()


def _s3(
    name: str, action: str, key: str | None, allowed: frozenset[str], *, besides: frozenset[str] = frozenset()
) -> S3Action:
    return S3Action(name=name, action=action, key=key, allowed=allowed, besides=besides)


_P: Final = f"{PREFIX}/{PAIR}"
_A, _B = f"{_P}/a/generation=00000001/topics/t", f"{_P}/b/generation=00000002/topics/t"
_ENTRY: Final = f"{_P}/generations/00000001/00000000000000000001.json"
_PIN: Final = f"{_P}/pins/reader-0123456789abcdef.json"
_KEEPER: Final = f"{_P}/pins/checkpoint-0123456789abcdef-00000002.json"
S3_ACTIONS: Final[Sequence[S3Action]] = (
    _s3("read a chain entry", "GetObject", _ENTRY, EVERYBODY),
    _s3("read data of a", "GetObject", _A, READS_DATA | WRITERS),
    _s3("read data of b", "GetObject", _B, READS_DATA | WRITERS),
    _s3("read what a restore left", "GetObject", f"{_P}/restores/1/report", _roles("restore", "restore-groups")),
    _s3("read another pair's chain", "GetObject", f"{PREFIX}/other/generations/00000001.json", NOBODY),
    _s3("read beside the root", "GetObject", "elsewhere/object", NOBODY),
    _s3("list the chains", "ListBucket", f"{_P}/generations/", EVERYBODY),
    _s3("list data of a", "ListBucket", f"{_P}/a/", READS_DATA | {"writer-a", "writer-b", "catch-up"}),
    _s3("list data of b", "ListBucket", f"{_P}/b/", READS_DATA | {"writer-a", "writer-b", "catch-up"}),
    _s3("list another pair", "ListBucket", f"{PREFIX}/other/", NOBODY),
    _s3("list the root", "ListBucket", f"{PREFIX}/", NOBODY),
    _s3("list the bucket", "ListBucket", "", NOBODY),
    _s3("append to a chain", "PutObject", _ENTRY, WRITERS | {"janitor"}),
    _s3("store data of a", "PutObject", _A, _roles("writer-a", "catch-up", "janitor")),
    _s3("store data of b", "PutObject", _B, _roles("writer-b", "catch-up", "janitor")),
    _s3("put a pin", "PutObject", _PIN, PINS),
    _s3("put a checkpoint's pin", "PutObject", _KEEPER, WRITERS),
    _s3("ask for a checkpoint", "PutObject", f"{_P}/checkpoints/c.json", _roles("operator")),
    _s3("complete a checkpoint", "PutObject", f"{_P}/checkpoints/outcomes/o.json", WRITERS | {"operator"}),
    _s3("release a topic", "PutObject", f"{_P}/releases/00000001.json", _roles("operator")),
    _s3("pause", "PutObject", f"{_P}/pauses/00000001.json", _roles("operator")),
    _s3("keep a result", "PutObject", f"{_P}/results/verify-1.json", KEEPS_RESULTS),
    _s3("keep what a restore did", "PutObject", f"{_P}/restores/1/report", _roles("restore", "restore-groups")),
    _s3(
        "note what a restore creates",
        "PutObject",
        f"{_P}/restores/targets/1.json",
        _roles("restore", "restore-groups", "operator"),
    ),
    _s3("put beside the folders", "PutObject", f"{_P}/stray", NOBODY),
    _s3("put into another pair", "PutObject", f"{PREFIX}/other/generations/00000002.json", NOBODY),
    _s3("delete a claim", "DeleteObject", f"{_P}/generations/00000001.json", NOBODY),
    _s3("delete a chain entry", "DeleteObject", _ENTRY, NOBODY),
    _s3("delete data of a", "DeleteObject", _A, _roles("writer-a", "janitor")),
    _s3("delete data of b", "DeleteObject", _B, _roles("writer-b", "janitor")),
    _s3("delete a pin", "DeleteObject", _PIN, PINS),
    _s3("delete a checkpoint's pin", "DeleteObject", _KEEPER, WRITERS | {"operator"}),
    _s3("delete a checkpoint", "DeleteObject", f"{_P}/checkpoints/c.json", WRITERS | {"operator"}),
    _s3("delete a result", "DeleteObject", f"{_P}/results/verify-1.json", KEEPS_RESULTS),
    _s3("delete what a restore left", "DeleteObject", f"{_P}/restores/1/report", _roles("restore-groups")),
    _s3(
        "delete a note of what a restore created",
        "DeleteObject",
        f"{_P}/restores/targets/1.json",
        _roles("restore-groups", "operator"),
    ),
    _s3("delete a release", "DeleteObject", f"{_P}/releases/00000001.json", NOBODY),
    _s3("delete a pause", "DeleteObject", f"{_P}/pauses/00000001.json", NOBODY),
    _s3("delete from another pair", "DeleteObject", f"{PREFIX}/other/a/generation=00000001/topics/t", NOBODY),
    _s3("list unfinished uploads", "ListBucketMultipartUploads", None, WRITERS | {"janitor"}),
    _s3("end an upload of a", "AbortMultipartUpload", _A, _roles("writer-a", "janitor"), besides=_CATCH_UP),
    _s3("end an upload of b", "AbortMultipartUpload", _B, _roles("writer-b", "janitor"), besides=_CATCH_UP),
    _s3("ask whether there are versions", "GetBucketVersioning", None, WRITERS),
    _s3("list versions", "ListBucketVersions", f"{_P}/generations/", NOBODY),
    _s3("switch versions on or off", "PutBucketVersioning", None, NOBODY),
    _s3("ask for the lifecycle", "GetLifecycleConfiguration", None, WRITERS | {"operator", "viewer"}),
    _s3("change the lifecycle", "PutLifecycleConfiguration", None, NOBODY),
    _s3("change the bucket's policy", "PutBucketPolicy", None, NOBODY),
    _s3("change an object's owner or readers", "PutObjectAcl", _ENTRY, NOBODY),
    _s3("delete the bucket", "DeleteBucket", None, NOBODY),
    _s3("make a bucket", "CreateBucket", None, NOBODY),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAction:
    """One row. `needs`: resource, name and operation of the rights it takes; None stands for the cluster."""

    name: str
    needs: Sequence[tuple[AclResource | None, str, str]]
    allowed: frozenset[str]


def _topic(name: str, operation: str, topic: str, allowed: frozenset[str]) -> KafkaAction:
    return KafkaAction(name=name, needs=((AclResource.TOPIC, topic, operation),), allowed=allowed)


def _other(name: str, allowed: frozenset[str], *needs: tuple[AclResource | None, str, str]) -> KafkaAction:
    return KafkaAction(name=name, needs=needs, allowed=allowed)


LISTENERS: Final = WRITERS | {"verify", "operator", "viewer"}
KAFKA_ACTIONS: Final[Sequence[KafkaAction]] = (
    _topic("see a guarded topic", "Describe", GUARDED, WRITERS | {"catch-up", "verify", "operator", "viewer"}),
    _topic("read a guarded topic", "Read", GUARDED, WRITERS | {"catch-up", "verify"}),
    _topic("read one that a pattern guards", "Read", MATCHED, WRITERS | {"catch-up", "verify"}),
    _topic("write to a guarded topic", "Write", GUARDED, NOBODY),
    _topic("read a guarded topic's config", "DescribeConfigs", GUARDED, WRITERS),
    _topic("change a guarded topic's config", "AlterConfigs", GUARDED, NOBODY),
    _topic("add partitions to a guarded topic", "Alter", GUARDED, NOBODY),
    _topic("delete records of a guarded topic", "Delete", GUARDED, NOBODY),
    _topic("delete a guarded topic", "Delete", GUARDED, NOBODY),
    _topic("read the coordination topic", "Read", COORDINATION, LISTENERS),
    _topic("write to the coordination topic", "Write", COORDINATION, WRITERS | {"operator"}),
    _topic("create the coordination topic", "Create", COORDINATION, WRITERS),
    _topic("change the coordination topic's config", "AlterConfigs", COORDINATION, NOBODY),
    _topic("delete the coordination topic", "Delete", COORDINATION, NOBODY),
    _topic("create a restore's target", "Create", TARGET, _roles("restore")),
    _topic("write to a restore's target", "Write", TARGET, _roles("restore")),
    _topic("read a restore's target", "Read", TARGET, _roles("restore", "restore-groups")),
    _topic("change a restore's target's config", "AlterConfigs", TARGET, _roles("restore")),
    _topic("delete records of a restore's target", "Delete", TARGET, _roles("restore")),
    _topic("delete a restore's target", "Delete", TARGET, _roles("restore")),
    _topic("create a drill's scratch topic", "Create", SCRATCH, _roles("drill")),
    _topic("write to a drill's scratch topic", "Write", SCRATCH, _roles("drill")),
    _topic("delete a drill's scratch topic", "Delete", SCRATCH, _roles("drill")),
    _topic("write the progress of restores", "Write", PROGRESS, _roles("restore", "drill")),
    _topic("delete the progress of restores", "Delete", PROGRESS, NOBODY),
    _topic("see another topic", "Describe", OTHER, NOBODY),
    _topic("read another topic", "Read", OTHER, NOBODY),
    _topic("write to another topic", "Write", OTHER, NOBODY),
    _topic("create another topic", "Create", f"{OTHER}-too", NOBODY),
    _other("read a group's offsets", WRITERS | {"restore-groups"}, (AclResource.GROUP, GROUP, "Describe")),
    _other(
        "change a group's offsets",
        _roles("restore-groups"),
        (AclResource.GROUP, GROUP, "Read"),
        (AclResource.TOPIC, TARGET, "Read"),
    ),
    _other("delete a group", _roles("restore-groups"), (AclResource.GROUP, GROUP, "Delete")),
    _other(
        "open a restore's transactional id",
        _roles("restore", "drill"),
        (AclResource.TRANSACTIONAL_ID, "tandem-restore-1", "Write"),
    ),
    _other("open another transactional id", NOBODY, (AclResource.TRANSACTIONAL_ID, "payments", "Write")),
    _other("read a broker's config", NOBODY, (None, "", "DescribeConfigs")),
    _other("add an ACL", NOBODY, (None, "", "Alter")),
    _other("change a broker's config", NOBODY, (None, "", "AlterConfigs")),
)
_IMPLIED: Final = {"Describe": {"Read", "Write", "Delete", "Alter"}, "DescribeConfigs": {"AlterConfigs"}}


def scope_for(role: CredentialRole, *, coordination: str = COORDINATION) -> PairScope:
    """Return what a role of the example works with."""
    return scope_of(
        topics=[GUARDED],
        expressions=[EXPRESSION],
        coordination=coordination,
        groups=(),
        targets=[TARGET] if role in {CredentialRole.RESTORE, CredentialRole.RESTORE_GROUPS} else (),
    )


def granted(acls: Sequence[Acl], needs: Sequence[tuple[AclResource | None, str, str]]) -> bool:
    """Whether ACLs grant all that is needed, as Kafka's authorizer reads them."""

    def one(resource: AclResource | None, name: str, operation: str) -> bool:
        enough = {operation} | _IMPLIED.get(operation, set())
        return any(
            acl.resource is resource
            and (name.startswith(acl.name) if acl.prefixed else acl.name in {name, "*"})
            and enough & {*acl.operations}
            for acl in acls
        )

    return all(one(*need) for need in needs)


def s3_table(found: Sequence[frozenset[str]]) -> str:
    """Return who could do what, row by row of `S3_ACTIONS`, as the page has it."""
    return _table((row.name, who, row.besides) for row, who in zip(S3_ACTIONS, found, strict=True))


def kafka_table(found: Sequence[frozenset[str]]) -> str:
    """Return who could do what, row by row of `KAFKA_ACTIONS`, as the page has it."""
    return _table((row.name, who, NOBODY) for row, who in zip(KAFKA_ACTIONS, found, strict=True))


def _table(found: Iterable[tuple[str, frozenset[str], frozenset[str]]]) -> str:
    lines = [f"| | {' | '.join(CREDENTIALS)} |", f"|---|{':-:|' * len(CREDENTIALS)}"]
    for name, who, besides in found:
        cells = ("no" if one not in who else "(yes)" if one in besides else "yes" for one in CREDENTIALS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def on_page(which: str) -> str:
    """Return a table as it stands on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"<!-- begin {which} -->\n\n")[2].partition(f"\n\n<!-- end {which} -->")[0]


def keep(which: str, made: str) -> None:
    """Write a table into the page if that was asked for: `make roles`."""
    if os.environ.get(_SETTING):
        text = PAGE.read_text(encoding="utf-8")
        before, begin, rest = text.partition(f"<!-- begin {which} -->\n\n")
        _, end, after = rest.partition(f"\n\n<!-- end {which} -->")
        PAGE.write_text(before + begin + made + end + after, encoding="utf-8")
