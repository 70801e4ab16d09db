"""Every error code that a Kafka broker or client reports, with its meaning for the caller.

The one table of the project: the fetcher, the admin calls, the consumers of the coordination topic, the transactions
of a restore and its consumer groups all use it. A code has one meaning, whichever request it answers. Sources: the
protocol's list of error codes (kafka.apache.org/protocol, `Errors.java`) and librdkafka's own codes (`rdkafka.h`),
which are negative. tests/unit/sink/kafka/errors/test_error_codes.py compares the table with the lists of both clients.

kafka-python completes the future of a batch *successfully* when the broker refuses it: the caller has to check the
future's value too (`spark_jobs.restore.progress.batch_producer.Sent.base_offset`).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, Self


class ErrorMeaning(Enum):
    """The consequence of an error for the next attempt."""

    NONE = "no error"
    TRANSIENT = "the same request may succeed when it is sent again"
    REFRESH_METADATA = "as TRANSIENT, once the leader, coordinator or controller has been looked up anew"
    RESTART = "the broker no longer knows the state of the producer or session: a new one has to begin"
    FENCED = "another process goes on under the same identity, or the broker has ended what this one had begun"
    UNREACHABLE = "no broker answers"
    AUTHENTICATION = "the broker does not take the credentials, or TLS fails"
    DENIED = "the principal lacks a right"
    UNKNOWN_TOPIC = "the topic or partition does not exist, or the broker does not know of it yet"
    EXISTS = "what is to be created exists already"
    POSITION = "the offset is outside of what the broker has: the bounds have to be asked for"
    IN_USE = "the consumer group has members"
    NO_GROUP = "the consumer group does not exist"
    TOPIC = "permanent for this topic: its records or its settings are refused, and would be again"
    RUN = "permanent for every topic: the cluster refuses this kind of request"
    UNEXPECTED = "the code does not tell: the broker's log does"


PASSING: Final = frozenset({ErrorMeaning.TRANSIENT, ErrorMeaning.REFRESH_METADATA, ErrorMeaning.UNREACHABLE})
"""Meanings that may pass without intervention."""

PERMANENT: Final = frozenset({ErrorMeaning.TOPIC, ErrorMeaning.RUN})
"""Meanings that last until a person changes something."""

_M = ErrorMeaning
_LOG: Final = "look at the broker's log"
_AGAIN: Final = "it may work when tried again; if not, look at the broker's log"
_ADMIN: Final = "give a value that the cluster takes; the error says which it refuses"
_SIZE: Final = "raise max.message.bytes of the topic (or message.max.bytes of the brokers)"
_VERSION: Final = "upgrade the brokers; docs/compatibility.md names the least version"
_NOT_SENT: Final = "report it: Tandem sends no request that is answered by this"


class ErrorCode(IntEnum):
    """One error code under its protocol name, with meaning and remedy; librdkafka's own codes begin with CLIENT."""

    meaning: ErrorMeaning
    remedy: str

    def __new__(cls, number: int, meaning: ErrorMeaning, remedy: str = "") -> Self:
        """Return a member whose value is the number alone."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        member.remedy = remedy or (_AGAIN if meaning in PASSING else _LOG)
        return member

    @staticmethod
    def of(number: int) -> ErrorCode:
        """Return the code of this number; a newer broker's code that is not in the table is UNKNOWN_SERVER_ERROR."""
        return _BY_NUMBER.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)

    # Of brokers
    UNKNOWN_SERVER_ERROR = -1, _M.UNEXPECTED
    NONE = 0, _M.NONE
    OFFSET_OUT_OF_RANGE = 1, _M.POSITION
    CORRUPT_MESSAGE = 2, _M.TRANSIENT, "look for a faulty disk or network: the checksum of a batch does not fit it"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _M.UNKNOWN_TOPIC
    INVALID_FETCH_SIZE = 4, _M.RUN, _NOT_SENT
    LEADER_NOT_AVAILABLE = 5, _M.REFRESH_METADATA
    NOT_LEADER_OR_FOLLOWER = 6, _M.REFRESH_METADATA
    REQUEST_TIMED_OUT = 7, _M.TRANSIENT
    BROKER_NOT_AVAILABLE = 8, _M.REFRESH_METADATA
    REPLICA_NOT_AVAILABLE = 9, _M.REFRESH_METADATA
    MESSAGE_TOO_LARGE = 10, _M.TOPIC, _SIZE
    STALE_CONTROLLER_EPOCH = 11, _M.REFRESH_METADATA
    OFFSET_METADATA_TOO_LARGE = 12, _M.RUN, "raise offset.metadata.max.bytes of the brokers"
    NETWORK_EXCEPTION = 13, _M.REFRESH_METADATA
    COORDINATOR_LOAD_IN_PROGRESS = 14, _M.TRANSIENT
    COORDINATOR_NOT_AVAILABLE = 15, _M.REFRESH_METADATA
    NOT_COORDINATOR = 16, _M.REFRESH_METADATA
    INVALID_TOPIC_EXCEPTION = 17, _M.TOPIC, "use a topic name that Kafka takes, and none of its internal topics"
    RECORD_LIST_TOO_LARGE = 18, _M.TOPIC, "raise segment.bytes of the topic: a batch has to fit into one segment"
    NOT_ENOUGH_REPLICAS = 19, _M.TRANSIENT, "bring brokers back, or lower min.insync.replicas of the topic"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        _M.TRANSIENT,
        "bring brokers back, or lower min.insync.replicas of the topic",
    )
    INVALID_REQUIRED_ACKS = 21, _M.RUN, "set acks=all, or leave it out"
    ILLEGAL_GENERATION = 22, _M.IN_USE
    INCONSISTENT_GROUP_PROTOCOL = 23, _M.RUN, _NOT_SENT
    INVALID_GROUP_ID = 24, _M.RUN, "use a name that the brokers take for a consumer group"
    UNKNOWN_MEMBER_ID = 25, _M.IN_USE
    INVALID_SESSION_TIMEOUT = 26, _M.RUN, _NOT_SENT
    REBALANCE_IN_PROGRESS = 27, _M.IN_USE
    INVALID_COMMIT_OFFSET_SIZE = 28, _M.RUN, "raise message.max.bytes of the brokers' offsets topic"
    TOPIC_AUTHORIZATION_FAILED = 29, _M.DENIED
    GROUP_AUTHORIZATION_FAILED = 30, _M.DENIED
    CLUSTER_AUTHORIZATION_FAILED = 31, _M.DENIED
    INVALID_TIMESTAMP = (
        32,
        _M.TOPIC,
        "widen message.timestamp.*.max.ms of the topic (before and after; difference before Kafka 3.6)",
    )
    UNSUPPORTED_SASL_MECHANISM = 33, _M.AUTHENTICATION, "set sasl.mechanism to one that the brokers offer"
    ILLEGAL_SASL_STATE = 34, _M.AUTHENTICATION, "check security.protocol and sasl.mechanism"
    UNSUPPORTED_VERSION = 35, _M.RUN, _VERSION
    TOPIC_ALREADY_EXISTS = 36, _M.EXISTS
    INVALID_PARTITIONS = 37, _M.TOPIC, _ADMIN
    INVALID_REPLICATION_FACTOR = 38, _M.TOPIC, "ask for no more replicas than there are brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _M.TOPIC, _ADMIN
    INVALID_CONFIG = 40, _M.TOPIC, _ADMIN
    NOT_CONTROLLER = 41, _M.REFRESH_METADATA
    INVALID_REQUEST = 42, _M.RUN, _VERSION
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43,
        _M.TOPIC,
        "set message.format.version of the topic (log.message.format.version of the brokers) to 0.11 or newer",
    )
    POLICY_VIOLATION = 44, _M.TOPIC, "see the brokers' create.topic.policy and alter.config.policy"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _M.RESTART
    DUPLICATE_SEQUENCE_NUMBER = 46, _M.RESTART
    INVALID_PRODUCER_EPOCH = 47, _M.FENCED
    INVALID_TXN_STATE = 48, _M.RESTART
    INVALID_PRODUCER_ID_MAPPING = 49, _M.RESTART
    INVALID_TRANSACTION_TIMEOUT = (
        50,
        _M.RUN,
        "raise transaction.max.timeout.ms of the brokers: a restore's transactions may take 180000 ms",
    )
    CONCURRENT_TRANSACTIONS = 51, _M.TRANSIENT
    TRANSACTION_COORDINATOR_FENCED = 52, _M.REFRESH_METADATA
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _M.DENIED
    SECURITY_DISABLED = 54, _M.RUN, "configure an authorizer on the brokers"
    OPERATION_NOT_ATTEMPTED = 55, _M.RESTART, "look at the other partitions of the request: one of them was refused"
    KAFKA_STORAGE_ERROR = 56, _M.REFRESH_METADATA, "look at the broker's disks"
    LOG_DIR_NOT_FOUND = 57, _M.RUN, "look at log.dirs of the broker"
    SASL_AUTHENTICATION_FAILED = 58, _M.AUTHENTICATION
    UNKNOWN_PRODUCER_ID = 59, _M.RESTART
    REASSIGNMENT_IN_PROGRESS = 60, _M.TRANSIENT, "wait until the partitions are moved"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _M.AUTHENTICATION
    DELEGATION_TOKEN_NOT_FOUND = 62, _M.AUTHENTICATION
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _M.AUTHENTICATION
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _M.AUTHENTICATION
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _M.DENIED
    DELEGATION_TOKEN_EXPIRED = 66, _M.AUTHENTICATION
    INVALID_PRINCIPAL_TYPE = 67, _M.RUN, _NOT_SENT
    NON_EMPTY_GROUP = 68, _M.IN_USE
    GROUP_ID_NOT_FOUND = 69, _M.NO_GROUP
    FETCH_SESSION_ID_NOT_FOUND = 70, _M.RESTART
    INVALID_FETCH_SESSION_EPOCH = 71, _M.RESTART
    LISTENER_NOT_FOUND = 72, _M.REFRESH_METADATA, "give every broker the same listeners (advertised.listeners)"
    TOPIC_DELETION_DISABLED = 73, _M.RUN, "set delete.topic.enable=true on the brokers"
    FENCED_LEADER_EPOCH = 74, _M.REFRESH_METADATA
    UNKNOWN_LEADER_EPOCH = 75, _M.REFRESH_METADATA
    UNSUPPORTED_COMPRESSION_TYPE = 76, _M.TOPIC, "choose a codec that the brokers know; zstd needs Kafka 2.1"
    STALE_BROKER_EPOCH = 77, _M.REFRESH_METADATA
    OFFSET_NOT_AVAILABLE = 78, _M.TRANSIENT
    MEMBER_ID_REQUIRED = 79, _M.RESTART
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _M.REFRESH_METADATA
    GROUP_MAX_SIZE_REACHED = 81, _M.RUN, "raise group.max.size of the brokers"
    FENCED_INSTANCE_ID = 82, _M.IN_USE
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _M.REFRESH_METADATA
    ELECTION_NOT_NEEDED = 84, _M.REFRESH_METADATA
    NO_REASSIGNMENT_IN_PROGRESS = 85, _M.UNEXPECTED, _NOT_SENT
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _M.IN_USE
    INVALID_RECORD = 87, _M.TOPIC, "see the broker's log: a compacted topic, for one, takes no record without a key"
    UNSTABLE_OFFSET_COMMIT = 88, _M.TRANSIENT, "wait until the open transaction of the group ends"
    THROTTLING_QUOTA_EXCEEDED = 89, _M.TRANSIENT, "raise controller_mutation_rate of the principal"
    PRODUCER_FENCED = 90, _M.FENCED
    RESOURCE_NOT_FOUND = 91, _M.UNEXPECTED
    DUPLICATE_RESOURCE = 92, _M.EXISTS
    UNACCEPTABLE_CREDENTIAL = 93, _M.RUN, _NOT_SENT
    INCONSISTENT_VOTER_SET = 94, _M.UNEXPECTED, _NOT_SENT
    INVALID_UPDATE_VERSION = 95, _M.RUN, _NOT_SENT
    FEATURE_UPDATE_FAILED = 96, _M.UNEXPECTED, _NOT_SENT
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _M.RUN, "look at principal.builder.class of the brokers"
    SNAPSHOT_NOT_FOUND = 98, _M.UNEXPECTED, _NOT_SENT
    POSITION_OUT_OF_RANGE = 99, _M.UNEXPECTED, _NOT_SENT
    UNKNOWN_TOPIC_ID = 100, _M.UNKNOWN_TOPIC
    DUPLICATE_BROKER_REGISTRATION = 101, _M.UNEXPECTED, _NOT_SENT
    BROKER_ID_NOT_REGISTERED = 102, _M.UNEXPECTED
    INCONSISTENT_TOPIC_ID = 103, _M.REFRESH_METADATA
    INCONSISTENT_CLUSTER_ID = 104, _M.RUN, "check bootstrap.servers: a broker of another cluster answers"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _M.RESTART
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _M.RESTART
    INELIGIBLE_REPLICA = 107, _M.UNEXPECTED
    NEW_LEADER_ELECTED = 108, _M.REFRESH_METADATA
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _M.POSITION
    FENCED_MEMBER_EPOCH = 110, _M.IN_USE
    UNRELEASED_INSTANCE_ID = 111, _M.IN_USE
    UNSUPPORTED_ASSIGNOR = 112, _M.RUN, _NOT_SENT
    STALE_MEMBER_EPOCH = 113, _M.IN_USE
    MISMATCHED_ENDPOINT_TYPE = 114, _M.RUN, "name brokers, not controllers, in bootstrap.servers"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _M.RUN, "name brokers, not controllers, in bootstrap.servers"
    UNKNOWN_CONTROLLER_ID = 116, _M.REFRESH_METADATA
    UNKNOWN_SUBSCRIPTION_ID = 117, _M.UNEXPECTED, _NOT_SENT
    TELEMETRY_TOO_LARGE = 118, _M.UNEXPECTED, _NOT_SENT
    INVALID_REGISTRATION = 119, _M.UNEXPECTED, _NOT_SENT
    TRANSACTION_ABORTABLE = 120, _M.RESTART
    INVALID_RECORD_STATE = 121, _M.UNEXPECTED, _NOT_SENT
    SHARE_SESSION_NOT_FOUND = 122, _M.RESTART, _NOT_SENT
    INVALID_SHARE_SESSION_EPOCH = 123, _M.RESTART, _NOT_SENT
    FENCED_STATE_EPOCH = 124, _M.UNEXPECTED, _NOT_SENT
    INVALID_VOTER_KEY = 125, _M.UNEXPECTED, _NOT_SENT
    DUPLICATE_VOTER = 126, _M.EXISTS, _NOT_SENT
    VOTER_NOT_FOUND = 127, _M.UNEXPECTED, _NOT_SENT
    INVALID_REGULAR_EXPRESSION = 128, _M.RUN, _NOT_SENT
    REBOOTSTRAP_REQUIRED = 129, _M.REFRESH_METADATA
    STREAMS_INVALID_TOPOLOGY = 130, _M.RUN, _NOT_SENT
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _M.RUN, _NOT_SENT
    STREAMS_TOPOLOGY_FENCED = 132, _M.RUN, _NOT_SENT
    SHARE_SESSION_LIMIT_REACHED = 133, _M.TRANSIENT, _NOT_SENT

    # Of librdkafka itself
    CLIENT_BAD_MSG = -199, _M.UNEXPECTED
    CLIENT_BAD_COMPRESSION = -198, _M.UNEXPECTED
    CLIENT_DESTROY = -197, _M.UNEXPECTED
    CLIENT_FAIL = -196, _M.UNEXPECTED
    CLIENT_TRANSPORT = -195, _M.UNREACHABLE
    CLIENT_CRIT_SYS_RESOURCE = -194, _M.UNEXPECTED
    CLIENT_RESOLVE = -193, _M.UNREACHABLE
    CLIENT_MSG_TIMED_OUT = -192, _M.TRANSIENT
    CLIENT_PARTITION_EOF = -191, _M.NONE
    CLIENT_UNKNOWN_PARTITION = -190, _M.UNKNOWN_TOPIC
    CLIENT_FS = -189, _M.UNEXPECTED
    CLIENT_UNKNOWN_TOPIC = -188, _M.UNKNOWN_TOPIC
    CLIENT_ALL_BROKERS_DOWN = -187, _M.UNREACHABLE
    CLIENT_INVALID_ARG = -186, _M.UNEXPECTED
    CLIENT_TIMED_OUT = -185, _M.UNREACHABLE
    CLIENT_QUEUE_FULL = -184, _M.TRANSIENT
    CLIENT_ISR_INSUFF = -183, _M.TRANSIENT
    CLIENT_NODE_UPDATE = -182, _M.TRANSIENT
    CLIENT_SSL = -181, _M.AUTHENTICATION
    CLIENT_WAIT_COORD = -180, _M.UNREACHABLE
    CLIENT_UNKNOWN_GROUP = -179, _M.NO_GROUP
    CLIENT_IN_PROGRESS = -178, _M.TRANSIENT
    CLIENT_PREV_IN_PROGRESS = -177, _M.TRANSIENT
    CLIENT_EXISTING_SUBSCRIPTION = -176, _M.UNEXPECTED
    CLIENT_ASSIGN_PARTITIONS = -175, _M.UNEXPECTED
    CLIENT_REVOKE_PARTITIONS = -174, _M.UNEXPECTED
    CLIENT_CONFLICT = -173, _M.UNEXPECTED
    CLIENT_STATE = -172, _M.UNEXPECTED
    CLIENT_UNKNOWN_PROTOCOL = -171, _M.UNEXPECTED
    CLIENT_NOT_IMPLEMENTED = -170, _M.UNEXPECTED
    CLIENT_AUTHENTICATION = -169, _M.AUTHENTICATION
    CLIENT_NO_OFFSET = -168, _M.UNEXPECTED
    CLIENT_OUTDATED = -167, _M.TRANSIENT
    CLIENT_TIMED_OUT_QUEUE = -166, _M.TRANSIENT
    CLIENT_UNSUPPORTED_FEATURE = -165, _M.RUN, _VERSION
    CLIENT_WAIT_CACHE = -164, _M.TRANSIENT
    CLIENT_INTR = -163, _M.TRANSIENT
    CLIENT_KEY_SERIALIZATION = -162, _M.UNEXPECTED
    CLIENT_VALUE_SERIALIZATION = -161, _M.UNEXPECTED
    CLIENT_KEY_DESERIALIZATION = -160, _M.UNEXPECTED
    CLIENT_VALUE_DESERIALIZATION = -159, _M.UNEXPECTED
    CLIENT_PARTIAL = -158, _M.UNEXPECTED
    CLIENT_READ_ONLY = -157, _M.UNEXPECTED
    CLIENT_NOENT = -156, _M.TRANSIENT  # "no leaders found", of whatever partitions
    CLIENT_UNDERFLOW = -155, _M.UNEXPECTED
    CLIENT_INVALID_TYPE = -154, _M.UNEXPECTED
    CLIENT_RETRY = -153, _M.TRANSIENT
    CLIENT_PURGE_QUEUE = -152, _M.UNEXPECTED
    CLIENT_PURGE_INFLIGHT = -151, _M.UNEXPECTED
    CLIENT_FATAL = -150, _M.UNEXPECTED
    CLIENT_INCONSISTENT = -149, _M.UNEXPECTED
    CLIENT_GAPLESS_GUARANTEE = -148, _M.UNEXPECTED
    CLIENT_MAX_POLL_EXCEEDED = -147, _M.UNEXPECTED
    CLIENT_UNKNOWN_BROKER = -146, _M.REFRESH_METADATA
    CLIENT_NOT_CONFIGURED = -145, _M.UNEXPECTED
    CLIENT_FENCED = -144, _M.FENCED
    CLIENT_APPLICATION = -143, _M.UNEXPECTED
    CLIENT_ASSIGNMENT_LOST = -142, _M.UNEXPECTED
    CLIENT_NOOP = -141, _M.NONE
    CLIENT_AUTO_OFFSET_RESET = -140, _M.POSITION
    CLIENT_LOG_TRUNCATION = -139, _M.POSITION
    CLIENT_INVALID_DIFFERENT_RECORD = -138, _M.UNEXPECTED
    CLIENT_DESTROY_BROKER = -137, _M.TRANSIENT


_BY_NUMBER: Final = {int(code): code for code in ErrorCode}


def name_of(number: int) -> str:
    """Return the protocol's name of an error code, or its number if the table does not have it."""
    code = ErrorCode.of(number)
    return code.name if code == number else f"error {number}"
