"""What generations held as of one moment, put together: rule by rule what is added, and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.backups.chains import Chain, complete_generation, done_base, grown, key, part, position, topic

from tandem.backup_avro.chain.entries import (
    Base,
    Clearing,
    EntryKind,
    Expired,
    GroupOffset,
    Horizon,
    Mark,
    PartitionKey,
    iso,
)
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.backup_avro.selection.moments import marked, moment_of, moments_beside, past_state, with_objects_of
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection
from tandem.backup_avro.selection.state_as_of import LAGGING_MS, GenerationAsOf, KnownMoment, as_of, known, select_as_of

K, U = key(), key("u")
UNREAD = Base(start=0, end=9, leader=1)


def then(chain: Chain) -> Generation:
    """The chain as it is now, which will have been then."""
    return chain.state.frozen_copy()


def picture(past: Generation, now: Chain | None = None) -> GenerationAsOf:
    """A generation as of the last entry of `past`, though its chain has gone on."""
    return as_of(past, past_state(past), past if now is None else now.state)


def only(selection: Selection) -> PartitionSelection:
    (found,) = selection.partitions
    return found


def ends(selection: Selection) -> Mapping[PartitionKey, tuple[int, tuple[int, ...]]]:
    """Where each partition ends, and whose records are in it."""
    return {item.key: (item.end, item.generations) for item in selection.partitions}


def scanned(number: int, end: int, offset: int, *, epoch: int = 1) -> Chain:
    """COMPLETE; [0, end) was scanned, up to `offset` the tail has read."""
    chain = Chain(number=number, instance="b", incarnation="b-1").open()
    parts = [part(0, end - 1, scan=1)] + ([part(end, offset - 1, start=150)] if offset > end else [])
    return chain.commit({K: position(offset, base=done_base(end), epoch=epoch)}, *parts).complete()


def swept(chain: Chain, upto: int) -> Chain:
    """A janitor has left the newest record of each key below an offset, which is that of the last moment."""
    horizon = Horizon(seq=chain.state.moments[-1].seq, offsets={K: upto})
    return chain.append(EntryKind.REWRITE, incarnation="janitor", horizon=horizon, since=chain.state.seq)


def test_an_earlier_state_is_read_from_what_its_chain_has_by_now() -> None:
    """Objects, horizons, what is being let go of and what has expired: of these only the present one is there."""
    chain = complete_generation(1, {K: 20, U: 1})
    past = then(chain)
    now = replace(
        grown(chain, K, 30).state,
        replaced={"old": 7},
        horizons={K: 9},
        horizon_seq=past.seq,
        expired={K: Expired(8, past.seq + 1), U: Expired(1, past.seq)},
        clearing=Clearing(goes=(U,), stays={K: "kept"}),
        clearing_by="a-1",
        cleared=Clearing(goes=(), stays={}),
        going=frozenset({U}),
    )
    found = with_objects_of(past, now)
    names = ("objects", "replaced", "horizons", "horizon_seq", "expired", "clearing", "clearing_by", "cleared", "going")
    assert {name: getattr(found, name) for name in names} == {name: getattr(now, name) for name in names}
    assert found.positions == past.positions
    assert found.missing == {K: 8}, "what had expired by then was not there"
    assert with_objects_of(past, now, since=past.seq - 1).missing == {K: 8, U: 1}
    assert with_objects_of(past, now, since=past.seq + 1).missing == {}


def test_a_state_is_as_of_its_last_moment() -> None:
    """Whatever was written since that commits nothing; before the first commit there is only the last entry."""
    chain = Chain().open()
    assert (past_state(chain.state).seq, past_state(chain.state).at) == (chain.state.seq, chain.state.at)
    chain.commit({K: position(5)}).complete()
    moment = chain.state.moments[-1]
    chain.append(EntryKind.REWRITE)
    assert chain.state.at > moment.at
    assert (past_state(chain.state).seq, past_state(chain.state).at) == (moment.seq, moment.at)


def test_what_is_marked_has_topics_and_groups_of_the_commit_before() -> None:
    """When they changed after that is not known."""
    chain = complete_generation(1, {K: 20})
    past = then(chain)
    there = GroupOffset(key=K, offset=3)
    chain.commit({K: position(25)}, part(20, 24), topics=(topic(partitions=9),), groups={"g": (there,)})
    assert (chain.state.topics != past.topics, chain.state.groups != past.groups) == (True, True)
    found = marked(past, chain.state, [Mark(at=chain.state.at, offsets={K: 22})], chain.state.at)
    assert found is not None
    assert (found[0].topics, found[0].groups) == (past.topics, past.groups)


def test_an_entry_before_the_horizon_is_refused_with_where_it_begins() -> None:
    """What was never a moment is none for that reason."""
    chain = grown(complete_generation(1, {K: 20}), K, 25)
    chain.append(EntryKind.REWRITE)
    state = grown(chain, K, 30).state
    early, late = state.moments[-2], state.moments[-1]
    later = replace(state, horizon_seq=late.seq)
    with pytest.raises(RefusedError, match=f"entry {early.seq} of generation 1 lies before the horizon") as refused:
        moment_of(later, early.seq)
    assert refused.value.remedy == f"the restorable window begins with entry {late.seq}, at {iso(late.at)}"
    with pytest.raises(ConfigError, match=f"entry {late.seq - 1} of generation 1 is not a restorable moment"):
        moment_of(later, late.seq - 1)
    assert moment_of(later, late.seq) == late


# --- what is added ----------------------------------------------------------------------------------------------------


def test_what_another_tail_had_read_by_then_is_added_and_nothing_of_later() -> None:
    """Whatever both have read since."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 10, 15)
    was_older, was_newer = then(older), then(newer)
    grown(older, K, 30)
    grown(newer, K, 40)
    chosen, other = picture(was_newer, newer), picture(was_older, older)
    found = select_as_of(chosen, [other], freely=True)
    assert ends(found) == {K: (20, (2, 1))}
    assert [(one.generation, one.low, one.high) for one in only(found).slices] == [(2, 0, 15), (2, 0, 15), (1, 15, 20)]
    assert (found.generation, found.seq, found.used) == (2, was_newer.seq, {1, 2})
    assert select_as_of(chosen, [other]) == found, "whoever names the generation gets what others have above it"
    assert ends(select_as_of(chosen)) == {K: (15, (2,))}


def test_what_was_merged_since_is_read_from_where_it_is() -> None:
    """In parts that reach beyond the moment."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 10, 15)
    was_older = then(older)
    first = next(iter(older.state.objects))
    grown(older, K, 30)
    merged = older.object(part(0, 29), name="merged")
    older.append(EntryKind.REWRITE, replaced=tuple(older.state.objects), objects=(merged,))
    assert first not in older.state.objects
    found = only(select_as_of(picture(then(newer)), [picture(was_older, older)], freely=True))
    assert [(one.item.key, one.low, one.high) for one in found.slices if one.generation == 1] == [(merged.key, 15, 20)]


def test_what_was_not_read_through_comes_from_who_had() -> None:
    """Or is named, where a generation was named."""
    older, newer = complete_generation(1, {K: 20, U: 7}), complete_generation(2, {K: 20})
    newer.commit({U: position(9, base=UNREAD)})
    chosen, other = picture(then(newer)), picture(then(older))
    found = select_as_of(chosen, [other], freely=True)
    assert (ends(found), found.incomplete) == ({K: (20, (2,)), U: (7, (1,))}, ())
    named = select_as_of(chosen, [other])
    assert (ends(named), named.incomplete) == ({K: (20, (2,))}, ("u-0",))
    assert select_as_of(chosen, wanted=lambda one: one.name == "t").incomplete == (), "nobody asked for it"


def test_what_is_read_through_by_a_later_mark_was_not_by_then() -> None:
    """The commit after a mark may know more than was known as of it."""
    chain = complete_generation(1, {K: 20})
    chain.commit({U: position(9, head_at=5, base=done_base(9))})
    past = then(chain)
    grown(chain, K, 30)
    chain.commit({U: position(9, head_at=90, base=done_base(9))})
    at = past.moments[-1].at + 1
    found = marked(past, chain.state, [Mark(at=at, offsets={K: 24})], at)
    assert found is not None
    selection = select_as_of(as_of(*found, chain.state))
    assert (ends(selection), selection.incomplete) == ({K: (24, (1,))}, ("u-0",))


def test_a_topic_that_was_gone_by_then_is_not_brought_back() -> None:
    """Neither one that was deleted, nor one that was created anew; one that came and was not seen yet is there."""
    older, newer = complete_generation(1, {K: 20, U: 7}), complete_generation(2, {K: 20, U: 6})
    newer.append(EntryKind.COMMIT, topics=(topic("u", removed=True),))
    assert ends(select_as_of(picture(then(newer)), [picture(then(older))], freely=True)) == {K: (20, (2,))}
    again = complete_generation(2, {K: 20, U: 6}).append(EntryKind.COMMIT, topics=(topic("u", topic_id="new"),))
    again.commit({key("new"): position(3)}, part(0, 2, of=key("new")))
    found = select_as_of(picture(then(again)), [picture(then(older))], freely=True)
    assert ends(found) == {K: (20, (2,)), key("new"): (3, (2,))}
    unaware = complete_generation(2, {K: 20})
    assert ends(select_as_of(picture(then(unaware)), [picture(then(older))], freely=True))[U] == (7, (1,))
    assert U not in ends(select_as_of(picture(then(unaware)), [picture(then(older.seal()))], freely=True))


def test_two_marks_are_put_together() -> None:
    """Each generation ends where its own mark says, with the log start of before."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 10, 15)
    before = then(older), then(newer)
    grown(older, K, 30, log_start=12)
    grown(newer, K, 31)
    at = max(past.moments[-1].at for past in before) + 1
    pictures = []
    for past, chain, end in zip(before, (older, newer), (24, 18), strict=True):
        found = marked(past, chain.state, [Mark(at=at, offsets={K: end})], at)
        assert found is not None
        pictures.append(as_of(*found, chain.state))
    found = only(select_as_of(pictures[1], [pictures[0]], freely=True))
    assert (found.end, found.generations, found.log_start) == (24, (2, 1), 0)


# --- what is not ------------------------------------------------------------------------------------------------------


def test_what_was_scanned_is_not_glued_on() -> None:
    """Its own copy is taken instead, unless the generation was named."""
    chosen, other = picture(then(complete_generation(2, {K: 10}))), picture(then(scanned(1, 12, 20)))
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (20, (1,))}
    assert ends(select_as_of(chosen, [other])) == {K: (10, (2,))}


def test_two_epochs_are_not_joined() -> None:
    """In between the log may have been cut."""
    chosen = picture(then(complete_generation(2, {K: 10}, epoch=2)))
    assert ends(select_as_of(chosen, [picture(then(scanned(1, 5, 20, epoch=1)))], freely=True)) == {K: (10, (2,))}
    assert ends(select_as_of(chosen, [picture(then(scanned(1, 5, 20, epoch=3)))], freely=True)) == {K: (20, (1,))}


def test_what_was_swept_since_is_not_glued_on() -> None:
    """Generation 2 stands beyond the swept tombstone by now, but as of the moment it held what that deletes."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 10, 15)
    was_older, was_newer = then(older), then(newer)
    swept(grown(older, K, 30), 20)
    grown(newer, K, 40)
    chosen, other = picture(was_newer, newer), picture(was_older, older)
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (20, (1,))}, "swept it is right as of its end"
    assert ends(select_as_of(chosen, [other])) == {K: (15, (2,))}
    below = complete_generation(1, {K: 20})
    was_below = then(below)
    swept(grown(below, K, 30), 15)
    other = picture(was_below, below)
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (20, (2, 1))}, "nothing that was swept is joined"


def test_what_was_swept_beyond_the_moment_adds_nothing() -> None:
    """Nor what was not COMPLETE by then, or is cleared; the generation that is rested on is not asked."""
    older = complete_generation(1, {K: 20})
    at = older.state.moments[-1].at
    grown(grown(older, K, 25), K, 30)
    state = then(older)
    last = state.moments[-1]
    assert [(g, one.at) for g, one in moments_beside([state], 2, at)] == [(state, at)]
    assert moments_beside([state], 2, last.at + 50) == [(state, last)]
    assert moments_beside([state], 1, at) == []
    assert moments_beside([state], 2, at - 1) == []
    late = replace(state, completed_at=at + 1)
    assert moments_beside([late], 2, at) == []
    assert moments_beside([Chain(number=3).open().state], 2, at) == []
    assert moments_beside([swept(older, 30).state], 2, at) == []
    assert moments_beside([complete_generation(1, {K: 20}).seal().clearing().state], 2, 99) == []


def test_a_sweep_that_went_further_than_it_said_is_refused() -> None:
    """Of its partition nothing earlier can be told."""
    state = then(complete_generation(1, {K: 20}))
    broken = replace(picture(state).generation, horizons={K: 21})
    with pytest.raises(RefusedError, match="does not hold the state of t-0 as of offset 20: below 21 ") as caught:
        select_as_of(GenerationAsOf(generation=broken, at=1, cut={}))
    assert caught.value.remedy == "the horizon of `tandem retention` was put there; choose a later state"


def test_what_was_above_a_cut_that_was_noted_later_is_not_added() -> None:
    """Nobody knows whether the log was cut before the moment. Below the cut, the log had it in any case."""
    older, newer = complete_generation(1, {K: 20}), scanned(2, 10, 15)
    was_older, chosen = then(older), picture(then(newer))
    older.taint(20, cut_at=18)
    other = picture(was_older, older)
    assert other.cut == {K: 18}
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (18, (2, 1))}
    somewhere = complete_generation(1, {K: 20})
    past = then(somewhere)
    assert ends(select_as_of(chosen, [picture(past, somewhere.taint(20, cut_at=-1))], freely=True)) == {K: (15, (2,))}
    inside = scanned(1, 19, 20)
    past = then(inside)
    assert ends(select_as_of(chosen, [picture(past, inside.taint(20, cut_at=18))], freely=True)) == {K: (15, (2,))}
    at_its_end = grown(scanned(1, 18, 18), K, 20)
    past = then(at_its_end)
    other = picture(past, at_its_end.taint(20, cut_at=18))
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (18, (1,))}
    beyond = grown(complete_generation(1, {K: 20}), K, 30)
    past = then(complete_generation(1, {K: 20}))
    assert picture(past, beyond.taint(30, cut_at=20)).cut == {}
    gap = complete_generation(1, {K: 20})
    past = then(gap)
    assert picture(past, gap.taint(20)).cut == {}


def test_nothing_is_added_to_what_is_known_to_be_cut_by_now() -> None:
    """It is restored as it was; other partitions are added to all the same."""
    newer = complete_generation(2, {K: 15, U: 5})
    past = then(newer)
    chosen = picture(past, newer.taint(15, cut_at=12))
    others = [picture(then(complete_generation(1, {K: 20, U: 7})))]
    assert ends(select_as_of(chosen, others, freely=True)) == {K: (15, (2,)), U: (7, (2, 1))}
    inside = scanned(1, 19, 20)
    past = then(inside)
    cut_as_well = picture(past, inside.taint(20, cut_at=18))
    assert ends(select_as_of(chosen, [cut_as_well], freely=True)) == {K: (15, (2,)), U: (5, (2,))}


def test_a_cut_that_was_noted_by_then_is_handled_as_in_the_newest_state() -> None:
    """The history that the log went on with is preferred to the one that it left."""
    cut = complete_generation(2, {K: 20}).taint(20, cut_at=12)
    cut.append(EntryKind.CONFIRM)
    chosen, other = picture(then(cut)), picture(then(complete_generation(1, {K: 30}, epoch=2)))
    assert chosen.cut == {}
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (30, (1,))}
    assert ends(select_as_of(chosen, [other])) == {K: (20, (2,))}
    past = then(cut)
    assert picture(past, cut.taint(0)).cut == {}, "an object that was missed since says nothing of the cut"


def test_what_is_cleared_by_now_is_not_added() -> None:
    """What stays of it is."""
    older = complete_generation(1, {K: 20, U: 7})
    past = then(older)
    other = picture(past, older.seal().clearing(stays=[U]).cleared())
    chosen = picture(then(complete_generation(2, {K: 15, U: 5})))
    assert ends(select_as_of(chosen, [other], freely=True)) == {K: (15, (2,)), U: (7, (2, 1))}


def test_a_taint_of_then_is_warned_of() -> None:
    """Unless another one has what is in doubt."""
    tainted = complete_generation(2, {K: 20}).taint(15)
    tainted.append(EntryKind.CONFIRM)
    chosen = picture(then(tainted))
    assert only(select_as_of(chosen, freely=True)).warning == "tainted above offset 15: a gap"
    found = only(select_as_of(chosen, [picture(then(complete_generation(1, {K: 25})))], freely=True))
    assert (found.end, found.generations, found.warning) == (25, (2, 1), None)


def test_who_only_knows_what_was_deleted_from_the_log_is_named_too() -> None:
    """Without it, the same plan could not be made again."""
    older, newer = complete_generation(1, {K: 20}, log_start=6), complete_generation(2, {K: 20}, log_start=4)
    newer.state.topics["t"] = replace(newer.state.topics["t"], config={"cleanup.policy": "compact,delete"})
    found = select_as_of(picture(then(newer)), [picture(then(older))], freely=True)
    assert (only(found).log_start, only(found).generations, only(found).log_start_from) == (6, (2,), (1,))
    assert found.used == {1, 2}
    adds = complete_generation(1, {K: 21}, log_start=6)
    found = select_as_of(picture(then(newer)), [picture(then(adds))], freely=True)
    assert (only(found).log_start, only(found).generations, only(found).log_start_from) == (6, (2, 1), ())
    assert only(select_as_of(picture(then(complete_generation(1, {K: 5}, log_start=-1))))).log_start == 0


# --- how much is known ------------------------------------------------------------------------------------------------


def at_head(state: Generation, at: int, moment: int) -> GenerationAsOf:
    """A generation as of `moment` whose partitions were last at their ends at `at`."""
    positions = {key: replace(one, head_at=at) for key, one in state.positions.items()}
    return replace(picture(replace(state, positions=positions, heads=(0, 0))), at=moment)


def test_the_lag_is_that_of_what_is_taken() -> None:
    """The union is as of the latest of its moments; what only the lagging one holds is named by how far it lags."""
    late, more = 10 * LAGGING_MS, LAGGING_MS + 1
    newer = at_head(then(complete_generation(2, {K: 15, U: 9})), late - more, late - more)
    older = at_head(then(complete_generation(1, {K: 20, U: 8})), late, late)
    assert known(select_as_of(newer), [newer, older]) == KnownMoment(at=late - more, lagging={})
    united = select_as_of(newer, [older], freely=True)
    assert ends(united) == {K: (20, (2, 1)), U: (9, (2,))}
    assert known(united, [newer, older]) == KnownMoment(at=late, lagging={}), "generation 1 saw the end of u below"
    ahead = at_head(then(complete_generation(1, {K: 20})), late, late)
    united = select_as_of(newer, [ahead], freely=True)
    assert known(united, [newer, ahead]) == KnownMoment(at=late, lagging={U: more})
    just = replace(newer, at=late, generation=at_head(newer.generation, late - LAGGING_MS, late).generation)
    assert known(select_as_of(just), [just]).lagging == {}


def test_what_ends_within_what_others_hold_was_last_known_by_the_most_careful() -> None:
    """Generation 1 is tainted and stands beyond what is taken of it: its own time at head says nothing of that."""
    late = 10 * LAGGING_MS
    newer = at_head(then(complete_generation(2, {K: 15})), late - 3 * LAGGING_MS, late)
    tainted = grown(complete_generation(1, {K: 20}).taint(20, epoch=1), K, 30, epoch=2)
    tainted.append(EntryKind.CONFIRM)
    older = at_head(then(tainted), late, late)
    united = select_as_of(newer, [older], freely=True)
    assert ends(united) == {K: (20, (2, 1))}
    assert known(united, [newer, older]) == KnownMoment(at=late, lagging={K: 3 * LAGGING_MS})
    piece = replace(only(united), end=14)
    assert known(replace(united, partitions=(piece,)), [newer, older]).lagging == {K: 3 * LAGGING_MS}


def test_no_time_at_head_is_later_than_the_moment() -> None:
    """A commit after a mark says when its own end was seen, not the mark's."""
    state = then(complete_generation(1, {K: 15}))
    assert at_head(state, 90, 50).head_at(K) == 50
    assert at_head(state, 40, 50).head_at(K) == 40
