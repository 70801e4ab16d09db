"""An instance that lacks one right says which, on what, and what to do; what only a person can mend ends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from support.clusters.strict_servers import StrictBroker, StrictS3, bindings, start_broker
from support.pages import role_actions as rows
from support.pages.role_actions import COORDINATION, GUARDED
from support.pairs.instances import Instance, Pair

from tandem.controller.roles.kafka import Acl, AclResource, acls
from tandem.controller.roles.role import CredentialRole
from tandem.controller.roles.s3 import place_of, policy

pytestmark = pytest.mark.integration

ABSENT = "not-there-yet"
#: What the policy lacks -> what the instance ends with.
ON_THE_STORE = {
    "List": "allow s3:ListBucket on the bucket for that prefix",
    "Get": "allow s3:GetObject on that key",
    "Put": "allow s3:PutObject on that key",
    "Delete": "allow s3:DeleteObject on that key",
}
#: What the ACLs lack -> the coordination topic, what the log says, whether it ends the instance.
ON_KAFKA = {
    "guarded Read": (COORDINATION, f"not allowed to read topic {GUARDED}: it takes READ and DESCRIBE", False),
    "guarded DescribeConfigs": (COORDINATION, f"grant the principal DescribeConfigs on topic {GUARDED}", False),
    "coordination Read": (COORDINATION, f"grant the principal Read on the coordination topic {COORDINATION}", False),
    "coordination Write": (COORDINATION, f"grant the principal Write on the coordination topic {COORDINATION}", False),
    "coordination DescribeConfigs": (
        COORDINATION,
        f"grant the principal DescribeConfigs on topic {COORDINATION}",
        True,
    ),
    "coordination Create": (ABSENT, f"cannot create the coordination topic {ABSENT}", True),
}
NEEDLESS = "group Describe"
BESIDE = "beside"
ON_ONE = "Describe on one topic"


def without(wanted: Iterable[Acl], lack: str) -> Iterator[Acl]:
    """Yield the ACLs less one operation; what only it implied, Describe, stays."""
    what, operation = lack.split()
    names = {"guarded": {GUARDED}, "coordination": {COORDINATION, ABSENT}, "group": {"tandem-coordination-"}}[what]
    for acl in wanted:
        if acl.name in names and operation in acl.operations:
            left = tuple(one for one in acl.operations if one != operation)
            yield replace(acl, operations=(*left, "Describe") if acl.resource is AclResource.TOPIC else left)
        else:
            yield acl


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Strict servers, and for each lack what an instance's configuration has."""

    broker: StrictBroker
    s3: StrictS3
    kafka: Mapping[str, dict[str, Any]]
    folder: Path

    def start(
        self, stack: ExitStack, lack: str, *, coordination: str = COORDINATION, topics: tuple[str, ...] = (GUARDED,)
    ) -> tuple[Pair, Instance]:
        """Start an instance that lacks one right, of a pair with a root of its own."""
        name = lack.replace(" ", "-")
        folder = self.folder / name
        folder.mkdir()
        key = self.s3.keys[name]
        pair = Pair(
            folder,
            bootstrap=self.broker.server.bootstrap,
            store=self.s3.section(f"s3://{rows.BUCKET}/{name}", key),
            topics=list(topics),
            kafka=self.kafka.get(lack, self.kafka["nothing"]),
            coordination={"topic": coordination},
            groups={"enabled": False},
        )
        pair.name = pair.settings["pair"] = rows.PAIR
        stack.enter_context(pair)
        return pair, pair.start("a", first="a")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A key for each lack, and a principal."""
    with ExitStack() as stack:
        broker = start_broker(stack, tmp_path_factory.mktemp)
        topics = [
            NewTopic(GUARDED, 1, 1),
            NewTopic(BESIDE, 1, 1),
            NewTopic(COORDINATION, 1, 1, config={"cleanup.policy": "compact"}),
        ]
        for future in broker.admin.create_topics(topics, operation_timeout=30).values():
            future.result(30)
        policies = {}
        for lack in (*ON_THE_STORE, *ON_KAFKA, NEEDLESS, ON_ONE):
            name = lack.replace(" ", "-")
            place = place_of(f"s3://{rows.BUCKET}/{name}", pair=rows.PAIR, instances=("a", "b"))
            whole = policy(place, CredentialRole.WRITER, instance="a")
            policies[name] = {**whole, "Statement": [one for one in whole["Statement"] if one["Sid"] != lack]}
        s3 = StrictS3(tmp_path_factory.mktemp("strict-s3"), policies)
        stack.callback(s3.stop)
        s3.start()
        kafka = {"nothing": broker.admit("nothing", acls(rows.scope_for(CredentialRole.WRITER), CredentialRole.WRITER))}
        for lack in (*ON_KAFKA, NEEDLESS):
            topic = ON_KAFKA[lack][0] if lack in ON_KAFKA else COORDINATION
            wanted = acls(rows.scope_for(CredentialRole.WRITER, coordination=topic), CredentialRole.WRITER)
            kafka[lack] = broker.admit(lack.replace(" ", "-"), without(wanted, lack))
        kafka[ON_ONE] = broker.admit(
            ON_ONE.replace(" ", "-"), acls(rows.scope_for(CredentialRole.WRITER), CredentialRole.WRITER)
        )
        yield World(broker=broker, s3=s3, kafka=kafka, folder=tmp_path_factory.mktemp("missing"))


@pytest.mark.parametrize("lack", ON_THE_STORE)
def test_a_right_on_the_store_that_is_missing_ends_the_start(lack: str, world: World) -> None:
    """With 1, before anything is claimed: the probe does what an instance will do."""
    with ExitStack() as stack:
        _, a = world.start(stack, lack)
        assert a.end(150.0) == 1, a.last_words()  # a busy machine takes its time to start
        assert ON_THE_STORE[lack] in a.text(), a.last_words()
        assert "`tandem policy s3`" in a.text()


@pytest.mark.parametrize("lack", ON_KAFKA)
def test_a_right_on_kafka_that_is_missing_is_named(lack: str, world: World) -> None:
    """In the log, with what to grant; and it ends the process where nothing would be of use without."""
    coordination, said, ends = ON_KAFKA[lack]
    with ExitStack() as stack:
        pair, a = world.start(stack, lack, coordination=coordination)
        if ends:
            assert a.end(150.0) == 1, a.last_words()  # a busy machine takes its time to start
            assert said in a.text(), a.last_words()
        else:
            pair.wait(f"it says {said!r}", lambda: said in a.text())
            assert a.alive


def test_a_right_that_is_missing_on_one_topic_holds_up_no_other(world: World) -> None:
    """The other topic is read through and committed; with the right the generation becomes COMPLETE by itself."""
    with ExitStack() as stack:
        pair, a = world.start(stack, ON_ONE, topics=(GUARDED, BESIDE))

        def read() -> bool:
            found = pair.generation(1)
            return found is not None and any(found.read_through(key) for key in found.positions)

        pair.wait("the other topic is read through", read)
        pair.wait("the right is named", lambda: f"grant the principal Describe on topic {BESIDE}" in a.text())
        assert pair.complete(1) is None
        assert a.alive
        wanted = Acl(resource=AclResource.TOPIC, name=BESIDE, operations=("Read", "DescribeConfigs"))
        for future in world.broker.admin.create_acls([*bindings(wanted, ON_ONE.replace(" ", "-"))]).values():
            future.result(30)
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        assert a.terminate() == 0


def test_a_group_that_nobody_joins_needs_no_right(world: World) -> None:
    """All is as with the right, and nothing is said of it."""
    with ExitStack() as stack:
        pair, a = world.start(stack, NEEDLESS)
        pair.wait("generation 1 is complete", lambda: pair.complete(1))

        def all_is_known() -> bool:
            seen = pair.tandem("status")
            return "nothing is known" not in seen.stdout + seen.stderr

        pair.wait("status knows all", all_is_known)
        assert a.terminate() == 0
        assert not a.said("trouble reading the coordination topic")
        assert "uthorization" not in a.text(), a.text()
