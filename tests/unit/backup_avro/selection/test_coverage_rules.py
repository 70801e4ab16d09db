"""Which generation covers which: completeness, sealing, clearing, taints, truncated logs, topics that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.chains import Chain, complete_generation, grown, guarded, key, position, topic

from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.completion import (
    NOTHING_NOTED,
    NotedPositions,
    Shortfall,
    is_spoilt,
    note_positions,
    obstacles,
    shortfalls,
)
from tandem.backup_avro.selection.coverage import (
    Cover,
    beyond_the_epoch,
    clearing,
    cover,
    doubtful_partitions,
    generations_relied_on,
    newest_covers,
    successor,
    uncovered_partitions,
    unproven_covers,
    unseen_cover,
)
from tandem.backup_avro.selection.losses import CUT_OFF_KEPT, log_start_reason

K, U = key(), key("u")
ONE, BOTH = guarded(topic()), guarded(topic(), topic("u"))


def generation(number: int, offset: int, **how: Any) -> Chain:
    """A COMPLETE generation of one partition."""
    return complete_generation(number, {K: offset}, instance="ab"[number % 2], **how)


def opened(number: int, **how: Any) -> Chain:
    """A generation that is being built."""
    return Chain(number=number, instance="b", incarnation="b-1").open().commit({K: position(**how)})


def test_what_may_not_be_seen_counts_as_there_with_all_that_was_ever_read_of_it() -> None:
    """Whoever knew most of it says how many partitions it had; what the cluster does tell is as it tells it."""
    wide, narrow = topic("u", partitions=3), topic("u", partitions=2, removed=True)
    known = [Chain(number=n).open().commit({}, topics=(topic(), told)).state for n, told in ((1, narrow), (2, wide))]
    known.append(known[0])
    seen = ONE.with_unseen({"u"}, known)
    assert (dict(seen.topics), seen.unseen) == ({"t": ("t", 1), "u": ("u", 3)}, frozenset({"u"}))
    assert seen.has(key("u", 7)), "it may have been widened"
    assert seen.cluster_id == ONE.cluster_id
    again = seen.with_unseen({"t"}, known)
    assert (dict(again.topics), again.unseen) == (dict(seen.topics), frozenset({"t", "u"}))
    assert dict(guarded(topic(partitions=5)).with_unseen({"t"}, known).topics) == {"t": ("t", 5)}
    assert ONE.with_unseen({"elsewhere"}, known) is ONE
    assert ONE.with_unseen(set(), known) is ONE


def test_a_newer_one_covers_what_it_reaches() -> None:
    """At the same offset and epoch, and beyond."""
    older = generation(1, 10).state
    assert cover(generation(2, 9).state, older, K) is Cover.BEHIND
    assert cover(generation(2, 10).state, older, K) is Cover.COVERED
    assert cover(generation(2, 11, epoch=2).state, older, K) is Cover.COVERED


def test_another_history_does_not_cover() -> None:
    """A position of an older leader epoch may stand on records that were never confirmed."""
    assert cover(generation(2, 10, epoch=1).state, generation(1, 10, epoch=2).state, K) is Cover.BEHIND


def test_only_what_may_be_restored_covers() -> None:
    """Neither a generation under construction, nor one that is being cleared, nor a base that is not done."""
    older = generation(1, 10).state
    assert cover(opened(2, offset=10).state, older, K) is Cover.BEHIND
    assert cover(generation(2, 10).seal().clearing().state, older, K) is Cover.BEHIND
    assert cover(generation(2, 10).seal().clearing().cleared().state, older, K) is Cover.BEHIND
    late = generation(2, 10).commit({U: position(5, base=Base(start=0, end=5, leader=1))}).state
    assert cover(late, complete_generation(1, {U: 5}).state, U) is Cover.BEHIND
    assert cover(generation(2, 10).state, complete_generation(1, {U: 5}).state, U) is Cover.BEHIND


def test_what_stays_of_a_newer_one_covers() -> None:
    """A partial clearing leaves what stays as good as it was."""
    newer = complete_generation(2, {K: 10, U: 5}).seal().clearing(stays=[U]).cleared().state
    older = complete_generation(1, {K: 10, U: 5}).state
    assert (cover(newer, older, K), cover(newer, older, U)) == (Cover.BEHIND, Cover.COVERED)


def test_a_taint_covers_up_to_where_it_is_sound() -> None:
    """Beyond its taint a partition covers nothing."""
    newer = generation(2, 20).taint(15).state
    assert cover(newer, generation(1, 15).state, K) is Cover.COVERED
    assert cover(newer, generation(1, 16).state, K) is Cover.BEHIND


def test_what_misses_an_object_below_its_gap_covers_nothing() -> None:
    """Of a topic that was added later the tail may have had a gap before an object of the first scan is missed."""
    newer = generation(2, 20).taint(15).taint(0).state
    assert cover(newer, generation(1, 15).state, K) is Cover.BEHIND


def test_a_log_that_was_cut_is_named() -> None:
    """A newer epoch at head later, below the old position: the records above are nowhere else."""
    older = generation(1, 10, epoch=1, head_at=20).state
    assert cover(generation(2, 8, epoch=2, head_at=30).state, older, K) is Cover.CUT_OFF
    assert cover(generation(2, 8, epoch=1, head_at=30).state, older, K) is Cover.BEHIND
    assert cover(generation(2, 8, epoch=2, head_at=20).state, older, K) is Cover.BEHIND
    assert cover(generation(2, 8, epoch=2, head_at=30).taint(8).state, older, K) is Cover.BEHIND


def test_a_log_that_grew_again_does_not_cover_what_was_cut_off() -> None:
    """Other records have the offsets now: what was read before the cut is in the older generation only."""
    older = generation(1, 100, epoch=3).taint(100, cut_at=80)
    newer = generation(2, 150, epoch=5, head_at=30)
    assert cover(newer.state, older.state, K) is Cover.CUT_OFF
    assert obstacles(newer.state, [older.state], ONE) == [], "it can't be reached, and must not be waited for"
    assert cover(newer.state, generation(1, 80, epoch=3).taint(80, cut_at=80).state, K) is Cover.COVERED
    short = generation(2, 79, epoch=3, head_at=30)
    assert cover(short.state, older.state, K) is Cover.BEHIND, "the log still has what lies below the cut"
    assert obstacles(short.state, [older.state], ONE) == ["t-0 stands at 79, generation 1 at 100"]
    assert cover(short.commit({K: position(80, epoch=3)}).state, older.state, K) is Cover.CUT_OFF
    assert obstacles(short.state, [older.state], ONE) == [], "it has all that the cut left"
    again = generation(2, 70, epoch=6, head_at=30)
    assert cover(again.state, older.state, K) is Cover.CUT_OFF, "it was cut again, further down"
    assert obstacles(again.state, [older.state], ONE) == []
    assert cover(again.taint(70).state, older.state, K) is Cover.BEHIND
    at_once = generation(2, 70, epoch=6, head_at=20)
    assert cover(at_once.state, older.state, K) is Cover.BEHIND, "at head no later than the older one: who was first?"
    late = generation(1, 100, epoch=3).taint(90).taint(100, cut_at=80)
    assert cover(newer.state, late.state, K) is Cover.CUT_OFF, "a taint before it does not hide the cut"


def test_what_a_cut_left_is_reached_whatever_was_sound_of_it() -> None:
    """Of a base that was not done at a gap nothing is sound. What lies up to the cut the log still has."""
    for sound in (0, 60, 80):
        older = generation(1, 100, epoch=3).taint(sound).taint(100, cut_at=80)
        short = generation(2, 79, epoch=3, head_at=30)
        assert cover(short.state, older.state, K) is Cover.BEHIND
        assert obstacles(short.state, [older.state], ONE) == ["t-0 stands at 79, generation 1 at 100"]
        assert cover(short.commit({K: position(80, epoch=3)}).state, older.state, K) is Cover.CUT_OFF
        assert obstacles(short.state, [older.state], ONE) == []


def test_complete_when_nothing_stands_in_the_way() -> None:
    """All partitions read through and every COMPLETE generation reached."""
    mine = opened(2, offset=10)
    assert obstacles(mine.state, [generation(1, 10).state, mine.state], ONE) == []


def test_what_a_generation_let_go_is_no_obstacle() -> None:
    """The log was cut to 7 after generation 1 had let it go; nobody writes to it, so nobody will get to 10 again."""
    older = complete_generation(1, {K: 10, U: 10}).seal().clearing(stays=[U])
    mine = opened(3, offset=7, base=Base(start=0, end=7, leader=1)).state
    short = "t-0 stands at 7, generation 1 at 10"
    assert short not in obstacles(mine, [older.state], ONE)
    assert short not in obstacles(mine, [older.cleared().state], ONE)
    assert short in obstacles(mine, [generation(1, 10).seal().state], ONE)


def test_each_obstacle_is_named() -> None:
    """Partition by partition, in words for an operator."""
    assert obstacles(Chain().open().state, [], ONE) == ["t-0 is not read yet"]
    half = opened(2, base=Base(start=0, end=9, leader=1))
    assert obstacles(half.state, [], ONE) == ["t-0: the base up to 9 is not done"]
    early = opened(2, head_at=10)
    assert obstacles(early.state, [], ONE) == ["t-0 has not been at head since its base was done"]
    early.append(EntryKind.CONFIRM, head_at=11)
    assert obstacles(early.state, [], ONE) == []
    assert obstacles(early.taint(0).state, [], ONE) == ["t-0 is tainted: a gap"]
    behind = opened(2, offset=9)
    assert obstacles(behind.state, [generation(1, 10).state], ONE) == ["t-0 stands at 9, generation 1 at 10"]


def test_who_need_not_be_reached() -> None:
    """Generations that are not COMPLETE or let go, partitions that are not guarded any more."""
    mine = opened(3, offset=9).state
    others = [
        opened(1, offset=10).state,
        generation(2, 10).seal().clearing().state,
        generation(2, 10).seal().clearing().cleared().state,
    ]
    assert obstacles(mine, others, ONE) == []
    behind = generation(2, 10).state
    assert obstacles(mine, [*others, mine, behind], ONE) == ["t-0 stands at 9, generation 2 at 10"], "but this one"
    assert obstacles(mine, [complete_generation(1, {U: 99}).state], ONE) == []


def test_what_is_being_cleared_is_no_obstacle_even_where_it_stays() -> None:
    """What stays of it stays, whoever is complete."""
    older = complete_generation(1, {K: 10, U: 10}).seal().clearing(stays=[K])
    assert obstacles(opened(3, offset=9).state, [older.state], ONE) == []


def test_a_cut_log_is_reached() -> None:
    """What the log no longer holds can't be waited for, but only a newer epoch at head proves that."""
    cut = opened(2, offset=9, epoch=2, head_at=30).state
    assert obstacles(cut, [generation(1, 10).state], ONE) == []
    stale = opened(2, offset=9, epoch=2, head_at=20).state
    for head_at in (20, 21):
        assert obstacles(stale, [generation(1, 10, head_at=head_at).state], ONE) == [
            "t-0 stands at 9, generation 1 at 10"
        ]


def test_a_partition_is_guarded_below_the_count_of_its_topic() -> None:
    """They are numbered from 0 on."""
    two = guarded(topic(partitions=2))
    assert [two.has(key("t", n)) for n in range(3)] == [True, True, False]
    assert two.partitions() == [key("t", 0), key("t", 1)]


def test_only_across_known_epochs_brokers_must_be_asked() -> None:
    """Within one epoch a log only grows. Epochs begin at 0; brokers can't be asked about an unknown one."""
    older = {epoch: generation(1, 10, epoch=epoch).state for epoch in (-1, 0, 1)}
    newer = generation(2, 10, epoch=1).state
    assert [doubtful_partitions(newer, older[epoch], ONE) for epoch in (-1, 0, 1)] == [[], [K], []]
    assert doubtful_partitions(newer, older[0], guarded()) == [], "it is gone"
    assert doubtful_partitions(generation(2, 9, epoch=1).state, older[0], ONE) == [], "it is not there yet"


def test_a_broker_that_is_behind_hides_no_partition() -> None:
    """It leaves out what was added to a topic. Whether the log was cut there has to be asked all the same."""
    added = key("t", 1)
    older = complete_generation(1, {K: 10, added: 10}, epoch=1)
    newer = complete_generation(2, {K: 10, added: 12}, epoch=2).state
    behind = guarded(topic(partitions=1), topic("u"))
    assert doubtful_partitions(newer, older.state, behind) == [K]
    told = behind.with_all_of([older.state, newer])
    assert told == guarded(topic(partitions=2), topic("u"))
    assert doubtful_partitions(newer, older.state, told) == [K, added]
    assert uncovered_partitions(complete_generation(2, {K: 10}, epoch=2).state, older.state, told) == [added]
    ahead = guarded(topic(partitions=3))
    assert ahead.with_all_of([older.state]) == ahead
    assert guarded(topic("u")).with_all_of([older.state]) == guarded(topic("u")), "a topic that is gone does go"


def test_what_nobody_proved_is_named_with_the_newest_that_covers_it() -> None:
    """Both topics were gone when the older one was sealed, and came back under the same ids: now it can be asked."""
    older = complete_generation(1, {K: 10, U: 5})
    older.commit({}, topics=(topic(removed=True), topic("u", removed=True))).seal()
    newer = [complete_generation(number, {K: 10, U: 5}, epoch=2).state for number in (2, 3)]
    assert unproven_covers(older.state, [K, U], newer, BOTH) == {K: newer[1], U: newer[1]}
    assert unproven_covers(older.state, [U], newer, BOTH) == {U: newer[1]}
    assert unproven_covers(older.state, [K, U], newer, guarded(topic("u"))) == {U: newer[1]}, "nobody can be asked"
    assert unproven_covers(older.state, [K, U], [], BOTH) == {}
    older.clearing(stays=[U]).cleared()
    assert unproven_covers(older.state, [K, U], newer, BOTH) == {U: newer[1]}, "the other one is gone already"


def test_spoilt_before_complete_only() -> None:
    """A taint spoils what is being built; later it spoils the window after it."""
    assert is_spoilt(opened(2).taint(0).state)
    assert not is_spoilt(opened(2).state)
    assert not is_spoilt(generation(2, 10).taint(5).state)


def test_uncovered_names_what_still_exists() -> None:
    """Neither deleted topics, nor what was cut off, keep a former Active from being sealed."""
    older = complete_generation(1, {K: 10, U: 5}).state
    newer = complete_generation(2, {K: 9}).state
    assert uncovered_partitions(newer, older, BOTH) == [K, U]
    assert uncovered_partitions(newer, older, ONE) == [K]
    assert uncovered_partitions(complete_generation(2, {K: 9}, epoch=2, head_at=30).state, older, ONE) == []
    assert uncovered_partitions(older, older, guarded(topic(topic_id="recreated"))) == []


def test_a_copy_of_a_higher_epoch_waits_for_the_epochs_of_the_log() -> None:
    """Only where the newest generation was at the log's end later, in a lower epoch, and nobody covers it."""
    older = complete_generation(1, {K: 10, U: 10}, epoch=5).seal().state
    both = guarded(topic(), topic("u"))
    lower = complete_generation(2, {K: 8, U: 8}, epoch=2, head_at=30).state
    assert beyond_the_epoch(older, [lower], both) == [K, U]
    assert beyond_the_epoch(older, [lower], guarded(topic())) == [K], "topic u is not there any more"
    assert beyond_the_epoch(older, [], both) == [], "nobody has read the log since"
    assert beyond_the_epoch(older, [complete_generation(2, {K: 8, U: 8}, epoch=2).state], both) == [], "not later"
    assert beyond_the_epoch(older, [complete_generation(2, {K: 8}, epoch=2, head_at=30).state], both) == [K]
    assert beyond_the_epoch(older, [complete_generation(2, {K: 8, U: 8}, epoch=5, head_at=30).state], both) == []
    cover_of_one = complete_generation(2, {K: 12, U: 8}, epoch=5).state
    later = complete_generation(3, {K: 8, U: 8}, epoch=2, head_at=30).state
    assert beyond_the_epoch(older, [cover_of_one, later], both) == [U]


def test_the_successor_is_the_newest_sound_one() -> None:
    """Not an older one, not one under construction, tainted, or let go."""
    one, two, three = generation(1, 5), generation(2, 5), generation(3, 5)
    everything = [one.state, two.state, three.state, opened(4).state]
    assert successor(one.state, everything) is three.state
    assert successor(three.state, everything) is None
    three.taint(1)
    assert successor(one.state, everything) is two.state
    two.seal().clearing()
    assert successor(one.state, everything) is None


def test_what_is_covered_goes() -> None:
    """As soon as every live partition is covered, by whichever newer generations."""
    older = complete_generation(1, {K: 10, U: 5}).seal().state
    for_t, for_u = complete_generation(2, {K: 10}).state, complete_generation(3, {U: 5}).state
    assert clearing(older, [older, for_t], BOTH) is None
    decided = clearing(older, [older, for_t, for_u], BOTH)
    assert decided is not None
    assert (decided.goes, decided.stays) == ((K, U), {})


def test_what_was_never_complete_goes_at_once() -> None:
    """Nobody could ever restore it."""
    assert clearing(opened(5, offset=3).state, [], ONE) == Clearing(goes=(K,), stays={})


def test_the_last_backup_of_a_deleted_topic_stays() -> None:
    """And goes when a person lets it go, or when some generation has it after all."""
    older = complete_generation(1, {K: 10, U: 5}).seal().state
    newer = complete_generation(2, {K: 10}).state
    assert clearing(older, [newer], ONE) == Clearing(
        goes=(K,),
        stays={U: "the cluster no longer has it, or it is no longer guarded; its last backup is kept"},
    )
    released = clearing(older, [newer], ONE, released=[U])
    assert released is not None
    assert released.goes == (K, U)


def test_a_recreated_topic_is_another_one() -> None:
    """The same name under a new id covers nothing of the old one, whatever its offsets."""
    old = complete_generation(1, {key("old-id"): 10}).seal().state
    new = complete_generation(2, {key("new-id"): 999}).state
    decided = clearing(old, [new], guarded(topic(topic_id="new-id")))
    assert decided is not None
    assert decided.goes == ()
    assert list(decided.stays) == [key("old-id")]


def test_what_was_cut_off_stays() -> None:
    """Handovers go on, the records that exist nowhere else are kept."""
    older = generation(1, 10).seal().state
    decided = clearing(older, [generation(2, 8, epoch=2, head_at=30).state], ONE)
    assert decided == Clearing(goes=(), stays={K: CUT_OFF_KEPT})


def test_what_was_found_to_be_cut_off_stays_for_good() -> None:
    """A log that has grown again covers the offsets, not the records: only a person lets them go."""
    chain = complete_generation(1, {K: 10, U: 5}).seal()
    chain.append(EntryKind.CLEARING, clearing=Clearing(goes=(), stays={K: CUT_OFF_KEPT, U: "gone"})).cleared()
    newer = complete_generation(2, {K: 20, U: 5}, instance="b", epoch=2, head_at=30).state
    assert clearing(chain.state, [newer], BOTH) == Clearing(goes=(U,), stays={K: CUT_OFF_KEPT})
    assert clearing(chain.state, [newer], BOTH, released=[K]) == Clearing(goes=(K, U), stays={})


def _of_policy(chain: Chain, policy: str) -> Generation:
    return replace(chain.state, topics={"t": replace(topic(), config={"cleanup.policy": policy})})


@pytest.mark.parametrize(
    ("policy", "starts", "stays"),
    [
        ("compact", (4,), True),
        ("compact", (0,), False),
        ("compact", (4, 0), False),  # one that is covered by what begins where it does itself
        ("compact", (), False),
        ("compact,delete", (4,), False),
        ("delete", (4,), False),
        ("", (4,), False),
    ],
)
def test_what_begins_later_stands_for_nothing_that_only_compacts(
    policy: str, starts: tuple[int, ...], *, stays: bool
) -> None:
    """Nothing moves the start of such a log: what lay below it is in the older copy alone, until it is released."""
    older = _of_policy(complete_generation(1, {K: 10}).seal(), policy)
    newer = [
        _of_policy(complete_generation(2 + n, {K: 12}, instance="b", log_start=start), policy)
        for n, start in enumerate(starts)
    ]
    found = clearing(older, newer, guarded(topic()))
    if not starts:
        assert found is None
    elif stays:
        why = "the log start moved to 4 though the policy is compact alone; the records below are kept"
        assert found == Clearing(goes=(), stays={K: why})
        assert clearing(older, newer, guarded(topic()), released=[K]) == Clearing(goes=(K,), stays={})
    else:
        assert found == Clearing(goes=(K,), stays={})
    unknown = replace(older, topics={})
    assert clearing(unknown, newer, guarded(topic())) == (Clearing(goes=(K,), stays={}) if starts else None)


@pytest.mark.parametrize(("log_start", "stays"), [(10, False), (11, True)])
def test_a_log_that_a_policy_has_emptied_leaves_the_older_copy_alone_with_its_records(
    log_start: int, *, stays: bool
) -> None:
    """The policy was compact alone once, and is not any more: nothing of what the older copy has is left in the log."""
    older = _of_policy(complete_generation(1, {K: 10}).seal(), "compact,delete")
    newer = _of_policy(complete_generation(2, {K: 12}, instance="b", log_start=log_start), "compact,delete")
    found = clearing(older, [newer], guarded(topic()))
    if stays:
        assert found == Clearing(goes=(), stays={K: log_start_reason(11)})
        older.compacted_from.clear()
        found = clearing(older, [newer], guarded(topic()))
    assert found == Clearing(goes=(K,), stays={})


def test_nothing_is_cleared_twice() -> None:
    """What stays is looked at again, and goes when it is covered; what is gone stays gone."""
    chain = complete_generation(1, {K: 10, U: 5}).seal().clearing(stays=[U]).cleared()
    newer = complete_generation(2, {K: 10}).state
    assert clearing(chain.state, [newer], ONE) is None
    assert clearing(chain.state, [], ONE) is None, "what is gone need not be covered again"
    both = complete_generation(3, {K: 1, U: 5}).state
    decided = clearing(chain.state, [both], BOTH)
    assert decided is not None
    assert decided.goes == (K, U)
    chain.append(EntryKind.CLEARING, clearing=decided).cleared()
    assert chain.state.gone


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=12))
def test_a_decision_to_let_go_stays_right(steps: list[tuple[int, int]]) -> None:
    """Whatever generations do after a clearing was decided: what goes is covered by one that is not let go.

    Steps: the newest generation reads on, is tainted, a next one becomes COMPLETE, or the oldest that may be is let go.
    """
    chains = [generation(1, 5)]
    confirmed = 5
    for step, amount in steps:
        newest = chains[-1]
        here = newest.state.positions[K].offset
        match step:
            case 0 if not newest.state.taints:
                grown(newest, K, here + amount)
                confirmed = max(confirmed, here + amount)
            case 1:
                newest.taint(here)
            case 2:
                chains.append(generation(len(chains) + 1, confirmed + amount - 1))
                confirmed = max(confirmed, confirmed + amount - 1)
            case _:
                for chain in chains[:-1]:
                    goes = clearing(chain.state, [c.state for c in chains], ONE)
                    if goes is not None and goes.goes and chain.state.clearing is None and not chain.state.gone:
                        if not chain.state.sealed:
                            chain.seal()
                        chain.append(EntryKind.CLEARING, clearing=goes).cleared()
                        break
        usable = [c.state.sound_offset(K) for c in chains if c.state.usable(K)]
        assert max(usable) >= confirmed


def test_what_others_had_two_commits_ago_is_enough() -> None:
    """The other one commits again while a commit of this one is stored: as of now, this one is always behind."""
    other, mine = generation(1, 20), opened(2, offset=9)

    def look(noted: NotedPositions = NOTHING_NOTED) -> NotedPositions:
        return note_positions(mine.state, [other.state.frozen_copy(), mine.state], ONE, noted)

    noted = look()
    assert {number: found[K].offset for number, found in noted.earlier.items()} == {1: 20}
    other.commit({K: position(30)})
    assert look(noted) == noted, "this one has not committed since"
    assert obstacles(mine.state, [other.state], ONE, (), noted.earlier) == ["t-0 stands at 9, generation 1 at 30"]
    mine.commit({K: position(20)})
    assert obstacles(mine.state, [other.state], ONE, (), noted.earlier) == []
    assert obstacles(mine.state, [other.state], ONE) == ["t-0 stands at 20, generation 1 at 30"]
    assert shortfalls(mine.state, [other.state], ONE, noted.earlier) == []
    another = generation(3, 25).state
    assert obstacles(mine.state, [another], ONE, (), noted.earlier) == ["t-0 stands at 20, generation 3 at 25"]


def test_what_others_had_long_ago_is_not_enough() -> None:
    """A partition that stands still after it was at head: the build may not be far behind there when it is COMPLETE."""
    other, mine = generation(1, 20), opened(2, offset=9)
    noted = note_positions(mine.state, [other.state.frozen_copy()], ONE)
    for commit, oldest in ((10, 20), (11, 20), (12, 30), (13, 40)):
        other.commit({K: position(20 + 10 * (commit - 9))})
        mine.commit({K: position(commit)})
        noted = note_positions(mine.state, [other.state.frozen_copy()], ONE, noted)
        assert noted.earlier[1][K].offset == oldest


def test_an_earlier_position_counts_in_its_epoch_and_without_a_taint_alone() -> None:
    """What another log holds, or one that was cut, can't be told from where a copy stood before."""
    mine = opened(2, offset=20)
    earlier = {1: generation(1, 20).state.positions}
    later = generation(1, 20).commit({K: position(30, epoch=5)}).state
    assert obstacles(mine.state, [later], ONE, (), earlier) == ["t-0 stands at 20, generation 1 at 30"]
    tainted = generation(1, 20).commit({K: position(30)}).taint(25, cut_at=25).state
    assert obstacles(mine.state, [tainted], ONE, (), earlier) == ["t-0 stands at 20, generation 1 at 30"]
    grown_on = generation(1, 20).commit({K: position(30)}).state
    assert obstacles(mine.state, [grown_on], ONE, (), earlier) == []
    for epoch in (0, 5):  # a later one: the log may have been cut between, which only the brokers can tell
        other_epoch = opened(2, offset=25, epoch=epoch, head_at=20).state
        assert obstacles(other_epoch, [grown_on], ONE, (), earlier) == ["t-0 stands at 25, generation 1 at 30"]


def test_positions_are_noted_when_nothing_of_its_own_is_missing() -> None:
    """Noted before, they could be of a time at which the build had not begun; a taint or a new topic ends the note."""
    other = generation(1, 20).state
    noted = note_positions(opened(2, offset=9).state, [other], ONE)
    assert noted.looks
    assert note_positions(opened(2, head_at=10).state, [other], ONE, noted) == NOTHING_NOTED
    assert note_positions(opened(2, offset=9).taint(0).state, [other], ONE, noted) == NOTHING_NOTED
    assert note_positions(generation(2, 20).state, [other], ONE, noted) == NOTHING_NOTED, "it is COMPLETE"
    assert note_positions(opened(2, offset=9).state, [opened(1, offset=20).state], ONE).earlier == {}
    assert NOTHING_NOTED.earlier == {}


def test_an_idle_log_that_was_cut_needs_the_brokers_word() -> None:
    """Nothing was written since, so no epoch says it: 9 may be an end that a new leader named too early."""
    older = generation(1, 10)
    mine = opened(2, offset=9, head_at=30)
    short = [Shortfall(1, K, 10)]
    assert obstacles(mine.state, [older.state], ONE) == ["t-0 stands at 9, generation 1 at 10"]
    assert shortfalls(mine.state, [older.state, mine.state], ONE) == short
    assert obstacles(mine.state, [older.state], ONE, short) == []
    assert obstacles(mine.state, [generation(1, 11).state], ONE, short), "it has read on since the brokers were asked"
    assert obstacles(mine.state, [generation(3, 10).state], ONE, short), "another one"
    again = generation(1, 12).taint(12, cut_at=10).state
    assert shortfalls(mine.state, [again], ONE) == [Shortfall(1, K, 12)], "it was cut twice"
    assert shortfalls(grown(mine, K, 10).state, [again], ONE) == [], "it has what the one cut left"


def test_a_clock_that_was_set_back_does_not_keep_the_brokers_from_being_asked() -> None:
    """An hour is more than two instances that are at work differ by."""
    mine = opened(2, offset=9, head_at=30).state
    hour = mine.at + 3_600_000
    assert shortfalls(mine, [generation(1, 10, head_at=hour).state], ONE) == []
    assert shortfalls(mine, [generation(1, 10, head_at=hour + 1).state], ONE) == [Shortfall(1, K, 10)]


def test_what_the_brokers_need_not_be_asked() -> None:
    """The older one was at head no earlier, nobody knows an epoch, or more is missing."""
    older = generation(1, 10, head_at=20)
    assert shortfalls(opened(2, offset=9, head_at=20).state, [older.state], ONE) == []
    assert shortfalls(opened(2, offset=10, head_at=30).state, [older.state], ONE) == []
    assert shortfalls(opened(2, offset=9, head_at=30).state, [older.state], guarded()) == []
    assert shortfalls(opened(2, offset=9, epoch=-1, head_at=30).state, [older.state], ONE) == []
    unknown = generation(1, 10, epoch=-1, head_at=20)
    assert shortfalls(opened(2, offset=9, epoch=-1, head_at=30).state, [unknown.state], ONE) == []
    first = generation(1, 10, epoch=0, head_at=20)
    assert shortfalls(opened(2, offset=9, epoch=0, head_at=30).state, [first.state], ONE) == [Shortfall(1, K, 10)]
    half = opened(2, offset=8, head_at=30, base=Base(start=0, end=9, leader=1))
    assert shortfalls(half.state, [older.state], ONE) == []


def test_what_is_relied_on_is_the_newest_that_covers_and_the_newest_of_all() -> None:
    """Their objects are looked for before anything older is let go of."""
    older = complete_generation(1, {K: 10, U: 10}).seal()
    kept = complete_generation(2, {K: 10, U: 10}, instance="b").seal().clearing(stays=[U]).cleared()
    middle, newest = generation(3, 20), generation(4, 20)
    states = [one.state for one in (older, kept, middle, newest, opened(5, offset=30))]

    def numbers(*goes: PartitionKey) -> list[int]:
        return [g.number for g in generations_relied_on(older.state, goes, states)]

    assert numbers(K) == [4]
    assert numbers(U) == numbers(K, U) == [2, 4]
    assert numbers() == []
    # What was lost of it is a taint: it covers nothing, and what restores rest on counts all the same.
    newest.taint(0)
    assert numbers(K) == [3, 4]
    middle.seal().clearing()
    assert numbers(K) == [4]
    newest.seal().clearing()
    assert numbers(K) == []


def test_each_partition_is_covered_by_the_newest_that_has_it() -> None:
    """What nobody covers was let go of by a release."""
    older = complete_generation(1, {K: 10, U: 10}).seal().state
    states = [older, complete_generation(2, {K: 10, U: 10}, instance="b").state, generation(3, 20).state]
    assert newest_covers(older, [K, U], states) == {3: [K], 2: [U]}
    assert newest_covers(older, [U], [older, states[2]]) == {}
    assert newest_covers(opened(1).state, [K], states) == {}


def test_what_an_election_cut_off_is_looked_for_where_it_was_read() -> None:
    """Offsets and epochs of the newest one cover it, but it read the log when that was cut: the one before has it."""
    older = generation(1, 10, epoch=0).seal().state
    kept = generation(2, 12, epoch=0).taint(12, cut_at=8, epoch=0).state
    newest = generation(3, 15, epoch=1).state
    assert cover(newest, older, K) is Cover.COVERED
    assert [g.number for g in generations_relied_on(older, [K], [older, kept, newest])] == [2, 3]


def test_what_is_let_go_of_waits_for_what_can_be_read() -> None:
    """Between CLEARING and the deletion a chain may become unreadable. What a release lets go of nobody covers."""
    older = complete_generation(1, {K: 10, U: 10}).seal().state
    newer = generation(3, 20).state
    assert unseen_cover(older, [K], [older], unreadable=False), "nothing is complete"
    assert not unseen_cover(older, [K], [older, newer], unreadable=True)
    assert unseen_cover(older, [K, U], [older, newer], unreadable=True), "2, which can't be read, may have had it"
    assert not unseen_cover(older, [K, U], [older, newer], unreadable=False), "a release did it"
    assert not unseen_cover(older, [K, U], [older, newer], unreadable=True, given_up=[U]), "a release did it as well"
    assert unseen_cover(older, [K, U], [older, newer], unreadable=True, given_up=[K])
    assert unseen_cover(older, [K], [older], unreadable=False, given_up=[K]), "nothing is complete"
    assert not unseen_cover(older, [], [older], unreadable=True)
    assert not unseen_cover(opened(1, offset=3).state, [K], [newer], unreadable=True)
    going = generation(3, 20).seal().clearing().state
    assert unseen_cover(older, [K], [older, going], unreadable=False)


def test_what_was_never_complete_or_is_gone_already_relies_on_nothing() -> None:
    """Nobody ever restored it."""
    newer = complete_generation(2, {K: 10, U: 10}, instance="b").state
    assert generations_relied_on(opened(1, offset=3).state, [K], [newer]) == []
    older = complete_generation(1, {K: 10, U: 10}).seal().clearing(stays=[U]).cleared().state
    assert generations_relied_on(older, [K], [older, newer]) == []
    assert generations_relied_on(older, [K, U], [older, newer]) == [newer]
