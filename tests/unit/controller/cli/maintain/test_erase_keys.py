"""`tandem erase --keys-file`: a file that would name other keys than a person means is refused before any search.

Of a missing file `test_cli_lines.py` has the answer; `test_erase_versions.py` erases the keys of one that is read.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.controller.cli.main import run

_HEX = "--key-format", "hex"
Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Gives a file to the command, which must end with 2, and returns what it says; the store is not there."""
    monkeypatch.chdir(tmp_path)
    config = Path("tandem.yaml")
    config.write_text(
        "pair: shop\ntopics: {include: [orders]}\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n"
        "store: {root: 'file:///does/not/exist'}\n"
    )

    def call(data: bytes, *options: str) -> str:
        Path("left.txt").write_bytes(data)
        assert run(["erase", "orders", "--keys-file", "left.txt", *options, "--yes", "-c", str(config)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return call


@pytest.mark.parametrize("data", [b"", codecs.BOM_UTF8])
def test_a_file_without_a_key(data: bytes, refused: Refused) -> None:
    """An editor's mark is no key."""
    assert "no key is named [TDM-T015]" in refused(data)


@pytest.mark.parametrize("data", [b"\r\n", b"customer-7\n\ncustomer-8\n", b"customer-7\n\r\n"])
def test_an_empty_line_is_not_the_empty_key(data: bytes, refused: Refused) -> None:
    """Nor is it skipped: the rest of the file may not be what its author meant either."""
    assert re.search(r"left.txt, line [12] is empty \[TDM-C059\]", refused(data))
    assert "left.txt, line 2: a key is not hex [TDM-C010]" in refused(b"6b31\n  \n", *_HEX)


@pytest.mark.parametrize("text", ["customer-7\n", "客户"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_of_another_encoding(text: str, encoding: str, refused: Refused) -> None:
    """Its bytes are keys that no object has: a run would prove that, and end with 0."""
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    assert "left.txt is not UTF-8 [TDM-C058]" in refused(mark + text.encode(encoding))
    assert "[TDM-C058]" in refused("customer-7\n".encode("utf-16-le")), "an editor may leave the mark out"
    assert "[TDM-C058]" in refused("müller\n".encode("latin-1"))


def test_a_key_in_another_format(refused: Refused) -> None:
    """The line is named, and never the key, which may be a person's."""
    said = refused(b"6b31\n6b32\nme@example.org\n", *_HEX)
    assert "--keys-file left.txt, line 3: a key is not hex [TDM-C010]" in said
    assert "example" not in said


def test_a_file_that_is_too_large(refused: Refused) -> None:
    """No part of it is taken."""
    assert "left.txt has more than 64 MiB [TDM-C057]" in refused(b"customer\n" * (8 << 20))
