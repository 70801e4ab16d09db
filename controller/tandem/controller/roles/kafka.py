"""The rights of each role on Kafka, as ACLs of its own authorizer (https://kafka.apache.org/documentation/#security_authz).

Kafka ACLs have literal names and prefixes, no regular expressions: a pattern becomes the prefix before its first
wildcard, so a right may reach further than the pattern. Read, Write, Alter and Delete imply Describe, AlterConfigs
implies DescribeConfigs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem.controller.coordination.topic import GROUP_PREFIX
from tandem.controller.roles.role import CredentialRole
from tandem.spark_jobs.restore.drill import SUFFIX as DRILL_SUFFIX
from tandem.spark_jobs.restore.plan.plan import TRANSACTIONAL_ID_PREFIX
from tandem.spark_jobs.restore.progress.task_progress import GROUP as PROGRESS_GROUP
from tandem.spark_jobs.restore.progress.task_progress import TOPIC as PROGRESS

_EVERYTHING: Final = "*"
_QUANTIFIERS: Final = "*+?{"
_SPECIAL: Final = re.compile(r"[.^$*+?{}\[\]()|]")


class AclResource(StrEnum):
    """What an ACL is about. The values are the options of kafka-acls."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """Allows operations on the resource of this name, or on all whose names begin with it if `prefixed`.

    The name `*`, not prefixed, stands for all of its kind.
    """

    resource: AclResource
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPolicy:
    """`tandem policy kafka`. `commands` are the ACLs as command lines of kafka-acls."""

    pair: str
    role: CredentialRole
    principal: str
    acls: Sequence[Acl]
    commands: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSet:
    """Names of topics or groups, and prefixes of names."""

    literal: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def acls(self, resource: AclResource, *operations: str) -> Iterator[Acl]:
        """Yield an ACL for each name and prefix."""
        for name in self.literal:
            yield Acl(resource=resource, name=name, operations=operations)
        for prefix in self.prefixes:
            if prefix:
                yield Acl(resource=resource, name=prefix, prefixed=True, operations=operations)
            else:
                yield Acl(resource=resource, name=_EVERYTHING, operations=operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScope:
    """The topics and groups that the roles of a pair use.

    `targets` are the topics that restores write; `groups` None: offsets of groups are not backed up.
    """

    guarded: NameSet
    coordination: str
    groups: NameSet | None
    targets: NameSet


def scope_of(
    *,
    topics: Sequence[str],
    expressions: Sequence[str],
    coordination: str,
    groups: Sequence[str] | None,
    targets: Sequence[str] = (),
) -> PairScope:
    """Return the scope of a pair. `groups` are regular expressions, none for all groups, None if they are left out.

    A target is a name, or with a `*` at its end a prefix; without targets, restores write topics of the guarded names.
    For drills the targets are the names of the topics to drill.
    """
    guarded = NameSet(literal=tuple(topics), prefixes=_prefixes(expressions))
    named = NameSet(
        literal=tuple(name for name in targets if not name.endswith("*")),
        prefixes=tuple(name[:-1] for name in targets if name.endswith("*")),
    )
    return PairScope(
        guarded=guarded,
        coordination=coordination,
        groups=None if groups is None else NameSet(prefixes=_prefixes(groups) if groups else ("",)),
        targets=named if targets else guarded,
    )


def _prefixes(expressions: Iterable[str]) -> tuple[str, ...]:
    found = sorted({literal_prefix(expression) for expression in expressions})
    return tuple(one for one in found if not any(one != other and one.startswith(other) for other in found))


def literal_prefix(expression: str) -> str:
    r"""Return the literal prefix of all names that match the whole expression, such as `orders.` for `orders\..*`."""
    if "|" in expression:
        return ""
    prefix: list[str] = []
    at = 0
    while at < len(expression):
        topic_record = expression[at]
        if topic_record == "\\":
            at += 1
            topic_record = expression[at : at + 1]
            if not topic_record or topic_record.isalnum():
                return "".join(prefix)
        elif _SPECIAL.match(topic_record):
            if topic_record in _QUANTIFIERS and prefix:
                prefix.pop()
            return "".join(prefix)
        prefix.append(topic_record)
        at += 1
    return "".join(prefix)


def acls(scope: PairScope, role: CredentialRole) -> tuple[Acl, ...]:
    """Return the ACLs that the principal of a role needs; none for roles that use no broker."""
    return tuple(_merged(_OF_ROLE[role](scope))) if role in _OF_ROLE else ()


def _merged(found: Iterable[Acl]) -> Iterator[Acl]:
    """Yield one ACL for each resource."""
    operations: dict[tuple[AclResource, str, bool], list[str]] = {}
    for acl in found:
        operations.setdefault((acl.resource, acl.name, acl.prefixed), []).extend(acl.operations)
    for (resource, name, prefixed), wanted in operations.items():
        yield Acl(resource=resource, name=name, prefixed=prefixed, operations=tuple(dict.fromkeys(wanted)))


def _topic(name: str, *operations: str) -> Acl:
    return Acl(resource=AclResource.TOPIC, name=name, operations=operations)


def _listening(scope: PairScope) -> Iterator[Acl]:
    """Yield the ACLs for reading the coordination topic.

    The group is never joined. librdkafka looks up its coordinator all the same, and a broker that refuses this logs
    the refusal once a second.
    """
    yield _topic(scope.coordination, "Read")
    yield Acl(resource=AclResource.GROUP, name=GROUP_PREFIX, prefixed=True, operations=("Describe",))


def _writer(scope: PairScope) -> Iterator[Acl]:
    yield from scope.guarded.acls(AclResource.TOPIC, "Read", "DescribeConfigs")
    yield from _listening(scope)
    yield _topic(scope.coordination, "Write", "Create", "DescribeConfigs")
    if scope.groups is not None:
        yield from scope.groups.acls(AclResource.GROUP, "Describe")


def _catch_up(scope: PairScope) -> Iterator[Acl]:
    yield from scope.guarded.acls(AclResource.TOPIC, "Read")


def _verify(scope: PairScope) -> Iterator[Acl]:
    yield from scope.guarded.acls(AclResource.TOPIC, "Read")
    yield from _listening(scope)


def _viewer(scope: PairScope) -> Iterator[Acl]:
    yield from scope.guarded.acls(AclResource.TOPIC, "Describe")
    yield from _listening(scope)


def _operator(scope: PairScope) -> Iterator[Acl]:
    yield from _viewer(scope)
    yield _topic(scope.coordination, "Write")


def _loading(targets: NameSet) -> Iterator[Acl]:
    """Yield the rights on topics that are loaded. Fillers below the first record are removed with DeleteRecords.

    Kafka has no right for that alone: Delete includes the topic. A principal with Write and AlterConfigs can destroy
    the topic's records anyway.
    """
    yield from targets.acls(AclResource.TOPIC, "Read", "Write", "Create", "Delete", "DescribeConfigs", "AlterConfigs")
    yield _topic(PROGRESS, "Read", "Write", "Create", "DescribeConfigs")
    yield Acl(resource=AclResource.GROUP, name=PROGRESS_GROUP, operations=("Describe",))
    yield Acl(resource=AclResource.TRANSACTIONAL_ID, name=TRANSACTIONAL_ID_PREFIX, prefixed=True, operations=("Write",))


def _restore(scope: PairScope) -> Iterator[Acl]:
    yield from _loading(scope.targets)


def _restore_groups(scope: PairScope) -> Iterator[Acl]:
    yield from scope.targets.acls(AclResource.TOPIC, "Read", "DescribeConfigs")
    if scope.groups is not None:
        yield from scope.groups.acls(AclResource.GROUP, "Read", "Delete")


def _drill(scope: PairScope) -> Iterator[Acl]:
    """Yield the rights on scratch topics.

    A scratch topic's name is marked by a suffix to its topic's name, so each prefix holds a whole topic name: the
    prefix of a pattern would include the right to delete the topics that the pattern guards.
    """
    scratch = NameSet(prefixes=tuple(f"{name}{DRILL_SUFFIX}" for name in scope.targets.literal))
    yield from _loading(scratch)


_OF_ROLE: Final[Mapping[CredentialRole, Callable[[PairScope], Iterator[Acl]]]] = {
    CredentialRole.WRITER: _writer,
    CredentialRole.CATCH_UP: _catch_up,
    CredentialRole.VERIFY: _verify,
    CredentialRole.RESTORE: _restore,
    CredentialRole.RESTORE_GROUPS: _restore_groups,
    CredentialRole.DRILL: _drill,
    CredentialRole.OPERATOR: _operator,
    CredentialRole.VIEWER: _viewer,
}


def command_lines(wanted: Iterable[Acl], *, principal: str, bootstrap: str) -> Iterator[str]:
    """Yield one line of kafka-acls for each ACL."""
    for acl in wanted:
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        for operation in acl.operations:
            words += ["--operation", operation]
        words += [f"--{acl.resource.value}", acl.name]
        if acl.prefixed:
            words += ["--resource-pattern-type", "prefixed"]
        yield shlex.join(words)
