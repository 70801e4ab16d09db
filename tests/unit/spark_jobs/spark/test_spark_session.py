"""Which properties keep a Spark session private, and what is said of a session that is not."""

from __future__ import annotations

import re

import pytest
import structlog

from tandem.spark_jobs.spark import session

_ALL = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
    "spark.ui.enabled": "false",
}


@pytest.mark.parametrize("master", ["local", "local[*,4]", "yarn", "k8s://https://kubernetes"])
def test_a_session_is_private_unasked(master: str) -> None:
    """Where Spark makes a secret for each session everything is on, and nothing is left to be said."""
    assert session.private_settings(master, {}) == _ALL
    assert session.open_settings(_ALL) == []


def test_a_cluster_in_one_process_gets_a_secret() -> None:
    """Spark makes none for local-cluster: each session has one of its own, 256 bits long."""
    found = [session.private_settings("local-cluster[1,1,1024]", {}) for _ in range(2)]
    keys = [each.pop("spark.authenticate.secret") for each in found]
    assert found == [_ALL, _ALL]
    assert keys[0] != keys[1]
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def test_a_standalone_cluster_has_the_secret_or_no_authentication() -> None:
    """With a secret that its master does not know nothing would start; with the cluster's own all is on."""
    chosen = session.private_settings("spark://host:7077", {})
    assert chosen == {"spark.io.encryption.enabled": "true", "spark.ui.enabled": "false"}
    assert session.open_settings(chosen) == ["spark.authenticate=false", "spark.network.crypto.enabled=false"]
    assert session.private_settings("spark://host:7077", {"spark.authenticate.secret": "x"}) == _ALL


def test_what_the_user_set_is_left_and_named() -> None:
    """A weaker value stays, so that a cluster which can't do more is usable; the session says what that opens."""
    given = {"spark.authenticate": "false", "spark.ui.enabled": "True"}
    chosen = session.private_settings("yarn", given)
    assert chosen == {"spark.io.encryption.enabled": "true"}
    left = session.open_settings(given | chosen)
    assert left == ["spark.authenticate=false", "spark.network.crypto.enabled=false", "spark.ui.enabled=true"]
    assert session.open_settings(_ALL | {"spark.ui.enabled": "true", "spark.ui.filters": "org.example.Login"}) == []
    assert session.private_settings("yarn", {"spark.network.crypto.enabled": "false"}) == {
        key: value for key, value in _ALL.items() if key != "spark.network.crypto.enabled"
    }


def test_a_session_that_lets_others_in_is_warned_of() -> None:
    """One line names the properties and what to do; a private session has none."""
    with structlog.testing.capture_logs() as lines:
        session.warn_if_open(_ALL.items())
        session.warn_if_open([("spark.authenticate", "false"), ("spark.ui.enabled", "false")])
    assert len(lines) == 1
    assert lines[0]["log_level"] == "warning"
    assert lines[0]["properties"][0] == "spark.authenticate=false"
    assert "spark.authenticate.secret" in lines[0]["remedy"]
