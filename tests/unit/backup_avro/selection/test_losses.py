"""Why a partition is kept for lost records: written as a sentence, read back as fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.chains import complete_generation, key

from tandem.backup_avro.chain.entries import Clearing, EntryKind
from tandem.backup_avro.selection.losses import (
    CUT_OFF_KEPT,
    NOT_PROVEN_KEPT,
    TOPIC_GONE_KEPT,
    KeptLoss,
    LossCause,
    is_of_keys,
    keeps_lost_keys,
    kept_losses,
    log_start_reason,
    loss_of,
    vanished_keys,
    vanished_reason,
)

K, U = key(), key("u")


@given(
    st.integers(1, 10**9),
    st.integers(1, 10**6),
    st.lists(st.integers(0, 10**9), max_size=5),
    st.sampled_from(LossCause),
)
def test_what_was_written_is_read_back(count: int, newer: int, offsets: list[int], cause: LossCause) -> None:
    """Number, generation and cause."""
    why = vanished_reason(count, newer, offsets, cause=cause)
    assert loss_of(K, why) == KeptLoss(key=K, cause=cause, reason=why, keys=count, missing_in=newer)
    assert is_of_keys(why)


@pytest.mark.parametrize(
    ("reason", "cause", "of_keys"),
    [
        (log_start_reason(7), LossCause.LOG_START_MOVED, True),
        (CUT_OFF_KEPT, LossCause.LOG_CUT, False),
        (TOPIC_GONE_KEPT, LossCause.TOPIC_GONE, False),
        (NOT_PROVEN_KEPT, LossCause.TOPIC_GONE, False),
        ("another reason", None, False),
        ("", None, False),
    ],
)
def test_other_reasons(reason: str, cause: LossCause | None, *, of_keys: bool) -> None:
    """They count no keys."""
    found = loss_of(K, reason)
    assert found == (None if cause is None else KeptLoss(key=K, cause=cause, reason=reason))
    assert is_of_keys(reason) is of_keys


@pytest.mark.parametrize("ending", ["", "; likely cause: sabotage", "; likely cause: "])
def test_a_reason_of_another_release_has_no_known_cause(ending: str) -> None:
    """Its number counts."""
    why = vanished_reason(3, 2, [1]).rpartition("; likely cause: ")[0] + ending
    found = loss_of(K, why)
    assert found is not None
    assert (found.cause, found.keys) == (LossCause.NOT_KNOWN, 3)


def test_a_generation_tells_what_it_keeps() -> None:
    """From CLEARING on, and what it has cleared is no loss."""
    chain = complete_generation(1, {K: 10, U: 5}).seal()
    assert (kept_losses(chain.state), vanished_keys(chain.state), keeps_lost_keys(chain.state, K)) == ([], {}, False)
    stays = {U: TOPIC_GONE_KEPT, K: vanished_reason(3, 2, [1])}
    chain.append(EntryKind.CLEARING, clearing=Clearing(goes=(), stays=stays))
    for _ in range(2):
        assert [loss.key for loss in kept_losses(chain.state)] == [K, U]
        assert vanished_keys(chain.state) == {K: 3}
        assert (keeps_lost_keys(chain.state, K), keeps_lost_keys(chain.state, U)) == (True, False)
        if chain.state.cleared is None:
            chain.cleared()
    chain.state.compacted_from.clear()
    assert not keeps_lost_keys(chain.state, K), "where the policy has always deleted, some records have expired"
