"""The keys of the configuration, their defaults, and what each must satisfy. No file, environment or clock here.

Durations are `timedelta`, sizes are bytes. Everything is frozen; lists are tuples; secrets are `SecretStr`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import PurePath
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tandem.backup_avro.errors import ConfigError
from tandem.controller.config import rules
from tandem.controller.config.kafka import KafkaProperties
from tandem.controller.config.presets import Preset, patterns_of
from tandem.controller.config.values import (
    Duration,
    DurationOrZero,
    HostName,
    Name,
    PublicKey,
    Rate,
    Regex,
    Secret,
    Size,
    TopicName,
)
from tandem.sink.encryption.encryption_settings import problems

FROM_HOSTNAME: Final = "from-hostname"
NO_STATE: Final = "none"
"""The value of state.dir with which nothing is remembered."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change, inputs never appear in error texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TopicsSettings(Section):
    """Which topics the pair guards: all in `include` and all that match one of `patterns`, less what `exclude` matches.

    Patterns match whole names. Kafka's internal topics and Tandem's own are never guarded by a pattern, nor are topics
    that a restore created under another name than their source's. `presets` add the patterns of other systems' topics,
    see docs/topics.md.
    """

    include: tuple[TopicName, ...] = Field(default=(), description="topics by name")
    patterns: tuple[Regex, ...] = Field(default=(), description="regular expressions that match whole topic names")
    exclude: tuple[Regex, ...] = Field(
        default=(), description="regular expressions; what they match whole is not guarded"
    )
    presets: tuple[Preset, ...] = Field(
        default=(), description="systems whose topics are guarded (`schema-registry`, `connect`, `streams`)"
    )

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        required = not rules.checks_store_only(info)
        rules.refuse(rules.topics(self.include, self.expressions, self.exclude, required=required))
        return self

    @property
    def expressions(self) -> tuple[str, ...]:
        """The patterns, those of the presets among them."""
        return (*self.patterns, *patterns_of(self.presets))

    def guards(self, topic: str) -> bool:
        """Whether the pair guards `topic`, by name or by pattern."""
        if topic in self.include:
            return True
        if rules.is_reserved(topic) or not any(re.fullmatch(pattern, topic) for pattern in self.expressions):
            return False
        return not any(re.fullmatch(pattern, topic) for pattern in self.exclude)


class StoreSettings(Section):
    """Where the backups are kept. Credentials left out are looked for where the SDKs of the cloud look for them."""

    root: str = Field(
        description="`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///path`"
    )
    endpoint_url: str | None = Field(
        default=None,
        description="URL of an S3-compatible server, or of another host of the cloud; left out: the cloud's own",
    )
    region: str | None = Field(default=None, description="region; left out: as AWS SDKs find it")
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        default="auto", description="bucket in the path or in the host name; most S3-compatible servers want `path`"
    )
    access_key_id: Secret | None = Field(default=None, description="access key id")
    access_key_id_file: PurePath | None = Field(default=None, description="file that holds the access key id")
    secret_access_key: Secret | None = Field(default=None, description="secret access key")
    secret_access_key_file: PurePath | None = Field(default=None, description="file that holds the secret access key")
    session_token: Secret | None = Field(default=None, description="session token of temporary credentials")
    session_token_file: PurePath | None = Field(default=None, description="file that holds the session token")
    account_name: str | None = Field(
        default=None, description="Azure's storage account; left out: AZURE_STORAGE_ACCOUNT_NAME"
    )
    account_key: Secret | None = Field(default=None, description="a key of Azure's storage account")
    account_key_file: PurePath | None = Field(default=None, description="file that holds the account's key")
    credentials_file: PurePath | None = Field(
        default=None, description="key file (JSON) of a service account of Google; left out: as Google's SDKs find them"
    )
    ca_bundle: PurePath | None = Field(
        default=None, description="PEM file of the authorities that vouch for the server; left out: the SDK's own"
    )
    checksums: Literal["when_supported", "when_required", "off"] = Field(
        default="when_supported",
        description="when requests carry checksums; `when_required` for servers that refuse them, `off` for those that "
        "refuse them even where S3 wants one (deletes in batches)",
    )
    server_side_encryption: Annotated[
        Literal["none", "AES256", "aws:kms", "aws:kms:dsse"], BeforeValidator(rules.server_side_encryption)
    ] = Field(
        default="none", description="encryption asked of the server for each object; `none` leaves it to the bucket"
    )
    kms_key_id: str | None = Field(
        default=None, description="key for `aws:kms`; left out: the bucket's or account's own"
    )
    bucket_key: bool = Field(
        default=False,
        description="S3 Bucket Keys with `aws:kms`: far fewer requests to KMS",
    )
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="longest wait for a connection")
    read_timeout: Duration = Field(
        default=timedelta(seconds=60), description="longest wait for the next bytes of an answer"
    )

    @field_validator("root")
    @classmethod
    def _root(cls, root: str) -> str:
        return rules.store_root(root)

    @field_validator("endpoint_url")
    @classmethod
    def _endpoint_url(cls, url: str | None) -> str | None:
        return None if url is None else rules.endpoint_url(url)

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.refuse(
            rules.store(
                key=self.access_key_id is not None,
                secret=self.secret_access_key is not None,
                token=self.session_token is not None,
                encryption=self.server_side_encryption,
                kms_key=self.kms_key_id is not None,
                bucket_key=self.bucket_key,
            )
        )
        return self

    @property
    def scheme(self) -> str:
        """Kind of store: s3, gs, az or file."""
        return self.root.partition("://")[0]


class SigningSettings(Section):
    """Signatures of what decisions rest on, see docs/signing.md. Off as long as nothing is set here."""

    key_file: PurePath | None = Field(default=None, description="private key (PEM) of whoever writes with this file")
    key_env: str | None = Field(default=None, description="environment variable that holds that key instead")
    trusted: tuple[PublicKey, ...] = Field(default=(), description="public keys of all who write, base64")
    trusted_file: PurePath | None = Field(default=None, description="file with more of them, one a line")
    require: bool = Field(default=False, description="whether nothing counts that none of them has signed")

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.refuse(
            rules.signing(
                file=self.key_file is not None,
                env=self.key_env,
                trusted=bool(self.trusted) or self.trusted_file is not None,
                require=self.require,
            )
        )
        return self


class EncryptionSettings(Section):
    """Encryption of data objects before they leave the instance, see docs/encryption.md. Without a key there is none.

    One of `key_file`, `key_env` and `aws_kms_key_arn` is for new objects; the others are for reading older ones. Files
    and variables hold 32 random bytes in base64 or hex. Keys are read where they are needed, on Spark's executors too.
    """

    key_file: str | None = Field(default=None, description="file that holds the key for new objects")
    key_env: str | None = Field(
        default=None, description="name of the environment variable that holds the key for new objects"
    )
    aws_kms_key_arn: str | None = Field(default=None, description="ARN of the key of AWS KMS for new objects")
    decrypt_key_files: tuple[str, ...] = Field(default=(), description="files that hold one older key each")
    decrypt_key_envs: tuple[str, ...] = Field(
        default=(), description="names of environment variables that hold one older key each"
    )
    decrypt_aws_kms_key_arns: tuple[str, ...] = Field(default=(), description="ARNs of older keys of AWS KMS")
    aws_kms_endpoint_url: str | None = Field(default=None, description="URL of the KMS; left out: AWS")
    require: bool = Field(
        default=False, description="whether data objects that are not encrypted are refused wherever they are read"
    )

    @field_validator("aws_kms_endpoint_url")
    @classmethod
    def _endpoint_url(cls, url: str | None) -> str | None:
        return None if url is None else rules.endpoint_url(url)

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.refuse((f"encryption.{name}", problem) for name, problem in problems(self))
        return self


class CoordinationSettings(Section):
    """The topic over which the two instances talk."""

    topic: TopicName = Field(default="_compacted_log_backup_coordination", description="name of the coordination topic")
    replication_factor: int = Field(
        default=3, description="used if Tandem creates the topic; -1 takes the broker's default"
    )
    heartbeat_interval: Duration = Field(default=timedelta(seconds=5), description="time between two heartbeats")

    @field_validator("replication_factor")
    @classmethod
    def _replication_factor(cls, factor: int) -> int:
        if factor != -1 and not 1 <= factor <= 32767:
            raise ValueError("must be at least 1, or -1 for the broker's default")
        return factor


class RotationSettings(Section):
    """Turns."""

    interval: Duration = Field(
        default=timedelta(days=7), description="age at which a generation is replaced by a new one"
    )


class LivenessSettings(Section):
    """When an instance counts as gone."""

    timeout: Duration = Field(
        default=timedelta(seconds=60), description="silence after which the Active counts as gone"
    )


class PeerSettings(Section):
    """How long to wait for the other one to take its turn."""

    timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="an Active whose peer does not claim within this time builds the next itself",
    )


class HandoverSettings(Section):
    """The end of a turn."""

    timeout: Duration = Field(
        default=timedelta(minutes=10),
        description="longest wait of a former Active until its successor covers it and it is sealed; then it reads on",
    )


class FlushSettings(Section):
    """How often is stored; the commit interval is the recovery point objective."""

    interval: Duration = Field(default=timedelta(seconds=60), description="time between two commits")


class CommitSettings(Section):
    """Size of one commit."""

    max_objects: int = Field(default=64, ge=1, le=1000, description="most data objects that one commit writes")


class ObjectSettings(Section):
    """Data objects."""

    target_size: Size = Field(default=64 * 1024**2, description="size at which an object is finished")
    block_size: Size = Field(default=256 * 1024, description="size of one Avro block before compression")
    codec: Annotated[
        Literal["zstandard", "deflate", "snappy", "null"],
        BeforeValidator(lambda codec: "null" if codec is None else codec),
    ] = Field(default="zstandard", description="compression of Avro blocks; `null` for none")
    compression_level: int | None = Field(
        default=None, description="zstandard 1 to 22, deflate 0 to 9; left out: the codec's own, zstandard's is 1"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.refuse(rules.data_object(self.target_size, self.block_size, self.codec, self.compression_level))
        return self


class ScanSettings(Section):
    """The first reading of a log."""

    chunk_duration: Duration = Field(default=timedelta(seconds=60), description="longest time that one chunk may take")
    rate_limit: Rate | None = Field(
        default=None, description="bytes per second over all partitions; left out: no limit"
    )
    workers: int = Field(
        default=0, ge=0, le=64, description="processes of the instance that read large logs; 0: it does so itself"
    )
    by: Literal["instance", "spark"] = Field(
        default="instance", description="who reads: the instance, or a Spark job (`tandem catch-up`) for it"
    )
    patience: Duration = Field(
        default=timedelta(minutes=15), description="time without anything from that job until the instance reads itself"
    )


class RecoverySettings(Section):
    """What a pair promises about the past."""

    window: DurationOrZero = Field(
        default=timedelta(0),
        description="how far back moments stay restorable; 0s: a turn ends the past, as its older copy is cleared",
    )


class GraceSettings(Section):
    """How long replaced objects stay."""

    rewrite: DurationOrZero = Field(
        default=timedelta(hours=24), description="time from a rewrite to the deletion of what it replaced"
    )


class StateSettings(Section):
    """What this machine remembers outside of the store, see docs/signing.md#heads."""

    dir: str | None = Field(
        default=None,
        description="folder of the file with the last heads that commands and the instance have read; left out: "
        "`tandem` below `$XDG_STATE_HOME` or `~/.local/state`; `none`: nothing is remembered",
    )

    @field_validator("dir")
    @classmethod
    def _dir(cls, folder: str | None) -> str | None:
        if folder is not None and folder != NO_STATE and not PurePath(folder).is_absolute():
            raise ValueError("must be an absolute path, or none")
        return folder


class MemorySettings(Section):
    """Bounds."""

    budget: Size = Field(
        default=160 * 1024**2, description="bytes held between fetch and store; a full budget stops the fetch"
    )
    largest_batch: Size = Field(
        default=256 * 1024**2,
        description="most bytes that a record batch may decompress to, 1MiB to 1GiB; a larger one stops its partition",
    )


class ShutdownSettings(Section):
    """SIGTERM."""

    grace: Duration = Field(
        default=timedelta(seconds=25), description="time for the last commit; stay below Kubernetes' own grace"
    )


class HttpSettings(Section):
    """Health, the status page, metrics."""

    listen: str | None = Field(
        default=None,
        description="`host:port` for health, the status page and metrics; without a host, as in `:8080`, on all "
        "addresses, IPv6 and IPv4; left out: no server",
    )
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="names under which browsers and scrapers reach that server, beside IP addresses, its own host "
        "name, names without a dot, and names that end in `.svc`, `.cluster.local`, `.local` or `.internal`; probes "
        "are answered under any name",
    )

    @field_validator("listen")
    @classmethod
    def _listen(cls, listen: str | None) -> str | None:
        if listen is not None:
            rules.host_and_port(listen)
        return listen

    @property
    def address(self) -> tuple[str, int] | None:
        """Host (without brackets, empty for all addresses) and port, or None."""
        return None if self.listen is None else rules.host_and_port(self.listen)


class MetricsSettings(Section):
    """What `/metrics` shows beside sums and worst cases of all partitions; it is served where `http.listen` says."""

    max_topics: int = Field(
        default=200, ge=0, le=10_000, description="topics up to which each has metrics of its own; with more, none has"
    )
    partitions: bool = Field(default=False, description="whether each partition has metrics of its own: large pages")


class LogSettings(Section):
    """Logs, on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
    ] = Field(default="info", description="least level that is written")
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="`auto`: console on a terminal (`tandem run`: short lines), else json"
    )


class GroupsSettings(Section):
    """Offsets of consumer groups, kept beside the records: 450,000 of them, or fewer with metadata."""

    enabled: bool = Field(default=True, description="whether consumer-group offsets are backed up")
    interval: Duration = Field(default=timedelta(minutes=5), description="time between two readings")
    include: tuple[Regex, ...] = Field(
        default=(), description="regular expressions of whole group names; none: all groups"
    )
    exclude: tuple[Regex, ...] = Field(default=(), description="regular expressions of groups to leave out")

    def guards(self, group: str) -> bool:
        """Whether the offsets of `group` are backed up."""
        if not self.enabled or any(re.fullmatch(pattern, group) for pattern in self.exclude):
            return False
        return not self.include or any(re.fullmatch(pattern, group) for pattern in self.include)


class Config(Section):
    """The whole configuration of one instance, or of a command that looks at the pair."""

    pair: Name = Field(description="name of the pair; part of every path in the store")
    instance: Name | None = Field(
        default=None,
        description="which of `instances` this process is, or `from-hostname` (a host name that ends in -0 or -1 is "
        "the first or the second of them); only `tandem run` needs it",
    )
    instances: tuple[Name, ...] = Field(default=("a", "b"), description="names of the two instances")
    first: Name = Field(
        default_factory=lambda data: next(iter(data.get("instances", ())), ""),
        description="which instance goes first when nothing is stored yet; left out: the first of `instances`",
    )
    topics: TopicsSettings
    kafka: KafkaProperties
    store: StoreSettings
    encryption: EncryptionSettings = EncryptionSettings()
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="whether records of aborted transactions are left out; fixed for the life of a pair",
    )
    guard: Literal["keys", "off"] = Field(
        default="keys",
        description="`keys`: a partition is cleared only if the newer copy has each key that the older one ends with; "
        "`off`: lost keys are not looked for",
    )
    signing: SigningSettings = SigningSettings()
    coordination: CoordinationSettings = CoordinationSettings()
    rotation: RotationSettings = RotationSettings()
    liveness: LivenessSettings = LivenessSettings()
    peer: PeerSettings = PeerSettings()
    handover: HandoverSettings = HandoverSettings()
    flush: FlushSettings = FlushSettings()
    commit: CommitSettings = CommitSettings()
    object: ObjectSettings = ObjectSettings()
    scan: ScanSettings = ScanSettings()
    recovery: RecoverySettings = RecoverySettings()
    grace: GraceSettings = GraceSettings()
    state: StateSettings = StateSettings()
    memory: MemorySettings = MemorySettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    http: HttpSettings = HttpSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    groups: GroupsSettings = GroupsSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        rules.refuse(rules.whole(self))
        return self

    def guards(self, topic: str) -> bool:
        """Whether the pair guards `topic`. The coordination topic never is."""
        return topic != self.coordination.topic and self.topics.guards(topic)

    def require_instance(self) -> str:
        """Return `instance`. Raises ConfigError if it is not set."""
        if self.instance is None:
            raise ConfigError(
                "instance: required here",
                code="TDM-C047",
                remedy=f"set TANDEM_INSTANCE or `instance:` to one of {' and '.join(self.instances)}, or, in a "
                "Kubernetes StatefulSet, to from-hostname",
            )
        return self.instance

    @property
    def peer_instance(self) -> str:
        """The other one. Raises ConfigError if `instance` is not set."""
        own = self.require_instance()
        return next(name for name in self.instances if name != own)

    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not meant, one sentence each, led by the key."""
        return tuple(f"{path}: {text}" for path, text in rules.doubts(self))

    def secrets(self) -> Iterator[str]:
        """Yield every secret value, so that it can be kept out of logs and messages."""
        place = self.store
        store = (place.access_key_id, place.secret_access_key, place.session_token, place.account_key)
        kafka = (value for value in self.kafka.root.values() if isinstance(value, SecretStr))
        for secret in (*store, *kafka):
            if secret is not None and secret.get_secret_value():
                yield secret.get_secret_value()
