"""Errors that are kept: of the same kind and words, without what they were raised from."""

from __future__ import annotations

import gc
import pickle
import traceback
import weakref
from collections.abc import Iterator

import pytest

from tandem.backup_avro.chain.entries import StoredObject
from tandem.backup_avro.chain.signatures import SignatureError
from tandem.backup_avro.errors import ConfigError, DamagedError, TandemError, bare, code_in_note
from tandem.sink.read.scan.range_reader import UnreadableError
from tandem.sink.store import OutsizedObjectError
from tandem.sink.write.confirm import CoverLostError, ObjectLoss, ObjectLostError

ITEM = StoredObject(key="k", journal=False, bytes=1, sha256="", parts=())


class _Bytes(bytearray):
    """What was refused."""


def _raised(error: TandemError, refused: list[weakref.ref[_Bytes]]) -> TandemError:
    data = _Bytes(b"junk")
    refused.append(weakref.ref(data))
    error.__cause__ = error.__context__ = ValueError(data)
    try:
        raise error
    except TandemError as found:
        return found


def _errors() -> Iterator[TandemError]:
    yield SignatureError("a", code="TDM-X001", remedy="b")
    yield ConfigError("a", code="TDM-X001")
    yield UnreadableError("a", code="TDM-X001", at=3)
    yield OutsizedObjectError("a", code="TDM-X001", size=7, remedy="b")
    yield ObjectLostError(ITEM, "a", code="TDM-X001", remedy="b")
    yield CoverLostError(1, 2, [ObjectLoss(ITEM, "is missing")])


@pytest.mark.parametrize("error", list(_errors()), ids=lambda error: type(error).__name__)
def test_it_says_what_the_error_said_and_holds_nothing(error: TandemError) -> None:
    """Those with attributes of their own, too. The error that was raised stays as it is."""
    refused: list[weakref.ref[_Bytes]] = []
    raised = _raised(error, refused)
    kept = bare(raised)
    assert raised.__traceback__
    assert raised.__cause__
    assert (type(kept), str(kept), kept.args, vars(kept)) == (type(raised), str(raised), raised.args, vars(raised))
    assert (kept.__traceback__, kept.__cause__, kept.__context__) == (None, None, None)
    raised.__traceback__ = raised.__cause__ = raised.__context__ = None
    del raised
    gc.collect()
    assert refused[0]() is None


@pytest.mark.parametrize("error", list(_errors()), ids=lambda error: type(error).__name__)
def test_it_crosses_processes_with_its_code(error: TandemError) -> None:
    """Workers and Spark pickle results that hold errors, also those whose constructors take other arguments."""
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), there.code, there.remedy) == (type(error), str(error), error.code, error.remedy)
    assert vars(there) == vars(error)


def test_a_traceback_ends_with_the_code() -> None:
    """Of a Spark task only the traceback reaches the driver."""
    *_, line = traceback.format_exception(DamagedError("a", code="TDM-X001"))
    assert code_in_note(line) == "TDM-X001"
    assert code_in_note("  error code: TDM-X001") == "TDM-X001"
    assert code_in_note("ValueError: error code: TDM-X001") is None


def test_a_message_with_all_that_was_refused_in_it_is_cut() -> None:
    """The beginning says which object it is."""
    kept = bare(DamagedError(f"key: {'x' * 1_000_000} is not a time", code="TDM-X001", remedy="look"))
    assert len(kept.args[0]) == 4096
    assert str(kept).startswith("key: xxx")
    assert str(kept).endswith("(look)")
