"""Configuration: one pydantic model and its sources.

`values` holds scalar types (durations, sizes, secrets), `model` the keys and their rules, `sources` turns file,
environment and flags into settings with their places, `loading` merges and checks them, `reference` describes the keys.
Only `loading` reads files.
"""

from controller.config.kafka import KafkaProperties
from controller.config.loading import Loaded, load, read
from controller.config.model import Config, StoreSettings
from controller.config.sources import Kind, Origin

__all__ = ["Config", "KafkaProperties", "Kind", "Loaded", "Origin", "StoreSettings", "load", "read"]
