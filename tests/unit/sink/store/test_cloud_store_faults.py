"""The stores of Azure and Google against a server that misbehaves: what is retried, what comes out, what never does."""

from __future__ import annotations

import importlib.util
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.servers.certificates import Authority
from support.servers.serving import ANY_PORT, Quiet, serving

from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.sink.store import (
    ObjectStore,
    PutResult,
    StoreAccess,
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
)
from tandem.sink.store.open_store import open_adapter
from tandem.spark_jobs.erasure.former_copies import find_former_copies

KEY = "bm8gb25lJ3Mga2V5IGJ1dCBvZiB0aGVzZSB0ZXN0cw=="
Step = Callable[[Any], None]


class Script(ThreadingHTTPServer):
    """Answers each request by the next step, the last one for ever; `seen` are methods and paths."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(ANY_PORT, _Scripted)
        self.steps = list(steps)
        self.seen: list[str] = []
        self.headers: list[Any] = []


class _Scripted(Quiet, BaseHTTPRequestHandler):
    server: Script

    def handle_one(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.headers.append(self.headers)
        step = self.server.steps[0] if len(self.server.steps) == 1 else self.server.steps.pop(0)
        step(self)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one  # noqa: N815 (names of the base's protocol)


def answer(status: int, code: str = "", *, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Step:
    """An answer with the services' document for an error, if it has a code."""
    said = f"<Error><Code>{code}</Code><Message>as scripted</Message></Error>".encode() if code else body

    def step(request: Any) -> None:
        etag = {"ETag": '"1"', "Last-Modified": "Sat, 28 Nov 2026 17:00:00 GMT"}
        request.answer(status, b"" if request.command == "HEAD" else said, headers=etag | dict(headers or {}))

    return step


def hangs_up(request: Any) -> None:
    """The connection ends before anything was said."""
    request.close_connection = True
    request.connection.close()


def sends_half(request: Any) -> None:
    """The answer ends in mid-body."""
    request.send_response(200)
    for name, value in {
        "ETag": '"1"',
        "Last-Modified": "Sat, 28 Nov 2026 17:00:00 GMT",
        "Content-Length": "10",
    }.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(b"01234")
    hangs_up(request)


def page(*names: str, following: str = "") -> Step:
    """A page of Azure's listing."""
    blobs = "".join(
        f"<Blob><Name>{name}</Name><Properties><Last-Modified>Sat, 28 Nov 2026 17:00:00 GMT</Last-Modified>"
        "<Etag>1</Etag><Content-Length>1</Content-Length><Content-Type>a/b</Content-Type></Properties></Blob>"
        for name in names
    )
    body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    return answer(200, body=body.encode(), headers={"Content-Type": "application/xml"})


@pytest.fixture
def no_token(tmp_path: Path) -> str:
    """A key file of Google with which no token is asked for."""
    file = tmp_path / "key.json"
    file.write_text('{"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": true}')
    return str(file)


Opener = Callable[..., tuple[Script, ObjectStore]]


@pytest.fixture
def scripted(no_token: str) -> Iterator[Opener]:
    """A function that opens a store of a scheme on a server with the given steps."""
    ends = []

    def start(scheme: str, *steps: Step, **more: Any) -> tuple[Script, ObjectStore]:
        server = Script(*steps)
        around = serving(server)
        url = around.__enter__()
        ends.append(around)
        own = {"account_name": "shop", "account_key": KEY} if scheme == "az" else {"credentials_file": no_token}
        pace = {"attempts": 3, "backoff_initial": 0.01, "backoff_max": 0.02, "read_timeout": 2.0}
        settings = StoreAccess(**({"endpoint_url": url} | own | pace | more))
        return server, open_adapter(f"{scheme}://bucket/root", settings)

    yield start
    for around in ends:
        around.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("scheme", "step"),
    [
        ("az", answer(409, "BlobAlreadyExists")),
        ("az", answer(412, "ConditionNotMet")),
        ("gs", answer(412, "Precondition")),
    ],
)
def test_only_an_answer_that_says_so_means_that_it_exists(scripted: Opener, scheme: str, step: Step) -> None:
    """In one request."""
    server, store = scripted(scheme, step)
    assert store.put_if_absent("a", b"x") is PutResult.EXISTS
    assert len(server.seen) == 1


@pytest.mark.parametrize(("scheme", "header"), [("az", "If-None-Match: *"), ("gs", "x-goog-if-generation-match: 0")])
@pytest.mark.parametrize("size", [1, 3 * 1024 * 1024])
def test_what_a_put_is_sent(scripted: Opener, scheme: str, header: str, size: int) -> None:
    """One request with the service's own condition, large bodies too."""
    server, store = scripted(scheme, answer(201))
    assert store.put_if_absent("a", bytes(size)) is PutResult.CREATED
    assert server.seen == ["PUT /bucket/root%2Fa" if scheme == "gs" else "PUT /bucket/root/a"]
    name, _, value = header.partition(": ")
    assert server.headers[0][name] == value


@pytest.mark.parametrize("scheme", ["az", "gs"])
@pytest.mark.parametrize(
    ("step", "error", "requests"),
    [
        (answer(409, "ContainerBeingDeleted"), StoreTransientError, 3),
        (answer(409), StoreTransientError, 3),
        (answer(404), StoreTransientError, 3),
        (answer(404, body=b"<html>no such host</html>"), StoreTransientError, 3),
        (answer(429, "SlowDown"), StoreTransientError, 3),
        (answer(503, "ServerBusy"), StoreTransientError, 3),
        (hangs_up, StoreTransientError, 3),
        (answer(404, "ContainerNotFound"), StoreMissingError, 1),
        (answer(404, "NoSuchBucket"), StoreMissingError, 1),
        (answer(403, "AuthorizationPermissionMismatch"), StoreDeniedError, 1),
        (answer(401), StoreDeniedError, 1),
        (answer(409, "BlobImmutableDueToPolicy"), StoreDeniedError, 1),
        (answer(400, "InvalidHeaderValue"), StoreRejectedError, 1),
    ],
)
def test_what_a_put_is_answered(
    scripted: Opener, scheme: str, step: Step, error: type[TandemError], requests: int
) -> None:
    """No other conflict counts as an object that exists, and what may pass is tried three times, no more."""
    server, store = scripted(scheme, step)
    with pytest.raises(error) as caught:
        store.put_if_absent("a", b"x")
    assert len(server.seen) == requests
    assert "put 'root/a' in 'bucket' at http://127" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_a_lost_answer_is_met_again(scripted: Opener, scheme: str) -> None:
    """The retry finds the object; a passing refusal is no outcome."""
    server, store = scripted(scheme, answer(503), hangs_up, answer(412, "Precondition"))
    assert store.put_if_absent("a", b"x") is PutResult.EXISTS
    assert len(server.seen) == 3
    server.steps = [answer(500), answer(201)]
    assert store.put_if_absent("a", b"x") is PutResult.CREATED


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_a_404_of_a_gateway_is_no_missing_object(scripted: Opener, scheme: str) -> None:
    """Neither for a get nor for a head, whose own answer has no body."""
    _, store = scripted(scheme, answer(404, body=b"default backend"))
    for call in (lambda: store.get("a"), lambda: store.head("a")):
        with pytest.raises(StoreTransientError, match=r"answered 404 .*no answer of the store"):
            call()


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_half_a_body_is_read_again(scripted: Opener, scheme: str) -> None:
    """It is never returned."""
    _, store = scripted(scheme, sends_half, sends_half, answer(200, body=b"0123456789"))
    assert store.get("a") == b"0123456789"
    _, store = scripted(scheme, sends_half)
    with pytest.raises(StoreTransientError):
        store.get("a")


@pytest.mark.parametrize("fails", [answer(500), hangs_up, answer(404, body=b"default backend")])
def test_a_listing_that_breaks_off_never_looks_complete(scripted: Opener, fails: Step) -> None:
    """At its first page and at a later one."""
    _, store = scripted("az", fails)
    with pytest.raises(StoreTransientError):
        list(store.list(""))
    server, store = scripted("az", page("root/a", "root/b", following="more"), fails)
    with pytest.raises(StoreTransientError):
        list(store.list(""))
    assert server.seen[1].endswith("&marker=more")


def test_a_listing_goes_on_after_a_passing_failure(scripted: Opener) -> None:
    """Each object once."""
    steps = page("root/a", following="more"), answer(503), page("root/b", following="again"), hangs_up, page("root/c")
    _, store = scripted("az", *steps)
    assert [found.key for found in store.list("")] == ["a", "b", "c"]


def test_a_name_of_another_writer_is_named_as_the_cause(scripted: Opener) -> None:
    """A name with an empty segment ends the listing, with the remedy."""
    _, store = scripted("az", page("root/a", "root//b"))
    with pytest.raises(StoreUnfitError, match="prefix of its own"):
        list(store.list(""))


def test_no_signature_is_in_a_message(scripted: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own texts show the URL with it."""
    signature = secrets.token_urlsafe(24)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=2024-01-01&sig={signature}")
    server, store = scripted("az", answer(403, "AuthenticationFailed"), account_key=None)
    with pytest.raises(StoreDeniedError) as caught:
        store.get("a")
    assert signature in server.seen[0]
    assert signature not in repr(caught.value) + str(caught.value)
    assert caught.value.__suppress_context__


def test_no_key_is_in_a_message(scripted: Opener) -> None:
    """Not even if a proxy repeats it."""
    said = f"<Error><Code>AuthenticationFailed</Code><Message>the key {KEY} is wrong</Message></Error>"
    _, store = scripted("az", answer(403, body=said.encode()))
    with pytest.raises(StoreDeniedError, match=r"the key \*{8} is wrong") as caught:
        store.get("a")
    assert KEY not in str(caught.value)


def test_a_refused_token_passes_maybe(scripted: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again, and the giver's answer, which may hold anything, is not repeated."""
    giver, _ = scripted("az", answer(400, body=b'{"error": "invalid_client", "error_description": "of a secret"}'))
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"http://127.0.0.1:{giver.server_address[1]}")
    for name in ("CLIENT_ID", "CLIENT_SECRET", "TENANT_ID"):
        monkeypatch.setenv(f"AZURE_{name}", "1")
    server, store = scripted("az", answer(200), account_key=None)
    with pytest.raises(StoreTransientError, match="no access token") as caught:
        store.get("a")
    assert "secret" not in str(caught.value)
    assert (len(giver.seen), server.seen) == (3, [])


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_an_authority_of_its_own(scheme: str, tmp_path: Path, no_token: str) -> None:
    """`ca_bundle` vouches for a server that nobody else vouches for, for the time too; else the error names it."""
    authority = Authority("Private")
    own = authority.issue("store", address="127.0.0.1")
    (tmp_path / "store.pem").write_text(own.key + own.certificate)
    (tmp_path / "ca.pem").write_text(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "store.pem")
    server = Script(answer(201))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    account = {"account_name": "shop", "account_key": KEY} if scheme == "az" else {"credentials_file": no_token}
    with serving(server) as url:
        settings = StoreAccess(endpoint_url=url.replace("http:", "https:"), attempts=1, **account)  # type: ignore[arg-type]
        with pytest.raises(StoreDeniedError, match=r"certificate is not trusted \(set ca_bundle"):
            open_adapter(f"{scheme}://bucket", settings).put_if_absent("a", b"x")
        trusting = open_adapter(f"{scheme}://bucket", replace(settings, ca_bundle=str(tmp_path / "ca.pem")))
        assert trusting.put_if_absent("a", b"x") is PutResult.CREATED
        assert trusting.now()


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_the_proxy_of_the_environment_is_used(scripted: Opener, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For objects and for the time."""
    proxy, _ = scripted(scheme, answer(201))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_address[1]}")
    _, store = scripted(scheme, answer(500), endpoint_url="http://store.invalid")
    assert store.put_if_absent("a", b"x") is PutResult.CREATED
    assert store.now()
    assert [line.split()[0] for line in proxy.seen] == ["PUT", "HEAD"]
    assert all("http://store.invalid" in line for line in proxy.seen)


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_the_clock_is_that_of_any_answer(scripted: Opener, scheme: str) -> None:
    """A refusal has a date too; asked again within a minute it goes on by itself."""
    there = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)

    def refuses(request: Any) -> None:
        request.send_response_only(403)
        request.send_header("Date", format_datetime(there, usegmt=True))
        request.send_header("Content-Length", "0")
        request.end_headers()

    server, store = scripted(scheme, refuses)
    moments = [store.now() for _ in range(5)]
    assert len(server.seen) == 1
    assert moments == sorted(moments)
    assert timedelta(0) <= moments[0] - there < timedelta(seconds=20)


def test_a_store_that_is_away_has_no_time(scripted: Opener) -> None:
    """At first; later the last answer counts."""
    server, store = scripted("az", hangs_up)
    with pytest.raises(StoreTransientError, match="ask the time"):
        store.now()
    server.steps = [answer(400)]
    assert abs(store.now() - datetime.now(UTC)) < timedelta(seconds=20)


def raw(said: bytes) -> Step:
    """These bytes, and the end of the connection."""

    def step(request: Any) -> None:
        request.wfile.write(said)
        request.close_connection = True

    return step


NO_ANSWERS = {
    "another protocol": raw(b"SSH-2.0-OpenSSH_9\r\n"),
    "a flood of headers": raw(b"HTTP/1.1 403 no\r\n" + b"X: 1\r\n" * 150 + b"\r\n"),
    "a redirect to no URL": raw(b"HTTP/1.1 302 no\r\nLocation: http://[\r\n\r\n"),
}


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_an_answer_that_is_none_has_no_time(scripted: Opener, kind: str) -> None:
    """It is an error of the store, which callers try again."""
    _, store = scripted("az", NO_ANSWERS[kind])
    with pytest.raises(StoreTransientError, match="ask the time"):
        store.now()


def test_a_date_of_an_unknown_zone_is_in_utc(scripted: Opener) -> None:
    """RFC 5322's -0000 says that, and Python then gives a time without a zone."""
    date = raw(b"HTTP/1.1 403 no\r\nDate: Sat, 28 Nov 2026 17:00:00 -0000\r\nContent-Length: 0\r\n\r\n")
    _, store = scripted("az", date)
    late = store.now() - datetime(2026, 11, 28, 17, tzinfo=UTC)
    assert timedelta(0) <= late < timedelta(seconds=20)


def test_what_a_versioned_bucket_holds_is_not_guessed(scripted: Opener) -> None:
    """An erasure says that it can't tell, instead of that nothing is left."""
    _, store = scripted("gs", answer(200))
    found = find_former_copies(store, "shop", "orders", needed=(), purge=True)
    assert found.error is not None
    assert "can't be listed" in found.error


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_without_the_library_the_remedy_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "obstore" else find(name))
    with pytest.raises(ConfigError, match=r"not installed: obstore \(pip install 'tandem-kafka-backup\[cloud\]'\)"):
        open_adapter(f"{scheme}://bucket", StoreAccess())


@pytest.mark.parametrize(
    ("url", "settings", "words"),
    [
        ("az://bucket", {}, "account_name: az:// needs"),
        ("az://Bucket", {"account_name": "shop"}, "names no valid bucket"),
        ("az://a--b", {"account_name": "shop"}, "names no valid bucket"),
        ("az://bucket", {"account_name": "shop", "account_key": "no base64!"}, "make no client"),
        ("gs://bucket", {"credentials_file": "/nowhere.json"}, "credentials_file: /nowhere.json: no such file"),
        ("gs://bucket", {"ca_bundle": "/nowhere.pem"}, "ca_bundle: /nowhere.pem: no such file"),
        ("gcs://bucket", {}, "write gs://bucket/prefix"),
        ("abfss://bucket@shop.dfs.core.windows.net", {}, "holds a user"),
        ("wasbs://bucket", {}, "write az://container/prefix"),
    ],
)
def test_wrong_settings_are_refused(
    url: str, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a request, and without the key."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=words) as caught:
        open_adapter(url, StoreAccess(**settings))
    assert "no base64" not in str(caught.value)
