"""Loading: precedence, places, types, secret files, origins, and that right configurations are taken as written."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.config import Config, SourceKind, load, read
from tandem.controller.config.derived_settings import store_settings

BASE = """\
pair: airports
topics:
  include: [airports]
kafka:
  bootstrap.servers: localhost:9092
store:
  root: s3://bucket/prefix
"""


def write(folder: Path, text: str) -> Path:
    """Write a configuration file."""
    path = folder / "a.yaml"
    path.write_text(text)
    return path


def test_the_smallest_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    """Four keys are enough; the rest is as the documentation says."""
    config = load(write(tmp_path, BASE), {})
    assert (config.instances, config.first, config.instance) == (("a", "b"), "a", None)
    assert config.rotation.interval == timedelta(days=7)
    assert config.liveness.timeout == config.flush.interval == timedelta(seconds=60)
    assert config.peer.timeout == config.handover.timeout == timedelta(minutes=10)
    assert config.object.target_size == 64 * 1024**2
    assert config.object.codec == "zstandard"
    assert config.coordination.topic == "_compacted_log_backup_coordination"
    assert config.coordination.replication_factor == 3
    assert config.scan.rate_limit is None
    assert config.isolation_level == "read_committed"
    assert config.warnings() == ()


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    """The source nearest to the user wins, key by key, and the origin says which it was."""
    path = write(tmp_path, BASE + "rotation: {interval: 3d}\nflush: {interval: 30s}\npeer: {timeout: 5m}\n")
    environ = {"TANDEM_ROTATION__INTERVAL": "2d", "TANDEM_FLUSH__INTERVAL": "20s", "HOME": "/root"}
    loaded = read(path, environ, ["flush.interval=10s", "flush.interval=5s"])
    config = loaded.config
    assert config.rotation.interval == timedelta(days=2)
    assert config.flush.interval == timedelta(seconds=5)
    assert config.peer.timeout == timedelta(minutes=5)
    assert [loaded.origin(key).kind for key in ("flush.interval", "rotation.interval", "peer.timeout", "first")] == [
        SourceKind.FLAG,
        SourceKind.ENVIRONMENT,
        SourceKind.FILE,
        SourceKind.DEFAULT,
    ]
    assert loaded.origin("peer.timeout").place == f"{path}:10"
    assert loaded.origin("rotation.interval").place == "TANDEM_ROTATION__INTERVAL"
    assert loaded.origin("flush.interval").place == "--set flush.interval"


def test_no_file_is_needed() -> None:
    """All can come from the environment, as in a container."""
    config = load(
        None,
        {
            "TANDEM_PAIR": "p",
            "TANDEM_INSTANCE": "b",
            "TANDEM_TOPICS__INCLUDE": "one, two",
            "TANDEM_TOPICS__PATTERNS": "x{1,2}",
            "TANDEM_TOPICS__EXCLUDE": '["a,b", "[c]"]',
            "TANDEM_KAFKA__BOOTSTRAP_SERVERS": "h:1",
            "TANDEM_STORE__ROOT": "file:///tmp/x/",
            "TANDEM_GROUPS__ENABLED": "false",
            "TANDEM_HTTP__LISTEN": "",
        },
        ["kafka.socket.timeout.ms=500", "instances=[b, c]", "scan.rate_limit=10MiB/s"],
    )
    assert (config.instances, config.first, config.instance, config.peer_instance) == (("b", "c"), "b", "b", "c")
    assert config.topics.include == ("one", "two")
    assert config.topics.patterns == ("x{1,2}",), "a comma may belong to an expression"
    assert config.topics.exclude == ("a,b", "[c]")
    assert config.kafka.reveal() == {"bootstrap.servers": "h:1", "socket.timeout.ms": 500}
    assert config.store.root == "file:///tmp/x"
    assert config.groups.enabled is False
    assert config.http.listen is None
    assert config.scan.rate_limit == 10 * 1024**2


def test_values_mean_what_was_written(tmp_path: Path) -> None:
    """YAML's own ideas (octal, yes/no, base 60, null) don't touch passwords and names."""
    path = write(
        tmp_path,
        """\
pair: no
instance: on
instances: [on, 0644]
topics: {include: [2024-01-01, 1_000], patterns: [yes]}
kafka:
  bootstrap.servers: [h1:9092, h2:9092]
  sasl.password: 0123
  sasl.username: "007"
  client.id: 12:30
  enable.ssl.certificate.verification: false
  socket.timeout.ms: 3000
  retry.backoff.ms: "100"
store: {root: s3://bucket, secret_access_key: 1e5, access_key_id: 007}
object: {codec: null}
""",
    )
    config = load(path, {})
    assert (config.pair, config.instance, config.instances) == ("no", "on", ("on", "0644"))
    assert config.topics.include == ("2024-01-01", "1_000")
    assert config.topics.patterns == ("yes",)
    assert config.kafka.reveal() == {
        "bootstrap.servers": "h1:9092,h2:9092",
        "sasl.password": "0123",
        "sasl.username": "007",
        "client.id": "12:30",
        "enable.ssl.certificate.verification": False,
        "socket.timeout.ms": 3000,
        "retry.backoff.ms": 100,
    }
    assert config.store.secret_access_key == SecretStr("1e5")
    assert config.store.access_key_id == SecretStr("007")
    assert config.object.codec == "null"


def test_secret_files_are_read_and_lose_one_newline(tmp_path: Path) -> None:
    """A mounted secret is taken whole, apart from the newline that editors and `echo` leave."""
    (tmp_path / "password").write_text(" p w \n\n")
    (tmp_path / "id").write_text("AKIA\r\n")
    (tmp_path / "key").write_text("s3cr3t")
    path = write(
        tmp_path,
        BASE.replace("kafka:\n", f"kafka:\n  sasl.password.file: {tmp_path}/password\n")
        + f"  access_key_id_file: {tmp_path}/id\n  secret_access_key_file: {tmp_path}/key\n",
    )
    loaded = read(path, {})
    assert loaded.config.kafka["sasl.password"] == SecretStr(" p w \n")
    assert loaded.config.kafka.get("sasl.password.file") is None
    assert loaded.config.store.access_key_id == SecretStr("AKIA")
    assert loaded.config.store.secret_access_key == SecretStr("s3cr3t")
    assert loaded.origin("kafka.sasl.password").place == f"{path}:5: {tmp_path}/password"
    assert sorted(loaded.config.secrets()) == [" p w \n", "AKIA", "s3cr3t"]


def test_a_secret_from_a_higher_source_beats_the_file_of_a_lower_one(tmp_path: Path) -> None:
    """So a test can override a mounted secret; the file is not even opened then."""
    path = write(tmp_path, BASE.replace("kafka:\n", "kafka:\n  sasl.password.file: /nowhere\n"))
    config = load(path, {"TANDEM_KAFKA__SASL_PASSWORD": "mine"})
    assert config.kafka["sasl.password"] == SecretStr("mine")
    (tmp_path / "p").write_text("file")
    plain = write(tmp_path, BASE.replace("kafka:\n", "kafka:\n  sasl.password: plain\n"))
    config = load(plain, {"TANDEM_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "p")})
    assert config.kafka["sasl.password"] == SecretStr("file")


def test_file_properties_of_librdkafka_itself_are_passed_through(tmp_path: Path) -> None:
    """Some librdkafka properties end in `.file` and are read by librdkafka."""
    path = write(tmp_path, BASE.replace("kafka:\n", "kafka:\n  sasl.oauthbearer.assertion.private.key.file: /k.pem\n"))
    assert load(path, {}).kafka["sasl.oauthbearer.assertion.private.key.file"] == "/k.pem"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("tandem-0", "a"),
        ("tandem-1", "b"),
        ("tandem-1.tandem.svc.cluster.local", "b"),
        ("tandem-2", None),
        ("tandem-10", None),
        ("laptop", None),
        ("-0", None),
    ],
)
def test_instance_from_the_host_name(tmp_path: Path, host: str, expected: str | None) -> None:
    """A StatefulSet's pods find themselves; anybody else has no instance and may not run one."""
    path = write(tmp_path, BASE + "instance: from-hostname\n")
    config = load(path, {}, hostname=lambda: host)
    assert config.instance == expected
    if expected is None:
        with pytest.raises(ConfigError, match="TDM-C047") as caught:
            config.require_instance()
        assert caught.value.exit_code is ExitCode.USAGE
        assert "TANDEM_INSTANCE" in str(caught.value.remedy)
    else:
        assert config.require_instance() == expected


def test_instance_from_the_environment_beats_the_file(tmp_path: Path) -> None:
    """One file for both; each process says who it is."""
    path = write(tmp_path, BASE + "instance: from-hostname\ninstances: [left, right]\nfirst: right\n")
    config = load(path, {"TANDEM_INSTANCE": "left"}, hostname=lambda: "x-1")
    assert (config.instance, config.first) == ("left", "right")


def test_what_kubernetes_adds_to_the_environment_is_left_alone(tmp_path: Path) -> None:
    """A Service called `tandem` or `tandem-metrics` must not stop its own pods."""
    environ = {
        "TANDEM_SERVICE_HOST": "10.0.0.1",
        "TANDEM_SERVICE_PORT": "80",
        "TANDEM_SERVICE_PORT_HTTP": "80",
        "TANDEM_PORT": "tcp://10.0.0.1:80",
        "TANDEM_PORT_80_TCP": "tcp://10.0.0.1:80",
        "TANDEM_PORT_80_TCP_ADDR": "10.0.0.1",
        "TANDEM_METRICS_PORT_80_TCP_PROTO": "tcp",
        "TANDEM_CONFIG": "x.yaml",
        "TANDEM_DEBUG": "1",
        "TANDEM_KAFKA_JARS": "/jars",
    }
    assert load(write(tmp_path, BASE), environ).pair == "airports"


@pytest.mark.parametrize(
    ("topic", "guarded"),
    [
        ("listed", True),
        ("orders-1", True),
        ("orders-tmp", False),
        ("my-orders-1", False),
        ("__consumer_offsets", False),
        ("_compacted_log_backup_coordination", False),
        ("_compacted_log_backup_restore", False),
        ("_tandem_restore_progress", False),
        ("orders-1.drill-0123abcd", False),
        ("talk", False),
        ("_schemas", True),
    ],
)
def test_which_topics_are_guarded(topic: str, guarded: bool) -> None:
    """Lists and whole-name patterns, less exclusions; never Kafka's or Tandem's own topics."""
    config = Config.model_validate(
        {
            "pair": "p",
            "topics": {"include": ["listed"], "patterns": ["orders-.*", "_.*", "talk"], "exclude": [".*-tmp"]},
            "kafka": {"bootstrap.servers": "h:1"},
            "store": {"root": "s3://bucket"},
            "coordination": {"topic": "talk"},
        }
    )
    assert config.guards(topic) is guarded


def test_which_groups_are_guarded(tmp_path: Path) -> None:
    """All groups by default; expressions choose, exclusions win, and the switch turns all off."""
    everything = load(write(tmp_path, BASE), {}).groups
    assert everything.guards("any")
    some = load(write(tmp_path, BASE + "groups: {include: ['app-.*'], exclude: ['.*-x']}\n"), {}).groups
    assert [some.guards(name) for name in ("app-1", "app-x", "other", "my-app-1")] == [True, False, False, False]
    assert not load(write(tmp_path, BASE + "groups: {enabled: false}\n"), {}).groups.guards("any")


def test_a_listen_address_is_taken_apart(tmp_path: Path) -> None:
    """Host names, IPv4, IPv6 in brackets, none for all addresses, and port 0 for any free one."""
    for text, expected in (
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("'[::]:0'", ("::", 0)),
        ("localhost:1", ("localhost", 1)),
        ("':8080'", ("", 8080)),
    ):
        assert load(write(tmp_path, BASE + f"http: {{listen: {text}}}\n"), {}).http.address == expected
    assert load(write(tmp_path, BASE), {}).http.address is None


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("rotation: {interval: 2m}", "rotation.interval: 2m is shorter than peer.timeout plus handover.timeout (20m)"),
        ("liveness: {timeout: 12s}", "liveness.timeout: less than three heartbeats"),
        ("flush: {interval: 20m}\nhandover: {timeout: 30m}", "flush.interval: after a crash up to 20m"),
        ("memory: {budget: 100MiB}", "memory.budget: less than two objects"),
        ("shutdown: {grace: 1s}", "shutdown.grace: may be too short"),
        ("scan: {rate_limit: 50}", "scan.rate_limit: 50B per second is too slow for most logs; write a unit"),
        ("groups: {exclude: ['tmp-*']}", 'groups.exclude: "tmp-*": in a regular expression * repeats the character'),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(tmp_path: Path, text: str, warning: str) -> None:
    """Allowed, for tests and odd places, but said."""
    assert any(line.startswith(warning) for line in load(write(tmp_path, BASE + text + "\n"), {}).warnings())


@pytest.mark.parametrize(
    ("pattern", "warned"),
    [
        ("orders-*", True),
        (r"orders\.*", True),
        ("o*-eu", True),
        ("orders-.*", False),
        (r"orders-\d*", False),
        ("orders-[0-9]*", False),
        ("(eu-)*orders", False),
        ("orders-[a-z*]", False),
    ],
)
def test_a_pattern_of_a_shell_is_a_warning(tmp_path: Path, pattern: str, warned: bool) -> None:
    """As a regular expression it is valid, and means other topics: `orders-*` does not match `orders-eu`."""
    text = BASE.replace("topics:\n", f"topics:\n  patterns: ['{pattern}']\n")
    found = load(write(tmp_path, text), {}).warnings()
    assert [line.partition(":")[0] for line in found] == (["topics.patterns"] if warned else [])


@pytest.mark.parametrize(
    ("kafka", "store", "warned"),
    [
        ("security.protocol: SASL_PLAINTEXT", "", ["kafka.security.protocol: SASL_PLAINTEXT sends login and records"]),
        (
            "security.protocol: sasl_plaintext\n  bootstrap.servers: 'localhost:1, [::1]:1,127.0.0.2,PLAINTEXT://127.0.0.1:1'",
            "",
            [],
        ),
        ("security.protocol: PLAINTEXT", "", []),
        ("security.protocol: SASL_SSL\n  sasl.username: x", "endpoint_url: https://s3", []),
        (
            (
                "security.protocol: ssl\n  enable.ssl.certificate.verification: false\n"
                "  ssl.endpoint.identification.algorithm: none"
            ),
            "",
            ["kafka.enable.ssl.certificate.verification: false", "kafka.ssl.endpoint.identification.algorithm: none"],
        ),
        ("", "endpoint_url: http://s3.local:9000", ["store.endpoint_url: http:// sends records"]),
        ("", "endpoint_url: http://127.0.0.1:9000", []),
        (
            "sasl.oauthbearer.token.endpoint.url: http://idp/token\n  security.protocol: SASL_SSL",
            "",
            ["kafka.sasl.oauthbearer.token.endpoint.url: http:// sends the client's secret"],
        ),
    ],
)
def test_what_the_network_can_read_is_a_warning(tmp_path: Path, kafka: str, store: str, warned: list[str]) -> None:
    """Cleartext and unverified servers are named, but for what stays on this machine; no secret is in a warning."""
    servers = "" if "bootstrap" in kafka else "  bootstrap.servers: broker:9092\n"
    text = BASE.replace("  bootstrap.servers: localhost:9092\n", f"{servers}  {kafka}\n")
    found = load(write(tmp_path, text + (f"  {store}\n" if store else "")), {}).warnings()
    assert len(found) == len(warned)
    assert all(line.startswith(start) for line, start in zip(found, warned, strict=True))
    assert "secret" not in " ".join(found).replace("client's secret", "")


def test_a_kms_in_the_clear_is_a_warning(tmp_path: Path) -> None:
    """Data keys come from there."""
    arn = "arn:aws:kms:eu-west-1:111122223333:key/11111111-2222-3333-4444-555555555555"
    text = f"{BASE}encryption:\n  aws_kms_endpoint_url: http://kms:80\n  aws_kms_key_arn: {arn}\n"
    assert load(write(tmp_path, text), {}).warnings() == (
        "encryption.aws_kms_endpoint_url: http:// sends data keys in the clear; use https://",
    )


def test_s3_settings_beside_a_file_store_are_a_warning(tmp_path: Path) -> None:
    """They do nothing there, which somebody may not expect."""
    text = BASE.replace("root: s3://bucket/prefix", "root: file:///tmp/x\n  region: eu-central-1")
    assert load(write(tmp_path, text), {}).warnings() == ("store.region: has no effect on a file:// store",)


def test_an_escape_in_a_prefix_is_a_warning(tmp_path: Path) -> None:
    """It is decoded in file:// alone, where it is a URL's."""
    found = load(write(tmp_path, BASE.replace("bucket/prefix", "bucket/a%20b")), {}).warnings()
    assert found == ("store.root: %20 is part of the prefix as it stands: only in file:// is it another character",)
    assert load(write(tmp_path, BASE.replace("s3://bucket/prefix", "file:///a%20b")), {}).warnings() == ()


def test_a_configuration_never_changes(tmp_path: Path) -> None:
    """It is shared by threads."""
    config = load(write(tmp_path, BASE), {})
    with pytest.raises(ValidationError, match="frozen"):
        config.pair = "other"
    with pytest.raises(ValidationError, match="frozen"):
        config.flush.interval = timedelta(seconds=1)


def test_a_model_built_in_code_is_checked_as_well() -> None:
    """The rules belong to the model, not to the loader, and the error repeats no input."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(
            {
                "pair": "p",
                "topics": {"include": ["t"]},
                "kafka": {"bootstrap.servers": "h:1", "sasl.password": "canary", "group.id": "x"},
                "store": {"root": "s3://bucket", "access_key_id": "canary"},
            }
        )
    assert "store.secret_access_key" in str(caught.value)
    assert "kafka.group.id" in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(caught.value)


def test_what_is_no_text(tmp_path: Path) -> None:
    """A variable may hold any bytes, and an escape in YAML half a character: both are named with their places."""
    path = tmp_path / "tandem.yaml"
    path.write_text(
        'pair: shop\nkafka: {bootstrap.servers: "a:9092", client.id: "x\\ud800"}\nstore: {root: s3://b/p}\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {"TANDEM_STORE__REGION": "eu\udcff"})
    assert "tandem.yaml:2: kafka.client.id: is not UTF-8 text" in str(caught.value)
    assert "TANDEM_STORE__REGION: store.region: is not UTF-8 text" in str(caught.value)


def test_the_address_of_tokens_is_no_secret(tmp_path: Path) -> None:
    """It has "token" in its name, and whoever looks for a mistake wants to see it."""
    url = "https://id.example.org/token"
    path = write(tmp_path, BASE.replace("kafka:\n", f"kafka:\n  sasl.oauthbearer.token.endpoint.url: {url}\n"))
    assert load(path, {}).kafka["sasl.oauthbearer.token.endpoint.url"] == url


def test_what_is_said_of_an_s3_server_reaches_its_settings(tmp_path: Path) -> None:
    """Authorities, checksums and encryption, from the file to the store's settings."""
    lines = "  ca_bundle: /ca.pem\n  checksums: off\n  server_side_encryption: aws:kms\n  bucket_key: true\n"
    settings = store_settings(load(write(tmp_path, BASE.replace("store:\n", f"store:\n{lines}")), {}))
    assert (settings.ca_bundle, settings.checksums) == ("/ca.pem", "off")
    assert (settings.server_side_encryption, settings.bucket_key) == ("aws:kms", True)
