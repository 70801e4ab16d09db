"""The status page in every state that a pair can be in: what it says, that it is sound HTML, that it trusts nobody."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import replace
from pathlib import PurePath

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.backups.requests import job_outcome
from support.pages.html_check import Page, checked
from support.pairs.sights import LIVENESS_S, listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.outcome import JobKind
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.decision.restore_points import PointKind
from tandem.controller.history.turns import turn_of
from tandem.controller.http.page.content import ROWS, Content, Freshness, content
from tandem.controller.http.page.render import _marked, page, policy, report
from tandem.controller.http.page.trends import Figures, Trends
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import overview
from tandem.controller.status.pair_view import PairView
from tandem.sink.process import safe_text
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.pins import Pin

ORDERS = TopicSpec("orders", partitions=2, config={"cleanup.policy": "compact", "delete.retention.ms": "86400000"})
UNKNOWN = "\u2013"
NASTY = "<script>alert(1)</script>\"'&amp;<!--"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock_ms=1_790_000_000_000)


def built(
    store: MemoryStore, number: int = 1, instance: str = "a", *, topics: tuple[TopicSpec, ...] = (ORDERS,)
) -> Backup:
    """A generation that is COMPLETE: half of its first topic's records from the first reading."""
    backup = Backup.claim(store, topics=topics, number=number, instance=instance)
    backup.commit(records(topics[0].name, 0, range(20)), base_end={(topics[0].name, 0): 10})
    backup.complete()
    return backup


def heard(chains: MemoryStore, a: str = "Active", b: str | None = "Passive", **details: str) -> PeerState:
    """Both instances, or one, a second ago; `details` are a's."""
    at = now_ms(chains)
    said = [message(instance="a", at=at - 1000, state=a, generation=1, lag_records=3, details=details)]
    if b is not None:
        said.append(message(instance="b", at=at - 1000, state=b, details={"reason": "nothing to do"}))
    return listening(*said)


def shown(seen: PairView, **more: object) -> Content:
    """The content as an instance puts it together."""
    turns = [turn_of(generation) for generation in seen.generations if generation.seq]
    freshness = more.pop("freshness", ())
    fields: dict[str, object] = {"me": "a", "turns": turns, "ran": dict.fromkeys(JobKind), **more}
    found = content(overview(seen), **fields)  # type: ignore[arg-type]  # names of its arguments
    return replace(found, freshness=freshness)  # type: ignore[arg-type]  # as above


def drawn(seen: PairView, **more: object) -> Page:
    return checked(page(shown(seen, **more)))


def test_starting() -> None:
    """Before the store was read there is a page, which says so."""
    told = checked(page(Content(pair="shop", me="a", found=None)))
    assert "a is starting" in told.text
    assert told.texts("h1") == ["shop"]


def test_steady(store: MemoryStore) -> None:
    """Active and Passive, what a restore would use, figures, positions, checks with their commands."""
    built(store)
    seen = sight(
        store,
        listener=heard(store, reason="nothing to do", phase="reading"),
        topics=[ORDERS],
        ends={("orders", 0): 25, ("orders", 1): 0},
    )
    told = drawn(seen, freshness=[Freshness(what="Chains", age_s=2.0)])
    assert told.texts("h2")[0] == "✓ All is well"
    assert "A restore would use generation 1 of a" in told.text
    assert told.texts("h3")[:2] == ["a Active shows this page", "b Passive"]
    assert "appends every new record" in told.text
    assert "stands by for its turn" in told.text
    assert "5 offsets in the logs, and not restorable yet" in told.text
    assert re.search(r"Tombstone margin 19h 1[12]m least of all partitions: orders-[01]", told.text)
    rows = {row[0]: row for row in told.rows()}
    assert rows["orders-0"][1:4] == ["20", "5", "0"]
    assert rows["1"][1:4] == ["a", "COMPLETE", "2 of 2"]
    assert rows["1"][6] == "2.0", "twenty records are kept, the first reading found ten"
    assert told.texts("code")[-3:] == [
        "tandem verify",
        "tandem drill",
        "tandem retention --execute",
    ]
    assert "verify never run" in told.text
    assert "Chains: 2s old" in told.text
    assert "Active for" in told.text, "the turns are told in words too"


def test_commands_are_those_of_who_reads_them(store: MemoryStore) -> None:
    """Where TANDEM_CONFIG names the file they need none; else they have the one that was named, and only ours do."""
    built(store).taint("orders", 0, 20, reason="read too late")
    seen = sight(
        store, listener=heard(store, held="orders-1"), topics=[ORDERS], ends={("orders", 0): 25, ("orders", 1): (3, 9)}
    )
    told = drawn(seen, config=PurePath("/etc/my tandem.yaml"))
    commands = told.texts("code")
    assert "tandem failover --reason tainted -c '/etc/my tandem.yaml'" in commands
    assert "tandem verify -c '/etc/my tandem.yaml'" in commands
    others = [command for command in commands if command.startswith("kafka-transactions")]
    assert others
    assert not [command for command in others if "tandem.yaml" in command]


def test_catch_up(store: MemoryStore) -> None:
    """How far the first reading is, for the eye and in words."""
    built(store)
    Backup.begun(store, records("orders", 0, range(5)), topics=[ORDERS], number=2, instance="b")
    at = now_ms(store)
    b = message(
        instance="b", at=at, state="Catch-up", generation=2, details={"phase": "scanning", "base_remaining": "12345"}
    )
    told = drawn(
        sight(
            store,
            listener=listening(message(instance="a", at=at, state="Active"), b),
            topics=[ORDERS, TopicSpec("new")],
        )
    )
    assert "b Catch-up" in told.texts("h3")
    assert "reads every topic from its start; 12,345 offsets of the first reading to go" in told.text
    bar = next(element for element in told.all("progress"))
    assert (bar.attributes["max"], bar.attributes["value"]) == ("3", "2")
    assert "COMPLETE: " in told.text
    assert "Of generation 1, worst first" in told.text, "what takes records now is what counts"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ((), "75 %, its pace is not known yet"),
        ((10, 10), "75 %, its pace is not known yet"),
        ((25, 15, 5), "75 %, about 30s left"),
    ],
)
def test_the_bar_of_a_first_reading(store: MemoryStore, left: tuple[int, ...], told: str) -> None:
    """The share that is stored, and by the pace of its last samples the time left; only beside who reads."""
    built(store)
    builder = Backup.claim(store, topics=[ORDERS], number=2, instance="b")
    builder.commit(records("orders", 0, range(15)), base_end={("orders", 0): 40})
    at = now_ms(store)
    trends = Trends()
    for number, to_read in enumerate(left):
        trends.add(Figures(at_mono=60.0 * number, lag=None, stored=0, to_read={("b", 2): to_read}))
    details = {"phase": "scanning", "base_remaining": "10"}
    a = message(instance="a", at=at, state="Active", generation=1)
    b = message(instance="b", at=at, state="Catch-up", generation=2, details=details)
    page_ = drawn(sight(store, listener=listening(a, b), topics=[ORDERS]), trends=trends)
    [bar] = [one for one in page_.all("progress") if "first reading" in (one.attributes["aria-label"] or "")]
    assert (bar.attributes["max"], bar.attributes["value"]) == ("100", "75")
    assert f"First reading {told}" in page_.text
    assert [told in card for card in page_.texts("article")] == [False, True]


def test_restore_points(store: MemoryStore) -> None:
    """Each with the command to copy, or why there is none; of many a dozen."""
    built(store).seal()
    built(store, 2, "b")
    found = shown(sight(store, listener=heard(store), topics=[ORDERS]), config=PurePath("/etc/my tandem.yaml"))
    newest, *others = found.points
    assert newest.end is not None
    lost = replace(newest, kind=PointKind.CHECKPOINT, name="april", command=None, why_not="its objects are gone")
    told = checked(page(replace(found, points=(newest, lost, *others))))
    rows = list(told.rows())
    begin = rows.index(["Restore point", "From", "To", "Kept until", "Command"])
    assert [(row[0], row[4]) for row in rows[begin + 1 : begin + 5]] == [
        ("newest", "tandem restore -c '/etc/my tandem.yaml'"),
        ("checkpoint april", "none: its objects are gone"),
        ("generation 2", "tandem restore --at MOMENT -c '/etc/my tandem.yaml'"),
        ("generation 1", "tandem restore --at MOMENT -c '/etc/my tandem.yaml'"),
    ]
    assert rows[begin + 1][1:4] == ["", f"{newest.end:%Y-%m-%d %H:%M:%S}Z", ""]
    assert rows[begin + 3][3].startswith("the turn due 20")
    assert set(told.texts("code")) >= {row[4] for row in rows[begin + 1 : begin + 5]}
    many = checked(page(replace(found, points=(newest,) * 15)))
    assert sum(row[0] == "newest" for row in many.rows()) == 12
    assert "and 3 more: tandem list has all" in many.text


def test_nothing_is_complete_yet(store: MemoryStore) -> None:
    """A first build: no restore, no window, and the partitions of what is built."""
    Backup.begun(store, records("orders", 0, range(5)), topics=[ORDERS])
    told = drawn(sight(store, listener=heard(store, "Catch-up"), topics=[ORDERS]))
    assert told.texts("h2")[0] == "▲ 1 problem"
    assert "A restore is not possible." in told.text
    assert "Restorable nothing not yet" in told.text
    assert "Of generation 1, worst first" in told.text


def test_an_empty_store(store: MemoryStore) -> None:
    """Nothing at all: problems, and no empty tables or pictures."""
    told = drawn(sight(store, heard_s={"a": 1, "b": 1}, topics=[ORDERS]))
    assert "nothing is stored yet" in told.text
    assert not told.all("table")
    assert not told.all("svg")


def test_tainted(store: MemoryStore) -> None:
    """What is tainted from where, why, and the command; the partition comes first; the time line has a word for it."""
    backup = built(store)
    backup.commit(records("orders", 1, range(9)))
    backup.taint("orders", 1, 4, reason="read 90000 s after it was last at head")
    told = drawn(sight(store, listener=heard(store), topics=[ORDERS]))
    where = "orders-1 from offset 4: read 90000 s after it was last at head. What came before stays restorable"
    assert told.texts("strong") == [f"generation 1 is tainted, and no newer one is complete: {where}"]
    assert "tandem failover --reason tainted" in told.texts("code")
    assert next(row for row in told.rows() if row[0].startswith("orders"))[0] == "orders-1 tainted (problem 1)"
    assert "This asks for it now" in told.text
    Backup.claim(store, topics=[ORDERS], number=2, instance="b")
    again = drawn(sight(store, listener=heard(store), topics=[ORDERS]))
    assert "If generation 2 never becomes complete, this asks for another" in again.text
    assert "tandem failover --force --reason tainted" in again.texts("code")
    assert "1 tainted" in [text.strip() for text in told.texts("text")]
    assert "Restorable" in told.text
    assert " tainted up to " in told.text


def test_each_problem_is_said_once(store: MemoryStore) -> None:
    """A taint, an open transaction, a deleted topic and a dead peer: each in the list of problems, with its command.

    Elsewhere are marks. Nothing is lost by that: offsets, reasons, counts and commands are on the page.
    """
    gone, customers = TopicSpec("gone", partitions=2), TopicSpec("customers", partitions=3)
    old = built(store, topics=(ORDERS, gone, customers))
    backup = built(store, 2, topics=(ORDERS, customers))
    old.seal()
    stays = {old.key("gone", n): "the cluster no longer has it; its last backup is kept" for n in range(2)}
    old.append(EntryKind.CLEARED, clearing=old.clearing(stays))
    backup.taint("orders", 0, 20, reason="the log start moved to 71717")
    backup.taint("orders", 1, 4, reason="the log start moved to 76767")
    at = now_ms(store)
    held = (
        "customers-2: an open transaction holds back what comes from offset 17 on, since 04:37; it can't be backed up"
    )
    details = {"held": "customers-2", "trouble": held, "reason": "the generation is tainted"}
    a = message(instance="a", at=at, state="Active", generation=2, details=details)
    b = message(instance="b", at=at - (LIVENESS_S + 60) * 1000, state="Passive")
    ends = {("customers", 2): (17, 102)}
    seen = sight(store, listener=listening(a, b), topics=[ORDERS, customers], ends=ends, missing=["gone", "never-made"])
    found = shown(seen, config=PurePath("a.yaml"))
    told = checked(page(found))
    assert found.found is not None
    assert told.texts("h2")[0] == "▲ 4 problems"
    assert "and no newer one is complete" in told.text
    once = (
        *(one.message for one in found.found.problems if one.fault is not Fault.TAINTED),
        *(one.remedy.replace("`", "") for one in found.found.problems),
        *("is tainted, and", "from offset 20: the log start moved to 71717", "from offset 4: the log start moved to"),
        *(
            "to 71717",
            "to 76767",
            "What came before stays restorable",
            "an open transaction holds back",
            "be backed up",
        ),
        *("no longer has it", "keeps gone", "its last backup is kept", "2 partitions: 0, 1", "was last heard"),
        *("85 offsets", "offset 17", "since 04:37", "this asks for it now", "may be gone for good"),
    )
    counts = {text: told.text.lower().count(text.lower()) for text in once}
    assert {text: count for text, count in counts.items() if count != 1} == {}
    items = [one for one in told.all("li") if "What to do" in one.text]
    for item, (name, command) in enumerate(
        (
            ("orders-1", "tandem failover --reason tainted -c a.yaml"),
            ("never-made", f"tandem release gone --topic-id {old.key('gone', 0).topic_id} -c a.yaml"),
            ("customers-2", "find-hanging --topic customers --partition 2"),
            ("b was", "start it again"),
        )
    ):
        assert name in items[item].text
        assert command in items[item].text
    assert "What waits for a person" not in told.texts("h2"), "all is in the list of problems"
    assert "Trouble problem 3" in told.text
    rows = {row[0]: row for row in told.rows()}
    assert {"orders-0 tainted (problem 1)", "orders-1 tainted (problem 1)"} <= rows.keys()
    assert rows["customers-2 behind an open transaction"][3] == "85"
    assert "85 more wait behind open transactions" in told.text


def test_what_the_list_of_problems_leaves_out(store: MemoryStore) -> None:
    """It names three tainted partitions, the row of a fourth has the rest; problems beyond a dozen are counted."""
    four = TopicSpec("orders", partitions=4)
    backup = built(store, topics=(four,))
    for n in range(4):
        backup.taint("orders", n, 1000 + n, reason="gap")
    told = drawn(sight(store, listener=heard(store), topics=[four]))
    names = [row[0] for row in told.rows() if row[0].startswith("orders")]
    assert names == [*(f"orders-{n} tainted (problem 1)" for n in range(3)), "orders-3 tainted from offset 1,003: gap"]
    torn = dict.fromkeys(range(5, 20), "torn")
    told = drawn(replace(sight(store, listener=heard(store, store="time-out"), topics=[four]), damaged=torn))
    assert told.texts("h2")[0] == "▲ 17 problems"
    assert len(told.texts("strong")) == 12
    assert "and 5 more" in told.text
    assert "Trouble store: time-out" in told.text, "its problem is not listed"


def test_a_hanging_transaction(store: MemoryStore) -> None:
    """What it holds back, where, and how to find who left it."""
    built(store)
    ends = {("orders", 0): (20, 33), ("orders", 1): (0, 2)}
    told = drawn(sight(store, listener=heard(store), topics=[ORDERS], ends=ends))
    assert "What waits for a person" not in told.texts("h2"), "most transactions end by themselves"
    told = drawn(sight(store, listener=heard(store, held="orders-0"), topics=[ORDERS], ends=ends))
    assert sum("holds back" in text for text in told.texts("h3")) == 1
    assert "An open transaction holds back orders-0" in told.texts("h3")
    assert "0 offsets it has all that can be read of the logs; 15 more wait behind open transactions" in told.text
    assert "13 offsets from 20 on wait for its end" in told.text
    assert any("find-hanging --topic orders --partition 0" in text for text in told.texts("code"))
    other = "old-orders-0: an open transaction holds back what comes from offset 7 on"
    told = drawn(sight(store, listener=heard(store, held="orders-0", trouble=other), topics=[ORDERS], ends=ends))
    assert "An open transaction holds back orders-0" in told.texts("h3"), "the problem is of another topic"


def test_many_hanging_transactions_are_bounded(store: MemoryStore) -> None:
    """A dozen by name, then how many more."""
    many = TopicSpec("many", partitions=30)
    built(store, topics=(many,))
    listener = heard(store, held=" ".join(f"many-{n}" for n in range(20)))
    told = drawn(sight(store, listener=listener, topics=[many], ends={("many", n): (20, 21 + n) for n in range(30)}))
    titles = told.texts("h3")
    assert sum(text.startswith("An open transaction") for text in titles) == 12
    assert "Open transactions hold back 8 partitions more" in titles
    assert titles[0] == "An open transaction holds back many-19", "the one with most comes first"


def test_kept_until_released(store: MemoryStore) -> None:
    """A deleted topic's last backup: why it stays, and the command that lets it go. Of many, a dozen are named."""
    many = [TopicSpec(f"many{n}") for n in range(14)]
    old = built(store, topics=(ORDERS, TopicSpec("gone", partitions=5), *many))
    built(store, 2, "b")
    old.seal()
    stays = {old.key("gone", n): "the cluster no longer has it" for n in range(4)}
    stays |= {old.key("gone", 4): "its log was cut"} | {old.key(one.name, 0): "it is gone" for one in many}
    old.append(EntryKind.CLEARED, clearing=old.clearing(stays))
    told = drawn(sight(store, listener=heard(store, "Passive", "Active"), topics=[ORDERS]))
    assert "Generation 1 keeps gone until it is released" in told.texts("h3")
    assert "Why: the cluster no longer has it (of 0, 1, 2 and 1 more), its log was cut (of 4)." in told.text
    assert "5 partitions: 0, 1, 2 and 2 more" in told.text
    assert f"tandem release gone --topic-id {old.key('gone', 0).topic_id}" in told.texts("code")
    assert "Generation 1 keeps 3 topics more" in told.texts("h3")
    assert "kept in part" in told.texts("li")


def test_the_peer_is_gone(store: MemoryStore) -> None:
    """Silence, departure and never having been heard are three different words, each beside the problem."""
    built(store)
    at = now_ms(store)
    a = message(instance="a", at=at, state="Active")
    silent = message(instance="b", at=at - (LIVENESS_S + 60) * 1000, state="Passive")
    for said, words in (
        ([a, silent], ("b was Passive", "silent for 2m")),
        ([a, message(CoordinationEvent.LEAVING, instance="b", at=at - 90_000)], ("b unknown", "stopped 1m 30s ago")),
        ([a], ("b unknown", "Heard never")),
    ):
        told = drawn(sight(store, listener=listening(*said), topics=[ORDERS]))
        assert words[0] in told.texts("h3")
        assert words[1] in told.text
        assert "nobody to take the next turn" in told.text


def test_halted(store: MemoryStore) -> None:
    """A process that lost its name says so."""
    built(store)
    details = {"reason": "another incarnation of this instance has taken over"}
    told = drawn(sight(store, listener=heard(store, "Halted", **details), topics=[ORDERS]))
    assert "a Halted shows this page" in told.texts("h3")
    assert "another incarnation of this instance has taken over" in told.text


def test_the_brokers_or_the_store_do_not_answer(store: MemoryStore) -> None:
    """Unknown is said, never guessed; the page comes all the same."""
    built(store)
    told = drawn(
        sight(store, listener=heard(store, store="time-out", brokers="no answer")),
        freshness=[Freshness(what="Ends of the logs", age_s=None, trouble="no answer of the brokers")],
        ran=None,
    )
    assert "Beyond the backup unknown the logs' ends are not known" in told.text
    assert "store: time-out" in told.text
    assert "Ends of the logs: not known (no answer of the brokers)" in told.text
    assert "Checks" not in told.texts("h2")
    row = next(row for row in told.rows() if row[0] == "orders-0")
    assert row[2:4] == [UNKNOWN, UNKNOWN]


def test_late_at_the_end_of_a_log(store: MemoryStore) -> None:
    """A margin that is used up is a word, in the figure and in the row."""
    built(store)
    told = drawn(sight(store, later_s=90_000, heard_s={"a": 1, "b": 1}, topics=[ORDERS]))
    assert re.search(r"Tombstone margin over since 5h \S+ late", told.text)
    assert "away from the log's end for too long" in told.text


def test_runs_that_failed(store: MemoryStore) -> None:
    """A failed verification and a clean drill, with when and what."""
    built(store)
    one = job_outcome(at=now_ms(store), by="cron", clean=False, what="all of generation 1", findings=2, records=5)
    drill = replace(one, kind=JobKind.DRILL, clean=True, findings=0, what="2 topics")
    broken = replace(one, error="the broker went away")
    told = drawn(sight(store, listener=heard(store), topics=[ORDERS]), ran={JobKind.VERIFY: one, JobKind.DRILL: drill})
    assert {"verify not clean", "drill clean"} <= set(told.texts("h3"))
    assert "2 mismatches" in told.text
    told = drawn(sight(store, listener=heard(store), topics=[ORDERS]), ran={JobKind.VERIFY: broken})
    assert "failed: the broker went away" in told.text


def test_ten_thousand_partitions_are_bounded(store: MemoryStore) -> None:
    """The worst ones are listed, the rest is counted, and the page stays small."""
    many = TopicSpec("many", partitions=10_000)
    built(store, topics=(many,))
    ends = {("many", n): n for n in range(10_000)} | {("many", 0): 20}
    html = page(shown(sight(store, listener=heard(store), topics=[many], ends=ends)))
    told = checked(html)
    rows = [row for row in told.rows() if row[0].startswith("many-")]
    assert [row[0] for row in rows[:2]] == ["many-9999", "many-9998"]
    assert len(rows) == ROWS
    assert "and 9,950 more" in told.text
    assert len(html) < 100_000


@pytest.mark.parametrize("draw", [page, report])
def test_whatever_comes_from_outside_is_text(store: MemoryStore, draw: object) -> None:
    """Topic names, messages, reasons, owners of pins: markup and control characters are shown, not used."""
    evil = TopicSpec(f"{NASTY}\u202egnp.exe\x07", partitions=1)
    backup = Backup.completed(store, records("orders", 0, range(3)), topics=[evil, ORDERS], instance=f"{NASTY}i")
    backup.taint(evil.name, 0, 0, reason=f"{NASTY}r")
    backup.append(EntryKind.CONFIRM, head_at=now_ms(store), reason=NASTY)
    hanging = f"{evil.name}-0".split()
    details = {
        "held": " ".join(hanging),
        "trouble": f"{NASTY}t\x1b[2J",
        "reason": f"{NASTY}d",
        "phase": NASTY,
        "transcoder": NASTY,
    }
    at = now_ms(store)
    said = [
        message(instance="a", incarnation=NASTY, at=at, state=f"{NASTY}s", details=details),
        message(
            CoordinationEvent.ACTIVATE, instance=f"{NASTY}o", at=at, target=NASTY, generation=2, reason=f"{NASTY}q"
        ),
    ]
    seen = sight(
        store, listener=listening(*said), topics=[evil, ORDERS], ends={(evil.name, 0): (0, 9)}, missing=[f"{NASTY}m"]
    )
    pin = Pin(id="checkpoint-1", generation=1, owner=f"{NASTY}p", until=None)
    run = job_outcome(
        kind=JobKind.DRILL, at=at, by=NASTY, clean=False, what=f"{NASTY}w", records=0, bytes=0, error=f"{NASTY}e"
    )
    told = shown(replace(seen, pins=[pin], root=f"s3://{NASTY}", pair=f"{NASTY}pair"), ran={JobKind.DRILL: run})
    html = draw(replace(told, freshness=(Freshness(what=NASTY, age_s=None, trouble=f"{NASTY}f"),)))  # type: ignore[operator]
    read = checked(html)
    assert len(read.all("script")) == (draw is page)
    assert not any(element.tag == "script" and "alert" in element.text for element in read.elements)
    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "\x07" not in html
    assert "\\u202e" in read.text
    assert html.count("&lt;script&gt;alert(1)") > 12
    commands = [element for element in read.all("code") if "release" in element.text or "find-hanging" in element.text]
    assert commands
    assert all("'<script>" in element.text for element in commands), "what is copied into a shell is quoted"


def test_secrets_are_kept_out(store: MemoryStore) -> None:
    """A secret in an error message is not on the page."""
    secret = secrets.token_urlsafe(16)
    safe_text.register_secrets((secret,))
    built(store)
    html = page(shown(sight(store, listener=heard(store, store=f"denied for {secret}"), topics=[ORDERS])))
    assert "denied for" in html
    assert secret not in html


def test_the_policy_allows_what_the_page_has_and_nothing_else(store: MemoryStore) -> None:
    """Styles and script by their hashes; no other source, no frame, no form."""
    built(store)
    html = page(shown(sight(store, listener=heard(store), topics=[ORDERS])))
    assert "unsafe" not in policy()
    assert policy().startswith("default-src 'none';")
    assert "frame-ancestors 'none'" in policy()
    for tag in ("style", "script"):
        text = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy()
    assert 'http-equiv="refresh"' in html, "without script it renews itself too"


def test_a_report_is_still_and_says_what_it_does_not_know(store: MemoryStore) -> None:
    """From the store alone: nothing of the instances and the logs; no script; its own policy inside."""
    built(store)
    html = report(shown(sight(store), me=None))
    told = checked(html)
    assert "from the store alone" in told.text
    assert "only the store was asked" in told.text
    assert "Beyond the backup unknown" in told.text
    assert not told.all("script")
    assert "refresh" not in html
    assert any(element.attributes.get("http-equiv") == "Content-Security-Policy" for element in told.all("meta"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    """Every colour of text reaches 4.5:1 on every ground that it stands on (WCAG 2.2, AA)."""
    html = page(Content(pair="shop", me="a", found=None))
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    )
    colours = light if scheme == "light" else light | dark
    for ink, ground in (
        *((ink, ground) for ink in ("ink", "soft", "accent", "bad") for ground in ("ground", "card")),
        ("on-accent", "accent"),
        ("ink", "bad-ground"),
    ):
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_commands_in_advice_are_code() -> None:
    """What stands between backticks, escaped; a lonely backtick is itself."""
    assert _marked("run `tandem <x>`, or wait") == "run <code>tandem &lt;x&gt;</code>, or wait"
    assert _marked("it`s <b>") == "it`s &lt;b&gt;"
