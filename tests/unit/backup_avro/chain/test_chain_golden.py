"""What this format's first release wrote: read by today's decoder, written again byte for byte, and still a chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.backup_avro.chain.entries import EntryKind, sha256_hex
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.json_codec import decode_claim, decode_entry, encode_claim, encode_entry

GOLDEN = Path(__file__).parents[3] / "golden" / "chain"
ENTRIES = sorted(GOLDEN.glob("[0-9]*.json"))


def test_every_kind_is_there() -> None:
    """One entry of each kind at least."""
    assert {decode_entry(path.read_bytes(), path.name).kind for path in ENTRIES} == set(EntryKind)


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_an_old_entry_is_read_and_written_as_it_was(path: Path) -> None:
    """Its bytes are hashed by the entry after it, so they must never change."""
    data = path.read_bytes()
    assert encode_entry(decode_entry(data, path.name)) == data


def test_an_old_claim_is_read_and_written_as_it_was() -> None:
    """As for entries."""
    data = (GOLDEN / "claim.json").read_bytes()
    assert encode_claim(decode_claim(data, "claim.json")) == data


def test_the_old_chain_still_folds() -> None:
    """All rules of today let the old chain pass, up to CLEARED with one partition that stays."""
    data = (GOLDEN / "claim.json").read_bytes()
    state = Generation(claim=decode_claim(data, "claim.json"), head_sha256=sha256_hex(data))
    for path in ENTRIES:
        data = path.read_bytes()
        state.apply(decode_entry(data, path.name), sha256_hex(data))
    assert state.cleared is not None
    assert [state.name_of(key) for key in state.cleared.goes] == ["orders-0"]
    assert [state.name_of(key) for key in state.cleared.stays] == ["users-1"]
    assert not state.gone
    assert sum(part.records for _, part in state.live_parts()) == 1
