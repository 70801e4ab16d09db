"""Mistakes in Spark, logs and files that others may reach."""

from __future__ import annotations

from planted.mistakes import Mistake

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="Spark's ports answer everybody",
        file="spark_jobs/session.py",
        old='    "spark.authenticate": "true",\n',
        new='    "spark.authenticate": "false",\n',
    ),
    Mistake(
        name="a log for the terminal passes escapes on",
        file="controller/log.py",
        old="[_hide, _escape, structlog.dev",
        new="[_hide, structlog.dev",
    ),
    Mistake(
        name="an edited plan is carried out",
        file="spark_jobs/restore_file.py",
        old='    if fields.take("sha256", str) != _digest(json.loads(data)):\n',
        new='    if not fields.take("sha256", str):\n',
    ),
    Mistake(
        name="files with secrets may be read by others",
        file="controller/config/loading.py",
        old="        if mode & (stat.S_IROTH | stat.S_IWOTH):\n",
        new="        if mode & stat.S_IWOTH:\n",
    ),
    Mistake(
        name="no warning of a login in the clear",
        file="controller/config/rules.py",
        old='    if protocol == "SASL_PLAINTEXT" and not near:\n',
        new='    if protocol == "SASL_PLAINTEXT" and near:\n',
    ),
)
