"""Records of version 1, as the Java connector wrote them."""

from __future__ import annotations

from hypothesis import strategies as st

MAP = {"type": "map", "values": "bytes"}


def schema(key: object, value: object, headers: object) -> dict[str, object]:
    """Version 1 with these types."""
    return {
        "type": "record",
        "name": "AvroKafkaRecord",
        "namespace": "ch.tbd.kafka.backuprestore.model.avro",
        "fields": [
            {"name": "topic", "type": {"type": "string", "avro.java.string": "String"}},
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": "long"},
            {"name": "key", "type": key},
            {"name": "value", "type": value},
            {"name": "headers", "type": headers},
        ],
    }


V1 = schema(["bytes", "null"], ["bytes", "null"], [MAP, "null"])

rows = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.just("old"),
            "partition": st.integers(0, 5),
            "offset": st.integers(0, 1 << 40),
            "timestamp": st.integers(-1, 1 << 45),
            "key": st.binary(max_size=90),
            "value": st.binary(max_size=90),
            "headers": st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3),
        }
    ),
    max_size=6,
)
