"""Keys of AWS KMS, against moto's: calls are few, the context binds, and errors say whose fault it is."""

from __future__ import annotations

import base64
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions as vendor
import pytest
from moto import mock_aws
from support.pages.canaries import appearances, plain_canary
from support.pairs.profiles import use_profile
from support.servers.serving import ANY_PORT, Quiet, serving

from tandem.backup_avro.errors import DamagedError, PermanentError, TransientError
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.errors import KeyDeniedError, KeyUnavailableError
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.encryption.kms import KmsKey
from tandem.sink.process import log

REGION = "eu-central-1"
NAME = "shop/a/generation=00000003/journal/00000000000000000001+0011223344556677.avro"


class Calls:
    """A client that counts, or fails."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.before: Callable[[], None] = lambda: None

    def __getattr__(self, action: str) -> Any:
        def call(**how: Any) -> Any:
            self.made.append((action, how))
            self.before()
            if self.error is not None:
                raise self.error
            return getattr(self.client, action)(**how)

        return call


@pytest.fixture
def arn(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key of moto's KMS."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("kms", region_name=REGION).create_key()["KeyMetadata"]["Arn"]


def counted(arn: str, **how: Any) -> tuple[KmsKey, Calls]:
    """A key, and the calls that it makes."""
    key = KmsKey(arn, **how)
    calls = key._client = Calls(boto3.client("kms", region_name=REGION))
    return key, calls


def test_objects_of_an_hour_share_one_call_and_one_opens_them(arn: str) -> None:
    """By time, and by generation."""
    now = 0.0
    key, calls = counted(arn, monotonic=lambda: now)
    plain, stored = key.new_wrapping_key("shop", 3)
    assert (plain, stored) == key.new_wrapping_key("shop", 3)
    assert key.wrapping_key(stored, "shop", 3) == plain
    assert [action for action, _ in calls.made] == ["generate_data_key"]
    now = 3600.0
    other = key.new_wrapping_key("shop", 3)
    assert other[0] != plain
    key.new_wrapping_key("shop", 4)
    assert len(calls.made) == 3
    reader, calls = counted(arn)
    for _ in range(3):
        assert reader.wrapping_key(stored, "shop", 3) == plain
        assert reader.wrapping_key(other[1], "shop", 3) == other[0]
    assert [action for action, _ in calls.made] == ["decrypt", "decrypt"]
    assert calls.made[0][1]["KeyId"] == arn
    assert calls.made[0][1]["EncryptionContext"] == {"tandem:pair": "shop", "tandem:generation": "3"}


def test_a_call_that_hangs_keeps_no_key_that_is_in_memory(arn: str) -> None:
    """Neither for writing nor for reading; of threads that want the same new key, one asks."""
    key, calls = counted(arn)
    plain, stored = key.new_wrapping_key("shop", 3)
    asked, goes_on = threading.Event(), threading.Event()

    def hangs() -> None:
        asked.set()
        assert goes_on.wait(30)

    calls.before = hangs
    with ThreadPoolExecutor(4) as pool:
        new = [pool.submit(key.new_wrapping_key, "shop", 4) for _ in range(2)]
        try:
            assert asked.wait(30)
            for at_once in (
                pool.submit(key.wrapping_key, stored, "shop", 3),
                pool.submit(lambda: key.new_wrapping_key("shop", 3)[0]),
            ):
                assert at_once.result(timeout=10) == plain
        finally:
            goes_on.set()
        assert new[0].result() == new[1].result()
    assert [action for action, _ in calls.made] == ["generate_data_key"] * 2


def test_what_kms_gave_for_one_generation_opens_for_no_other(arn: str) -> None:
    """The context is part of it: that is damage, not a question of permissions."""
    key, _ = counted(arn)
    _, stored = key.new_wrapping_key("shop", 3)
    reader, _ = counted(arn)
    for pair, generation in (("shop", 4), ("shop2", 3)):
        with pytest.raises(DamagedError, match="TDM-N014"):
            reader.wrapping_key(stored, pair, generation)
    with pytest.raises(DamagedError, match="TDM-N010"):
        reader.wrapping_key(b"", "shop", 3)


def test_a_ring_writes_and_reads_with_kms(arn: str) -> None:
    """From the settings to a data key, and in another process with the key for reading alone."""
    seal = KeyRing(KeySettings(aws_kms_key_arn=arn)).new(NAME)
    assert seal is not None
    assert seal.envelope.wrapping_key
    reader = KeyRing(KeySettings(decrypt_aws_kms_key_arns=(arn,)))
    assert reader.data_key(NAME, seal.envelope) == seal.data_key
    KeyRing(KeySettings(aws_kms_key_arn=arn)).check("shop")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ThrottlingException", 400, KeyUnavailableError),
        ("KMSInternalException", 500, KeyUnavailableError),
        ("AccessDeniedException", 400, KeyDeniedError),
        ("DisabledException", 400, KeyDeniedError),
        ("NotFoundException", 400, KeyDeniedError),
        ("InvalidCiphertextException", 400, DamagedError),
        ("IncorrectKeyException", 400, DamagedError),
    ],
)
def test_answers_of_kms_become_ours(arn: str, code: str, status: int, kind: type[Exception]) -> None:
    """What is worth a retry, what a person must mend, and what is damage."""
    key, calls = counted(arn)
    calls.error = vendor.ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[arg-type]
        "Decrypt",
    )
    with pytest.raises(kind, match=code):
        key.wrapping_key(b"blob", "shop", 3)


@pytest.mark.parametrize("place", ["message", "__type"])
def test_what_kms_repeats_of_a_request_is_in_no_traceback(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The session's token, of a role or a profile, goes to the KMS with each call; a proxy on the way may repeat it."""
    secret = plain_canary("token of a profile")
    use_profile(monkeypatch, tmp_path, token=secret)

    class Proxy(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            sent = self.headers["X-Amz-Security-Token"]
            body = json.dumps({"__type": "AccessDeniedException", "message": "m", place: f"you sent {sent}"}).encode()
            self.answer(400, body)

    arn = f"arn:aws:kms:{REGION}:111122223333:key/0d0d0d0d-aaaa-bbbb-cccc-0123456789ab"
    with serving(ThreadingHTTPServer(ANY_PORT, Proxy)) as url, pytest.raises(KeyDeniedError) as caught:
        KmsKey(arn, endpoint_url=url).new_wrapping_key("shop", 1)
    logged = json.dumps(log.describe(caught.value)) + "".join(traceback.format_exception(caught.value))
    assert appearances(logged, {"token": secret}) == []


_SOUND = {
    "Plaintext": base64.b64encode(bytes(32)).decode(),
    "CiphertextBlob": base64.b64encode(b"b" * 184).decode(),
}
_NONE_OF_A_KMS: dict[str, object] = {
    "nothing": "",
    "a page of the web": "<html>secret-of-the-answer</html>",
    "an empty document": "{}",
    "a list": "[]",
    "null": "null",
    "a number": "7",
    "nesting": "[" * 100_000,
    "a key that is no base64": {"Plaintext": "secret-of-the-answer!"},
    "a key that is a number": {"Plaintext": 7},
    "a key that is null": {"Plaintext": None},
    "a key of 16 bytes": {"Plaintext": base64.b64encode(bytes(16)).decode()},
    "a key of 33 bytes": {"Plaintext": base64.b64encode(bytes(33)).decode()},
    "an empty blob": {"CiphertextBlob": ""},
    "a blob of 6,145 bytes": {"CiphertextBlob": base64.b64encode(bytes(6145)).decode()},
}


class _OtherKms(Quiet, BaseHTTPRequestHandler):
    """Answers 200 with what is in `instead`, one after the other, then with a key."""

    instead: tuple[object, ...] = ()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        other: object = {}
        if self.instead:
            other, *type(self).instead = self.instead
        body = json.dumps(_SOUND | other).encode() if isinstance(other, dict) else str(other).encode()
        self.answer(200, body)


@pytest.mark.parametrize("answer", _NONE_OF_A_KMS)
def test_an_answer_that_is_none_of_a_kms(answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is an error that may pass, without its words, and nothing of it is kept: the next answer counts."""
    use_profile(monkeypatch, tmp_path, token="t")
    kind = type("Kms", (_OtherKms,), {})
    arn = f"arn:aws:kms:{REGION}:111122223333:key/0d0d0d0d-aaaa-bbbb-cccc-0123456789ab"
    with serving(ThreadingHTTPServer(ANY_PORT, kind)) as url:
        key = KmsKey(arn, endpoint_url=url)
        calls: list[Callable[[], object]] = [lambda: key.new_wrapping_key("shop", 1)]
        if "blob" not in answer:
            calls.append(lambda: key.wrapping_key(b"other", "shop", 1))
        for call in calls:
            kind.instead = (_NONE_OF_A_KMS[answer],)
            with pytest.raises(KeyUnavailableError, match="TDM-N013") as caught:
                call()
            assert caught.value.__cause__ is None
            assert "secret-of" not in f"{caught.value} {caught.value!r}"
            call()
        plain, stored = key.new_wrapping_key("shop", 1)
        assert (len(plain), len(stored)) == (32, 184)


def test_no_answer_and_no_credentials(arn: str) -> None:
    """The one may pass, the other won't."""
    key, calls = counted(arn)
    calls.error = vendor.EndpointConnectionError(endpoint_url="https://kms")
    with pytest.raises(TransientError, match="EndpointConnectionError"):
        key.new_wrapping_key("shop", 3)
    calls.error = vendor.NoCredentialsError()
    with pytest.raises(PermanentError, match="no credentials"):
        key.new_wrapping_key("shop", 3)


def test_what_is_kept_is_bounded(arn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of generations, read by one process."""
    monkeypatch.setattr("tandem.sink.encryption.kms._KEPT", 3)
    key, calls = counted(arn)
    for generation in range(5):
        key.new_wrapping_key("shop", generation)
    assert len(key._opened) == 3
    assert len(calls.made) == 5
