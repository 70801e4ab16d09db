"""The broker of the benchmarks: the sandbox's, with a full compiler and settings that let it serve."""

from __future__ import annotations

from pathlib import Path

from controller.sandbox.kafka import KafkaServer

_SETTINGS = {
    "log.segment.bytes": str(256 << 20),
    "log.cleaner.enable": "false",
    "socket.send.buffer.bytes": str(1 << 20),
    "log.roll.ms": str(7 * 86_400_000),
}
_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError")


class BenchKafka(KafkaServer):
    """A broker that lives for minutes at full load: it is worth compiling well."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, overrides=_SETTINGS)

    def _command(self) -> list[str]:
        return [*self._java(*_JVM), "kafka.Kafka", "server.properties"]
