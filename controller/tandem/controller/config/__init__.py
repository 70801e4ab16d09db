"""The configuration: one pydantic model, its sources, its rules, and the documents made of it."""

from tandem.controller.config.kafka import KafkaProperties
from tandem.controller.config.loading import Loaded, load, read
from tandem.controller.config.model import Config, StoreSettings
from tandem.controller.config.sources import Kind, Origin

__all__ = ["Config", "KafkaProperties", "Kind", "Loaded", "Origin", "StoreSettings", "load", "read"]
