"""What no output may show: logins in the proxies that the environment names, in all the ways that people write them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem.sink.process import log, safe_text
from tandem.sink.process.environment_secrets import hidden_of_environment, hidden_of_proxy


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    """What a test hides stays with it."""
    log.reset()
    yield
    log.reset()


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
    ],
)
def test_what_the_sdks_of_clouds_read_is_hidden(name: str) -> None:
    """The value, not the name."""
    assert set(hidden_of_environment({name: "s3cret", "HOME": "/root"})) == {"s3cret"}


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("http://user:s3cret@proxy:3128", {"s3cret"}),
        ("HTTP://user:s3cret@proxy", {"s3cret"}),
        ("socks5h://user:s3cret@proxy/", {"s3cret"}),
        ("//user:s3cret@proxy", {"s3cret"}),
        (" http://user:s3cret@proxy", {"s3cret"}),
        ("user:s3cret@proxy:3128", {"s3cret"}),
        ("http://:s3cret@proxy", {"s3cret"}),
        ("http://token@proxy", {"token"}),
        ("http://token:@proxy:3128", {"token"}),
        ("token@proxy:3128", {"token"}),
        ("http://user:s3%40cr%2fet@proxy", {"s3%40cr%2fet", "s3@cr/et"}),
        ("http://user:a:b@proxy", {"a:b"}),
        ("http://user:a@b@proxy", {"a@b"}),
        ("http://user:a/b@proxy", {"a/b"}),
        ("http://user:a#b?c@proxy", {"a#b?c"}),
        ("user:a//b@proxy", {"a//b"}),
        ("http://user:s3cret@proxy/pac?to=me@work", {"s3cret", "s3cret@proxy/pac?to=me"}),
        ("http://user:s3cret@[1", {"s3cret"}),
        ("http://user:s3cret@proxy:port", {"s3cret"}),
        ("http://user:s\u2100cret@pro\u2100xy", {"s\u2100cret"}),
        ("http://user:s3\tcret@proxy", {"s3\tcret", "s3cret"}),
        ("http://proxy:3128", set()),
        ("proxy:3128", set()),
        ("http://@proxy", set()),
        ("http://:@proxy", set()),
        ("http://[::1]:3128/", set()),
        ("http://[", set()),
        ("@", set()),
        ("", set()),
    ],
)
def test_what_is_hidden_of_a_proxy(url: str, secrets: set[str]) -> None:
    """The password, as it is written and as it is meant, or what stands there alone; neither scheme nor host."""
    assert set(hidden_of_proxy(url)) == secrets


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "Socks_Proxy"])
def test_each_variable_of_a_proxy_is_looked_at(name: str) -> None:
    """In capitals or not, for every scheme; others are left alone."""
    assert set(hidden_of_environment({name: "http://me:s3cret@proxy", "OTHER": "http://me:shown@host"})) == {"s3cret"}
    assert not set(hidden_of_environment({"NO_PROXY": "localhost,10.0.0.0/8,.example.org"}))


def test_bytes_that_are_no_text_are_hidden_too() -> None:
    """The environment holds any bytes; a password of such is no reason to crash."""
    safe_text.register_secrets(hidden_of_environment({"HTTP_PROXY": "http://me:s3\udcffcret@proxy"}))
    assert safe_text.redact("no answer from http://me:s3\udcffcret@proxy") == "no answer from http://me:********@proxy"
    assert safe_text.redact("no answer from http://me:s3%FFcret@proxy") == "no answer from http://me:********@proxy"
