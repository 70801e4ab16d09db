"""What a client of librdkafka reports beside its answers: lines of its log, errors of its connections."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError

from tandem.sink.kafka.errors.error_codes import ErrorCode

_log = logging.getLogger(__name__)


class DebugLog:
    """Logs librdkafka's lines at debug level: it writes several a second while a broker is down."""

    def log(self, level: int, message: str, *args: object) -> None:
        """Log one line."""
        del level
        _log.debug(message, *args)


class LastClientError:
    """The last error that the client reported. A class of its own, to avoid a reference cycle with its owner."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all errors: the client has had an answer since."""
        self.last: KafkaError | None = None
        self.all_down = False

    def keep_error(self, error: KafkaError) -> None:
        """Keep an error. "All brokers are down" does not replace one with the reason, such as a wrong password."""
        all_down = error.code() == ErrorCode.CLIENT_ALL_BROKERS_DOWN
        if self.last is None or not all_down:
            self.last = error
        self.all_down = self.all_down or all_down
        _log.debug("librdkafka: %s", error.str())
