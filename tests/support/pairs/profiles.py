"""Credentials that no configuration holds: of a profile, where AWS SDKs look for them."""

from __future__ import annotations

from pathlib import Path

import pytest


def without_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the SDK find nothing but what is put into `folder`, as `credentials` or `config`."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def use_profile(monkeypatch: pytest.MonkeyPatch, folder: Path, *, token: str, secret: str = "not-sent") -> None:
    """Let the SDK find a key pair with `token`; may be called again for others. Nothing else is found."""
    without_credentials(monkeypatch, folder)
    lines = (
        "[default]",
        "aws_access_key_id=AKIAOFAPROFILE",
        f"aws_secret_access_key={secret}",
        f"aws_session_token={token}",
    )
    (folder / "credentials").write_text("\n".join(lines) + "\n")
