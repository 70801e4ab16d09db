"""Wrong configurations, through the command line: each names the place and the remedy, ends with 2, shows no secret."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tandem.controller.cli.main import run
from tandem.sink.process import log

CANARY = "canary-7f3a9"
KEY = base64.b64encode(bytes(range(32))).decode()
BASE = """\
pair: airports
instance: a
topics:
  include: [airports]
kafka:
  bootstrap.servers: localhost:9092
store:
  root: s3://bucket/prefix
"""


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> object:
    """Each test configures the log anew and leaves none behind."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    yield
    log.reset()


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One wrong configuration and what must be said about it."""

    name: str
    text: str = BASE
    environ: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    says: tuple[str, ...]


def added(text: str) -> str:
    """Append a section to a file that is right by itself; it begins in line 9."""
    return BASE + text + "\n"


def replaced(old: str, new: str) -> str:
    """Change one place of a file that is right by itself."""
    assert old in BASE
    return BASE.replace(old, new)


WRONG = [
    # Keys
    Wrong(
        name="misspelt key",
        text=added("rotation:\n  intervall: 7d"),
        says=("a.yaml:10: rotation.intervall: unknown key; did you mean rotation.interval?",),
    ),
    Wrong(
        name="misspelt section",
        text=added("rotatoin:\n  interval: 7d"),
        says=("a.yaml:9: rotatoin: unknown key; did you mean rotation?",),
    ),
    Wrong(
        name="key in the wrong section",
        text=added("target_size: 1MiB"),
        says=("a.yaml:9: target_size: unknown key; did you mean object.target_size?",),
    ),
    Wrong(
        name="dotted key",
        text=added("rotation.interval: 7d"),
        says=("a.yaml:9: rotation.interval: keys are nested; write `rotation:` and `interval:` below it",),
    ),
    Wrong(name="foreign key", text=added(f"zzz: {CANARY}"), says=("a.yaml:9: zzz: unknown key\n",)),
    Wrong(
        name="key given twice",
        text=added("log: {level: info}\nlog: {level: debug}"),
        says=("a.yaml:10: log: given twice, first in line 9",),
    ),
    Wrong(
        name="property given twice",
        text=replaced("kafka:\n", f"kafka:\n  sasl.password: {CANARY}\n  sasl.password: {CANARY}\n"),
        says=("a.yaml:7: kafka.sasl.password: given twice, first in line 6",),
    ),
    Wrong(
        name="section is a value",
        text=added("rotation: 7d"),
        says=("a.yaml:9: rotation: must be a mapping with the key interval",),
    ),
    Wrong(
        name="section is a list",
        text=added("log: [info]"),
        says=("a.yaml:9: log: must be a mapping with keys such as level, format",),
    ),
    Wrong(
        name="value is a mapping",
        text=replaced("pair: airports", "pair: {x: y}"),
        says=("a.yaml:1: pair: must be a single value",),
    ),
    Wrong(
        name="value is a list",
        text=replaced("instance: a", "instance: [a]"),
        says=("a.yaml:2: instance: must be a single value",),
    ),
    Wrong(
        name="list is a value",
        text=replaced("include: [airports]", "include: airports"),
        says=("a.yaml:4: topics.include: must be a list, such as [orders, users]",),
    ),
    Wrong(
        name="list holds mappings",
        text=replaced("[airports]", "[{a: b}]"),
        says=("a.yaml:4: topics.include: must be a list of plain texts",),
    ),
    Wrong(name="complex key", text=added("? [a]\n: b"), says=("a.yaml:9: a key: keys must be plain text",)),
    # YAML
    Wrong(name="no YAML", text="pair: [a\n", says=("a.yaml:2:1: not valid YAML:",)),
    Wrong(name="tabs", text="pair:\n\tx: 1\n", says=("a.yaml:2:1: not valid YAML: found character '\\t'",)),
    Wrong(name="endless nesting", text="pair: " + "[" * 5000, says=("a.yaml: not valid YAML: nested too deeply",)),
    Wrong(name="a list at the top", text="- pair\n", says=("a.yaml:1: must be a mapping of keys",)),
    Wrong(name="a word at the top", text=CANARY, says=("a.yaml:1: must be a mapping of keys",)),
    Wrong(name="two documents", text=BASE + "---\n" + BASE, says=("not valid YAML: but found another document",)),
    Wrong(
        name="password that looks like an alias",
        text=replaced("kafka:\n", f"kafka:\n  sasl.password: *{CANARY}\n"),
        says=("a.yaml:6:18: not valid YAML: a value that begins with * must be quoted",),
    ),
    Wrong(
        name="password that looks like a tag",
        text=replaced("kafka:\n", f"kafka:\n  sasl.password: !{CANARY}\n"),
        says=("a.yaml:6: kafka.sasl.password: YAML tags are not supported; quote a value that begins with !",),
    ),
    Wrong(
        name="password that looks like an anchor",
        text=replaced("kafka:\n", f"kafka:\n  sasl.password: &{CANARY}\n"),
        says=("a.yaml:6: kafka.sasl.password: has no value",),
    ),
    Wrong(name="empty file", text="", says=("pair: required; set it in the file, by TANDEM_PAIR or by --set pair=…",)),
    # Missing
    Wrong(
        name="no pair",
        text=replaced("pair: airports\n", ""),
        says=("pair: required; set it in the file, by TANDEM_PAIR",),
    ),
    Wrong(
        name="no value", text=replaced("pair: airports", "pair:"), says=("a.yaml:1: pair: has no value; give it one",)
    ),
    Wrong(
        name="no value for a duration",
        text=added("rotation: {interval: null}"),
        says=("a.yaml:9: rotation.interval: has no value",),
    ),
    Wrong(
        name="no topics",
        text=replaced("topics:\n  include: [airports]\n", ""),
        says=("topics: guards nothing; list topics in",),
    ),
    Wrong(
        name="empty topics",
        text=replaced("include: [airports]", "include: []"),
        says=("a.yaml:4: topics: guards nothing",),
    ),
    Wrong(
        name="no brokers",
        text=replaced("  bootstrap.servers: localhost:9092\n", "  client.id: x\n"),
        says=("kafka.bootstrap.servers: required; name at least one broker",),
    ),
    Wrong(
        name="no store",
        text=replaced("store:\n  root: s3://bucket/prefix\n", ""),
        says=("store.root: required; set it in the file, by TANDEM_STORE__ROOT",),
    ),
    # Names
    Wrong(
        name="pair with slash",
        text=replaced("pair: airports", "pair: a/b"),
        says=('a.yaml:1: pair: "a/b" is not a name: at most 100',),
    ),
    Wrong(
        name="unknown instance",
        text=replaced("instance: a", "instance: c"),
        says=('a.yaml:2: instance: "c" is none of the instances a and b',),
    ),
    Wrong(
        name="unknown first", text=added("first: z"), says=('a.yaml:9: first: "z" is none of the instances a and b',)
    ),
    Wrong(
        name="one instance",
        text=added("instances: [a]"),
        says=("a.yaml:9: instances: must be two different names, not 1: [a]",),
    ),
    Wrong(
        name="three instances",
        text=added("instances: [a, b, c]"),
        says=("a.yaml:9: instances: must be two different names",),
    ),
    Wrong(
        name="the same instance twice",
        text=added("instances: [a, a]"),
        says=("a.yaml:9: instances: must be two different names",),
    ),
    Wrong(
        name="instance named like a folder",
        text=added("instances: [a, pins]"),
        says=("a.yaml:9: instances: pins is the name of a folder",),
    ),
    Wrong(
        name="instance named like a probe",
        text=added("instances: [a, probe-b]"),
        says=("a.yaml:9: instances: probe-b begins as objects do that try the store",),
    ),
    # Topics
    Wrong(
        name="illegal topic",
        text=replaced("[airports]", "[ok,\n    air ports]"),
        says=('a.yaml:5: topics.include: "air ports" is not a topic name',),
    ),
    Wrong(
        name="pattern among the names",
        text=replaced("[airports]", "['air.*']"),
        says=('a.yaml:4: topics.include: "air.*" is not a topic name', "regular expressions belong in topics.patterns"),
    ),
    Wrong(
        name="broken pattern",
        text=added("groups: {include: ['a', '(b']}"),
        says=('a.yaml:9: groups.include: "(b" is not a regular expression',),
    ),
    Wrong(
        name="listed and excluded",
        text=replaced("[airports]", "[airports]\n  exclude: ['air.*']"),
        says=('a.yaml:5: topics.exclude: "air.*" takes out airports, which topics.include lists; drop one',),
    ),
    Wrong(
        name="listed twice",
        text=replaced("[airports]", "[x, x]"),
        says=("a.yaml:4: topics.include: x is listed more than once",),
    ),
    Wrong(
        name="internal topic",
        text=replaced("[airports]", "[__consumer_offsets]"),
        says=("topics.include: __consumer_offsets belongs to Kafka or Tandem",),
    ),
    Wrong(
        name="coordination topic guarded",
        text=replaced("[airports]", "[talk]") + "coordination: {topic: talk}\n",
        says=("a.yaml:4: topics.include: talk is the coordination topic and can't be guarded; take it out",),
    ),
    # Kafka
    Wrong(
        name="isolation.level",
        text=replaced("kafka:\n", "kafka:\n  isolation.level: read_committed\n"),
        says=("a.yaml:6: kafka.isolation.level: is not yours to set; set isolation_level",),
    ),
    Wrong(
        name="client.rack",
        text=replaced("kafka:\n", "kafka:\n  client.rack: z1\n"),
        says=("a.yaml:6: kafka.client.rack: is not yours to set; leave it out",),
    ),
    Wrong(
        name="Java property name",
        text=replaced("kafka:\n", f"kafka:\n  Sasl Password: {CANARY}\n"),
        says=("a.yaml:6: kafka.Sasl Password: is not the name of a librdkafka property",),
    ),
    Wrong(
        name="nested property",
        text=replaced("kafka:\n", f"kafka:\n  sasl: {{password: {CANARY}}}\n"),
        says=("a.yaml:6: kafka.sasl: is nested; librdkafka's names are flat",),
    ),
    Wrong(
        name="broker without port number",
        text=replaced("localhost:9092", "localhost:kafka"),
        says=("a.yaml:6: kafka.bootstrap.servers: is not a list of brokers; write host1:9092",),
    ),
    Wrong(
        name="empty broker",
        text=replaced("localhost:9092", "'a:1,,b:2'"),
        says=("a.yaml:6: kafka.bootstrap.servers: is not a list of brokers",),
    ),
    # Secret files
    Wrong(
        name="no secret file",
        text=replaced("kafka:\n", "kafka:\n  sasl.password.file: /nowhere/p\n"),
        says=("a.yaml:6: kafka.sasl.password.file: /nowhere/p: no such secret file; mount it",),
    ),
    Wrong(
        name="secret file is a folder",
        text=added("  access_key_id_file: /\n  secret_access_key: " + CANARY),
        says=("a.yaml:9: store.access_key_id_file: /: secret file can't be read (Is a directory)",),
    ),
    Wrong(
        name="secret file is empty",
        text=added("  access_key_id_file: /dev/null\n  secret_access_key: " + CANARY),
        says=("a.yaml:9: store.access_key_id_file: /dev/null: secret file is empty",),
    ),
    Wrong(
        name="secret and file",
        text=replaced("kafka:\n", f"kafka:\n  sasl.password: {CANARY}\n  sasl.password.file: /x\n"),
        says=("a.yaml:7: kafka.sasl.password.file: kafka.sasl.password is set as well; keep one of the two",),
    ),
    # Store
    Wrong(
        name="store without scheme",
        text=replaced("s3://bucket/prefix", "bucket/prefix"),
        says=('a.yaml:8: store.root: "bucket/prefix" is neither s3://bucket/prefix nor file:///',),
    ),
    Wrong(
        name="store of another kind",
        text=replaced("s3://", "ftp://"),
        says=("store.root:", "is neither s3://bucket/prefix nor file:///absolute/path"),
    ),
    Wrong(
        name="store that there is none for yet",
        text=replaced("s3://bucket", "abfss://bucket"),
        says=("a.yaml:8: store.root:", "Azure Blob Storage is not supported yet", "docs/connections.md"),
    ),
    Wrong(
        name="encryption with keys in requests",
        text=replaced("store:\n", "store:\n  server_side_encryption: SSE-C\n"),
        says=("store.server_side_encryption:", "every reader would need the key", "aws:kms"),
    ),
    Wrong(
        name="bucket key without KMS",
        text=replaced("store:\n", "store:\n  bucket_key: true\n"),
        says=("store.bucket_key: needs store.server_side_encryption: aws:kms",),
    ),
    Wrong(
        name="private key in the wrong place",
        text=replaced(
            "kafka:\n",
            f"kafka:\n  ssl.certificate.pem: |\n    -----BEGIN PRIVATE KEY-----\n    {CANARY}\n",
        ),
        says=("a.yaml:6: kafka.ssl.certificate.pem: holds a private key; put that into ssl.key.pem",),
    ),
    Wrong(
        name="relative file store",
        text=replaced("s3://bucket/prefix", "file://backup"),
        says=("needs an absolute path: three slashes, as in file:///var/lib/tandem",),
    ),
    Wrong(
        name="file store at the root", text=replaced("s3://bucket/prefix", "file:///"), says=("needs an absolute path",)
    ),
    Wrong(
        name="climbing file store",
        text=replaced("s3://bucket/prefix", "file:///a/../b"),
        says=("must not hold empty, '.' or '..' path segments",),
    ),
    Wrong(
        name="s3 without bucket",
        text=replaced("s3://bucket/prefix", "s3:///x"),
        says=("does not name a bucket; write s3://bucket/prefix",),
    ),
    Wrong(
        name="s3 with a bucket of one letter",
        text=replaced("s3://bucket/prefix", "s3://b/prefix"),
        says=('"b" is not a bucket\'s name: 3 to 255 letters, digits, ".", "_" and "-"',),
    ),
    Wrong(
        name="credentials in the root",
        text=replaced("s3://bucket", f"s3://key:{CANARY}@bucket"),
        says=("a.yaml:8: store.root: must not hold credentials; use store.access_key_id_file",),
    ),
    Wrong(
        name="credentials in the endpoint",
        text=added(f"  endpoint_url: https://key:{CANARY}@host"),
        says=("a.yaml:9: store.endpoint_url: must not hold credentials",),
    ),
    Wrong(
        name="credentials in a URL of the clients",
        text=replaced("kafka:\n", f"kafka:\n  sasl.oauthbearer.token.endpoint.url: https://me:{CANARY}@host/token\n"),
        says=("kafka.sasl.oauthbearer.token.endpoint.url: must not hold credentials; they belong into the sasl.",),
    ),
    Wrong(
        name="credentials in a broker's address",
        environ={"TANDEM_KAFKA__BOOTSTRAP_SERVERS": f"me:{CANARY}@host:9092"},
        says=("TANDEM_KAFKA__BOOTSTRAP_SERVERS: kafka.bootstrap.servers: must not hold credentials",),
    ),
    Wrong(
        name="a key where its variable's name belongs",
        text=added("signing:\n  key_env: |\n    -----BEGIN PRIVATE KEY-----\n    " + CANARY),
        says=("signing.key_env: holds a key itself; write what it is called",),
    ),
    Wrong(
        name="a key where its file's path belongs",
        text=added(f"encryption:\n  key_file: {KEY}"),
        says=(
            "a.yaml:10: encryption.key_file: holds a key itself; put the key into a file, and write that file's path",
        ),
    ),
    Wrong(
        name="a key in hex among the paths of files",
        text=added(f"encryption:\n  decrypt_key_files:\n  - /run/old\n  - {bytes(range(32)).hex()}"),
        says=("a.yaml:12: encryption.decrypt_key_files: holds a key itself;",),
    ),
    Wrong(
        name="a key in PEM where its file's path belongs",
        text=added("signing:\n  key_file: |\n    -----BEGIN PRIVATE KEY-----\n    " + CANARY),
        says=("a.yaml:10: signing.key_file: holds a key itself;",),
    ),
    Wrong(
        name="endpoint without scheme",
        text=added("  endpoint_url: localhost:9000"),
        says=('a.yaml:9: store.endpoint_url: "localhost:9000" is not a URL; write http://host:port',),
    ),
    Wrong(
        name="endpoint with a bad port",
        text=added("  endpoint_url: http://h:99999"),
        says=("store.endpoint_url:", "is not a URL"),
    ),
    Wrong(
        name="half a credential",
        text=added(f"  access_key_id: {CANARY}"),
        says=("a.yaml:9: store.access_key_id: is set without store.secret_access_key; set both or neither",),
    ),
    Wrong(
        name="other half",
        text=added(f"  secret_access_key: {CANARY}"),
        says=("a.yaml:9: store.secret_access_key: is set without store.access_key_id",),
    ),
    Wrong(
        name="lonely token",
        text=added(f"  session_token: {CANARY}"),
        says=("a.yaml:9: store.session_token: needs store.access_key_id",),
    ),
    Wrong(
        name="key without kms",
        text=added("  kms_key_id: k"),
        says=("a.yaml:9: store.kms_key_id: needs store.server_side_encryption: aws:kms, which is none",),
    ),
    Wrong(
        name="style",
        text=added("  addressing_style: paths"),
        says=('a.yaml:9: store.addressing_style: "paths" is none of auto, path, virtual; did you mean path?',),
    ),
    # Types
    Wrong(
        name="duration",
        text=added("rotation: {interval: 7 days}"),
        says=('a.yaml:9: rotation.interval: "7 days" is not a duration; write 500ms, 30s, 5m, 12h, 7d, 1w',),
    ),
    Wrong(name="negative duration", text=added("rotation: {interval: -7d}"), says=('"-7d" is not a duration',)),
    Wrong(
        name="no duration at all",
        text=added("flush: {interval: 0}"),
        says=('a.yaml:9: flush.interval: "0" must be more than 0',),
    ),
    Wrong(
        name="size",
        text=added("memory: {budget: lots}"),
        says=('a.yaml:9: memory.budget: "lots" is not a size; write 64MiB',),
    ),
    Wrong(
        name="ambiguous size",
        text=added("memory: {budget: 256M}"),
        says=('"256M" is ambiguous; write MiB (1024s) or MB (1000s)',),
    ),
    Wrong(name="rate", text=added("scan: {rate_limit: 0}"), says=('scan.rate_limit: "0" must be more than 0',)),
    Wrong(
        name="number",
        text=added("commit: {max_objects: many}"),
        says=('a.yaml:9: commit.max_objects: "many" is not a whole number',),
    ),
    Wrong(name="number with a fraction", text=added("commit: {max_objects: 1.5}"), says=("is not a whole number",)),
    Wrong(
        name="number too small",
        text=added("commit: {max_objects: 0}"),
        says=('commit.max_objects: "0" must be at least 1',),
    ),
    Wrong(name="number too big", text=added("commit: {max_objects: 5000}"), says=("must be at most 1000",)),
    Wrong(name="negative generations", text=added("retain: {generations: -1}"), says=("must be at least 0",)),
    Wrong(
        name="truth value",
        text=added("groups: {enabled: maybe}"),
        says=('a.yaml:9: groups.enabled: "maybe" is neither true nor false',),
    ),
    Wrong(
        name="codec",
        text=added("object: {codec: zstd}"),
        says=('a.yaml:9: object.codec: "zstd" is none of zstandard, deflate, snappy, null',),
    ),
    Wrong(
        name="level",
        text=added("log: {level: inf}"),
        says=('"inf" is none of debug, info, warning, error, critical; did you mean info?',),
    ),
    Wrong(
        name="isolation level",
        text=added("isolation_level: committed"),
        says=("is none of read_committed, read_uncommitted; did you mean read_committed?",),
    ),
    Wrong(
        name="replication factor",
        text=added("coordination: {replication_factor: 0}"),
        says=('coordination.replication_factor: "0" must be at least 1, or -1',),
    ),
    Wrong(
        name="listen without host",
        text=added("http: {listen: 8080}"),
        says=('a.yaml:9: http.listen: "8080" is not host:port; write :8080 for all addresses',),
    ),
    Wrong(
        name="listen with bad port",
        text=added("http: {listen: 'a:70000'}"),
        says=("port from 0 (any free one) to 65535",),
    ),
    Wrong(
        name="listen with an empty v6",
        text=added("http: {listen: '[]:80'}"),
        says=("is not host:port",),
    ),
    Wrong(
        name="listen with bare v6",
        text=added("http: {listen: '::1:80'}"),
        says=("is not host:port; write :8080 for all addresses, 127.0.0.1:8080 or [::1]:8080",),
    ),
    Wrong(
        name="a host with a port",
        text=added("http: {listen: ':80', hosts: ['tandem.example.com:8080']}"),
        says=('http.hosts: "tandem.example.com:8080" is not the name of a host; write tandem.example.com, without',),
    ),
    # Across sections
    Wrong(
        name="flush longer than a turn",
        text=added("flush: {interval: 2m}\nrotation: {interval: 1m}"),
        says=("a.yaml:10: rotation.interval: 1m must be longer than flush.interval 2m: a turn would end before",),
    ),
    Wrong(
        name="flush longer than the handover",
        text=added("flush: {interval: 10m}"),
        says=("handover.timeout: 10m must be longer than flush.interval 10m",),
    ),
    Wrong(
        name="liveness shorter than two heartbeats",
        text=added("liveness: {timeout: 9s}"),
        says=("a.yaml:9: liveness.timeout: 9s is less than two heartbeats", "use 20s or more"),
    ),
    Wrong(
        name="block larger than object",
        text=added("object: {target_size: 1MiB, block_size: 2MiB}"),
        says=("a.yaml:9: object.block_size: 2MiB is more than object.target_size 1MiB",),
    ),
    Wrong(
        name="object larger than a put",
        text=added("object: {target_size: 6GiB}\nmemory: {budget: 20GiB}"),
        says=("object.target_size: 6GiB is more than S3 takes in one put (5GiB)",),
    ),
    Wrong(
        name="object larger than memory",
        text=added("memory: {budget: 32MiB}"),
        says=("a.yaml:9: memory.budget: 32MiB does not hold one object of object.target_size 64MiB",),
    ),
    Wrong(
        name="batch larger than one read",
        text=added("memory: {largest_batch: 256GiB}"),
        says=("a.yaml:9: memory.largest_batch: 256GiB is not from 1MiB, which brokers take by default",),
    ),
    Wrong(
        name="batch smaller than usual",
        text=added("memory: {largest_batch: 64KiB}"),
        says=("a.yaml:9: memory.largest_batch: 64KiB is not from 1MiB", "to 1GiB"),
    ),
    Wrong(
        name="level for no codec",
        text=added("object: {codec: snappy, compression_level: 3}"),
        says=("object.compression_level: has no meaning for object.codec: snappy; leave it out",),
    ),
    Wrong(
        name="level out of range",
        text=added("object: {codec: deflate, compression_level: 10}"),
        says=("must be from 0 to 9 for object.codec: deflate, not 10",),
    ),
    # Environment
    Wrong(
        name="unknown variable",
        environ={"TANDEM_ROTATION__INTERVALL": CANARY},
        says=("TANDEM_ROTATION__INTERVALL: unknown variable; did you mean TANDEM_ROTATION__INTERVAL?",),
    ),
    Wrong(
        name="single underscore",
        environ={"TANDEM_ROTATION_INTERVAL": "1d"},
        says=("TANDEM_ROTATION_INTERVAL: unknown variable; did you mean TANDEM_ROTATION__INTERVAL?",),
    ),
    Wrong(
        name="variable of a section",
        environ={"TANDEM_ROTATION": "1d"},
        says=("TANDEM_ROTATION: a section has no variable of its own; set TANDEM_ROTATION__INTERVAL",),
    ),
    Wrong(
        name="variable of the kafka section",
        environ={"TANDEM_KAFKA": CANARY},
        says=("TANDEM_KAFKA: a section has no variable of its own; set TANDEM_KAFKA__BOOTSTRAP_SERVERS",),
    ),
    Wrong(
        name="port that is no service link",
        environ={"TANDEM_HTTP__PORT": "80"},
        says=("TANDEM_HTTP__PORT: unknown variable",),
    ),
    Wrong(
        name="wrong value in a variable",
        environ={"TANDEM_ROTATION__INTERVAL": "soon"},
        says=('TANDEM_ROTATION__INTERVAL: rotation.interval: "soon" is not a duration',),
    ),
    Wrong(
        name="wrong list in a variable",
        environ={"TANDEM_TOPICS__PATTERNS": "[1, 2]"},
        says=('TANDEM_TOPICS__PATTERNS: topics.patterns: must be a list of texts, such as ["a","b"]',),
    ),
    Wrong(
        name="wrong item in a variable",
        environ={"TANDEM_TOPICS__INCLUDE": "ok,not ok"},
        says=('TANDEM_TOPICS__INCLUDE: topics.include: "not ok" is not a topic name',),
    ),
    Wrong(
        name="secret file in a variable",
        environ={"TANDEM_KAFKA__SASL_PASSWORD_FILE": "/nowhere"},
        says=("TANDEM_KAFKA__SASL_PASSWORD_FILE: kafka.sasl.password.file: /nowhere: no such secret file",),
    ),
    # Flags
    Wrong(name="flag without value", flags=(f"{CANARY}",), says=("--set (number 1): must look like key.path=value",)),
    Wrong(
        name="flag without key",
        flags=("pair=x", f"={CANARY}"),
        says=("--set (number 2): must look like key.path=value",),
    ),
    Wrong(
        name="flag with an unknown key",
        flags=(f"store.secret_acess_key={CANARY}",),
        says=("--set store.secret_acess_key: unknown key; did you mean store.secret_access_key?",),
    ),
    Wrong(
        name="flag for a section", flags=("rotation=7d",), says=("--set rotation: is a section; set the key interval",)
    ),
    Wrong(
        name="flag with a wrong value",
        flags=("rotation.interval=soon",),
        says=('--set rotation.interval: "soon" is not a duration',),
    ),
    Wrong(
        name="flag with a secret",
        flags=(f"store.secret_access_key={CANARY}", f"kafka.sasl.password={CANARY}"),
        says=(
            "--set store.secret_access_key: whoever lists processes would see the secret",
            "set TANDEM_STORE__SECRET_ACCESS_KEY, or store.secret_access_key_file",
            "set TANDEM_KAFKA__SASL_PASSWORD, or kafka.sasl.password.file",
        ),
    ),
    Wrong(
        name="flag with half a credential",
        flags=("store.secret_access_key_file=/nowhere",),
        says=("--set store.secret_access_key_file: ", "/nowhere: no such secret file"),
    ),
    # Several at once
    Wrong(
        name="several",
        text=added("rotation: {intervall: 1d}\nflush: {interval: soon}"),
        environ={"TANDEM_FOO": "x"},
        flags=("retain.generations=-1",),
        says=(
            "4 problems in the configuration",
            "a.yaml:9: rotation.intervall",
            "a.yaml:10: flush.interval",
            "TANDEM_FOO:",
            "--set retain.generations:",
        ),
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_configuration_is_named(
    wrong: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Place, what is wrong, what to do; exit code 2; no traceback, no secret, nothing on stdout."""
    (tmp_path / "a.yaml").write_text(wrong.text)
    monkeypatch.chdir(tmp_path)
    for name, value in wrong.environ.items():
        monkeypatch.setenv(name, value)
    flags = [part for flag in wrong.flags for part in ("--set", flag)]
    code = run(["config", "validate", "-c", "a.yaml", *flags])
    captured = capsys.readouterr()
    for text in wrong.says:
        assert text in captured.err
    assert captured.err.startswith("error: ")
    assert code == 2
    assert "what to do: " in captured.err
    assert "Traceback" not in captured.err
    assert CANARY not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("name", [wrong.name for wrong in WRONG])
def test_names_of_cases_are_unique(name: str) -> None:
    """A case copied and not renamed would hide behind its twin."""
    assert [wrong.name for wrong in WRONG].count(name) == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing.yaml", "missing.yaml: no such file"),
        (".", ".: can't be read: Is a directory"),
        ("latin.yaml", "latin.yaml: is not UTF-8 text (byte 7)"),
        ("locked/a.yaml", "locked/a.yaml: can't be read: Not a directory"),
    ],
)
def test_a_file_that_cannot_be_read(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's reason in a sentence, and how to name another file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"pair: a\xe9b\n")
    (tmp_path / "locked").write_text("")
    assert run(["config", "validate", "-c", path]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: {says}\nwhat to do: name a readable YAML file with -c/--config or TANDEM_CONFIG\n"


def test_the_base_of_all_cases_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else the cases above could be right for the wrong reason."""
    (tmp_path / "a.yaml").write_text(BASE)
    assert run(["config", "validate", "-c", str(tmp_path / "a.yaml")]) == 0
    captured = capsys.readouterr()
    assert captured.err == "ok: pair airports, instance a, store s3://bucket/prefix\n"
    assert captured.out == ""


def test_no_file_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first thing a new user meets."""
    monkeypatch.chdir(tmp_path)
    assert run(["config", "validate"]) == 2
    told = capsys.readouterr().err
    assert "what to do: no configuration file was given, and this folder has no tandem.yaml: name one with -c" in told


@pytest.mark.parametrize("text", ["pair: [a\n", "- pair\n"])
def test_an_unreadable_file_is_the_only_problem(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that the file would have set is not listed as missing on top."""
    (tmp_path / "a.yaml").write_text(text)
    assert run(["config", "validate", "-c", str(tmp_path / "a.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
