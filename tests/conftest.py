"""Real servers for the tests: started the first time a test of the session asks, ended with the session.

Nothing is left behind however the session ends: each server is the leader of its own process group, which a guard
process kills when pytest is gone (``compose/server.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Last, so that nothing of the stack shadows an installed package.
sys.path.append(str(Path(__file__).resolve().parent.parent / "compose"))

if TYPE_CHECKING:
    from apicurio import RegistryServer
    from appium_server import AppiumServer
    from kafka_broker import KafkaServer
    from seaweedfs import S3Server


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, except three of kafka-python's own: how it reads its files, and that it leaves the sockets of a
    refused connection and of a failed handshake to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
    config.addinivalue_line("filterwarnings", r"ignore:unclosed <socket.*laddr=\('0\.0\.0\.0':ResourceWarning")
    config.addinivalue_line("filterwarnings", r"ignore:unclosed <ssl\.SSLSocket:ResourceWarning")


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka broker shared by the session. A test that breaks it starts one of its own with ``start_kafka``."""
    from kafka_broker import start_kafka

    with start_kafka(tmp_path_factory.mktemp("kafka") / "state") as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server shared by the session. A test that breaks it starts one of its own with ``start_s3``."""
    from seaweedfs import start_s3

    with start_s3(tmp_path_factory.mktemp("s3") / "state") as server:
        yield server


@pytest.fixture(scope="session")
def appium_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppiumServer]:
    """An Appium server shared by the session. A test that breaks it starts one of its own with ``start_appium``."""
    from appium_server import start_appium

    with start_appium(tmp_path_factory.mktemp("appium") / "state") as server:
        yield server


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A schema registry shared by the session. A test that breaks it starts one of its own with ``start_registry``."""
    from apicurio import start_registry

    with start_registry(tmp_path_factory.mktemp("registry") / "state") as server:
        yield server
