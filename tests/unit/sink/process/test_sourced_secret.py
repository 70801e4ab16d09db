"""Secrets on their way to Spark's workers: where they were read travels, and the value only if it was read nowhere."""

from __future__ import annotations

import copy
import os
import pickle
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from structlog.testing import capture_logs

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.target_cluster import target_properties
from tandem.controller.config import Config, load
from tandem.controller.config.derived_settings import store_settings
from tandem.controller.instance.wiring import workers_of
from tandem.sink.process import log, safe_text, sourced_secret
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

PASSWORD, SECRET, TOKEN = "the-password-7c1f", "the-secret-key-91aa", "the-session-token-f00d"
CONFIG = """\
pair: p
instance: a
topics: {include: [orders]}
kafka: {bootstrap.servers: "h:9092", security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u%s}
store: {root: "s3://bucket/prefix", access_key_id: ID%s}
"""


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    sourced_secret.reset()
    yield
    sourced_secret.reset()
    log.reset()


def _loaded(folder: Path, environ: Mapping[str, str], kafka: str = "", store: str = "") -> Config:
    path = folder / "a.yaml"
    path.write_text(CONFIG % (kafka, store))
    return load(path, environ)


def _task(config: Config) -> tuple[StoreAddress, ClusterAddress]:
    """What each task of a restore carries."""
    address = StoreAddress(root=config.store.root, settings=store_settings(config))
    return address, ClusterAddress(props=dict(config.kafka.reveal()))


def _revealed(task: tuple[StoreAddress, ClusterAddress]) -> tuple[Any, ...]:
    settings = task[0].settings
    return settings.secret_access_key, settings.session_token, task[1].props["sasl.password"]


def _by_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name, value in (
        ("TANDEM_KAFKA__SASL_PASSWORD", PASSWORD),
        ("TANDEM_STORE__SECRET_ACCESS_KEY", SECRET),
        ("TANDEM_STORE__SESSION_TOKEN", TOKEN),
    ):
        monkeypatch.setenv(name, value)
    return _loaded(folder, os.environ)


def _by_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(folder)
    for name, value in (("password", PASSWORD), ("secret", SECRET), ("token", TOKEN)):
        (folder / name).write_text(f"{value}\n")
    store = f", secret_access_key_file: {folder}/secret, session_token_file: {folder}/token"
    config = _loaded(folder, {}, ", sasl.password.file: password", store)
    monkeypatch.chdir("/")  # a task runs elsewhere
    return config


@pytest.mark.parametrize("given", [_by_variables, _by_files])
def test_a_task_carries_where_secrets_are(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte of a value is in a task; what unpickles it reads the values again, and hides them in its log."""
    task = _task(given(tmp_path, monkeypatch))
    assert _revealed(task) == (SECRET, TOKEN, PASSWORD)
    with capture_logs() as lines:
        pickled = cloudpickle.dumps(task)
    assert [value for value in (PASSWORD, SECRET, TOKEN) if value.encode() in pickled] == []
    assert [line for line in lines if "access_key_id" not in line["key"]] == []  # typed, as the file has it
    log.reset()
    assert _revealed(pickle.loads(pickled)) == (SECRET, TOKEN, PASSWORD)
    assert safe_text.redact(f"{SECRET} {TOKEN} {PASSWORD}") == "******** ******** ********"
    assert cloudpickle.dumps(pickle.loads(pickled)) == pickled


def test_what_is_read_again_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated secret reaches tasks that begin later."""
    pickled = pickle.dumps(_task(_by_files(tmp_path, monkeypatch)))
    (tmp_path / "secret").write_text("rotated-secret")
    assert _revealed(pickle.loads(pickled))[0] == "rotated-secret"


@pytest.mark.parametrize("given", [_by_variables, _by_files])
def test_an_executor_that_lacks_it_says_what(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, place and host, and what to do."""
    pickled = pickle.dumps(_task(given(tmp_path, monkeypatch)))
    monkeypatch.delenv("TANDEM_STORE__SECRET_ACCESS_KEY", raising=False)
    (tmp_path / "secret").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"store\.secret_access_key") as caught:
        pickle.loads(pickled)
    assert str(tmp_path / "secret") in str(caught.value) or "TANDEM_STORE__SECRET_ACCESS_KEY" in str(caught.value)
    assert socket.gethostname() in str(caught.value)
    assert "executors" in (caught.value.remedy or "")


def test_a_typed_secret_travels_with_a_warning(tmp_path: Path) -> None:
    """It is nowhere to be read again. Once for each key, and never the value."""
    typed = f", sasl.password: {PASSWORD}", f", secret_access_key: {SECRET}, session_token: {TOKEN}"
    task = _task(_loaded(tmp_path, {}, *typed))
    with capture_logs() as lines:
        pickled = [cloudpickle.dumps(task) for _ in range(3)]
    assert _revealed(pickle.loads(pickled[0])) == (SECRET, TOKEN, PASSWORD)
    keys = ["kafka.sasl.password", "store.access_key_id", "store.secret_access_key", "store.session_token"]
    assert sorted(line["key"] for line in lines) == keys
    assert {line["log_level"] for line in lines} == {"warning"}
    assert next(line["remedy"] for line in lines if line["key"] == keys[0]).startswith("kafka.sasl.password.file")
    assert next(line["remedy"] for line in lines if line["key"] == keys[2]).startswith("store.secret_access_key_file")
    assert not any(value in str(lines) for value in (PASSWORD, SECRET, TOKEN))
    log.reset()
    pickle.loads(pickled[0])
    assert SECRET not in safe_text.redact(SECRET)


def test_a_typed_secret_goes_by_the_environment_of_a_local_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that this one starts inherit it; what was handed over is not in tasks, and is no configuration key."""
    typed = f", sasl.password: {PASSWORD}", f", secret_access_key: {SECRET}, session_token: {TOKEN}"
    task = _task(_loaded(tmp_path, {}, *typed))
    environ: dict[str, str] = {}
    inherited: dict[str, str] = {}
    with sourced_secret.handed_over(environ):
        inherited.update(environ)
    assert environ == {}
    assert sorted(inherited.values()) == sorted((PASSWORD, SECRET, TOKEN, "ID"))
    with capture_logs() as lines:
        pickled = cloudpickle.dumps(task)
    assert [value for value in (PASSWORD, SECRET, TOKEN) if value.encode() in pickled] == []
    assert lines == []
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    assert _revealed(pickle.loads(pickled)) == (SECRET, TOKEN, PASSWORD)
    assert _loaded(tmp_path, os.environ, *typed).pair == "p"


def test_what_can_be_read_only_once_travels(tmp_path: Path) -> None:
    """A pipe, such as a shell's <(…), has nothing more to say to anybody else."""
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writer, b"")
    (tmp_path / "password").write_text(PASSWORD)
    secret = sourced_secret.of_file(PASSWORD, key="kafka.sasl.password", path=tmp_path / "pipe")
    os.close(writer)
    with capture_logs() as lines:
        assert pickle.loads(pickle.dumps(secret)) == PASSWORD
    assert [line["key"] for line in lines] == ["kafka.sasl.password"]


def test_the_target_of_a_restore_is_named_likewise(tmp_path: Path) -> None:
    """In --target-config a password has a file, or stands there itself."""
    (tmp_path / "password").write_text(PASSWORD)
    file = tmp_path / "target.yaml"
    file.write_text(f"bootstrap.servers: h:9092\nsasl.password.file: {tmp_path}/password\nssl.key.password: {SECRET}\n")
    cluster = ClusterAddress(props=target_properties(None, None, file))
    with capture_logs() as lines:
        pickled = pickle.dumps(cluster)
    assert PASSWORD.encode() not in pickled
    assert pickle.loads(pickled).props == cluster.props
    assert [line["key"] for line in lines] == ["ssl.key.password"]


def test_copies_of_a_secret_are_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read again within a process."""
    secret = _by_files(tmp_path, monkeypatch).kafka.reveal()["sasl.password"]
    (tmp_path / "password").unlink()
    assert copy.copy(secret) is secret
    assert copy.deepcopy({"x": secret})["x"] is secret


def test_the_worker_processes_of_an_instance_get_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its own, over a pipe of its own: a file that is gone by then stops no reading."""
    config = _by_files(tmp_path, monkeypatch)
    setting = workers_of(config, config.kafka.reveal())
    for name in ("password", "secret", "token"):
        (tmp_path / name).unlink()
    again = pickle.loads(pickle.dumps((setting.props, setting.settings)))
    assert (again[0]["sasl.password"], again[1].secret_access_key) == (PASSWORD, SECRET)
