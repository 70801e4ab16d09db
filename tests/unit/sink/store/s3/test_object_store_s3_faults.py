"""The S3 store against a server that misbehaves: what is retried, what comes out, and what never does."""

from __future__ import annotations

import json
import math
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError
from support.pages.canaries import appearances, plain_canary
from support.pairs.profiles import use_profile, without_credentials
from support.servers.serving import ANY_PORT, Quiet, serving
from support.servers.tiny_s3 import A_ROLE, MIB, SECRET, Fault, Request, TinyS3, answers, settings_for

from tandem.backup_avro.errors import ConfigError, DamagedError, ExitCode, TandemError
from tandem.sink.process import log
from tandem.sink.store import (
    ObjectStore,
    PutResult,
    StoreAccess,
    StoreDeniedError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
    UploadInfo,
    open_store,
)
from tandem.sink.store.s3.client import S3Caller
from tandem.sink.store.s3.sent_credentials import SentCredentials


@pytest.fixture
def hasty(server: TinyS3) -> Iterator[ObjectStore]:
    """The same that waits for an answer for a second."""
    opened = open_store("s3://bucket", settings_for(server.url, read_timeout=1.0))
    yield opened
    opened.close()


def page(status: int, body: bytes) -> Fault:
    """Some answer that isn't S3's."""

    def fault(request: Request) -> bool:
        request.answer(status, body, headers={"Content-Type": "text/html"})
        return True

    return fault


def hangs_up(request: Request) -> bool:
    """The connection ends before anything was done."""
    request.hang_up()
    return True


def loses_the_answer(request: Request) -> bool:
    """It is done, and the connection ends before anything was said."""
    request.server.objects[request.key] = request.body
    request.hang_up()
    return True


def times_out_after_success(request: Request) -> bool:
    """It is done, and said too late."""
    request.server.objects[request.key] = request.body
    time.sleep(1.5)
    request.close_connection = True
    return True


def sends_half(request: Request) -> bool:
    """The answer ends in mid-body."""
    body = request.server.objects[request.key]
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: len(body) // 2])
    request.hang_up()
    return True


def stalls(request: Request) -> bool:
    """The answer stops in mid-body and the connection stays."""
    body = request.server.objects[request.key]
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: len(body) // 2])
    request.wfile.flush()
    time.sleep(1.5)
    request.close_connection = True
    return True


def trickles(request: Request) -> bool:
    """The answer comes slowly, in pieces that each are in time."""
    body = request.server.objects[request.key]
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    step = -(-len(body) // 8)
    for start in range(0, len(body), step):
        time.sleep(0.3)
        request.wfile.write(body[start : start + step])
        request.wfile.flush()
    return True


def whole(request: Request) -> bool:
    """The range is not looked at."""
    headers = {"Last-Modified": request.date_time_string()}
    request.answer(200, request.server.objects[request.key], headers=headers)
    return True


def damages(request: Request) -> bool:
    """The body isn't what the checksum is of."""
    request.answer(200, b"damaged!", headers={"x-amz-checksum-crc32": "AAAAAA=="})
    return True


BUSY = [
    answers(503, "SlowDown"), answers(500, "InternalError"), answers(429, "TooManyRequests"),
    answers(409, "ConditionalRequestConflict"), answers(400, "RequestTimeout"), page(502, b"<html>bad gateway</html>"),
    page(503, b""), page(404, b"default backend - 404"), hangs_up,
]  # fmt: skip


@pytest.mark.parametrize("fault", BUSY)
def test_a_busy_store_is_asked_again(server: TinyS3, store: ObjectStore, fault: Fault) -> None:
    """Twice in its way, then well: the caller sees nothing of it, whatever the call."""
    server.objects["there"] = b"body"
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.put_if_absent("new", b"x"), PutResult.CREATED),
        (lambda: store.get("there"), b"body"),
        (lambda: store.head("there") is not None, True),
        (lambda: [info.key for info in store.list("there")], ["there"]),
        (lambda: store.delete(["there"]), None),
    ]
    for call, wanted in calls:
        server.requests.clear()
        server.faults = [fault, fault]
        assert call() == wanted
        assert len(server.requests) == 3
    assert server.objects == {"new": b"x"}


@pytest.mark.parametrize("fault", BUSY)
def test_a_store_that_stays_busy_ends_in_a_transient_error(server: TinyS3, store: ObjectStore, fault: Fault) -> None:
    """After the attempts that the settings allow, no more; a missing object is never read out of it."""
    for call in (
        lambda: store.put_if_absent("new", b"x"),
        lambda: store.get("there"),
        lambda: store.head("there"),
        lambda: list(store.list("there")),
        lambda: store.delete(["there"]),
    ):
        server.requests.clear()
        server.faults = [fault] * 9
        with pytest.raises(StoreTransientError) as caught:
            call()
        assert len(server.requests) == 3
        assert server.url in str(caught.value)
        assert "'bucket'" in str(caught.value)
        assert caught.value.remedy
    assert server.objects == {}


@pytest.mark.parametrize("fault", [loses_the_answer, times_out_after_success])
def test_after_a_lost_answer_exists_may_mean_ours(server: TinyS3, hasty: ObjectStore, fault: Fault) -> None:
    """The put took effect, its retry meets the object: EXISTS, and our bytes are there."""
    server.faults = [fault]
    assert hasty.put_if_absent("key", b"ours") is PutResult.EXISTS
    assert hasty.get("key") == b"ours"
    assert server.requests == ["PUT key", "PUT key", "GET key"]


def test_retries_send_the_same_bytes(server: TinyS3, store: ObjectStore) -> None:
    """Large bodies go as streams; each attempt begins at the first byte."""
    body = bytes(range(256)) * (3 * MIB // 256)
    bodies: list[bytes] = []

    def note(request: Request) -> bool:
        bodies.append(request.body)
        request.fail(503, "SlowDown")
        return True

    server.faults = [note, note]
    assert store.put_if_absent("large", bytearray(body)) is PutResult.CREATED
    assert [*bodies, server.objects["large"]] == [body] * 3


@pytest.mark.parametrize("fault", [sends_half, stalls, hangs_up, damages])
def test_a_body_cut_short_or_damaged_is_read_again(server: TinyS3, hasty: ObjectStore, fault: Fault) -> None:
    """Never returned as if it were whole."""
    server.objects["key"] = bytes(range(256)) * 500
    server.faults = [fault, fault]
    assert hasty.get("key") == server.objects["key"]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "kind"), [(sends_half, StoreTransientError), (stalls, StoreTransientError), (damages, DamagedError)]
)
def test_a_body_that_stays_bad_is_an_error(
    server: TinyS3, hasty: ObjectStore, fault: Fault, kind: type[TandemError]
) -> None:
    """Cut short it may come whole another time; a checksum that fails every time means damage."""
    server.objects["key"] = bytes(100_000)
    server.faults = [fault] * 3
    with pytest.raises(kind, match=r"'key'.*\(.+\)"):
        hasty.get("key")


def test_a_server_that_sends_more_than_the_range(server: TinyS3, store: ObjectStore) -> None:
    """Ranges are optional in HTTP: 200 with the whole body is cut here, and its length is the object's."""
    server.objects["key"] = b"0123456789"
    server.faults = [whole, whole, whole]
    assert store.get("key", start=3, end=6) == b"345"
    assert store.get("key", start=8) == b"89"
    info = store.head("key")
    assert info is not None
    assert info.size == 10


def test_a_slow_answer_is_waited_for(server: TinyS3, hasty: ObjectStore) -> None:
    """The read time-out counts from byte to byte and not for the whole."""
    server.objects["key"] = bytes(100_000)
    server.faults = [trickles]
    assert hasty.get("key") == bytes(100_000)
    assert len(server.requests) == 1


@pytest.mark.parametrize("checksums", ["when_supported", "when_required"])
def test_a_slow_upload_may_take_longer_than_the_connect_timeout(server: TinyS3, checksums: str) -> None:
    """The time-out of a write counts for each piece: a slow link must not fail every large object."""
    server.pause_between_reads = 0.05
    settings = settings_for(server.url, connect_timeout=0.3, read_timeout=5.0, checksums=checksums)
    store = open_store("s3://bucket", settings)
    assert store.put_if_absent("key", bytes(32 * MIB)) is PutResult.CREATED
    assert server.requests == ["PUT key"]
    store.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (403, "AccessDenied"), (401, "401")],
)
def test_wrong_keys_are_told_at_once_and_never_shown(
    server: TinyS3, store: ObjectStore, status: int, code: str
) -> None:
    """No retry; the message names bucket, key, address and remedy, and no secret."""
    calls: dict[str, Callable[[], object]] = {
        "key": lambda: store.put_if_absent("key", b"x"),
        "k2": lambda: store.get("k2"),
        "k3": lambda: store.head("k3"),
        "k4": lambda: list(store.list("k4")),
        "k5": lambda: store.delete(["k5"]),
        "k6": lambda: list(store.list_uploads("k6")),
    }
    for name, call in calls.items():
        server.requests.clear()
        server.faults = [answers(status, code)] * 2
        with pytest.raises(StoreDeniedError) as caught:
            call()
        assert len(server.requests) == 1
        message = str(caught.value)
        assert all(part in message for part in (name, "'bucket'", server.url, code, "("))
        assert caught.value.__cause__ is None, "it would have what the server said unmasked"
        assert SECRET not in message + repr(caught.value)


def test_what_a_session_found_is_hidden(
    server: TinyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The token of a profile, as of a role or a web identity, where a proxy repeats the headers of a request."""
    token = plain_canary("token of a profile")
    use_profile(monkeypatch, tmp_path, token=token)

    def repeats(request: Request) -> bool:
        sent = request.headers["X-Amz-Security-Token"]
        assert sent == token
        said = f"you sent {sent}, {quote(sent, safe='')}, {request.headers['Authorization']}"
        body = f"<Error><Code>{sent}</Code><Message>{said}</Message></Error>".encode()
        request.answer(403, body)
        return True

    def refuses(request: Request) -> bool:
        body = (
            f"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code>"
            f"<Message>{request.headers['X-Amz-Security-Token']}</Message></Error></DeleteResult>"
        ).encode()
        request.answer(200, body)
        return True

    opened = open_store("s3://bucket", StoreAccess(endpoint_url=server.url, region="us-east-1", attempts=1))
    for fault, action in (
        (repeats, lambda: opened.put_if_absent("k", b"x")),
        (repeats, lambda: opened.get("k")),
        (refuses, lambda: opened.delete(["a", "b"])),
    ):
        server.faults = [fault]
        with pytest.raises(TandemError) as caught:
            action()
        logged = json.dumps(log.describe(caught.value)) + "".join(traceback.format_exception(caught.value))
        assert "********" in logged
        assert "AKIAOFAPROFILE" not in logged
        assert appearances(logged, {"token": token}) == []
    opened.close()
    assert capfd.readouterr().out == ""


def test_what_was_sent_before_credentials_changed_is_hidden_too() -> None:
    """An answer to a request of a minute ago may come after the next token is in use; old ones are let go."""
    sent = SentCredentials()
    for number in range(40):
        sent._note(SimpleNamespace(headers={"X-Amz-Security-Token": f"token/{number:04}".encode()}))
    assert sent.mask("token/0039 token%2F0038") == "******** ********"
    assert len(sent._sent) < 20


def test_who_gives_credentials_is_not_repeated(server: TinyS3, store: ObjectStore) -> None:
    """What an STS answers comes out of a request to S3, and no one here knows what was sent to it."""
    answer: Any = {"Error": {"Code": "AccessDenied", "Message": "eyJ0"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    refused = ClientError(answer, "AssumeRoleWithWebIdentity")

    def ask(**_: object) -> None:
        raise refused

    caller = S3Caller("bucket", settings_for(server.url))
    with pytest.raises(StoreDeniedError, match="AssumeRoleWithWebIdentity was refused") as caught:
        caller.call("get 'k'", ask)
    assert "eyJ0" not in str(caught.value)
    caller.close()
    store.close()


def test_no_credentials_at_all(server: TinyS3, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> None:
    """Where the provider chain finds nothing it is said what to set."""
    empty = tmp_path_factory.mktemp("home")
    without_credentials(monkeypatch, empty)
    store = open_store("s3://bucket", StoreAccess(endpoint_url=server.url, attempts=1))
    with pytest.raises(StoreDeniedError, match=r"no credentials found \(set access_key_id"):
        store.head("key")
    assert server.requests == []
    store.close()


class _Agent(Quiet, BaseHTTPRequestHandler):
    """Gives credentials like a node's agent, once it was asked `refusals` times; refuses again after `gives` more.

    A refusal repeats what was sent. `expiration` is when the credentials end. What is in `instead` it answers, one
    after the other, in place of credentials, with status 200.
    """

    refusals = 0
    gives: float = math.inf
    asked = 0
    expiration = "2099-01-01T00:00:00Z"
    instead: tuple[object, ...] = ()

    def do_GET(self) -> None:
        type(self).asked += 1
        good = self.refusals < self.asked <= self.refusals + self.gives
        given = {"AccessKeyId": "agents", "SecretAccessKey": "s", "Token": "t", "Expiration": self.expiration}
        said = f"not yet, you sent {self.headers['Authorization']}"
        body = json.dumps(given).encode() if good else said.encode()
        if good and self.instead:
            other, *type(self).instead = self.instead
            body = json.dumps(given | other if isinstance(other, dict) else other).encode()
        self.answer(200 if good else 503, body)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[_Agent]]:
    """Credentials come from an agent over HTTP, as those of pod identities do."""
    kind = type("Agent", (_Agent,), {})
    without_credentials(monkeypatch, tmp_path)
    with serving(ThreadingHTTPServer(ANY_PORT, kind)) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1/credentials")
        for name in ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
        yield kind


def test_an_agent_that_gives_no_credentials_yet_is_asked_again(server: TinyS3, agent: type[_Agent]) -> None:
    """On a new node it may come up after the first pods."""
    agent.refusals = 7  # the SDK asks three times by itself
    store = open_store("s3://bucket", StoreAccess(endpoint_url=server.url, backoff_initial=0.01, backoff_max=0.01))
    assert store.head("key") is None
    assert agent.asked == 8
    store.close()


def test_an_agent_that_is_away_is_no_wrong_configuration(server: TinyS3, agent: type[_Agent]) -> None:
    """Whoever tries a failed job again does so with exit code 1, and not with 2."""
    agent.refusals = 1000
    with pytest.raises(StoreTransientError, match="TDM-S062") as raised:
        open_store(
            "s3://bucket", StoreAccess(endpoint_url=server.url, attempts=2, backoff_initial=0.01, backoff_max=0.01)
        )
    assert raised.value.exit_code is ExitCode.ERROR
    assert agent.asked == 6


_USELESS: dict[str, object] = {
    "a list": [],
    "null": None,
    "another document": "secret-of-the-answer",
    "an end that is none": {"Expiration": "secret-of-the-answer"},
    "an end without a zone": {"Expiration": "2099-01-01T00:00:00"},
    "an end that is a number": {"Expiration": 4_000_000_000},
    "credentials that have ended": {"Expiration": "2001-01-01T00:00:00Z"},
    "no key": {"AccessKeyId": None},
    "a key that is a number": {"AccessKeyId": 7},
    "a key of two lines": {"AccessKeyId": "secret-of-\r\nthe-answer"},
    "no secret key": {"SecretAccessKey": None},
    "an empty secret key": {"SecretAccessKey": ""},
    "a token of two lines": {"Token": "secret-of-\r\nthe-answer"},
    "a token that is a list": {"Token": ["secret-of-the-answer"]},
    "a token in other letters": {"Token": "secret-of-the-answer-№"},
}


@pytest.mark.parametrize("renewed", [False, True], ids=["first", "renewed"])
@pytest.mark.parametrize("useless", _USELESS)
def test_an_agent_whose_answer_is_of_no_use_is_asked_again(
    server: TinyS3, agent: type[_Agent], caplog: pytest.LogCaptureFixture, useless: str, *, renewed: bool
) -> None:
    """With status 200, at the start and later: an error of ours without the answer's words, and the next one does."""
    settings = StoreAccess(
        endpoint_url=server.url, region="us-east-1", attempts=1, backoff_initial=0.01, backoff_max=0.01
    )
    if renewed:
        agent.expiration = f"{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"
        store = open_store("s3://bucket", settings)
        agent.expiration = _Agent.expiration
    if useless == "credentials that have ended":
        agent.instead = (_USELESS[useless],) * 2  # the SDK itself asks once more, if they are the first ones
    else:
        agent.instead = (_USELESS[useless],)
    with pytest.raises(StoreTransientError, match=r"no credentials for|UselessCredentials") as raised:
        (store if renewed else open_store("s3://bucket", settings)).head("key")
    assert raised.value.__cause__ is None
    assert raised.value.code in {"TDM-S062", "TDM-S065"}
    assert "secret-of" not in f"{raised.value!r} {raised.value} {caplog.text}"
    assert server.requests == []
    if not renewed:
        store = open_store("s3://bucket", settings)
    assert store.head("key") is None
    store.close()


class _Sts(Quiet, BaseHTTPRequestHandler):
    """Lets anybody take a role, but for the first calls, which get the answers of `instead` (status, body)."""

    instead: tuple[tuple[int, str], ...] = ()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = 200, A_ROLE
        if self.instead:
            (status, body), *type(self).instead = self.instead
        self.answer(status, body.encode())


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[_Sts]]:
    """Credentials are those of a role that a profile takes."""
    kind = type("Sts", (_Sts,), {})
    without_credentials(monkeypatch, tmp_path)
    (tmp_path / "config").write_text(
        "[default]\nrole_arn=arn:aws:iam::123456789012:role/x\nsource_profile=base\n"
        "[profile base]\naws_access_key_id=base\naws_secret_access_key=s\n"
    )
    with serving(ThreadingHTTPServer(ANY_PORT, kind)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        yield kind


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (
            (403, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"),
            StoreDeniedError,
            "AccessDenied: AssumeRole was refused",
        ),
        ((200, "<AssumeRoleResponse><AssumeRoleResult/></AssumeRoleResponse>"), StoreTransientError, "KeyError"),
    ],
    ids=["refused", "no credentials in it"],
)
def test_a_role_that_can_t_be_taken_for_once(
    server: TinyS3, role: type[_Sts], answer: tuple[int, str], error: type[Exception], says: str
) -> None:
    """A refusal is one, with its code; whatever it was, the next request asks anew."""
    role.instead = (answer,)
    store = open_store("s3://bucket", StoreAccess(endpoint_url=server.url, region="us-east-1", attempts=1))
    with pytest.raises(error, match=says):
        store.head("key")
    for _ in range(2):
        assert store.head("key") is None
    store.close()


def test_an_empty_session_token_is_none(server: TinyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a profile has it that was written by a form; the SDK sends none then."""
    use_profile(monkeypatch, tmp_path, token="")
    store = open_store("s3://bucket", StoreAccess(endpoint_url=server.url, region="us-east-1", attempts=1))
    assert store.head("key") is None
    store.close()


@pytest.mark.parametrize("by_file", [False, True], ids=["in the environment", "in a file"])
def test_the_token_for_an_agent_is_hidden(
    server: TinyS3,
    agent: type[_Agent],
    *,
    by_file: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the agent repeats the request: in errors, which go into heartbeats, and in what the SDK logs."""
    token = plain_canary("token for an agent")
    (tmp_path / "token").write_text(token)
    kind = "AWS_CONTAINER_AUTHORIZATION_TOKEN"
    monkeypatch.setenv(f"{kind}_FILE" if by_file else kind, str(tmp_path / "token") if by_file else token)
    settings = StoreAccess(endpoint_url=server.url, region="us-east-1", attempts=1)
    agent.refusals = 3
    with pytest.raises(StoreTransientError, match=r"credentials for the store now: .* 503 from container") as first:
        open_store("s3://bucket", settings)
    agent.gives = 1
    agent.expiration = f"{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"  # so they have to be renewed
    store = open_store("s3://bucket", settings)
    with pytest.raises(StoreTransientError, match=r"CredentialRetrievalError: .* 503 from container") as again:
        store.head("key")
    assert agent.asked == 7
    assert "Refreshing temporary credentials failed during mandatory refresh period. (" in caplog.text
    for error in (first.value, again.value):
        assert error.__cause__ is None
        assert appearances(f"{error} {error!r}", {"token": token}) == []
    assert appearances(caplog.text, {"token": token}) == []
    store.close()


def test_nobody_listens() -> None:
    """A wrong port or a server that is down: transient, with the address in the message."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        store = open_store("s3://bucket", settings_for(url, attempts=2))
        with pytest.raises(StoreTransientError, match=rf"{url}.*\(check that endpoint_url"):
            store.put_if_absent("key", b"x")
        store.close()


def test_https_to_a_server_without_tls(server: TinyS3) -> None:
    """Told at once with what to change."""
    store = open_store("s3://bucket", settings_for(server.url.replace("http:", "https:"), attempts=2, read_timeout=0.4))
    with pytest.raises((StoreDeniedError, StoreTransientError), match=r"\(.*(http://|endpoint_url)"):
        store.head("key")
    store.close()


@pytest.mark.parametrize(
    "fault", [page(200, b""), page(200, b"<html><body>log in</body></html>"), page(200, b"welcome")]
)
def test_an_answer_that_is_no_listing_is_not_an_empty_one(server: TinyS3, store: ObjectStore, fault: Fault) -> None:
    """A proxy's page with status 200 must not look like a store without objects."""
    server.faults = [fault] * 3
    with pytest.raises(StoreTransientError, match="list 'p/'"):
        list(store.list("p/"))


def test_a_store_that_ignores_the_condition_is_unfit(server: TinyS3, store: ObjectStore) -> None:
    """It says 200 twice; the probe refuses it and cleans up."""
    server.ignores_condition = True
    with pytest.raises(StoreUnfitError, match=r"replaced the existing object .*\(use a store that honours If-None"):
        store.probe("p")
    assert server.objects == {}


def test_a_store_that_lacks_the_condition_is_unfit(server: TinyS3, store: ObjectStore) -> None:
    """It says NotImplemented; that is told as what it means."""
    server.faults = [answers(501, "NotImplemented")]
    with pytest.raises(StoreUnfitError, match=r"NotImplemented.*\(use a store"):
        store.probe("p")


def test_a_store_that_looks_first_and_writes_later_is_unfit(server: TinyS3, store: ObjectStore) -> None:
    """One writer after the other it is right, at once it is not; servers like that were released."""
    server.slow_check = True
    with pytest.raises(StoreUnfitError, match="TDM-S059"):
        store.probe("p")
    assert server.objects == {}


def test_a_fit_store_passes_the_probe(server: TinyS3, store: ObjectStore) -> None:
    """Without a word, and nothing is left of it."""
    assert store.probe("p") == ()
    assert server.objects == {}


def test_the_probe_tells_of_wrong_keys_and_missing_rights(server: TinyS3, store: ObjectStore) -> None:
    """At its first request, and at deleting too: a store that can't be cleared is of no use."""
    server.faults = [answers(403, "SignatureDoesNotMatch")]
    with pytest.raises(StoreDeniedError, match="access_key_id"):
        store.probe("p")
    server.requests.clear()
    store.probe("p")
    deletes = max(number for number, request in enumerate(server.requests) if request == "POST ")
    server.faults = [lambda _: False] * deletes + [answers(403, "AccessDenied")]
    with pytest.raises(StoreDeniedError, match="delete"):
        store.probe("p")


def test_the_clock_is_told_to_who_may_not_list_the_root(server: TinyS3, store: ObjectStore) -> None:
    """Rights reach no further than a pair's folder, and a refusal has a date as well."""
    server.faults = [answers(403, "AccessDenied")]
    assert abs(store.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert len(server.requests) == 1


def test_the_probe_tells_of_clocks_that_differ(server: TinyS3, store: ObjectStore) -> None:
    """Signatures fail at 15 minutes; said before that."""
    server.clock = lambda: datetime.now(UTC) + timedelta(minutes=10)
    assert any("clock" in warning for warning in store.probe("p"))


def test_now_is_the_store_s_time(server: TinyS3, store: ObjectStore) -> None:
    """Asked for when no answer came yet, then carried on without asking; error answers tell the time as well."""
    server.clock = lambda: datetime(2031, 1, 1, tzinfo=UTC)
    first = store.now()
    assert datetime(2031, 1, 1, tzinfo=UTC) <= first < datetime(2031, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert len(server.requests) == 1
    time.sleep(0.05)
    assert store.now() - first >= timedelta(seconds=0.05)
    assert len(server.requests) == 1
    server.clock = lambda: datetime(2032, 1, 1, tzinfo=UTC)
    assert store.head("missing") is None
    assert store.now().year == 2032


def test_delete_looks_at_each_key_s_outcome(server: TinyS3, store: ObjectStore) -> None:
    """A 200 for the batch may hide failures: busy keys are tried again, denied ones are told, the others are gone."""

    def partly(code: str) -> Fault:
        def fault(request: Request) -> bool:
            server.objects.pop("a", None)
            error = f"<Error><Key>b</Key><Code>{code}</Code><Message>m</Message></Error>"
            request.answer(200, f"<DeleteResult>{error}</DeleteResult>".encode())
            return True

        return fault

    def again(request: Request) -> bool:
        assert b"<Key>b</Key>" in request.body
        assert b"<Key>a</Key>" not in request.body  # it is gone, and its name may be taken again by now
        return False

    server.objects = {"a": b"", "b": b""}
    server.faults = [partly("SlowDown"), again]
    store.delete(["a", "b"])
    assert server.objects == {}
    assert len(server.requests) == 2
    server.objects = {"a": b"", "b": b""}
    server.faults = [partly("AccessDenied")]
    with pytest.raises(StoreDeniedError, match="delete 'b'"):
        store.delete(["a", "b"])
    server.faults = [partly("InternalError")] * 3
    with pytest.raises(StoreTransientError, match="delete 'b'"):
        store.delete(["a", "b"])
    server.faults = [partly("NoSuchKey")]
    store.delete(["a", "b"])


@pytest.mark.parametrize("fault", [answers(501, "NotImplemented"), answers(400, "MissingContentMD5")])
def test_a_server_without_batches_deletes_one_by_one(server: TinyS3, store: ObjectStore, fault: Fault) -> None:
    """Once found out, it isn't asked for a batch again."""
    server.faults = [fault]
    store.delete(["a", "b"])
    store.delete(["c"])
    assert server.requests == ["POST ", "DELETE a", "DELETE b", "DELETE c"]


def test_a_rejected_request_is_permanent(server: TinyS3, store: ObjectStore) -> None:
    """Not tried again."""
    server.faults = [answers(400, "InvalidArgument")]
    with pytest.raises(StoreRejectedError, match="InvalidArgument"):
        store.put_if_absent("key", b"x")
    assert len(server.requests) == 1


def passes(_: Request) -> bool:
    return False


def test_aborting_a_missing_upload_is_no_error(server: TinyS3, store: ObjectStore) -> None:
    """Someone else was first."""
    server.faults = [answers(404, "NoSuchUpload")]
    store.abort_upload(UploadInfo(key="a", upload_id="u", initiated=datetime.now(UTC)))
    assert server.requests == ["DELETE a"]


def test_listings_go_on_page_by_page(server: TinyS3, store: ObjectStore) -> None:
    """Lazily: the next page is asked for when it is needed, and retried like any request."""

    def objects(key: str, after: str) -> Fault:
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{after}</NextContinuationToken>"
        item = f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        return page(200, f"<ListBucketResult>{more}{item}</ListBucketResult>".encode())

    server.objects["p/3"] = b""
    server.faults = [objects("p/1", "t1"), objects("p/2", "t2"), answers(503, "SlowDown")]
    listing = store.list("p/")
    assert server.requests == []
    assert next(listing).key == "p/1"
    assert len(server.requests) == 1
    assert [info.key for info in listing] == ["p/2", "p/3"]
    assert len(server.requests) == 4


def test_uploads_go_on_page_by_page(server: TinyS3, store: ObjectStore) -> None:
    """From the markers that the page before gave."""
    asked: list[dict[str, str]] = []

    def uploads(key: str, more: str) -> Fault:
        def fault(request: Request) -> bool:
            asked.append(request.query)
            item = f"<Key>{key}</Key><UploadId>id+{key}</UploadId><Initiated>2026-01-01T00:00:00Z</Initiated>"
            body = f"<ListMultipartUploadsResult>{more}<Upload>{item}</Upload></ListMultipartUploadsResult>"
            request.answer(200, body.encode())
            return True

        return fault

    markers = "<NextKeyMarker>p/a</NextKeyMarker><NextUploadIdMarker>id+p/a</NextUploadIdMarker>"
    server.faults = [
        uploads("p/a", "<IsTruncated>true</IsTruncated>" + markers),
        uploads("p/b", "<IsTruncated>false</IsTruncated>"),
    ]
    assert [(upload.key, upload.upload_id) for upload in store.list_uploads("p/")] == [
        ("p/a", "id+p/a"),
        ("p/b", "id+p/b"),
    ]
    assert asked[1]["key-marker"] == "p/a"
    assert asked[1]["upload-id-marker"] == "id+p/a"


def test_connections_are_used_again(server: TinyS3, store: ObjectStore) -> None:
    """Whatever is asked, found or not, the next request needs no new connection."""
    store.put_if_absent("key", b"0123456789")
    store.put_if_absent("empty", b"")
    for _ in range(3):
        store.put_if_absent("key", b"again")
        store.get("key")
        store.get("key", start=2, end=4)
        store.get("key", start=99)
        store.head("key")
        store.head("empty")
        store.head("missing")
        list(store.list(""))
        store.delete(["missing"])
    assert server.connections == 1


@pytest.mark.parametrize("url", [f"http://user:{SECRET}@127.0.0.1:1", f"user:{SECRET}@host", f"http://u:{SECRET}@a b"])
def test_an_address_with_a_password_in_the_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The SDK would take it, and every message would show it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(ConfigError, match="endpoint") as caught:
        open_store("s3://bucket", StoreAccess(access_key_id="a", secret_access_key="b"))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_profile_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says is checked when the store is opened."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(ConfigError, match=r"no-such-profile.*\(check endpoint_url, region and the AWS profile"):
        open_store("s3://bucket", StoreAccess())


def test_many_threads_share_one_store(server: TinyS3) -> None:
    """Faults of one request don't reach another."""
    store = open_store("s3://bucket", settings_for(server.url, attempts=11))  # ten faults: none uses up its attempts
    server.faults = [answers(503, "SlowDown"), passes] * 10
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda number: store.put_if_absent(f"k{number}", b"%d" % number), range(40)))
    assert outcomes == [PutResult.CREATED] * 40
    assert server.objects == {f"k{number}": b"%d" % number for number in range(40)}
    store.close()
