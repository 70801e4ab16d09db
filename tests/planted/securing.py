"""Mistakes in Spark, logs and files that others may reach."""
# ruff: noqa: E501 (places are quoted as they stand)

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="Spark's ports answer everybody",
        file="spark_jobs/tandem/spark_jobs/spark/session.py",
        old='    "spark.authenticate": "true",\n',
        new='    "spark.authenticate": "false",\n',
    ),
    Mistake(
        name="a log for the terminal passes escapes on",
        file="sink/tandem/sink/process/log.py",
        old="[_hide, _escape, structlog.dev",
        new="[_hide, structlog.dev",
    ),
    Mistake(
        name="tasks carry the values of secrets",
        file="sink/tandem/sink/process/sourced_secret.py",
        old="        if self.source is not SecretSource.TYPED:\n            return self.source, self.place\n",
        new="        if self.source is not SecretSource.TYPED:\n            return None\n",
    ),
    Mistake(
        name="what is typed travels without a word",
        file="sink/tandem/sink/process/sourced_secret.py",
        old="        if self and self.key not in _Process.warned:\n",
        new="        if not self and self.key not in _Process.warned:\n",
    ),
    Mistake(
        name="a worker of Spark logs as it likes",
        file="spark_jobs/tandem/spark_jobs/spark/worker_log.py",
        old="        log.follow(self.setup)\n",
        new="",
    ),
    Mistake(
        name="a secret that a worker reads is not hidden in its log",
        file="sink/tandem/sink/process/sourced_secret.py",
        old="    safe_text.register_secrets([value])\n    return SourcedSecret(",
        new="    return SourcedSecret(",
    ),
    Mistake(
        name="an edited plan is carried out",
        file="spark_jobs/tandem/spark_jobs/restore/plan/plan_file.py",
        old='    if fields.take_field("sha256", str) != _digest(json.loads(data)):\n',
        new='    if not fields.take_field("sha256", str):\n',
    ),
    Mistake(
        name="files with secrets may be read by others",
        file="controller/tandem/controller/config/loading.py",
        old="        if mode & (stat.S_IROTH | stat.S_IWOTH):\n",
        new="        if mode & stat.S_IWOTH:\n",
    ),
    Mistake(
        name="no warning of a login in the clear",
        file="controller/tandem/controller/config/rules.py",
        old='    if protocol == "SASL_PLAINTEXT" and not near:\n',
        new='    if protocol == "SASL_PLAINTEXT" and near:\n',
    ),
    Mistake(
        name="a pipe in a folder holds its reader",
        file="sink/tandem/sink/store/file_store.py",
        old=" | os.O_CLOEXEC | os.O_NONBLOCK)",
        new=" | os.O_CLOEXEC)",
    ),
    Mistake(
        name="an index is written through a name that can be foretold",
        file="spark_jobs/tandem/spark_jobs/connector/file_index.py",
        old='    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")\n    try:\n        with beside.open("x"',
        new='    assert secrets\n    beside = path.with_name(f"{path.name}.{__import__(\'os\').getpid()}")\n    try:\n        with beside.open("w"',
    ),
    Mistake(
        name="a full folder is OK",
        file="controller/tandem/controller/cli/inspect/check.py",
        old="    except TandemError as error:\n        return error\n    return None\n",
        new="    except TandemError:\n        return None\n    return None\n",
    ),
    Mistake(
        name="a root that nothing opens is valid",
        file="controller/tandem/controller/config/rules.py",
        old='    if re.search(r"[?#]", rest):\n',
        new='    if scheme == "s3" and re.search(r"[?#]", rest):\n',
    ),
    Mistake(
        name="each host has its own clock for a folder",
        file="sink/tandem/sink/store/file_store.py",
        old="        return datetime.now(UTC) if found is None else found\n",
        new="        return datetime.now(UTC) if found is None else datetime.now(UTC)\n",
    ),
    Mistake(
        name="a sandbox is begun in anybody's folder",
        file="controller/tandem/controller/sandbox/sandbox.py",
        old="            if os.geteuid() not in {0, status.st_uid} or status.st_mode & stat.S_IWOTH:\n",
        new="            if os.geteuid() not in {0, status.st_uid} and status.st_mode & stat.S_IWOTH:\n",
    ),
    Mistake(
        name="a note of restored topics counts whoever put it",
        file="avro/tandem/backup_avro/chain/layout.py",
        old="|checkpoints|restores/targets)/",
        new="|checkpoints)/",
    ),
    Mistake(
        name="a topic that was adopted stays left out",
        file="controller/tandem/controller/watch/guarded_cluster.py",
        old="        again = self._calls % _LOOK_AGAIN == 0\n",
        new="        again = self._calls % _LOOK_AGAIN < 0\n",
    ),
)
