"""Names with commas between, as options have them."""

from __future__ import annotations

import pytest

from tandem.backup_avro.documents.name_lists import names_in
from tandem.backup_avro.errors import ConfigError


def test_names_are_read_once_and_without_blanks() -> None:
    """In the order in which they were given; nothing given is nothing named."""
    assert names_in("--topics", ["b, a ", "c", "b"]) == ("b", "a", "c")
    assert names_in("--topics", []) == ()


@pytest.mark.parametrize("text", ["", " ", ",", "a,", ",a", "a, ,b"])
def test_an_empty_name_is_no_name(text: str) -> None:
    """An empty variable of a script must not stand for all there is."""
    with pytest.raises(ConfigError, match=f"--topics '{text}' holds an empty name") as error:
        names_in("--topics", ["orders", text])
    assert "leave the option out" in str(error.value.remedy)
