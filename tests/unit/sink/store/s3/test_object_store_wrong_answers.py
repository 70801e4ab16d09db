"""Answers with status 200 that are none of S3: an error of ours that says so, and another try. Nothing is believed."""

from __future__ import annotations

import copy
import json
import os
import pickle
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.pages.canaries import appearances, plain_canary
from support.pairs.profiles import use_profile, without_credentials
from support.servers.tiny_s3 import A_ROLE, Fault, Request, TinyS3, settings_for

from tandem.sink.aws import aws_session
from tandem.sink.aws.aws_session import AwsSession, UselessCredentialsError
from tandem.sink.process import log, safe_text
from tandem.sink.store import (
    ObjectInfo,
    ObjectStore,
    StoreAccess,
    StoreDeniedError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
    open_store,
)
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import OutsizedObjectError
from tandem.sink.store.s3.sent_credentials import SentCredentials


def says(status: int, body: bytes, *lines: str) -> Fault:
    """An answer with these headers and no others."""

    def fault(request: Request) -> bool:
        head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} OK", *lines, "Connection: close"))
        request.wfile.write(head.encode() + b"\r\n" + body)
        request.close_connection = True
        return True

    return fault


def chunked(body: bytes, *lines: str, status: int = 200) -> Fault:
    """The body comes in chunks, and is as long as it likes."""
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return says(status, framed, "Transfer-Encoding: chunked", *lines)


MODIFIED = "Last-Modified: Wed, 25 Nov 2026 09:00:00 GMT"
GETS = {
    "no length": says(200, b"body", MODIFIED),
    "in chunks, without a length": chunked(b"body", MODIFIED),
    "a length that is text": says(200, b"body", MODIFIED, "Content-Length: four"),
    "a length that is negative": says(200, b"body", MODIFIED, "Content-Length: -1"),
    "two lengths": says(200, b"body", MODIFIED, "Content-Length: 4", "Content-Length: 5"),
    "a length of 6,000 digits": says(200, b"body", MODIFIED, f"Content-Length: {'9' * 6000}"),
    "more in chunks than was announced": chunked(b"body" * 9, MODIFIED, "Content-Length: 4"),
    "less in chunks than was announced": chunked(b"bo", MODIFIED, "Content-Length: 4"),
}
HEADS = {
    "no time": says(206, b"b", "Content-Length: 1", "Content-Range: bytes 0-0/4"),
    "a time that is none": says(206, b"b", "Content-Length: 1", "Content-Range: bytes 0-0/4", "Last-Modified: soon"),
    "a time beyond time": says(206, b"b", "Content-Length: 1", "Content-Range: bytes 0-0/4", "Last-Modified: 1e400"),
    "a size of 6,000 digits": says(206, b"b", "Content-Length: 1", f"Content-Range: bytes 0-0/{'9' * 6000}", MODIFIED),
    "no size at all": says(200, b"b", MODIFIED),
}


def listing(*items: str, truncated: str = "false", more: str = "") -> Fault:
    """A page of a listing."""
    body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{''.join(items)}</ListBucketResult>"
    return says(200, body.encode(), f"Content-Length: {len(body)}")


def item(key: str = "<Key>k/1</Key>", size: str = "<Size>1</Size>", at: str = "2026-01-01T00:00:00Z") -> str:
    """One object of a listing."""
    return f"<Contents>{key}{size}{at and f'<LastModified>{at}</LastModified>'}</Contents>"


LISTINGS = {
    "no key": listing(item(key="")),
    "no size": listing(item(size="")),
    "a size that is text": listing(item(size="<Size>one</Size>")),
    "a negative size": listing(item(size="<Size>-1</Size>")),
    "no time": listing(item(at="")),
    "a time that is none": listing(item(at="yesterday")),
    "a time before time": listing(item(at="0001-01-01T00:00:00+14:00")),
    "a key of another prefix": listing(item(key="<Key>other/1</Key>")),
    "truncated, and no token": listing(item(), truncated="true"),
    "a token that is empty": listing(item(), truncated="true", more="<NextContinuationToken/>"),
    "neither its end nor its middle": listing(item(), truncated=""),
    "an end in other letters": listing(item(), truncated="False"),
    "a page of the web": says(200, b"<html/>", "Content-Length: 7"),
}


def never_believed(server: TinyS3, call: Callable[[], object], fault: Fault) -> str:
    """Make a call that gets `fault` and then a sound answer, and one that gets nothing else; return what that says."""
    server.faults = [fault]
    call()
    server.requests.clear()
    server.faults = [fault] * 9
    with pytest.raises(StoreTransientError) as caught:
        call()
    assert len(server.requests) == 3
    assert caught.value.__cause__ is None
    assert caught.value.remedy
    server.faults = []
    return str(caught.value)


@pytest.mark.parametrize("kind", GETS)
def test_an_object_that_s3_would_not_send(server: TinyS3, store: ObjectStore, kind: str) -> None:
    """It is read again, and is never cut, or longer than was announced."""
    server.objects["k/1"] = b"body"

    def get() -> None:
        assert store.get("k/1", most=4) == b"body"

    said = never_believed(server, get, GETS[kind])
    assert "k/1" in said
    if kind not in {"two lengths", "less in chunks than was announced"}:  # the SDK tells of these
        assert "the answer is no S3 answer" in said


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_s3_would_not_send(server: TinyS3, store: ObjectStore, kind: str) -> None:
    """Neither a time nor a size is guessed."""
    server.objects["k/1"] = b"body"

    def head() -> None:
        found = store.head("k/1")
        assert isinstance(found, ObjectInfo)
        assert found.size == 4

    assert "the answer is no S3 answer" in never_believed(server, head, HEADS[kind])


@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_that_s3_would_not_send(server: TinyS3, store: ObjectStore, kind: str) -> None:
    """Nothing of a page is handed on before all of it is sound: what is missing might be taken for deleted."""
    server.objects |= {"k/1": b"1", "k/2": b"2"}

    def walk() -> None:
        assert [info.key for info in store.list("k/")] == ["k/1", "k/2"]

    assert "the answer is no S3 answer" in never_believed(server, walk, LISTINGS[kind])


def test_a_listing_that_goes_on_for_ever(server: TinyS3, store: ObjectStore) -> None:
    """The same token again and again: told after the second page."""
    page = listing(item(), truncated="true", more="<NextContinuationToken>t</NextContinuationToken>")
    server.faults = [page] * 9
    with pytest.raises(StoreTransientError, match="TDM-S060"):
        list(store.list("k/"))
    assert len(server.requests) == 4, "one page, and three attempts at the second"


def test_a_listing_that_goes_in_circles(server: TinyS3, store: ObjectStore) -> None:
    """Two tokens in turn."""
    one, other = (
        listing(item(), truncated="true", more=f"<NextContinuationToken>{token}</NextContinuationToken>")
        for token in "tu"
    )
    server.faults = [one, other] * 9
    with pytest.raises(StoreTransientError, match="TDM-S060"):
        list(store.list("k/"))
    assert len(server.requests) == 5, "two pages, and three attempts at the third"


def test_a_folder_without_its_end(server: TinyS3, store: ObjectStore) -> None:
    """Or the last digit of a generation would be taken for the slash."""
    page = listing("<CommonPrefixes><Prefix>k/generation=00000012</Prefix></CommonPrefixes>")
    server.faults = [page] * 3
    with pytest.raises(StoreTransientError, match="TDM-S060"):
        list(store.list_folders("k/"))


def refuses_to_delete(*keys: str, code: str = "InternalError", message: str = "no") -> Fault:
    """The answer of a DeleteObjects."""
    errors = "".join(f"<Error><Key>{key}</Key><Code>{code}</Code><Message>{message}</Message></Error>" for key in keys)
    body = f"<DeleteResult>{errors}</DeleteResult>".encode()
    return says(200, body, f"Content-Length: {len(body)}")


def denies(key: str) -> Fault:
    """A refusal of one request, which has to be for that key."""

    def fault(request: Request) -> bool:
        assert request.key == key
        request.fail(403, "AccessDenied")
        return True

    return fault


def test_nothing_is_deleted_because_an_answer_names_it(server: TinyS3, store: ObjectStore) -> None:
    """What is asked for again is what was asked for."""
    server.objects |= dict.fromkeys(("mine/1", "mine/2", "precious/1"), b"")
    server.faults = [refuses_to_delete("precious/1")]
    store.delete(["mine/1", "mine/2"])
    assert set(server.objects) == {"precious/1"}
    server.objects |= dict.fromkeys(("mine/1", "mine/2"), b"")
    server.faults = [refuses_to_delete("mine/2")]
    store.delete(["mine/1", "mine/2"])
    assert set(server.objects) == {"mine/1", "precious/1"}, "the server said that mine/1 was deleted"


def test_a_key_that_is_refused_keeps_no_other(server: TinyS3) -> None:
    """Where keys are deleted one by one too, all are tried before the first failure is raised."""
    opened = open_store("s3://bucket", settings_for(server.url, checksums="off"))
    server.faults = [denies("a"), denies("b")]
    with pytest.raises(StoreDeniedError, match="delete 'a'"):
        opened.delete(["a", "b", "c"])
    assert server.requests == ["DELETE a", "DELETE b", "DELETE c"]
    opened.close()


@pytest.mark.parametrize(
    "fault",
    [
        lambda request: request.fail(503, "SlowDown") is None,
        lambda request: request.fail(400, "InvalidArgument") is None,
        refuses_to_delete("MD5/1", code="AccessDenied"),
    ],
)
def test_a_name_is_no_reason_to_delete_one_by_one(server: TinyS3, fault: Fault) -> None:
    """Only what the server says about Content-MD5 is, not an object or a bucket with MD5 in its name."""
    opened = open_store("s3://bucket", settings_for(server.url, attempts=1))
    server.faults = [fault]
    with pytest.raises((StoreTransientError, StoreRejectedError, StoreDeniedError)):
        opened.delete(["MD5/1", "MD5/2"])
    opened.delete(["MD5/1", "MD5/2"])
    assert server.requests == ["POST ", "POST "]
    opened.close()


def test_what_an_answer_to_a_delete_repeats_is_hidden(
    server: TinyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the key, the code and the message."""
    token = plain_canary("token of a profile")
    use_profile(monkeypatch, tmp_path, token=token)
    opened = open_store("s3://bucket", StoreAccess(endpoint_url=server.url, region="us-east-1", attempts=1))
    for fault in (refuses_to_delete("a", code=token, message=token), refuses_to_delete(token)):
        server.faults = [fault]
        with pytest.raises(StoreTransientError) as caught:
            opened.delete(["a", "b"])
        assert appearances(f"{caught.value} {caught.value!r}", {"token": token}) == []
    opened.close()


def test_where_an_answer_could_not_be_read_is_told(server: TinyS3, store: ObjectStore) -> None:
    """It may be a mistake of ours."""
    server.faults = [listing(item(key=""))] * 3
    with pytest.raises(StoreTransientError, match=r"KeyError at answers\.py:\d+\)"):
        list(store.list("k/"))


def test_uploads_that_go_on_for_ever(server: TinyS3, store: ObjectStore) -> None:
    """The same marker again, or an upload without an id."""
    upload = "<Upload><Key>k/1</Key>{}<Initiated>2026-01-01T00:00:00Z</Initiated></Upload>"
    for more, count in (("<UploadId>u</UploadId>", 4), ("", 3)):
        body = (
            "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k/1</NextKeyMarker>"
            f"{upload.format(more)}</ListMultipartUploadsResult>"
        )
        server.requests.clear()
        server.faults = [says(200, body.encode(), f"Content-Length: {len(body)}")] * 9
        with pytest.raises(StoreTransientError, match="TDM-S060"):
            list(store.list_uploads("k/"))
        assert len(server.requests) == count


def test_what_is_too_large_is_not_read(server: TinyS3, store: ObjectStore) -> None:
    """Whether it says so, or comes in chunks that go on."""
    server.faults = [chunked(b"x" * 50, MODIFIED, "Content-Length: 50")]
    with pytest.raises(OutsizedObjectError, match="50 bytes"):
        store.get("k/1", most=49)


def test_a_body_in_chunks_is_checked_at_its_end(server: TinyS3, store: ObjectStore) -> None:
    """As any other: by the checksum that the store keeps."""
    server.objects["k/1"] = b"body"
    server.faults = [chunked(b"bodY", MODIFIED, "Content-Length: 4", "x-amz-checksum-crc32: AAAAAA==")]
    assert store.get("k/1") == b"body"
    assert len(server.requests) == 2
    server.faults = [chunked(b"body", MODIFIED, "Content-Length: 4")]
    assert store.get("k/1") == b"body"
    assert len(server.requests) == 3


def test_a_store_where_every_key_is() -> None:
    """The head of a chain is looked for in bounds."""
    asked: list[str] = []

    class Everywhere:
        url = "memory:///"

        def head(self, key: str) -> ObjectInfo | None:
            asked.append(key)
            return ObjectInfo(key=key, size=1, modified=None)  # type: ignore[arg-type]

    with pytest.raises(StoreUnfitError, match="TDM-S001"):
        ChainReader(Everywhere(), "shop").head(1)  # type: ignore[arg-type]
    assert len(asked) < 60


# --- who gives credentials --------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let credentials be those of a command."""
    without_credentials(monkeypatch, folder)
    path = folder / "give"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "config").write_text(f"[default]\ncredential_process = {path}\n")


@pytest.mark.parametrize(
    "script",
    ["echo secret-of-the-command >&2; exit 1", """echo '{"Version": "secret-of-the-command"}'""", "echo '{}'"],
)
def test_what_a_command_says_is_not_repeated(
    server: TinyS3,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str,
) -> None:
    """It may complain of what it was given."""
    command(monkeypatch, tmp_path, script)
    with pytest.raises(StoreTransientError, match=r"credentials from custom-process|no credentials for") as caught:
        open_store("s3://bucket", StoreAccess(endpoint_url=server.url, attempts=1)).head("k")
    assert "secret-of" not in f"{caught.value} {caught.value!r}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("of_a_role", [False, True])
def test_a_command_that_does_not_end(
    server: TinyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, of_a_role: bool
) -> None:
    """It is killed, told, and asked again the next time."""
    given = {"Version": 1, "AccessKeyId": "commands", "SecretAccessKey": "s"}
    script = f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; exec sleep 100; }}; echo '{json.dumps(given)}'"
    command(monkeypatch, tmp_path, script)
    if of_a_role:
        (tmp_path / "config").write_text(
            "[default]\nrole_arn=arn:aws:iam::123456789012:role/x\nsource_profile=base\n"
            f"[profile base]\ncredential_process = {tmp_path / 'give'}\n"
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    monkeypatch.setattr(aws_session, "COMMAND_S", 2.0)
    settings = StoreAccess(endpoint_url=server.url, attempts=1)
    with pytest.raises(StoreTransientError, match=r"credential_process took longer than 2 s"):
        open_store("s3://bucket", settings)
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
    assert not [child for child in children if "give" in Path(f"/proc/{child}/stat").read_text()], "one is left"
    server.faults = [says(200, A_ROLE.encode(), f"Content-Length: {len(A_ROLE)}")] if of_a_role else []
    monkeypatch.setattr(aws_session, "COMMAND_S", 30.0)
    opened = open_store("s3://bucket", settings)
    assert opened.head("k") is None
    opened.close()


def test_errors_and_credentials_can_be_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark pickles errors, and the SDK's users copy credentials."""
    command(monkeypatch, tmp_path, """echo '{"Version": 1, "AccessKeyId": "commands", "SecretAccessKey": "s"}'""")
    credentials = AwsSession().get_credentials()
    assert copy.copy(credentials).access_key == "commands"
    error = UselessCredentialsError(provider="", error_msg="why")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "from whoever gives credentials: why"


@pytest.mark.parametrize("value", ["tok-№-\x01-en", "tok-\\-'en\"-№", "tok-\udcff-en", "tok-\ud800-\udcff-longer"])
def test_credentials_are_masked_as_python_quotes_them(value: str) -> None:
    """A header that http.client refuses is quoted in its error: as text, or as bytes."""
    raw = value.encode(errors="surrogatepass" if "longer" in value else "surrogateescape")
    forms = (value, repr(value), repr(raw), json.dumps(value), quote(raw, safe=""))
    known: Any = SentCredentials((value,))
    safe_text.register_secrets((value,))
    try:
        for said in forms:
            for mask in (known.mask, safe_text.redact):
                assert "tok-" not in mask(f"wrong header {said}")
    finally:
        log.reset()
