"""The table of error codes against the lists of both Kafka clients, which know what brokers report."""

from __future__ import annotations

import re

import kafka.errors as kafka_errors
import pytest
from confluent_kafka import KafkaError

from tandem.sink.kafka.errors.broker_errors import code_of, meaning_of
from tandem.sink.kafka.errors.error_codes import PASSING, ErrorCode, ErrorMeaning, name_of

_OF_KAFKA_PYTHON = {
    kind.errno: kind
    for kind in vars(kafka_errors).values()
    if isinstance(kind, type)
    and issubclass(kind, kafka_errors.BrokerResponseError)
    and isinstance(getattr(kind, "errno", None), int)
}
_OF_LIBRDKAFKA = {
    number: name for name in dir(KafkaError) if isinstance(number := getattr(KafkaError, name), int) and name.isupper()
}
# Names that kafka-python has of its own.
_OTHER_NAMES = {
    -1: "UNKNOWN",
    0: "NO",
    2: "CORRUPT_RECORD",
    4: "INVALID_FETCH_REQUEST",
    6: "NOT_LEADER_FOR_PARTITION",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    35: "INCOMPATIBLE_BROKER_VERSION",
    39: "INVALID_REPLICATION_ASSIGNMENT",
    40: "INVALID_CONFIGURATION",
    56: "KAFKA_STORAGE",
    106: "FETCH_SESSION_TOPIC_ID",
}


def test_no_code_of_either_client_is_missing() -> None:
    """Nor is there one that neither of them knows."""
    assert len(_OF_KAFKA_PYTHON) > 120
    assert len(_OF_LIBRDKAFKA) > 180
    assert {int(code) for code in ErrorCode} == _OF_KAFKA_PYTHON.keys() | _OF_LIBRDKAFKA.keys()


@pytest.mark.parametrize("number", sorted(_OF_KAFKA_PYTHON))
def test_a_number_has_the_name_that_kafka_python_gives_it(number: int) -> None:
    """But for those that have another one there."""
    words = re.findall(r"[A-Z]+[a-z]*", re.sub(r"(Error|Exception)$", "", _OF_KAFKA_PYTHON[number].__name__))
    assert "_".join(words).upper() == _OTHER_NAMES.get(number, ErrorCode.of(number).name)


@pytest.mark.parametrize("number", sorted(number for number in _OF_LIBRDKAFKA if number < -1))
def test_a_code_of_librdkafka_has_its_name(number: int) -> None:
    """With a prefix in place of the underscore."""
    assert ErrorCode.of(number).name == f"CLIENT{_OF_LIBRDKAFKA[number]}"


@pytest.mark.parametrize("number", sorted(_OF_KAFKA_PYTHON))
def test_what_clients_retry_is_not_permanent_here(number: int) -> None:
    """And what they don't is not taken for passing, but where the protocol's own list says that it is retriable."""
    meaning = ErrorCode.of(number).meaning
    if _OF_KAFKA_PYTHON[number].retriable:
        assert meaning in PASSING | {ErrorMeaning.UNKNOWN_TOPIC, ErrorMeaning.RESTART}
    elif meaning in PASSING:
        # Errors.java: CorruptRecordException, ListenerNotFoundException and others are retriable; the rest of these is
        # of brokers among themselves, or passes with what is under way.
        assert ErrorCode.of(number).name in {
            "CORRUPT_MESSAGE",
            "BROKER_NOT_AVAILABLE",
            "STALE_CONTROLLER_EPOCH",
            "TRANSACTION_COORDINATOR_FENCED",
            "REASSIGNMENT_IN_PROGRESS",
            "STALE_BROKER_EPOCH",
            "NEW_LEADER_ELECTED",
            "UNKNOWN_CONTROLLER_ID",
        }


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_every_code_has_a_remedy(code: ErrorCode) -> None:
    """In words, for people."""
    assert len(code.remedy.split()) > 2


def test_a_code_of_a_newer_broker() -> None:
    """Keeps its number, and is taken for an unknown error."""
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (name_of(9999), name_of(6)) == ("error 9999", "NOT_LEADER_OR_FOLLOWER")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, None),
        (OSError(50, "not a broker's"), None),
        (kafka_errors.KafkaTimeoutError("late"), None),
        (kafka_errors.KafkaConnectionError("gone"), None),
        (kafka_errors.ProducerFencedError(), ErrorCode.PRODUCER_FENCED),
        (kafka_errors.UnsupportedVersionError("old"), ErrorCode.UNSUPPORTED_VERSION),
        (kafka_errors.for_code(9999)(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (kafka_errors.KafkaError("closed"), None),
        (
            kafka_errors.KafkaError(f"Unexpected error: {kafka_errors.InvalidTransactionTimeoutError()}"),
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ),
        (kafka_errors.KafkaError(kafka_errors.InvalidTxnStateError()), ErrorCode.INVALID_TXN_STATE),
        (
            kafka_errors.KafkaError(
                f"errors: { {0: kafka_errors.NoError, 1: kafka_errors.OperationNotAttemptedError, 2: kafka_errors.InvalidTopicError} }"  # noqa: E501
            ),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ),
        (
            kafka_errors.KafkaError(f"errors: { {1: kafka_errors.OperationNotAttemptedError} }"),
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        ),
    ],
)
def test_the_code_behind_an_error_of_kafka_python(error: BaseException | None, code: ErrorCode | None) -> None:
    """Wherever its transaction manager hides it."""
    assert code_of(error) is code
    assert meaning_of(error) is (None if code is None else code.meaning)
