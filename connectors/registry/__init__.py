"""Schema registries: servers that speak Confluent's API (Confluent's own, Apicurio, Karapace, Redpanda). Made by
``connectors.open_registry``."""

from distrl.connectors.registry.confluent import ConfluentRegistry

__all__ = ["ConfluentRegistry"]
