"""The parts of the object stores without I/O: keys, settings, URLs, the clock, the meaning of S3 answers."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem.backup_avro.errors import ConfigError, PermanentError, TandemError, TransientError
from tandem.controller.config.rules import store_root
from tandem.sink.store import (
    ObjectMissingError,
    StoreAccess,
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
    open_store,
)
from tandem.sink.store.contract.object_keys import check_key, is_key, safe_start
from tandem.sink.store.contract.store_clock import StoreClock
from tandem.sink.store.s3.error_answers import error_of

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
SECRET = "wJalrXUtnFEMI-K7MDENG"

names = st.text(alphabet="-./0a", min_size=1, max_size=3)


def folder_order(key: str) -> list[str]:
    """How a server on a file system orders keys."""
    return key.split("/")


@given(st.sets(st.lists(names, min_size=1, max_size=3).map("/".join).filter(is_key), min_size=1), st.data())
def test_a_safe_start_skips_nothing_in_either_order(keys: set[str], data: st.DataObject) -> None:
    """Neither a server in byte order nor one in folder order that drops the start's folder leaves out a wanted key."""
    # A start near the keys: one of them cut anywhere, so that it names a folder at times, or gone on with.
    base = data.draw(st.sampled_from(sorted(keys)))
    after = base[: data.draw(st.integers(0, len(base)))] + data.draw(st.sampled_from(["", "/", "-", "a", "/-"]))
    prefix = after[: data.draw(st.integers(0, len(after)))]
    start = safe_start(prefix, after)
    wanted = {key for key in keys if key.startswith(prefix) and key > after}
    if start is None:
        return
    assert start.startswith(prefix)
    assert all(key > start for key in wanted)
    assert all(folder_order(key) > folder_order(start) for key in wanted)
    assert not any(key.startswith(start + "/") for key in wanted)


def test_a_safe_start_is_of_use_where_it_counts() -> None:
    """Within a chain it skips all but the last few entries, within a folder of objects nothing can be skipped."""
    entry = "p/generations/00000007/00000000000000000042.json"
    assert safe_start("p/generations/00000007/", entry) == "p/generations/00000007/0000000000000000004"
    assert safe_start("p/a/", "p/a/topic+1+2") == "p/a/topi"
    assert safe_start("p/a/", "p/a/+") is None


@given(st.text(max_size=30))
def test_a_key_that_passes_stays_below_the_root(key: str) -> None:
    """Whatever passes is what a path below the root spells, segment for segment."""
    if not is_key(key):
        return
    root = Path("/root/of/store")
    assert (root / key).is_relative_to(root)
    assert str(root / key) == f"{root}/{key}"
    assert check_key(key) == key


def test_real_keys_pass() -> None:
    """The layout's own names, with the longest topic that Kafka allows, and topics made of dots."""
    for topic in ("orders", "a.b_c-d", "...", ".x", "t" * 249):
        name = f"{topic}+0+{0:020d}+{2**63 - 1:020d}+0123456789abcdef.avro"
        assert is_key(f"pair/a/generation=00000007/topics/{topic}/partition=0/{name}")
    assert is_key("pair/generations/00000007/00000000000000000042.json")


def test_the_clock_runs_between_answers() -> None:
    """Unknown before the first answer, then the header plus what has passed since."""
    clock = StoreClock()
    assert clock.now(at=5.0) is None
    clock.observe(NOON, at=100.0)
    assert clock.now(at=100.0) == NOON
    assert clock.now(at=107.5) == NOON + timedelta(seconds=7.5)


@given(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=30), st.floats(0.0, 0.999))
def test_the_clock_never_goes_back_and_lags_less_than_a_second(gaps: list[float], phase: float) -> None:
    """Headers cut to whole seconds, arriving at any moments, of a clock that runs as ours does."""
    clock = StoreClock()
    at, last = 1000.0, None
    for gap in gaps:
        at += gap
        true = NOON + timedelta(seconds=at + phase)
        clock.observe(true.replace(microsecond=0), at=at)
        now = clock.now(at=at)
        assert now is not None
        assert true - timedelta(seconds=1) <= now <= true + timedelta(milliseconds=1)
        assert last is None or now >= last
        last = now


def test_a_server_slightly_behind_does_not_turn_the_clock_back() -> None:
    """Servers behind one address differ; only past 31 s it steps back, lest a wrong one stay for ever."""
    clock = StoreClock()
    clock.observe(NOON, at=0.0)
    clock.observe(NOON - timedelta(seconds=20), at=1.0)
    assert clock.now(at=1.0) == NOON + timedelta(seconds=1)
    clock.observe(NOON - timedelta(hours=1), at=2.0)
    assert clock.now(at=2.0) == NOON - timedelta(hours=1)
    clock.observe(NOON + timedelta(hours=1), at=3.0)
    assert clock.now(at=3.0) == NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("code", "status", "kind", "remedy"),
    [
        ("InvalidAccessKeyId", 403, StoreDeniedError, "access_key_id"),
        ("SignatureDoesNotMatch", 403, StoreDeniedError, "secret_access_key"),
        ("AccessDenied", 403, StoreDeniedError, "s3:PutObject|PutObject"),
        ("401", 401, StoreDeniedError, "access_key_id"),
        ("ExpiredToken", 400, StoreDeniedError, "session_token"),
        ("RequestTimeTooSkewed", 403, StoreDeniedError, "clock"),
        ("AuthorizationHeaderMalformed", 400, StoreDeniedError, "region"),
        ("PermanentRedirect", 301, StoreDeniedError, "region"),
        ("307", 307, StoreDeniedError, "endpoint_url"),
        ("NoSuchBucket", 404, StoreMissingError, "bucket"),
        ("InvalidBucketName", 400, StoreMissingError, "bucket"),
        ("NoSuchKey", 404, ObjectMissingError, "deleted"),
        ("404", 404, StoreTransientError, "endpoint_url"),
        ("ConditionalRequestConflict", 409, StoreTransientError, "again"),
        ("OperationAborted", 409, StoreTransientError, "again"),
        ("TooManyRequests", 429, StoreTransientError, "again"),
        ("SlowDown", 503, StoreTransientError, "again"),
        ("SlowDown", 200, StoreTransientError, "again"),
        ("RequestTimeout", 400, StoreTransientError, "again"),
        ("BadDigest", 400, StoreTransientError, "again"),
        ("InternalError", 500, StoreTransientError, "again"),
        ("502", 502, StoreTransientError, "again"),
        ("NotImplemented", 501, StoreUnfitError, "implements"),
        ("501", 501, StoreUnfitError, "implements"),
        ("EntityTooLarge", 400, StoreRejectedError, "size"),
        ("InvalidArgument", 400, StoreRejectedError, "log"),
    ],
)
def test_every_answer_has_its_error(code: str, status: int, kind: type[TandemError], remedy: str) -> None:
    """The kind decides what callers do; place, code and remedy are in the message."""
    error = error_of(code, status, "said so", what="put 'p/key' in bucket 'b' at http://host")
    assert type(error) is kind
    assert "'p/key' in bucket 'b' at http://host" in str(error)
    assert code in str(error)
    assert re.search(remedy, str(error.remedy))
    assert isinstance(error, TransientError) == (kind is StoreTransientError)
    assert isinstance(error, PermanentError) != (kind is StoreTransientError)


@pytest.mark.parametrize(
    ("action", "right"),
    [
        ("put 'k'", "s3:PutObject on that key"),
        ("abort the upload of 'k'", "s3:AbortMultipartUpload"),
        ("get 'k'", "s3:GetObject on that key, and s3:ListBucket"),
        ("head 'k'", "s3:GetObject on that key, and s3:ListBucket"),
        ("delete 3 objects, the first 'k',", "s3:DeleteObject"),
        ("list uploads below 'k'", "s3:ListBucketMultipartUploads"),
        ("list 'k'", "s3:ListBucket on the bucket for that prefix"),
        ("something else", "allow the action"),
    ],
)
def test_a_refusal_names_the_right_that_is_missing(action: str, right: str) -> None:
    """By what was done, and the command that prints what is needed."""
    error = error_of("AccessDenied", 403, "", what=f"{action} in bucket 'b' at http://host")
    assert right in str(error.remedy)
    assert "`tandem policy s3`" in str(error.remedy)


def test_the_repr_of_settings_hides_secrets() -> None:
    """Settings may end up in a log."""
    settings = StoreAccess(access_key_id="AKIA", secret_access_key=SECRET, session_token=SECRET + "2")
    assert SECRET not in repr(settings)
    assert "AKIA" not in repr(settings)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("addressing_style", {"addressing_style": "dns"}),
        ("checksums", {"checksums": "never"}),
        ("server_side_encryption", {"server_side_encryption": "aes"}),
        ("secret_access_key", {"access_key_id": "AKIA"}),
        ("access_key_id", {"secret_access_key": SECRET}),
        ("session_token", {"session_token": SECRET}),
        ("kms_key_id", {"kms_key_id": "alias/x"}),
        ("read_timeout", {"read_timeout": 0.0}),
        ("attempts", {"attempts": 0}),
        ("backoff_max", {"backoff_max": 0.1}),
        ("endpoint_url", {"endpoint_url": "host:9000"}),
        ("endpoint_url", {"endpoint_url": "http://host:port"}),
        ("endpoint_url", {"endpoint_url": f"http://user:{SECRET}@host:9000"}),
        ("endpoint_url", {"endpoint_url": f"http://host:9000/?key={SECRET}"}),
    ],
)
def test_settings_that_cannot_work_are_refused(field: str, bad: dict[str, Any]) -> None:
    """The field is named, a remedy given, and no secret shown."""
    with pytest.raises(ConfigError) as caught:
        StoreAccess(**bad)
    assert field in str(caught.value)
    assert caught.value.remedy
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "", "bucket/prefix", "s3:bucket", "s3://", "s3:///prefix", "s3://b", "s3://bucket:9000/x", "s3://bucket/a//b",
        "s3://bucket/../x", "s3://bucket/x?versionId=1", "s3://bucket/x#1", "s3://[bucket/x", "https://bucket/x",
        "gcs://bucket/x", "gs://b", "az://Bucket/x", "file://host/x", "file:relative", "file:///", "file://", "file:///a%00b",
    ],
)  # fmt: skip
def test_a_bad_url_is_refused_where_it_was_written(url: str) -> None:
    """The message names the place in the configuration and the right form."""
    with pytest.raises(ConfigError, match=r"storage\.url: .*\(.*file:///folder\)"):
        open_store(url, place="storage.url")


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    """Neither in the message nor in what it was raised from."""
    for url in (f"s3://AKIA:{SECRET}@bucket/x", f"file://u:{SECRET}@host/x", f"s3://AKIA:{SECRET}@[bucket"):
        with pytest.raises(ConfigError) as caught:
            open_store(url)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_store_knows_its_url(tmp_path: Path) -> None:
    """As the user wrote it; escapes in a file URL are understood."""
    settings = StoreAccess(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
    for url in ("s3://bucket", "s3://bucket/", "s3://bucket/some/prefix/", "s3://bucket.with.dots/x=1"):
        store = open_store(url, settings)
        assert store.url == url
        store.close()
    (tmp_path / "with space").mkdir()
    store = open_store(f"file://{tmp_path}/with%20space")
    store.put_if_absent("x", b"1")
    assert (tmp_path / "with space" / "x").read_bytes() == b"1"


ROOTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["s3://", "file://", "file:///", "s3://bucket/", " s3://bucket", "file:/", "S3://", ""]),
    st.text(st.sampled_from("ab1./%20ffFF?#@:\\ \t\n\x00\x7fé-_~[]"), max_size=12),
    st.sampled_from(["", " ", "/", "\n"]),
)


@settings(max_examples=400)
@given(ROOTS)
@example("file:///a?b#c")
@example("file:///a%2e%2e/../b")
@example("file:///a/%2e%2e/b")
@example("file:///a%ffb")
@example("s3://ab.")
@example("s3://bucket/.hidden")
@example("s3://bucket/prefix ")
@example("file:/// /")
def test_what_is_validated_can_be_opened(root: str) -> None:
    """`config validate` and the commands agree on every root, and say which folder a file:// URL names."""
    try:
        accepted = store_root(root)
    except ValueError:
        return
    assert store_root(accepted) == accepted
    credentials = StoreAccess(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
    with contextlib.closing(open_store(accepted, credentials)) as store:
        assert store.url == accepted
    if accepted.startswith("file://"):
        assert ".." not in unquote(accepted).split("/")


@pytest.mark.parametrize(
    ("root", "told"),
    [
        ("file:///a?b#c", r"must not hold '\?' or '#'; write %3F or %23"),
        ("file:///a/%2e%2e/b", "'..' path segments"),
        ("file:///a%ffb", "needs an absolute path"),
        ("s3://bucket/prefix ", "begins or ends with a blank"),
        ("s3://bucket/a\\b", "has no valid prefix"),
        ("s3://ab.", "is not a bucket's name"),
        ("file:///a\tb", "holds a control character"),
    ],
)
def test_what_can_not_be_opened_is_not_validated(root: str, told: str) -> None:
    """Each was valid for `config validate`, and refused by what opened it, or led elsewhere."""
    with pytest.raises(ValueError, match=told):
        store_root(root)


def test_a_blank_at_the_end_is_refused_before_it_is_dropped() -> None:
    """A parser of URLs drops it, and with it the difference between two roots."""
    for url in ("file:///a ", " file:///a", "file:///a\tb", "s3://bucket/a\nb"):
        with pytest.raises(ConfigError, match="TDM-S045"):
            open_store(url)


def test_an_archived_object_is_named_with_what_brings_it_back() -> None:
    """GLACIER and its kin: nothing but a request of its own makes the object readable again."""
    error = error_of(
        "InvalidObjectState",
        403,
        "The operation is not valid for the object's storage class",
        what="get 'p/key' in bucket 'b' at http://host",
    )
    assert isinstance(error, StoreDeniedError)
    assert "'p/key' in bucket 'b'" in str(error)
    assert error.remedy is not None
    assert "aws s3api restore-object" in error.remedy
    assert "GLACIER" in error.remedy
