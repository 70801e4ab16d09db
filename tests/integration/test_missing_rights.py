"""An instance that lacks one right says which, on what, and what to do; what only a person can mend ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import role_actions as rows
from instances import Instance, Pair
from role_actions import COORDINATION, GUARDED
from strict_servers import StrictBroker, StrictS3, start_broker

from controller.roles.kafka import Resource, acls
from controller.roles.role import Role
from controller.roles.s3 import place_of, policy

if TYPE_CHECKING:
    from tests.conftest import TopicMaker

pytestmark = pytest.mark.integration

STATEMENTS = ("List", "Get", "Put", "Delete")
RIGHTS = {
    "guarded-Read": (Resource.TOPIC, GUARDED, "Read"),
    "guarded-DescribeConfigs": (Resource.TOPIC, GUARDED, "DescribeConfigs"),
    "coordination-Read": (Resource.TOPIC, COORDINATION, "Read"),
    "coordination-Write": (Resource.TOPIC, COORDINATION, "Write"),
    "coordination-Create": (Resource.TOPIC, COORDINATION, "Create"),
    "coordination-DescribeConfigs": (Resource.TOPIC, COORDINATION, "DescribeConfigs"),
    "group": (Resource.GROUP, "tandem-coordination-", "Describe"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Strict servers, and for each lack what an instance's configuration has."""

    broker: StrictBroker
    s3: StrictS3
    kafka: Mapping[str, dict[str, Any]]
    folder: Path

    def start(self, lack: str, stack: ExitStack) -> tuple[Pair, Instance]:
        """Start an instance that lacks one right, of a pair with a root of its own."""
        folder = self.folder / lack
        folder.mkdir()
        store = self.s3.section(f"s3://{rows.BUCKET}/{lack}", self.s3.keys.get(lack, self.s3.keys["nothing"]))
        pair = Pair(
            folder,
            bootstrap=self.broker.server.bootstrap,
            store=store,
            topics=[GUARDED],
            kafka=self.kafka.get(lack, self.kafka["nothing"]),
            coordination={"topic": COORDINATION},
            groups={"enabled": False},
        )
        pair.name = pair.settings["pair"] = rows.PAIR
        stack.enter_context(pair)
        return pair, pair.start("a", first="a")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A key and a principal for each lack, and one that lacks nothing."""
    with ExitStack() as stack:
        broker = start_broker(stack, tmp_path_factory.mktemp)
        policies = {}
        for lack in ("nothing", *STATEMENTS, *RIGHTS):
            place = place_of(f"s3://{rows.BUCKET}/{lack}", pair=rows.PAIR, instances=("a", "b"))
            whole = policy(place, Role.WRITER, instance="a")
            policies[lack] = {**whole, "Statement": [one for one in whole["Statement"] if one["Sid"] != lack]}
        s3 = StrictS3(tmp_path_factory.mktemp("strict-s3"), policies)
        stack.callback(s3.stop)
        s3.start()
        wanted = acls(rows.scope_for(Role.WRITER), Role.WRITER)
        kafka = {"nothing": broker.admit("nothing", wanted)}
        for lack, (resource, name, operation) in RIGHTS.items():
            less = [
                replace(
                    one,
                    operations=tuple(
                        right
                        for right in one.operations
                        if (one.resource, one.name, right) != (resource, name, operation)
                    ),
                )
                for one in wanted
            ]
            kafka[lack] = broker.admit(lack, less)
        yield World(broker=broker, s3=s3, kafka=kafka, folder=tmp_path_factory.mktemp("missing"))


@pytest.mark.parametrize("lack", [*STATEMENTS, *RIGHTS])
def test_explore(lack, world):
    import time

    with ExitStack() as stack:
        if lack == "coordination-Create":
            pass
        pair, a = world.start(lack, stack)
        deadline = time.monotonic() + 14
        while a.alive and time.monotonic() < deadline:
            time.sleep(0.3)
        print("=====", lack, a.alive, a.process.poll())
        print("\n".join(l[:700] for l in a.text().splitlines() if '"info"' not in l))
