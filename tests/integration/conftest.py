"""A Kafka broker behind TLS, logins and rights, shared by the tests of this folder that ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from distrl.core.config import BusConfig

if TYPE_CHECKING:
    from certificate import Authority
    from kafka_broker import KafkaServer

    from distrl.connectors.kafka.acl import Acl


@dataclass
class SecureKafka:
    """``login`` gives what a client needs; nobody but the administrator may do anything before ``grant``."""

    server: KafkaServer
    authority: Authority
    users: dict[str, str]

    def login(self, user: str = "admin", **settings: Any) -> dict[str, Any]:
        return {
            "kind": "kafka",
            "bootstrap": (self.server.bootstrap,),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "username": user,
            "password": self.users.get(user, ""),
            "ca_file": self.authority.ca_file,
            "session_seconds": 3.0,
            **settings,
        }

    def bus_config(self, user: str = "admin", **settings: Any) -> BusConfig:
        return BusConfig(**self.login(user, **settings))

    def grant(self, rights: Iterable[tuple[str, Acl]]) -> None:
        """Give each user a right, as an administrator does."""
        from kafka import KafkaAdminClient
        from kafka.admin import (
            ACL,
            ACLOperation,
            ACLPermissionType,
            ACLResourcePatternType,
            ResourcePattern,
            ResourceType,
        )

        def theirs(user: str, acl: Acl) -> Any:
            operation = "ALTER_CONFIGS" if acl.operation == "AlterConfigs" else acl.operation.upper()
            pattern = ResourcePattern(
                ResourceType[acl.resource.upper().replace("-", "_")],
                acl.name,
                ACLResourcePatternType[acl.pattern.upper()],
            )
            return ACL(f"User:{user}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, pattern)

        client = KafkaAdminClient(
            bootstrap_servers=self.server.bootstrap,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_plain_username="admin",
            sasl_plain_password=self.users["admin"],
            ssl_cafile=str(self.authority.ca_file),
        )
        try:
            failed = client.create_acls([theirs(user, acl) for user, acl in rights])["failed"]
        finally:
            client.close()
        assert not failed, failed


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    from certificate import Authority
    from kafka_broker import ADMIN, Security, start_kafka

    from distrl.connectors.kafka.acl import PARTS

    folder = tmp_path_factory.mktemp("secure-kafka")
    authority = Authority(folder / "tls")
    names = [ADMIN, "nobody", "described", *PARTS, *(f"{part}-{number}" for part in PARTS for number in range(20))]
    users = {name: f"{name}-password" for name in names}
    security = Security("SASL_SSL", key_store=authority.issue().both_file, users=users, rights=True)
    with start_kafka(folder / "state", security=security) as server:
        yield SecureKafka(server, authority, users)
