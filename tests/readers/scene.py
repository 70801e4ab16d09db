"""Two clusters, a store and a pair: the source is backed up with a handover, and restored into the target."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic
from support.pairs.instances import QUICK, Ends, Pair, store_section

from readers.applications import Application
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key

_BUCKET: Final = "readers"
_PATIENCE_S: Final = 120.0
#: No group has an offset on the topics of a restore.
_NO_GROUPS: Final = "TDM-R016"
#: Compacted topics without settings of their own are cleaned between the parts, so that their offsets have gaps.
_CLEANED: Final = {
    "log.roll.ms": "2000",
    "log.cleaner.max.compaction.lag.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


class BackupFailedError(Exception):
    """The backup or the restore itself failed, so that no application can judge."""


class Scene:
    """Starts all servers; `stack` ends them."""

    def __init__(self, folder: Path, stack: ExitStack, say: Callable[[str], None]) -> None:
        self._say = say
        self._compacted: dict[str, bool] = {}
        self.source = KafkaServer(folder / "source", overrides=_CLEANED)
        self.target = KafkaServer(folder / "target")
        store = S3Server(
            folder / "s3", bucket=_BUCKET, key=S3Key(access_key="readers", secret_key=secrets.token_urlsafe(24))
        )
        for server in (self.source, self.target, store):
            stack.callback(server.stop)
            server.start()
        (folder / "pair").mkdir()
        self._pair = stack.enter_context(
            Pair(
                folder / "pair",
                bootstrap=self.source.bootstrap,
                store=store_section(f"s3://{_BUCKET}/backup", store),
                topics={"patterns": [".*"]},
                **QUICK,
            )
        )

    def create_topics(self, applications: Iterable[Application]) -> None:
        """Create the topics that applications expect."""
        topics = [topic for item in applications for topic in item.topics]
        admin = AdminClient({"bootstrap.servers": self.source.bootstrap})
        news = [
            NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=1, config=dict(topic.config))
            for topic in topics
        ]
        for made in admin.create_topics(news, operation_timeout=30).values():
            made.result(timeout=30)

    def start_backup(self) -> None:
        """Start both instances, and wait for the first generation."""
        self._pair.start("a")
        self._pair.wait("generation 1 is complete", lambda: self._pair.complete(1))
        self._pair.start("b")

    def hand_over(self) -> None:
        """Let the other instance take its turn, and wait until its generation is complete."""
        self._pair.activate("b", 2)
        self._pair.wait("generation 2 is complete", lambda: self._pair.complete(2), timeout_s=_PATIENCE_S)
        self._say("handed over: generation 2 is complete")

    def end_backup(self, applications: Iterable[Application]) -> None:
        """Wait until the backup has all records and all positions of groups, then stop both instances."""
        ends = self._ends()
        groups = {group: self._committed(group, ends) for item in applications for group in item.groups}

        def covered() -> bool:
            newest = self._pair.covered(ends)
            if newest is None:
                return False
            known = {
                group: {(newest.topics[key.topic_id].name, key.partition): item.offset for key, item in offsets.items()}
                for group, offsets in newest.groups.items()
            }
            return all(
                known.get(group, {}).get(place) == at for group, told in groups.items() for place, at in told.items()
            )

        self._pair.wait("all records and groups are in the backup", covered, timeout_s=_PATIENCE_S)
        for instance in self._pair.instances:
            instance.terminate()
        topics = {topic for topic, _ in ends}
        self._compacted = self._which_are_compacted(topics)
        offsets = f"{len(topics)} topics, {len(ends)} partitions with {sum(ends.values())} offsets"
        self._say(f"backed up: {offsets}, {len(groups)} groups")

    def restore(self, options: Sequence[str]) -> None:
        """Restore everything into the target, and set the groups there. Raises BackupFailedError.

        Exact offsets are for compacted topics: the others are restored by a second command, with default options.
        """
        if "exact" not in options:
            self._restore(options)
            return
        named = {True: list[str](), False: list[str]()}
        for topic, compacted in self._compacted.items():
            named[compacted].append(topic)
        self._restore([*options, "--topics", ",".join(named[True])])
        if named[False]:
            self._restore(["--topics", ",".join(named[False])])

    def _restore(self, options: Sequence[str]) -> None:
        target = ("--target-bootstrap-servers", self.target.bootstrap, "-o", "json")
        found = json.loads(self._command("restore", *target, *options))
        self._command("restore", "groups", "--execute", "--restore", found["id"], *target, unless=_NO_GROUPS)
        self._say(f"restored: {found['records']} records of {len(found['topics'])} topics")

    def _command(self, *words: str, unless: str | None = None) -> str:
        """Return what a command prints; it may fail with the error `unless`."""
        done = self._pair.tandem(*words, timeout_s=300)
        if done.returncode != 0 and (unless is None or unless not in done.stderr):
            raise BackupFailedError(f"tandem {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def _ends(self) -> Ends:
        consumer = Consumer({"bootstrap.servers": self.source.bootstrap, "group.id": "ends"})
        try:
            found = consumer.list_topics(timeout=30).topics
            coordination = self._pair.settings["coordination"]["topic"]
            return {
                (name, number): consumer.get_watermark_offsets(TopicPartition(name, number), timeout=30)[1]
                for name, topic in found.items()
                if not name.startswith("__") and name != coordination
                for number in topic.partitions
            }
        finally:
            consumer.close()

    def _which_are_compacted(self, topics: Iterable[str]) -> dict[str, bool]:
        admin = AdminClient({"bootstrap.servers": self.source.bootstrap})
        asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)])
        return {
            resource.name: "compact" in str(answer.result(timeout=30)["cleanup.policy"].value)
            for resource, answer in asked.items()
        }

    def _committed(self, group: str, places: Ends) -> dict[tuple[str, int], int]:
        consumer = Consumer({"bootstrap.servers": self.source.bootstrap, "group.id": group})
        try:
            asked = [TopicPartition(topic, number) for topic, number in places]
            return {
                (item.topic, item.partition): item.offset
                for item in consumer.committed(asked, timeout=30)
                if item.offset >= 0
            }
        finally:
            consumer.close()
