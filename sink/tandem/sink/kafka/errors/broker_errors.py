"""Finds the broker's error code in an exception of kafka-python."""

from __future__ import annotations

import re
from typing import Final

import kafka.errors as kafka_errors

from tandem.sink.kafka.errors.error_codes import ErrorCode, ErrorMeaning

_NUMBER: Final = re.compile(r"\[Error (-?\d+)\]")
_CLASS: Final = re.compile(r"kafka\.errors\.(\w+)")


def code_of(error: BaseException | None) -> ErrorCode | None:
    """Return the broker's code; None if no broker answered with an error (a time limit, a lost connection).

    The transaction manager of kafka-python hides the codes that it does not expect in the text, or among the
    arguments, of a plain KafkaError.
    """
    number = getattr(error, "errno", None)
    if isinstance(error, kafka_errors.BrokerResponseError) and isinstance(number, int):
        return ErrorCode.of(number)
    if error is None or type(error) is not kafka_errors.KafkaError:
        return None
    inner = [code for code in (code_of(arg) for arg in error.args if isinstance(arg, BaseException)) if code]
    text = str(error)
    inner += [ErrorCode.of(int(found)) for found in _NUMBER.findall(text)]
    inner += [code for code in (_of_class(name) for name in _CLASS.findall(text)) if code]
    # If a broker refuses one partition of a request, it answers OPERATION_NOT_ATTEMPTED for the others.
    decisive = [code for code in inner if code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
    return next(iter([*decisive, *inner]), None)


def meaning_of(error: BaseException | None) -> ErrorMeaning | None:
    """Return the meaning of the broker's code; None in the cases of `code_of`."""
    code = code_of(error)
    return None if code is None else code.meaning


def _of_class(name: str) -> ErrorCode | None:
    number = getattr(getattr(kafka_errors, name, None), "errno", None)
    return ErrorCode.of(number) if isinstance(number, int) and number else None
