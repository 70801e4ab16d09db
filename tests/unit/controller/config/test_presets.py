"""Topics that other systems keep are guarded by their usual names, and nothing else is."""

from __future__ import annotations

import pytest

from tandem.controller.config.model import TopicsSettings
from tandem.controller.config.presets import Preset


@pytest.mark.parametrize(
    ("preset", "topic", "guarded"),
    [
        ("schema-registry", "_schemas", True),
        ("schema-registry", "x_schemas", False),
        ("schema-registry", "_schemas2", False),
        ("connect", "connect-configs", True),
        ("connect", "connect_offsets", True),
        ("connect", "connect-status", True),
        ("connect", "connect-statuses", True),
        ("connect", "_connect-configs", True),
        ("connect", "docker-connect-offsets", True),
        ("connect", "_confluent-connect.cluster-1.config", True),
        ("connect", "connect-cluster-offsets", True),
        ("connect", "my-connect-cluster-config", True),
        ("connect", "reconnect-status", False),
        ("connect", "connection-configs", False),
        ("connect", "connect-orders", False),
        ("streams", "app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", True),
        ("streams", "-changelog", False),
        ("streams", "app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition", False),
        ("streams", "__x", False),
    ],
)
def test_names(preset: str, topic: str, guarded: bool) -> None:
    """As registries, images, charts and operators name them."""
    assert TopicsSettings.model_validate({"presets": [preset]}).guards(topic) is guarded


def test_together_with_others() -> None:
    """Exclusions and names count as always; Kafka's own topics are never guarded."""
    settings = TopicsSettings.model_validate(
        {"presets": [item.value for item in Preset], "patterns": ["a.*"], "include": ["b"], "exclude": ["ab-changelog"]}
    )
    assert [name for name in ("a", "b", "c", "ab-changelog", "b-changelog", "_schemas") if settings.guards(name)] == [
        "a",
        "b",
        "b-changelog",
        "_schemas",
    ]
    assert not TopicsSettings.model_validate({"patterns": [".*"]}).guards("__consumer_offsets")
