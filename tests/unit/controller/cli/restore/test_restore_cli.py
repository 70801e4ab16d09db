"""What `tandem restore` makes of its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.main import run
from tandem.controller.cli.options.key_format import KeyFormat
from tandem.controller.cli.options.target_cluster import target_properties
from tandem.controller.cli.restore.options import (
    BatchCodec,
    Excluded,
    RestoreArguments,
    ShapeArguments,
    options_of,
    planned,
    shape_of,
    write_plan,
)
from tandem.sink.process import safe_text
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.restore.plan.options import ExactPlan, RestoreOptions
from tandem.spark_jobs.restore.plan.plan import RestorePlan
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges


def _options(**given: object) -> RestoreOptions:
    return options_of(RestoreArguments(**{"shape": NOTHING, **given}))  # type: ignore[arg-type]  # the caller names options


def test_topics_and_names() -> None:
    """Topics come with commas or repeated, whatever blanks are around them; mappings are OLD=NEW."""
    found = _options(
        topics=["a , b", "c", "a"],
        rename=["a=x", "b=y=z"],
        suffix=".r",
        generation=3,
        keep_load_config=True,
        consent=True,
        replication_factor=2,
    )
    assert found.topics == ("a", "b", "c")
    assert [found.naming.target(name) for name in ("a", "b", "c")] == ["x", "y=z", "c.r"]
    assert (found.generation, found.keep_load_config, found.consent, found.replication_factor) == (3, True, True, 2)


@pytest.mark.parametrize(
    "given",
    [
        {"rename": ["a"]},
        {"rename": ["=a"]},
        {"rename": ["a="]},
        {"to": "x", "suffix": ".r"},
        {"generation": 1, "checkpoint": "c"},
        {"at": "2026-05-04T10:00:00Z", "checkpoint": "c"},
        {"at": "2026-05-04T10:00:00Z", "commit": 7, "generation": 1},
        {"commit": 7},
        {"at": "2026-05-04T10:00:00"},
        {"at": "yesterday"},
        {"until": ["t=7"]},
        {"until": ["t:0"]},
        {"until": ["t:x=7"]},
        {"until": ["t:0=-7"]},
        {"until": [":0=7"]},
        {"to": "x", "patterns": ["a=b"]},
        {"patterns": ["a"]},
        {"patterns": ["a="]},
        {"partitions": 3},
        {"append": True, "keep_load_config": True},
        {"offsets": "exact", "keep_load_config": True},
        {"append": True, "replication_factor": 1},
        {"rate": "fast"},
        {"rate": "50M"},
    ],
)
def test_options_that_make_no_sense(given: dict[str, object]) -> None:
    """Half a mapping, a name and a suffix at once, a checkpoint and a generation at once: usage errors."""
    with pytest.raises(ConfigError):
        _options(**given)


def test_settings_of_topics() -> None:
    """Numbers as brokers take them, negative ones where they mean something; other values as they are."""
    given = ["retention.ms = -1", "cleanup.policy=compact,delete", "retention.bytes=9223372036854775807", "x.y="]
    assert _options(topic_config=given).topic_config == {
        "retention.ms": "-1",
        "cleanup.policy": "compact,delete",
        "retention.bytes": "9223372036854775807",
        "x.y": "",
    }
    for wrong in ("retention.ms=-2", "retention.ms=", "max.message.bytes=2147483648", "retention.ms=--1"):
        with pytest.raises(ConfigError, match="TDM-C037"):
            _options(topic_config=[wrong])
    assert _options(compression=BatchCodec.LZ4).compression is Compression.LZ4
    assert _options().compression is None
    assert _options(rate="50MiB/s").bytes_per_second == _options(rate="50MiB").bytes_per_second == 50 * 2**20


def _shape(**given: object) -> RecordChanges:
    return shape_of(ShapeArguments(**given))  # type: ignore[arg-type]  # the caller names options


@pytest.mark.parametrize(
    "given",
    [
        {"tombstones": False},
        {"excluded": Excluded.TOMBSTONE},
        {"repartition": "md5"},
        {"filter_timestamp": "2026-05-04T10:00:00Z"},
        {"filter_timestamp": ".."},
        {"filter_timestamp": "2026-05-04T10:00:00Z..2026-05-04T10:00:00Z"},
        {"until_timestamp": "2026-05-04"},
        {"key": ["xyz"], "key_format": KeyFormat.HEX},
        {"exclude_key": ["?"], "key_format": KeyFormat.BASE64},
        {"exclude_keys_file": Path("/nowhere")},
    ],
)
def test_changes_that_make_no_sense(given: dict[str, object]) -> None:
    """Half a span, a key in another form, tombstones of nothing: usage errors."""
    with pytest.raises(ConfigError):
        _shape(**given)


def test_changes(tmp_path: Path) -> None:
    """Keys in three forms, from options and files; spans open on one side; nothing given is nothing changed."""
    assert _shape() == NOTHING
    assert not _shape(repartition="crc32").selects
    assert _shape(repartition="crc32").partitioner is Partitioner.CRC32
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf6b31\r\n6b32\n")
    found = _shape(exclude_key=["", "6B33"], exclude_keys_file=file, key_format=KeyFormat.HEX)
    assert found.excluded == {b"", b"k1", b"k2", b"k3"}
    assert _shape(key=["a2I="], key_format=KeyFormat.BASE64).keys == {b"kb"}
    file.write_text("a\n\nb\n")
    with pytest.raises(ConfigError, match="line 2 is empty"):
        _shape(exclude_keys_file=file)
    for encoding in ("utf-16", "utf-16-le", "latin-1"):
        file.write_text("ä\nb\n", encoding=encoding)
        with pytest.raises(ConfigError, match="is not UTF-8"):
            _shape(exclude_keys_file=file)
    span = _shape(filter_timestamp="2026-05-04T10:00:00Z..")
    assert (span.since, span.before) == (1777888800000, None)
    assert _shape(filter_timestamp="..2026-05-04T10:00:00Z").before == 1777888800000


def test_plans_in_files(tmp_path: Path) -> None:
    """A file is for its owner, and never overwritten; with --apply nothing else is chosen."""
    file = tmp_path / "plan"
    plan = RestorePlan(
        pair="shop", generation=1, seq=3, basis={1: 3}, topics=(), incomplete=(), hash="abc", shape=NOTHING
    )
    write_plan(file, plan, RestoreOptions(generation=1))
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists"):
        write_plan(file, plan, RestoreOptions())
    found = planned(file, RestoreOptions(consent=True), pair="shop")
    assert found == RestoreOptions(generation=1, exactly=ExactPlan(hash="abc", generation=1, basis={1: 3}))
    with pytest.raises(ConfigError, match="TDM-R102"):
        planned(file, RestoreOptions(generation=1), pair="shop")
    with pytest.raises(ConfigError, match="can't be read"):
        planned(tmp_path / "other", RestoreOptions(), pair="shop")


def test_moments_and_bounds() -> None:
    """A moment has a zone; bounds are by topic and partition."""
    assert _options(at="2026-05-04T10:00:00Z").at == _options(at="2026-05-04T12:00:00+02:00").at == 1777888800000
    assert _options(commit=7, generation=2).commit == 7
    found = _options(until=["a.b-c:0=7", "a.b-c:12=0"])
    assert found.until == {("a.b-c", 0): 7, ("a.b-c", 12): 0}


@pytest.mark.parametrize("secret", ["01234567", "yes", "1_000", "0x1F", "12:34:56", "null", "~", "2026-01-01"])
def test_a_targets_values_are_read_as_they_are_written(tmp_path: Path, secret: str) -> None:
    """As those of the main file: YAML would make a number, a truth or a time of a password, which then is refused."""
    file, kept = tmp_path / "target.yaml", tmp_path / "password"
    file.write_text(f"bootstrap.servers: other:2\nsasl.password: {secret}\n", encoding="utf-8")
    assert target_properties(None, None, file)["sasl.password"] == secret
    kept.write_text(f" {secret} \n", encoding="utf-8")
    file.write_text(f"bootstrap.servers: other:2\nsasl.password.file: {kept}\n", encoding="utf-8")
    assert target_properties(None, None, file)["sasl.password"] == f" {secret} "


def test_a_targets_secret_file_that_is_not_there(tmp_path: Path) -> None:
    """Named with what is wrong."""
    file = tmp_path / "target.yaml"
    file.write_text("bootstrap.servers: other:2\nsasl.password.file: /nowhere\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"target\.yaml: sasl\.password\.file: no such secret file"):
        target_properties(None, None, file)


def test_which_cluster(tmp_path: Path) -> None:
    """The file's properties win, servers alone take nothing from the configured cluster, which comes last."""
    configured = {"bootstrap.servers": "own:1", "sasl.password": "secret-of-the-source"}
    file = tmp_path / "target.yaml"
    file.write_text("bootstrap.servers: other:2\nclient.id: me\n", encoding="utf-8")
    assert target_properties(configured, None, None) == configured
    assert target_properties(configured, "other:1", None) == {"bootstrap.servers": "other:1"}
    assert target_properties(configured, None, file) == {"bootstrap.servers": "other:2", "client.id": "me"}
    assert target_properties(configured, "third:3", file) == {"bootstrap.servers": "third:3", "client.id": "me"}
    with pytest.raises(ConfigError, match="TDM-C026"):
        target_properties(None, None, None)


def test_secrets_of_the_target(tmp_path: Path) -> None:
    """A password comes from its own file and is hidden in all output from then on; a `kafka:` section is taken too."""
    (tmp_path / "password").write_text("t0p-secret-target\n", encoding="utf-8")
    file = tmp_path / "target.yaml"
    file.write_text(
        f"kafka:\n  bootstrap.servers: other:2\n  sasl.password.file: {tmp_path / 'password'}\n", encoding="utf-8"
    )
    assert target_properties(None, None, file)["sasl.password"] == "t0p-secret-target"
    assert "t0p-secret-target" not in safe_text.redact("it is t0p-secret-target")


@pytest.mark.parametrize(
    "text",
    ["- a\n", "a: [", "bootstrap.servers: x:1\nno such: 1\n", "sasl.password.file: /nowhere\n", "client.id: me\n"],
)
def test_a_target_file_that_does_not_work(tmp_path: Path, text: str) -> None:
    """What is no YAML, no property, or misses the servers, is an error that names the file and shows no value."""
    file = tmp_path / "target.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"target\.yaml"):
        target_properties(None, None, file)


@pytest.mark.parametrize("last", ["client.id: *l5", "client.id: [*l5]", "client.id.file: *l5", "client.id: {a: *l5}"])
def test_a_target_file_that_folds_out(tmp_path: Path, last: str) -> None:
    """Lists of aliases of lists, and so on, which would be gigabytes with a few more: told by the property's name."""
    file = tmp_path / "target.yaml"
    lists = [f"- &l{n} [{', '.join(f'*l{n - 1}' for _ in range(20))}]" for n in range(1, 6)]
    file.write_text("\n".join(["bootstrap.servers: o:2", "l:", "- &l0 [x]", *lists, last, ""]), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"target\.yaml: 'l' is nested"):
        target_properties(None, None, file)
    # The lists themselves in a section that nobody reads.
    file.write_text(
        f"l:\n- &l0 [x]\n{chr(10).join(lists)}\nkafka:\n  bootstrap.servers: o:2\n  {last}\n", encoding="utf-8"
    )
    name = last.partition(":")[0]
    with pytest.raises(ConfigError, match=rf"target\.yaml: '{name}' is nested") as caught:
        target_properties(None, None, file)
    assert len(str(caught.value)) < 500


def test_help_needs_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """`tandem restore --help` names the options of the documented interface."""
    assert run(["restore", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--topics", "--to", "--map", "--suffix", "--generation", "--dry-run", "--yes", "--master"):
        assert option in shown
    for option in ("--replication-factor", "--keep-load-config", "--target-bootstrap-servers", "--target-config"):
        assert option in shown
