"""The applications that judge: what each runs in, which topics and groups it has, and what it has to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from readers import expected
from readers.environments import Environment, Jars, NodePackages, PythonPackages

#: Not cleaned while the campaign runs, as every record of it counts; topics that applications make themselves are.
COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.ms": "604800000",
    "max.compaction.lag.ms": "9223372036854775807",
}
_MARKERS_COUNT: Final = "transaction markers inside the log take offsets and are no records"
_EXCEPTION: Final[Mapping[str, str]] = {"count == high - low": _MARKERS_COUNT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that is there before an application starts; others the application makes itself."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=lambda: COMPACTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """`name` begins the names of its topics and groups. `exceptions` are cases that a restore does not promise.

    `setting` tells apart applications with the same title, which have no cases of their own.

    `kept`: its folder with local state survives, as where only the cluster was lost; else it begins with an empty one.
    """

    name: str
    title: str
    environment: Environment
    program: str
    expectation: expected.Expectation
    setting: str = ""
    topics: tuple[Topic, ...] = ()
    groups: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    exceptions: Mapping[str, str] = field(default_factory=dict)
    kept: bool = False


def _client(name: str, title: str, environment: Environment, program: str) -> Application:
    return Application(
        name=name,
        title=title,
        environment=environment,
        program=program,
        expectation=expected.newest_values,
        topics=(Topic(name=name, partitions=5),),
        groups=(f"{name}-group",),
        exceptions=_EXCEPTION,
    )


def _counter(
    name: str,
    title: str,
    environment: Environment,
    program: str,
    *,
    setting: str,
    options: Mapping[str, str] | None = None,
) -> Application:
    return Application(
        name=name,
        title=title,
        environment=environment,
        program=program,
        expectation=expected.counts,
        setting=setting,
        topics=(Topic(name=f"{name}-input", partitions=2),),
        groups=(name,),
        options=options or {},
        kept=name.endswith("-kept"),
    )


def _quix(name: str, setting: str) -> Application:
    return _counter(
        name, "Quix Streams", PythonPackages("quixstreams", "quixstreams"), "quix_counter.py", setting=setting
    )


def _faust(name: str, setting: str, **options: str) -> Application:
    environment = PythonPackages("faust", "faust-streaming")
    return _counter(name, "Faust", environment, "faust_counter.py", setting=setting, options=options)


def _streams(name: str, setting: str, **options: str) -> Application:
    words = {key.replace("_", "."): value for key, value in options.items()}
    return _counter(
        name, "Kafka Streams", Jars("streams", "kafka-streams-"), "StreamsCounter.java", setting=setting, options=words
    )


APPLICATIONS: Final = (
    _client("aiokafka", "aiokafka", PythonPackages("aiokafka", "aiokafka"), "aiokafka_reader.py"),
    _client("kafka-python", "kafka-python", PythonPackages("kafka-python", "kafka-python"), "kafka_python_reader.py"),
    _client(
        "confluent", "confluent-kafka", PythonPackages("confluent-kafka", "confluent-kafka"), "confluent_reader.py"
    ),
    _client("kafkajs", "kafkajs", NodePackages("kafkajs"), "kafkajs_reader.cjs"),
    _quix("quix-lost", "state lost"),
    _quix("quix-kept", "state kept"),
    _faust("faust", "tables in memory"),
    _faust("faust-kept", "tables in RocksDB, state kept", store="rocksdb://"),
    _streams("streams-lost", "classic group, state lost"),
    _streams("streams-kept", "classic group, state kept"),
    _streams("streams-new-lost", "streams group, state lost", group_protocol="streams"),
    _streams("streams-new-kept", "streams group, state kept", group_protocol="streams"),
    _streams("streams-eos-lost", "exactly once, state lost", processing_guarantee="exactly_once_v2"),
    _streams("streams-eos-kept", "exactly once, state kept", processing_guarantee="exactly_once_v2"),
    Application(
        name="connect",
        title="Connect",
        environment=Jars("connect", "connect-runtime-"),
        program="ConnectWorker.java",
        expectation=expected.connector,
        setting="a distributed worker and its connector",
        topics=(Topic(name="connect-lines", partitions=1, config={}),),
        kept=True,  # the file that it reads
    ),
    Application(
        name="schema-history",
        title="Debezium",
        environment=Jars("debezium", "debezium-storage-kafka-"),
        program="SchemaHistory.java",
        expectation=expected.sequence,
        setting="schema history",
    ),
)
