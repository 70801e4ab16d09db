"""The diagrams in the documentation are what the code says."""

from __future__ import annotations

import pytest
from support.pages.diagrams import PAGE, drawn


def test_the_protocol_page_shows_what_the_code_does() -> None:
    """`make diagrams` draws them anew."""
    page = PAGE.read_text("utf-8")
    assert drawn(page) == page
    assert "sealed --> clearing: CLEARING" in page


def test_a_page_without_a_place_is_an_error() -> None:
    """A renamed mark must not silently leave an old picture behind."""
    with pytest.raises(ValueError, match="0 places for the diagram 'roles'"):
        drawn("nothing")
