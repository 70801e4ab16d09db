"""A bucket is set back while nobody looks; what the machine remembers is the only evidence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair
from support.pairs.outcomes import UNCLEANED, write

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

LOSS = "was in the store when this machine read it"
# Command -> its exit code and text if the store was set back. Brokers are not asked: their topic knows it too.
# TOPIC is the guarded topic.
LOOKS = {
    ("status", "--s3-only"): (3, LOSS),
    ("check", "--s3-only"): (2, LOSS),
    ("list",): (3, LOSS),
    ("verify", "--master", "local[1]"): (3, "is not there, but is known to have been written"),
    ("restore", "--dry-run", "--suffix", ".restored"): (3, "TDM-V023"),
    ("drill", "--master", "local[1]"): (3, "TDM-V023"),
    ("history",): (0, LOSS),
    ("describe", "topic/TOPIC"): (0, LOSS),
    ("records", "TOPIC", "--key", "k"): (0, LOSS),
}
#: Those that start no Spark: the others take ten seconds each, and are run where they may see the most.
QUICK = [command for command in LOOKS if "--master" not in command]
# These write by what the store says, and refuse before Spark starts or a broker is asked.
WRITERS = {
    ("export", "TOPIC", "--format", "jsonl", "--to", "FOLDER"),
    ("rewind", "TOPIC", "--to", "1s ago"),
    ("restore", "vanished", "TOPIC"),
}


def test_every_look_notices_it(kafka: KafkaServer, make_topic: TopicMaker, tmp_path: Path) -> None:
    """Not after a handover, but after one was undone; an instance says it as well, until a person accepts it."""
    topic = make_topic(partitions=2, config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    folder, copy, machine = tmp_path / "store", tmp_path / "copy", tmp_path / "machine"
    for made in (folder, machine):
        made.mkdir()
    settings = {"root": folder.as_uri()}
    with Pair(machine, bootstrap=kafka.bootstrap, store=settings, topics=[topic], flush={"interval": "500ms"}) as pair:
        instances = [pair.start(name, first="a", state={"dir": "none"}) for name in ("a", "b")]
        pair.wait("generation 1 is complete", lambda: pair.complete(1))

        def run(command: tuple[str, ...]) -> CompletedProcess[str]:
            places = {"FOLDER": str(tmp_path / "export"), "TOPIC": topic, "topic/TOPIC": f"topic/{topic}"}
            return pair.tandem(*(places.get(word, word) for word in command))

        for command in QUICK:
            done = run(command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert LOSS not in done.stderr, command
        shutil.copytree(folder, copy)
        write(kafka.bootstrap, topic, 100)
        assert pair.tandem("failover", "--yes", "--wait").returncode == 0
        pair.wait("generation 1 is cleared", lambda: pair.history()[0].gone)
        for command in LOOKS:
            done = run(command)
            assert done.returncode == 0, ("after a handover", command, done.stdout, done.stderr)
        for instance in instances:
            assert instance.terminate() == 0
        shutil.rmtree(folder)
        copy.rename(folder)
        pair.forget()
        for command, (code, said) in LOOKS.items():
            done = run(command)
            assert done.returncode == code, (command, done.stdout, done.stderr)
            assert said in done.stdout + done.stderr, command
        for command in WRITERS:
            done = run(command)
            assert (done.returncode, "TDM-V023" in done.stderr) == (3, True), (command, done.stdout, done.stderr)
        assert not (tmp_path / "export").exists()
        # An instance, too, with the same file, and with nothing on the topic that says it.
        topic_of = {"coordination": {"topic": f"{pair.name}-anew"}}
        again = pair.start("a", first="a", **topic_of)
        pair.wait("it says so", lambda: again.said("the store was set back"))
        pair.settings["coordination"]["topic"] = f"{pair.name}-anew"
        told = "entries that are known to have been written are not in the store"
        pair.wait("its heartbeats say so", lambda: told in json.dumps(pair.status()["problems"]))
        pair.wait("it goes on nevertheless", lambda: again.role == "Active")
        assert again.terminate() == 0
        done = pair.tandem("status", "--s3-only", "--accept-heads", "-o", "json")
        assert json.loads(done.stdout)["problems"] == []
        last = pair.start("a", first="a")
        pair.wait("it goes on", lambda: last.role == "Active")
        assert not last.said("the store was set back")
        assert pair.tandem("check", "--s3-only").returncode == 2, "until a verify has settled what the last one found"
        for command in sorted(LOOKS, reverse=True):
            done = run(command)
            assert done.returncode == 0, ("accepted", command, done.stdout, done.stderr)
