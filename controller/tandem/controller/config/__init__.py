"""The configuration: the pydantic model, the sources of its values, its rules, and the documents generated from it."""

from tandem.controller.config.kafka import KafkaProperties
from tandem.controller.config.loading import LoadedConfig, load, read
from tandem.controller.config.model import Config, StoreSettings
from tandem.controller.config.sources import Origin, SourceKind

__all__ = ["Config", "KafkaProperties", "LoadedConfig", "Origin", "SourceKind", "StoreSettings", "load", "read"]
