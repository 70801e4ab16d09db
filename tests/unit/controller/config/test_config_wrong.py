"""Wrong configurations, through the command line: each names the place and the remedy, ends with 2, shows no secret."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.main import run
from tandem.controller.config import read
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


class Wrong(NamedTuple):
    """One wrong configuration and what must be said about it."""

    text: str
    says: tuple[str, ...]
    environ: Mapping[str, str]
    flags: tuple[str, ...]


def wrong(text: str, *says: str, environ: Mapping[str, str] | None = None, flags: tuple[str, ...] = ()) -> Wrong:
    """What is wrong with a file, the environment or the flags, and each part of what is said."""
    return Wrong(text, says, environ or {}, flags)


def added(text: str) -> str:
    """Append a section to a file that is right by itself; it begins in line 9."""
    return BASE + text + "\n"


def replaced(old: str, new: str) -> str:
    """Change one place of a file that is right by itself."""
    assert old in BASE
    return BASE.replace(old, new)


WRONG = {
    # Keys
    "misspelt key": wrong(
        added("rotation:\n  intervall: 7d"),
        "a.yaml:10: rotation.intervall: unknown key; did you mean rotation.interval?",
    ),
    "misspelt section": wrong(
        added("rotatoin:\n  interval: 7d"), "a.yaml:9: rotatoin: unknown key; did you mean rotation?"
    ),
    "key in the wrong section": wrong(
        added("target_size: 1MiB"), "a.yaml:9: target_size: unknown key; did you mean object.target_size?"
    ),
    "dotted key": wrong(
        added("rotation.interval: 7d"),
        "a.yaml:9: rotation.interval: keys are nested; write `rotation:` and `interval:` below it",
    ),
    "foreign key": wrong(added(f"zzz: {CANARY}"), "a.yaml:9: zzz: unknown key [TDM-C042]\n"),
    "key given twice": wrong(
        added("log: {level: info}\nlog: {level: debug}"), "a.yaml:10: log: given twice, first in line 9"
    ),
    "property given twice": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.password: {CANARY}\n  sasl.password: {CANARY}\n"),
        "a.yaml:7: kafka.sasl.password: given twice, first in line 6",
    ),
    "section is a value": wrong(added("rotation: 7d"), "a.yaml:9: rotation: must be a mapping with the key interval"),
    "section is a list": wrong(
        added("log: [info]"), "a.yaml:9: log: must be a mapping with keys such as level, format"
    ),
    "value is a mapping": wrong(replaced("pair: airports", "pair: {x: y}"), "a.yaml:1: pair: must be a single value"),
    "value is a list": wrong(replaced("instance: a", "instance: [a]"), "a.yaml:2: instance: must be a single value"),
    "list is a value": wrong(
        replaced("include: [airports]", "include: airports"),
        "a.yaml:4: topics.include: must be a list, such as [orders, users]",
    ),
    "list holds mappings": wrong(
        replaced("[airports]", "[{a: b}]"), "a.yaml:4: topics.include: must be a list of plain texts"
    ),
    "complex key": wrong(added("? [a]\n: b"), "a.yaml:9: a key: keys must be plain text"),
    # YAML
    "no YAML": wrong("pair: [a\n", "a.yaml:2:1: not valid YAML:"),
    "tabs": wrong("pair:\n\tx: 1\n", "a.yaml:2:1: not valid YAML: found character '\\t'"),
    "endless nesting": wrong("pair: " + "[" * 5000, "a.yaml: not valid YAML: nested too deeply"),
    "a list at the top": wrong("- pair\n", "a.yaml:1: must be a mapping of keys"),
    "a word at the top": wrong(CANARY, "a.yaml:1: must be a mapping of keys"),
    "two documents": wrong(BASE + "---\n" + BASE, "not valid YAML: a second document begins here"),
    "password that looks like an alias": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.password: *{CANARY}\n"),
        "a.yaml:6:18: not valid YAML: a value that begins with * must be quoted",
    ),
    "password that looks like a tag": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.password: !{CANARY}\n"),
        "a.yaml:6: kafka.sasl.password: YAML tags are not supported; quote a value that begins with !",
    ),
    "password that looks like an anchor": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.password: &{CANARY}\n"), "a.yaml:6: kafka.sasl.password: has no value"
    ),
    "empty file": wrong("", "pair: required; set it in the file, by TANDEM_PAIR or by --set pair=…"),
    # Missing
    "no pair": wrong(replaced("pair: airports\n", ""), "pair: required; set it in the file, by TANDEM_PAIR"),
    "no value": wrong(replaced("pair: airports", "pair:"), "a.yaml:1: pair: has no value; give it one"),
    "no value for a duration": wrong(added("rotation: {interval: null}"), "a.yaml:9: rotation.interval: has no value"),
    "no topics": wrong(replaced("topics:\n  include: [airports]\n", ""), "topics: guards nothing; list topics in"),
    "empty topics": wrong(replaced("include: [airports]", "include: []"), "a.yaml:4: topics: guards nothing"),
    "no brokers": wrong(
        replaced("  bootstrap.servers: localhost:9092\n", "  client.id: x\n"),
        "kafka.bootstrap.servers: required; name at least one broker",
    ),
    "no store": wrong(
        replaced("store:\n  root: s3://bucket/prefix\n", ""),
        "store.root: required; set it in the file, by TANDEM_STORE__ROOT",
    ),
    # Names
    "pair with slash": wrong(
        replaced("pair: airports", "pair: a/b"), 'a.yaml:1: pair: "a/b" is not a name: at most 100'
    ),
    "unknown instance": wrong(
        replaced("instance: a", "instance: c"), 'a.yaml:2: instance: "c" is none of the instances a and b'
    ),
    "unknown first": wrong(added("first: z"), 'a.yaml:9: first: "z" is none of the instances a and b'),
    "one instance": wrong(added("instances: [a]"), "a.yaml:9: instances: must be two different names, not 1: [a]"),
    "three instances": wrong(added("instances: [a, b, c]"), "a.yaml:9: instances: must be two different names"),
    "the same instance twice": wrong(added("instances: [a, a]"), "a.yaml:9: instances: must be two different names"),
    "instance named like a folder": wrong(
        added("instances: [a, pins]"), "a.yaml:9: instances: pins is the name of a folder"
    ),
    "instance named like a probe": wrong(
        added("instances: [a, probe-b]"), "a.yaml:9: instances: probe-b begins as objects do that try the store"
    ),
    # Topics
    "illegal topic": wrong(
        replaced("[airports]", "[ok,\n    air ports]"), 'a.yaml:5: topics.include: "air ports" is not a topic name'
    ),
    "pattern among the names": wrong(
        replaced("[airports]", "['air.*']"),
        'a.yaml:4: topics.include: "air.*" is not a topic name',
        "regular expressions belong in topics.patterns",
    ),
    "broken pattern": wrong(
        added("groups: {include: ['a', '(b']}"), 'a.yaml:9: groups.include: "(b" is not a regular expression'
    ),
    "empty pattern": wrong(
        replaced("[airports]", "[airports]\n  patterns: ['']"),
        'a.yaml:5: topics.patterns: "" is empty and matches no name; take it out, or write [] for none',
    ),
    "empty pattern of groups": wrong(BASE, 'groups.include: "" is empty', flags=("groups.include=",)),
    "item that looks like a tag": wrong(
        replaced("[airports]", f"[!{CANARY} x]"), "a.yaml:4: topics.include: YAML tags are not supported; quote"
    ),
    "listed and excluded": wrong(
        replaced("[airports]", "[airports]\n  exclude: ['air.*']"),
        'a.yaml:5: topics.exclude: "air.*" takes out airports, which topics.include lists; drop one',
    ),
    "listed twice": wrong(replaced("[airports]", "[x, x]"), "a.yaml:4: topics.include: x is listed more than once"),
    "internal topic": wrong(
        replaced("[airports]", "[__consumer_offsets]"), "topics.include: __consumer_offsets belongs to Kafka or Tandem"
    ),
    "coordination topic guarded": wrong(
        replaced("[airports]", "[talk]") + "coordination: {topic: talk}\n",
        "a.yaml:4: topics.include: talk is the coordination topic and can't be guarded; take it out",
    ),
    # Kafka
    "isolation.level": wrong(
        replaced("kafka:\n", "kafka:\n  isolation.level: read_committed\n"),
        "a.yaml:6: kafka.isolation.level: is not yours to set; set isolation_level",
    ),
    "client.rack": wrong(
        replaced("kafka:\n", "kafka:\n  client.rack: z1\n"),
        "a.yaml:6: kafka.client.rack: is not yours to set; leave it out",
    ),
    "Java property name": wrong(
        replaced("kafka:\n", f"kafka:\n  Sasl Password: {CANARY}\n"),
        "a.yaml:6: kafka.Sasl Password: is not the name of a librdkafka property",
    ),
    "nested property": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl: {{password: {CANARY}}}\n"),
        "a.yaml:6: kafka.sasl: is nested; librdkafka's names are flat",
    ),
    "broker without port number": wrong(
        replaced("localhost:9092", "localhost:kafka"),
        "a.yaml:6: kafka.bootstrap.servers: is not a list of brokers; write host1:9092",
    ),
    "empty broker": wrong(
        replaced("localhost:9092", "'a:1,,b:2'"), "a.yaml:6: kafka.bootstrap.servers: is not a list of brokers"
    ),
    # Secret files
    "no secret file": wrong(
        replaced("kafka:\n", "kafka:\n  sasl.password.file: /nowhere/p\n"),
        "a.yaml:6: kafka.sasl.password.file: /nowhere/p: no such secret file; mount it",
    ),
    "a password where its file's path belongs": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.password.file: {CANARY}\n"),
        "a.yaml:6: kafka.sasl.password.file: no such secret file; mount it, or correct the path; the value is not",
    ),
    "half a credential where its file's path belongs": wrong(
        added(f"  secret_access_key_file: {CANARY}"),
        "a.yaml:9: store.secret_access_key_file: no such secret file",
        "write an absolute path, not the secret",
        "a.yaml:9: store.secret_access_key: is set without store.access_key_id",
    ),
    "a secret that begins with a slash": wrong(
        BASE,
        "TANDEM_STORE__ACCOUNT_KEY_FILE: store.account_key_file: no such secret file",
        environ={"TANDEM_STORE__ACCOUNT_KEY_FILE": f"/{CANARY.replace('-', '')}" + "A1b2" * 19 + "A=="},
    ),
    "secret file is a folder": wrong(
        added("  access_key_id_file: /\n  secret_access_key: " + CANARY),
        "a.yaml:9: store.access_key_id_file: /: secret file can't be read (Is a directory)",
    ),
    "secret file is empty": wrong(
        added("  access_key_id_file: /dev/null\n  secret_access_key: " + CANARY),
        "a.yaml:9: store.access_key_id_file: /dev/null: secret file is empty",
    ),
    "secret and file": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.password: {CANARY}\n  sasl.password.file: /x\n"),
        "a.yaml:7: kafka.sasl.password.file: kafka.sasl.password is set as well; keep one of the two",
    ),
    # Store
    "store without scheme": wrong(
        replaced("s3://bucket/prefix", "bucket/prefix"),
        'a.yaml:8: store.root: "bucket/prefix" is none of s3://bucket/prefix',
    ),
    "store of another kind": wrong(
        replaced("s3://", "ftp://"),
        "store.root:",
        "is none of s3://bucket/prefix, gs://…, az://container/prefix and file:///absolute/path",
    ),
    "store by another name": wrong(
        replaced("s3://bucket", "abfss://bucket"),
        "a.yaml:8: store.root:",
        "write az://container/prefix, and store.account_name",
    ),
    "container with a name that Azure does not allow": wrong(
        replaced("s3://bucket", "az://a--b"),
        'a.yaml:8: store.root: "az://a--b/prefix" "a--b" is not a container\'s name',
    ),
    "bucket of Google with a name that none has": wrong(
        replaced("s3://bucket", "gs://b"), 'a.yaml:8: store.root: "gs://b/prefix" "b" is not a bucket\'s name'
    ),
    "encryption with keys in requests": wrong(
        replaced("store:\n", "store:\n  server_side_encryption: SSE-C\n"),
        "store.server_side_encryption:",
        "every reader would need the key",
        "aws:kms",
    ),
    "bucket key without KMS": wrong(
        replaced("store:\n", "store:\n  bucket_key: true\n"),
        "store.bucket_key: needs store.server_side_encryption: aws:kms",
    ),
    "private key in the wrong place": wrong(
        replaced("kafka:\n", f"kafka:\n  ssl.certificate.pem: |\n    -----BEGIN PRIVATE KEY-----\n    {CANARY}\n"),
        "a.yaml:6: kafka.ssl.certificate.pem: holds a private key; put that into ssl.key.pem",
    ),
    "relative file store": wrong(
        replaced("s3://bucket/prefix", "file://backup"),
        "needs an absolute path: three slashes, as in file:///var/lib/tandem",
    ),
    "file store at the root": wrong(replaced("s3://bucket/prefix", "file:///"), "needs an absolute path"),
    "climbing file store": wrong(
        replaced("s3://bucket/prefix", "file:///a/../b"), "must not hold empty, '.' or '..' path segments"
    ),
    "s3 without bucket": wrong(
        replaced("s3://bucket/prefix", "s3:///x"), "does not name a bucket; write s3://bucket/prefix"
    ),
    "s3 with a bucket of one letter": wrong(
        replaced("s3://bucket/prefix", "s3://b/prefix"),
        '"b" is not a bucket\'s name: 3 to 255 letters, digits, ".", "_" and "-"',
    ),
    "credentials in the root": wrong(
        replaced("s3://bucket", f"s3://key:{CANARY}@bucket"),
        "a.yaml:8: store.root: must not hold credentials; use store.access_key_id_file",
    ),
    "credentials in the endpoint": wrong(
        added(f"  endpoint_url: https://key:{CANARY}@host"), "a.yaml:9: store.endpoint_url: must not hold credentials"
    ),
    "credentials in a URL of the clients": wrong(
        replaced("kafka:\n", f"kafka:\n  sasl.oauthbearer.token.endpoint.url: https://me:{CANARY}@host/token\n"),
        "kafka.sasl.oauthbearer.token.endpoint.url: must not hold credentials; they belong into the sasl.",
    ),
    "credentials in a broker's address": wrong(
        BASE,
        "TANDEM_KAFKA__BOOTSTRAP_SERVERS: kafka.bootstrap.servers: must not hold credentials",
        environ={"TANDEM_KAFKA__BOOTSTRAP_SERVERS": f"me:{CANARY}@host:9092"},
    ),
    "a key where its variable's name belongs": wrong(
        added("signing:\n  key_env: |\n    -----BEGIN PRIVATE KEY-----\n    " + CANARY),
        "signing.key_env: holds a key itself; write what it is called",
    ),
    "a key where its file's path belongs": wrong(
        added(f"encryption:\n  key_file: {KEY}"),
        "a.yaml:10: encryption.key_file: holds a key itself; put the key into a file, and write that file's path",
    ),
    "an encryption key's file without a name": wrong(
        added('encryption:\n  key_file: ""'), "a.yaml:10: encryption.key_file: is empty; name a key, or leave"
    ),
    "an encryption key's file taken away by a flag": wrong(
        added("encryption: {key_file: /k}"), "--set encryption.key_file: is empty", flags=("encryption.key_file=",)
    ),
    "a key in hex among the paths of files": wrong(
        added(f"encryption:\n  decrypt_key_files:\n  - /run/old\n  - {bytes(range(32)).hex()}"),
        "a.yaml:12: encryption.decrypt_key_files: holds a key itself;",
    ),
    "a key in PEM where its file's path belongs": wrong(
        added("signing:\n  key_file: |\n    -----BEGIN PRIVATE KEY-----\n    " + CANARY),
        "a.yaml:10: signing.key_file: holds a key itself;",
    ),
    "endpoint without scheme": wrong(
        added("  endpoint_url: localhost:9000"),
        'a.yaml:9: store.endpoint_url: "localhost:9000" is not a URL; write http://host:port',
    ),
    "endpoint with a bad port": wrong(added("  endpoint_url: http://h:99999"), "store.endpoint_url:", "is not a URL"),
    "half a credential": wrong(
        added(f"  access_key_id: {CANARY}"),
        "a.yaml:9: store.access_key_id: is set without store.secret_access_key; set both or neither",
    ),
    "other half": wrong(
        added(f"  secret_access_key: {CANARY}"), "a.yaml:9: store.secret_access_key: is set without store.access_key_id"
    ),
    "lonely token": wrong(
        added(f"  session_token: {CANARY}"), "a.yaml:9: store.session_token: needs store.access_key_id"
    ),
    "key without kms": wrong(
        added("  kms_key_id: k"),
        "a.yaml:9: store.kms_key_id: needs store.server_side_encryption: aws:kms, which is none",
    ),
    "style": wrong(
        added("  addressing_style: paths"),
        'a.yaml:9: store.addressing_style: "paths" is none of auto, path, virtual; did you mean path?',
    ),
    # Types
    "duration": wrong(
        added("rotation: {interval: 7 days}"),
        'a.yaml:9: rotation.interval: "7 days" is not a duration; write 500ms, 30s, 5m, 12h, 7d, 1w',
    ),
    "negative duration": wrong(added("rotation: {interval: -7d}"), '"-7d" is not a duration'),
    "no duration at all": wrong(added("flush: {interval: 0}"), 'a.yaml:9: flush.interval: "0" must be more than 0'),
    "size": wrong(added("memory: {budget: lots}"), 'a.yaml:9: memory.budget: "lots" is not a size; write 64MiB'),
    "ambiguous size": wrong(added("memory: {budget: 256M}"), '"256M" is ambiguous; write MiB (1024s) or MB (1000s)'),
    "rate": wrong(added("scan: {rate_limit: 0}"), 'scan.rate_limit: "0" must be more than 0'),
    "number": wrong(added("commit: {max_objects: many}"), 'a.yaml:9: commit.max_objects: "many" is not a whole number'),
    "number with a fraction": wrong(added("commit: {max_objects: 1.5}"), "is not a whole number"),
    "number too small": wrong(added("commit: {max_objects: 0}"), 'commit.max_objects: "0" must be at least 1'),
    "number too big": wrong(added("commit: {max_objects: 5000}"), "must be at most 1000"),
    "negative window": wrong(added("recovery: {window: -1d}"), '"-1d" is not a duration'),
    "truth value": wrong(
        added("groups: {enabled: maybe}"), 'a.yaml:9: groups.enabled: "maybe" is neither true nor false'
    ),
    "codec": wrong(
        added("object: {codec: zstd}"), 'a.yaml:9: object.codec: "zstd" is none of zstandard, deflate, snappy, null'
    ),
    "level": wrong(
        added("log: {level: inf}"), '"inf" is none of debug, info, warning, error, critical; did you mean info?'
    ),
    "isolation level": wrong(
        added("isolation_level: committed"), "is none of read_committed, read_uncommitted; did you mean read_committed?"
    ),
    "replication factor": wrong(
        added("coordination: {replication_factor: 0}"), 'coordination.replication_factor: "0" must be at least 1, or -1'
    ),
    "listen without host": wrong(
        added("http: {listen: 8080}"), 'a.yaml:9: http.listen: "8080" is not host:port; write :8080 for all addresses'
    ),
    "listen with bad port": wrong(added("http: {listen: 'a:70000'}"), "port from 0 (any free one) to 65535"),
    "listen with an empty v6": wrong(added("http: {listen: '[]:80'}"), "is not host:port"),
    "listen with bare v6": wrong(
        added("http: {listen: '::1:80'}"),
        "is not host:port; write :8080 for all addresses, 127.0.0.1:8080 or [::1]:8080",
    ),
    "a host with a port": wrong(
        added("http: {listen: ':80', hosts: ['tandem.example.com:8080']}"),
        'http.hosts: "tandem.example.com:8080" is not the name of a host; write tandem.example.com, without',
    ),
    # Across sections
    "flush longer than a turn": wrong(
        added("flush: {interval: 2m}\nrotation: {interval: 1m}"),
        "a.yaml:10: rotation.interval: 1m must be longer than flush.interval 2m: a turn would end before",
    ),
    "flush longer than the handover": wrong(
        added("flush: {interval: 10m}"), "handover.timeout: 10m must be longer than flush.interval 10m"
    ),
    "liveness shorter than two heartbeats": wrong(
        added("liveness: {timeout: 9s}"),
        "a.yaml:9: liveness.timeout: 9s is less than two heartbeats",
        "use 20s or more",
    ),
    "block larger than object": wrong(
        added("object: {target_size: 1MiB, block_size: 2MiB}"),
        "a.yaml:9: object.block_size: 2MiB is more than object.target_size 1MiB",
    ),
    "object larger than a put": wrong(
        added("object: {target_size: 6GiB}\nmemory: {budget: 20GiB}"),
        "object.target_size: 6GiB is more than S3 takes in one put (5GiB)",
    ),
    "object larger than memory": wrong(
        added("memory: {budget: 32MiB}"),
        "a.yaml:9: memory.budget: 32MiB does not hold one object of object.target_size 64MiB",
    ),
    "batch larger than one read": wrong(
        added("memory: {largest_batch: 256GiB}"),
        "a.yaml:9: memory.largest_batch: 256GiB is not from 1MiB, which brokers take by default",
    ),
    "batch smaller than usual": wrong(
        added("memory: {largest_batch: 64KiB}"), "a.yaml:9: memory.largest_batch: 64KiB is not from 1MiB", "to 1GiB"
    ),
    "level for no codec": wrong(
        added("object: {codec: snappy, compression_level: 3}"),
        "object.compression_level: has no meaning for object.codec: snappy; leave it out",
    ),
    "level out of range": wrong(
        added("object: {codec: deflate, compression_level: 10}"),
        "must be from 0 to 9 for object.codec: deflate, not 10",
    ),
    # Environment
    "unknown variable": wrong(
        BASE,
        "TANDEM_ROTATION__INTERVALL: unknown variable; did you mean TANDEM_ROTATION__INTERVAL?",
        environ={"TANDEM_ROTATION__INTERVALL": CANARY},
    ),
    "single underscore": wrong(
        BASE,
        "TANDEM_ROTATION_INTERVAL: unknown variable; did you mean TANDEM_ROTATION__INTERVAL?",
        environ={"TANDEM_ROTATION_INTERVAL": "1d"},
    ),
    "variable of a section": wrong(
        BASE,
        "TANDEM_ROTATION: a section has no variable of its own; set TANDEM_ROTATION__INTERVAL",
        environ={"TANDEM_ROTATION": "1d"},
    ),
    "variable of the kafka section": wrong(
        BASE,
        "TANDEM_KAFKA: a section has no variable of its own; set TANDEM_KAFKA__BOOTSTRAP_SERVERS",
        environ={"TANDEM_KAFKA": CANARY},
    ),
    "port that is no service link": wrong(
        BASE, "TANDEM_HTTP__PORT: unknown variable", environ={"TANDEM_HTTP__PORT": "80"}
    ),
    "wrong value in a variable": wrong(
        BASE,
        'TANDEM_ROTATION__INTERVAL: rotation.interval: "soon" is not a duration',
        environ={"TANDEM_ROTATION__INTERVAL": "soon"},
    ),
    "wrong list in a variable": wrong(
        BASE,
        'TANDEM_TOPICS__PATTERNS: topics.patterns: must be a list of texts, such as ["a","b"]',
        environ={"TANDEM_TOPICS__PATTERNS": "[1, 2]"},
    ),
    "wrong item in a variable": wrong(
        BASE,
        'TANDEM_TOPICS__INCLUDE: topics.include: "not ok" is not a topic name',
        environ={"TANDEM_TOPICS__INCLUDE": "ok,not ok"},
    ),
    "two variables of one property": wrong(
        BASE,
        "TANDEM_KAFKA__SASL__USERNAME: kafka.sasl.username: TANDEM_KAFKA__SASL_USERNAME is set as well; keep one",
        environ={"TANDEM_KAFKA__SASL_USERNAME": "one", "TANDEM_KAFKA__SASL__USERNAME": "two"},
    ),
    "secret file in a variable": wrong(
        BASE,
        "TANDEM_KAFKA__SASL_PASSWORD_FILE: kafka.sasl.password.file: /nowhere: no such secret file",
        environ={"TANDEM_KAFKA__SASL_PASSWORD_FILE": "/nowhere"},
    ),
    # Flags
    "flag without value": wrong(BASE, "--set (number 1): must look like key.path=value", flags=(f"{CANARY}",)),
    "flag without key": wrong(BASE, "--set (number 2): must look like key.path=value", flags=("pair=x", f"={CANARY}")),
    "flag with an unknown key": wrong(
        BASE,
        "--set store.secret_acess_key: unknown key; did you mean store.secret_access_key?",
        flags=(f"store.secret_acess_key={CANARY}",),
    ),
    "flag for a section": wrong(BASE, "--set rotation: is a section; set the key interval", flags=("rotation=7d",)),
    "flag with a wrong value": wrong(
        BASE, '--set rotation.interval: "soon" is not a duration', flags=("rotation.interval=soon",)
    ),
    "flag with a secret": wrong(
        BASE,
        "--set store.secret_access_key: whoever lists processes would see the secret",
        "set TANDEM_STORE__SECRET_ACCESS_KEY, or store.secret_access_key_file",
        "set TANDEM_KAFKA__SASL_PASSWORD, or kafka.sasl.password.file",
        flags=(f"store.secret_access_key={CANARY}", f"kafka.sasl.password={CANARY}"),
    ),
    "flag with half a credential": wrong(
        BASE,
        "--set store.secret_access_key_file: ",
        "/nowhere: no such secret file",
        flags=("store.secret_access_key_file=/nowhere",),
    ),
    # Several at once
    "several": wrong(
        added("rotation: {intervall: 1d}\nflush: {interval: soon}"),
        "4 problems in the configuration",
        "a.yaml:9: rotation.intervall",
        "a.yaml:10: flush.interval",
        "TANDEM_FOO:",
        "--set recovery.window:",
        environ={"TANDEM_FOO": "x"},
        flags=("recovery.window=soon",),
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_configuration_is_named(
    case: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Place, what is wrong, what to do; exit code 2; no traceback, no secret, nothing on stdout."""
    (tmp_path / "a.yaml").write_text(case.text)
    monkeypatch.chdir(tmp_path)
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    flags = [part for flag in case.flags for part in ("--set", flag)]
    code = run(["config", "validate", "-c", "a.yaml", *flags])
    captured = capsys.readouterr()
    for text in case.says:
        assert text in captured.err
    assert captured.err.startswith("error: ")
    assert code == 2
    assert "what to do: " in captured.err
    assert "Traceback" not in captured.err
    assert CANARY not in captured.err
    assert CANARY.replace("-", "") not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("name", [f"{CANARY}/x", "password"])
def test_a_secret_in_place_of_a_path_is_masked_from_then_on(name: str, tmp_path: Path) -> None:
    """But for one that is a word of the message, which would become illegible."""
    (tmp_path / "a.yaml").write_text(replaced("kafka:\n", f"kafka:\n  sasl.password.file: {name}\n"))
    hidden: list[str] = []
    with pytest.raises(ConfigError, match=r"a.yaml:6: kafka.sasl.password.file: no such secret file"):
        read(tmp_path / "a.yaml", {}, hide=hidden.extend)
    assert hidden == ([name] if CANARY in name else [])


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
    first, remedy = captured.err.splitlines()
    assert re.fullmatch(rf"error: {re.escape(says)} \[TDM-C04[456]\]", first)
    assert remedy == "what to do: name a readable YAML file with -c/--config or TANDEM_CONFIG"


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
