"""The rights of each role on Kafka, as ACLs of its own authorizer (https://kafka.apache.org/documentation/#security_authz).

Kafka knows names and prefixes, no regular expressions: of a pattern the part before its first wildcard counts, so a
right may reach further than the pattern. Read, Write, Alter and Delete imply Describe, AlterConfigs DescribeConfigs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem.controller.coordination.topic import GROUP_PREFIX
from tandem.controller.roles.role import Role
from tandem.spark_jobs.restore.drill import SUFFIX as DRILL_SUFFIX
from tandem.spark_jobs.restore.lease.progress import GROUP as PROGRESS_GROUP
from tandem.spark_jobs.restore.lease.progress import TOPIC as PROGRESS
from tandem.spark_jobs.restore.plan.plan import TRANSACTIONAL_ID_PREFIX

_EVERYTHING: Final = "*"
_QUANTIFIERS: Final = "*+?{"
_SPECIAL: Final = re.compile(r"[.^$*+?{}\[\]()|]")


class Resource(StrEnum):
    """What an ACL is about. The values are the options of kafka-acls."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """Allows operations on the resource of this name, or on all whose names begin with it if `prefixed`.

    The name `*`, not prefixed, stands for all of its kind.
    """

    resource: Resource
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPolicy:
    """`tandem policy kafka`. `commands` are the ACLs as command lines of kafka-acls."""

    pair: str
    role: Role
    principal: str
    acls: Sequence[Acl]
    commands: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of topics or groups, and prefixes of names."""

    literal: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def acls(self, resource: Resource, *operations: str) -> Iterator[Acl]:
        """Yield an ACL for each."""
        for name in self.literal:
            yield Acl(resource=resource, name=name, operations=operations)
        for prefix in self.prefixes:
            if prefix:
                yield Acl(resource=resource, name=prefix, prefixed=True, operations=operations)
            else:
                yield Acl(resource=resource, name=_EVERYTHING, operations=operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the roles of a pair work with.

    `targets` are the topics that restores write; `groups` None: offsets of groups are not backed up.
    """

    guarded: Names
    coordination: str
    groups: Names | None
    targets: Names


def scope_of(
    *,
    topics: Sequence[str],
    expressions: Sequence[str],
    coordination: str,
    groups: Sequence[str] | None,
    targets: Sequence[str] = (),
) -> Scope:
    """Return the scope of a pair. `groups` are regular expressions, none for all groups, None if they are left out.

    A target is a name, or with a `*` at its end a prefix; without any, restores write topics of the guarded names. For
    drills targets are the topics that are drilled, by name.
    """
    guarded = Names(literal=tuple(topics), prefixes=_prefixes(expressions))
    named = Names(
        literal=tuple(name for name in targets if not name.endswith("*")),
        prefixes=tuple(name[:-1] for name in targets if name.endswith("*")),
    )
    return Scope(
        guarded=guarded,
        coordination=coordination,
        groups=None if groups is None else Names(prefixes=_prefixes(groups) if groups else ("",)),
        targets=named if targets else guarded,
    )


def _prefixes(expressions: Iterable[str]) -> tuple[str, ...]:
    found = sorted({literal_prefix(expression) for expression in expressions})
    return tuple(one for one in found if not any(one != other and one.startswith(other) for other in found))


def literal_prefix(expression: str) -> str:
    r"""Return what every name that matches the whole expression begins with, as far as that is plain: `orders\..*`."""
    if "|" in expression:
        return ""
    prefix: list[str] = []
    at = 0
    while at < len(expression):
        letter = expression[at]
        if letter == "\\":
            at += 1
            letter = expression[at : at + 1]
            if not letter or letter.isalnum():
                return "".join(prefix)
        elif _SPECIAL.match(letter):
            if letter in _QUANTIFIERS and prefix:
                prefix.pop()
            return "".join(prefix)
        prefix.append(letter)
        at += 1
    return "".join(prefix)


def acls(scope: Scope, role: Role) -> tuple[Acl, ...]:
    """Return what the principal of a role needs; nothing for roles that ask no broker."""
    return tuple(_merged(_OF_ROLE[role](scope))) if role in _OF_ROLE else ()


def _merged(found: Iterable[Acl]) -> Iterator[Acl]:
    """Yield one ACL for each resource."""
    operations: dict[tuple[Resource, str, bool], list[str]] = {}
    for acl in found:
        operations.setdefault((acl.resource, acl.name, acl.prefixed), []).extend(acl.operations)
    for (resource, name, prefixed), wanted in operations.items():
        yield Acl(resource=resource, name=name, prefixed=prefixed, operations=tuple(dict.fromkeys(wanted)))


def _topic(name: str, *operations: str) -> Acl:
    return Acl(resource=Resource.TOPIC, name=name, operations=operations)


def _listening(scope: Scope) -> Iterator[Acl]:
    """Yield what reading the coordination topic takes.

    The group is never joined. librdkafka looks for its coordinator all the same, and a broker that refuses logs that
    once a second.
    """
    yield _topic(scope.coordination, "Read")
    yield Acl(resource=Resource.GROUP, name=GROUP_PREFIX, prefixed=True, operations=("Describe",))


def _writer(scope: Scope) -> Iterator[Acl]:
    yield from scope.guarded.acls(Resource.TOPIC, "Read", "DescribeConfigs")
    yield from _listening(scope)
    yield _topic(scope.coordination, "Write", "Create", "DescribeConfigs")
    if scope.groups is not None:
        yield from scope.groups.acls(Resource.GROUP, "Describe")


def _catch_up(scope: Scope) -> Iterator[Acl]:
    yield from scope.guarded.acls(Resource.TOPIC, "Read")


def _verify(scope: Scope) -> Iterator[Acl]:
    yield from scope.guarded.acls(Resource.TOPIC, "Read")
    yield from _listening(scope)


def _viewer(scope: Scope) -> Iterator[Acl]:
    yield from scope.guarded.acls(Resource.TOPIC, "Describe")
    yield from _listening(scope)


def _operator(scope: Scope) -> Iterator[Acl]:
    yield from _viewer(scope)
    yield _topic(scope.coordination, "Write")


def _loading(targets: Names) -> Iterator[Acl]:
    yield from targets.acls(Resource.TOPIC, "Read", "Write", "Create", "DescribeConfigs", "AlterConfigs")
    yield _topic(PROGRESS, "Read", "Write", "Create", "DescribeConfigs")
    yield Acl(resource=Resource.GROUP, name=PROGRESS_GROUP, operations=("Describe",))
    yield Acl(resource=Resource.TRANSACTIONAL_ID, name=TRANSACTIONAL_ID_PREFIX, prefixed=True, operations=("Write",))


def _restore(scope: Scope) -> Iterator[Acl]:
    yield from _loading(scope.targets)


def _restore_groups(scope: Scope) -> Iterator[Acl]:
    yield from scope.targets.acls(Resource.TOPIC, "Read", "DescribeConfigs")
    if scope.groups is not None:
        yield from scope.groups.acls(Resource.GROUP, "Read", "Delete")


def _drill(scope: Scope) -> Iterator[Acl]:
    """Yield the rights on scratch topics.

    Their names end in what makes them scratch, so a prefix takes the whole name of a topic: one for a pattern's prefix
    would be the right to delete what the pattern guards.
    """
    scratch = Names(prefixes=tuple(f"{name}{DRILL_SUFFIX}" for name in scope.targets.literal))
    yield from _loading(scratch)
    yield from scratch.acls(Resource.TOPIC, "Delete")


_OF_ROLE: Final[Mapping[Role, Callable[[Scope], Iterator[Acl]]]] = {
    Role.WRITER: _writer,
    Role.CATCH_UP: _catch_up,
    Role.VERIFY: _verify,
    Role.RESTORE: _restore,
    Role.RESTORE_GROUPS: _restore_groups,
    Role.DRILL: _drill,
    Role.OPERATOR: _operator,
    Role.VIEWER: _viewer,
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
