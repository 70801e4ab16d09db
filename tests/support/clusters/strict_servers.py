"""Servers that ask who does what: a broker with ACLs behind SCRAM over TLS, an S3 server with a policy for each key."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from support.servers.certificates import Authority
from tandem.controller.roles.kafka import Acl, AclResource
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import REGION, S3Server
from tandem.controller.sandbox.sigv4 import S3Key

_RESOURCES = {
    AclResource.TOPIC: ResourceType.TOPIC,
    AclResource.GROUP: ResourceType.GROUP,
    AclResource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictBroker:
    """One broker. Its plain listener is for the administrator, who may do anything; `port` is that of principals."""

    server: KafkaServer
    admin: AdminClient
    port: int
    ca: str

    def login(self, name: str, password: str) -> dict[str, Any]:
        """What stands under `kafka:` for a principal."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self.port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.pem": self.ca,
        }

    def admit(self, name: str, wanted: Iterable[Acl]) -> dict[str, Any]:
        """Make a principal with these rights and no others; return its login."""
        password = secrets.token_urlsafe(12)
        mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        self.admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, mechanism, password.encode())])[
            name
        ].result(30)
        rights = [one for acl in wanted for one in bindings(acl, name)]
        if rights:
            for future in self.admin.create_acls(rights).values():
                future.result(30)
        return self.login(name, password)


def bindings(acl: Acl, name: str) -> Iterator[AclBinding]:
    """Yield an ACL as the client makes it, one for each operation."""
    pattern = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    for operation in acl.operations:
        word = (
            "".join(f"_{topic_record}" if topic_record.isupper() else topic_record for topic_record in operation)
            .strip("_")
            .upper()
        )
        yield AclBinding(
            _RESOURCES[acl.resource],
            acl.name,
            pattern,
            f"User:{name}",
            "*",
            AclOperation[word],
            AclPermissionType.ALLOW,
        )


def start_broker(stack: ExitStack, folder: Callable[[str], Path]) -> StrictBroker:
    """Start a broker that ends with the stack. Nobody may anything but who has an ACL."""
    broker, controller, scram = pick_ports(3)
    authority = Authority("Tests")
    own = authority.issue("broker", address=LOOPBACK)
    pem = folder("broker-key") / "broker.pem"
    pem.write_text(own.key + own.certificate)
    listeners = f"PLAINTEXT://{LOOPBACK}:{broker},SCRAM://{LOOPBACK}:{scram}"
    server = KafkaServer(
        folder("strict-kafka"),
        ports={"broker": broker, "controller": controller},
        overrides={
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SCRAM:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pem),
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
        },
    )
    stack.callback(server.stop)
    server.start()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})  # whoever comes without a login is a super user
    return StrictBroker(server=server, admin=admin, port=scram, ca=authority.pem)


class StrictS3(S3Server):
    """The sandbox's server with more keys, each with a policy and no other right."""

    title = "S3 (SeaweedFS) with policies"

    def __init__(self, folder: Path, policies: Mapping[str, Mapping[str, Any]]) -> None:
        """`policies`: name of a key -> its policy."""
        super().__init__(folder, bucket="backups", key=S3Key(access_key="admin", secret_key=secrets.token_urlsafe(24)))
        self._policies = policies
        self.keys = {
            name: S3Key(access_key=secrets.token_hex(8), secret_key=secrets.token_urlsafe(24)) for name in policies
        }

    def section(self, root: str, key: S3Key) -> dict[str, Any]:
        """The `store:` section for a root and one of the keys."""
        return {
            "root": root,
            "endpoint_url": self.endpoint_url,
            "addressing_style": "path",
            "region": REGION,
            "access_key_id": key.access_key,
            "secret_access_key": key.secret_key,
        }

    def _prepare(self) -> None:
        super()._prepare()
        path = self.folder / "identities.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        for name, key in self.keys.items():
            document["identities"].append(
                {
                    "name": name,
                    "credentials": [{"accessKey": key.access_key, "secretKey": key.secret_key}],
                    "policyNames": [name],
                }
            )
        document["policies"] = [
            {"name": name, "content": json.dumps(content)} for name, content in self._policies.items()
        ]
        path.write_text(json.dumps(document, indent=2), encoding="utf-8")
