"""What operators do by mistake, on a real broker and store: refused or survived, and said what happened.

The table in docs/quality/mistakes.md names the test of each. Some are elsewhere: an emptied bucket, a lost
coordination topic, a root of another cluster, two processes under one name.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, PairMaker, store_section
from support.pairs.outcomes import ERROR, REFUSED, UNCLEANED, assert_all_stored, assert_ends, write
from support.pairs.skewed import skewed

from tandem.backup_avro.errors import ExitCode
from tandem.controller.decision.decide import Reason
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server

pytestmark = pytest.mark.integration

DAY_S = 86_400
# Generation 2 is built, and stays incomplete until there is such a file.
HELD = """
import os
from tandem.controller.instance.execute import Executor
complete = Executor._complete
def held(self, number, **how):
    if number == 1 or os.path.exists({file!r}):
        complete(self, number, **how)
Executor._complete = held
"""


def problem(pair: Pair, fault: str) -> dict[str, Any] | None:
    """What `tandem status` says of one fault."""
    return next((one for one in pair.status()["problems"] if one["fault"] == fault), None)


def records_of(pair: Pair, number: int) -> int:
    """How many records a generation holds."""
    found = pair.generation(number)
    return 0 if found is None else sum(part.records for _, part in found.live_parts())


# --- one name for what is not one pair --------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_topics_under_the_same_name(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """One instance guards something else: all say so. A turn then ends nothing: each goes on with what it guards."""
    mine, theirs = make_topic(config=UNCLEANED), make_topic(config=UNCLEANED)
    write(kafka.bootstrap, mine, 20)
    write(kafka.bootstrap, theirs, 30)
    pair = new_pair([mine], groups={"enabled": False})
    a, b = pair.start("a"), pair.start("b", topics={"include": [theirs]})
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    for instance in (a, b):
        (line,) = pair.wait("it is told", lambda it=instance: it.said("the instances do not agree"))
        assert "guard different topics" in line["what"]
        assert "topics (`tandem config show`)" in line["remedy"]
    found = pair.wait("status says so", lambda: problem(pair, "instances disagree"))
    assert "guard different topics" in found["message"]
    said = pair.tandem("check")
    assert (said.returncode, "do not agree" in said.stdout) == (1, True), said.stdout

    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    write(kafka.bootstrap, mine, 20)
    write(kafka.bootstrap, theirs, 20)
    pair.wait("each goes on", lambda: (records_of(pair, 1), records_of(pair, 2)) == (40, 50))
    assert not pair.generation(1).sealed  # type: ignore[union-attr]  # it is there

    assert b.terminate() == 0
    b = pair.start("b")
    pair.wait("a says that it is over", lambda: a.said("the instances agree again"))
    pair.wait("the handover ends", lambda: pair.generation(1).sealed)  # type: ignore[union-attr]  # likewise
    assert_all_stored(pair, kafka.bootstrap, [mine])
    assert problem(pair, "instances disagree") is None


@pytest.mark.slow
def test_a_second_pair_of_the_same_name(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Another team takes name, root and cluster of a running pair: its processes wait, and say for whom."""
    mine, theirs = make_topic(config=UNCLEANED), make_topic(config=UNCLEANED)
    write(kafka.bootstrap, mine, 20)
    pair = new_pair([mine], groups={"enabled": False})
    a, _ = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    intruder = pair.start("a", topics={"include": [theirs]})
    (line,) = pair.wait("it says so", lambda: intruder.said("another process runs under this instance name"))
    assert "run one process per instance name" in line["remedy"]
    found = pair.wait("status says so", lambda: problem(pair, "two processes"))
    assert found["message"] == "two processes run under the name a"
    write(kafka.bootstrap, mine, 20)
    assert_all_stored(pair, kafka.bootstrap, [mine])
    assert (a.role, intruder.role) == ("Active", "Passive")
    assert [g.number for g in pair.history()] == [1]


@pytest.mark.slow
def test_one_root_for_two_clusters(
    kafka: KafkaServer, own_kafka: Callable[..., KafkaServer], make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """The same file with the brokers of another cluster: refused with both ids; status and check say it, too."""
    topic = make_topic(config=UNCLEANED)
    pair = new_pair([topic])
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    other = own_kafka()
    make_topic(topic, bootstrap=other.bootstrap)
    b = pair.start("b", kafka={"bootstrap.servers": other.bootstrap})
    assert_ends(b, REFUSED, str(kafka.cluster_id), str(other.cluster_id), "choose another `pair` or `store.root`")
    elsewhere = pair.tandem("status", "-o", "json", "--set", f"kafka.bootstrap.servers={other.bootstrap}")
    [wrong] = [one for one in json.loads(elsewhere.stdout)["problems"] if one["fault"] == "wrong cluster"]
    assert str(other.cluster_id) in wrong["message"]
    refused = pair.tandem("failover", "--yes", "--set", f"kafka.bootstrap.servers={other.bootstrap}")
    assert refused.returncode == REFUSED
    assert str(kafka.cluster_id) in refused.stderr
    assert [g.number for g in pair.history()] == [1]


@pytest.mark.slow
def test_a_process_that_was_paused_finds_another_in_its_place(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Started again while it was only stopped: the new one takes over, the old one halts when it wakes up."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic], groups={"enabled": False})
    first = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    first.process.send_signal(signal.SIGSTOP)
    second = pair.start("a")
    pair.wait("the new one takes over", lambda: second.said("took over"))
    pair.wait("it is Active", lambda: second.role == "Active")
    write(kafka.bootstrap, topic, 50)
    first.process.send_signal(signal.SIGCONT)
    assert_ends(first, REFUSED, "run one process per instance name")
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [g.number for g in pair.history()] == [1]


# --- two places -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_root_of_one_instance_is_another(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """A prefix changed in one file: both say where each stores, as status and check do, until it is put right."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic], groups={"enabled": False})
    a = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    elsewhere = f"{pair.root}-elsewhere"
    b = pair.start("b", store={"root": elsewhere})
    for instance in (a, b):
        (line,) = pair.wait("it is told", lambda it=instance: it.said("the instances do not agree"))
        assert f"a stores under {pair.root}" in line["what"] or f"b stores under {elsewhere}" in line["what"]
        assert elsewhere in line["what"]
        assert "compare store.root" in line["remedy"]
    found = pair.wait("status says so", lambda: problem(pair, "instances disagree"))
    assert f"a stores under {pair.root}, b under {elsewhere}" in found["message"]
    said = pair.tandem("check")
    assert (said.returncode, elsewhere in said.stdout) == (1, True), said.stdout

    assert b.terminate() == 0
    b = pair.start("b")
    pair.wait("a says that it is over", lambda: a.said("the instances agree again"))
    pair.wait("status is content", lambda: pair.status()["healthy"])
    write(kafka.bootstrap, topic, 50)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert not b.said("the instances do not agree")


@pytest.mark.slow
def test_the_root_of_both_instances_is_another(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """The pair begins anew there, and says that it was elsewhere; the old place is as it was, and is gone back to."""
    topic = make_topic(config=UNCLEANED)
    pair = new_pair([topic], groups={"enabled": False})
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    for number in range(1, 6):  # the chain is longer than the new one will soon be
        write(kafka.bootstrap, topic, 20)
        pair.wait("it is stored", lambda least=20 * number: records_of(pair, 1) == least)
    pair.wait("status is content", lambda: pair.status()["healthy"])
    assert (a.terminate(), b.terminate()) == (0, 0)
    store, was, elsewhere = pair.store, pair.root, f"{pair.root}-elsewhere"
    before = {info.key: store.get(info.key) for info in store.list("")}

    pair.move(elsewhere)
    a, b = pair.start("a"), pair.start("b")
    for instance in (a, b):
        (line,) = pair.wait("it is told", lambda it=instance: it.said("store.root was changed"))
        assert (line["published_under"], line["root"], line["generation"]) == (was, elsewhere, 1)
        assert "delete the coordination topic" in line["remedy"]
    pair.wait("a backup is there, too", lambda: pair.complete(1))
    found = pair.wait("status says so", lambda: problem(pair, "rolled back"))
    assert f"published by who stored under {was}, and is not under {elsewhere}: store.root was changed" in str(found)
    said = pair.tandem("check")
    assert (said.returncode, was in said.stdout, elsewhere in said.stdout) == (2, True, True), said.stdout
    troubled = pair.wait("they say so themselves", lambda: problem(pair, "instance troubled"))
    assert was in troubled["message"]
    assert pair.tandem("wait", "--for", "steady", "--timeout", "3s").returncode == ExitCode.TIMED_OUT
    assert (a.terminate(), b.terminate()) == (0, 0)
    assert {info.key: store.get(info.key) for info in store.list("")} == before

    pair.move(was)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    name = pair.settings["coordination"]["topic"]
    admin.delete_topics([name])[name].result(30)
    pair.wait("the coordination topic is gone", lambda: name not in admin.list_topics(timeout=30).topics)
    a, b = pair.start("a"), pair.start("b")
    write(kafka.bootstrap, topic, 20)
    pair.wait("it goes on", lambda: records_of(pair, 1) == 120)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert pair.tandem("wait", "--for", "complete", "--for", "steady", "--timeout", "40s").returncode == 0
    assert not a.said("an entry that was published") + b.said("an entry that was published")
    store.close()


@pytest.mark.slow
def test_one_root_on_two_servers(
    kafka: KafkaServer,
    s3: S3Server,
    own_s3: Callable[[], S3Server],
    make_topic: TopicMaker,
    new_pair: PairMaker,
) -> None:
    """An endpoint changed in one file, by which a bucket of the same name is found: told as two servers."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic], groups={"enabled": False}, liveness={"timeout": "5s"})
    other = own_s3()
    assert other.bucket == s3.bucket
    b = pair.start("b", store=store_section(pair.root, other))
    pair.wait("b builds a backup of its own", lambda: b.role == "Active")
    a = pair.start("a")
    pair.wait("generation 1 is complete here, too", lambda: pair.complete(1))
    for instance in (a, b):
        (line,) = pair.wait("it is told", lambda it=instance: it.said("the instances do not agree"))
        assert f"both store under {pair.root}, but on two servers" in line["what"]
    found = pair.wait("status says so", lambda: problem(pair, "instances disagree"))
    assert "but on two servers" in found["message"]


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [DAY_S, pytest.param(-DAY_S, marks=pytest.mark.slow)])
def test_a_clock_that_is_off_by_a_day(new_pair: PairMaker, ahead_s: int) -> None:
    """Refused by the store at the start: the message says that it is the clock. Nothing is claimed."""
    pair = new_pair(["any"])
    a = pair.start("a", prelude=skewed(ahead_s))
    assert_ends(a, ERROR, "RequestTimeTooSkewed", "set this host's clock (NTP)")
    assert pair.history() == []


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S])
def test_a_clock_that_steps_by_a_day(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path, ahead_s: int
) -> None:
    """While it runs: it says so and stores nothing; when the clock is right again it goes on. Nothing is tainted."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic], groups={"enabled": False}, rotation={"interval": "12h"})
    wrong = tmp_path / "wrong"
    a, b = pair.start("a", prelude=skewed(ahead_s, while_there=wrong)), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    wrong.touch()
    write(kafka.bootstrap, topic, 50)
    pair.wait("it says so", lambda: "RequestTimeTooSkewed" in a.text())
    pair.wait("status says so", lambda: "RequestTimeTooSkewed" in str(pair.status()["problems"]))
    wrong.unlink()
    assert_all_stored(pair, kafka.bootstrap, [topic])
    pair.wait("status is content", lambda: pair.status()["healthy"])
    assert all(abs(one["heardAgeSeconds"]) < 60 for one in pair.status()["instances"])
    pair.activate("b", 2)
    pair.wait("roles have changed", lambda: (a.role, b.role) == ("Passive", "Active"))
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [len(g.taints) for g in pair.history()] == [0, 0]
    stamps = [entry.at for entry in pair.entries(1)]
    assert stamps == sorted(stamps), "chains go by the store's clock"


# --- turns that are asked for twice -----------------------------------------------------------------------------------


def ask(pair: Pair, *words: str) -> tuple[int, str]:
    """Exit code of `tandem failover --yes`, and what it said."""
    done = pair.tandem("failover", "--yes", "--no-wait", *words)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_turn_is_asked_for_again_and_again(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path
) -> None:
    """Of both at once, and once more while it is under way: it is one turn; the rest is refused or has no effect."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic], groups={"enabled": False})
    asked = tmp_path / "asked"
    a, b = (pair.start(name, prelude=HELD.format(file=str(asked))) for name in "ab")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.wait("b is heard", lambda: b.said("decision", reason=Reason.STEADY.value))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda name: pair.tandem(name, "--yes", "--no-wait"), ("reinit", "failover")))
    # Who looked late enough has found the other one's build.
    assert sorted({done.returncode for done in answers}) in ([0], [0, REFUSED]), answers
    pair.wait("somebody builds it", lambda: pair.generation(2))
    code, said = ask(pair)
    assert code == REFUSED, said
    assert "generation 2 is already being built by" in said
    assert "wait for it: it is the handover" in said
    asked.touch()
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    builder = pair.generation(2).instance  # type: ignore[union-attr]
    pair.wait("generation 1 is cleared", lambda: pair.generation(1) is not None and pair.generation(1).gone)  # type: ignore[union-attr]
    assert next(one.role for one in (a, b) if one.name == builder) == "Active"
    write(kafka.bootstrap, topic, 50)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [g.number for g in pair.history() if g.complete] == [1, 2]


# --- restores ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
def test_a_restore_onto_the_source(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Without --suffix it would write into the topic itself: refused, and why; --append does it and says so first."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 50)
    pair = new_pair([topic], groups={"enabled": False})
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    refused = pair.tandem("restore", timeout_s=240.0)
    assert refused.returncode == REFUSED, refused.stderr
    assert f"topic {topic} on the target is the very topic that was backed up" in refused.stderr
    assert "--suffix .restored" in refused.stderr
    appended = pair.tandem("restore", "--append", "--dry-run", timeout_s=240.0)
    assert appended.returncode == 0, appended.stderr
    assert f"records are appended to {topic}, the very topic that was backed up" in appended.stdout + appended.stderr
    ends = pair.generation(1)
    assert ends is not None
    assert sum(position.offset for position in ends.positions.values()) == 50, "nothing was written"


# --- the coordination topic -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_brokers_that_create_topics_unasked(
    own_kafka: Callable[..., KafkaServer], make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """The coordination topic is deleted where brokers create what is asked for: both say so, and talk on."""
    server = own_kafka({"auto.create.topics.enable": "true", "num.partitions": "3"})
    topic = make_topic(config=UNCLEANED, bootstrap=server.bootstrap)
    write(server.bootstrap, topic, 100)
    pair = new_pair([topic], kafka=server, groups={"enabled": False})
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    coordination = pair.settings["coordination"]["topic"]
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics([coordination], operation_timeout=30)[coordination].result(60)
    for instance in (a, b):
        pair.wait("it is noticed", lambda it=instance: it.said("the coordination topic has begun again"))
        (line,) = pair.wait("it is told", lambda it=instance: it.said("the coordination topic is not compacted"))
        assert line["remedy"] == "set cleanup.policy=compact on it"
    pair.wait("both are heard where status listens", lambda: pair.status()["healthy"])
    assert ask(pair, "--to", "b")[0] == 0
    pair.wait("roles have changed", lambda: (a.role, b.role) == ("Passive", "Active"))
