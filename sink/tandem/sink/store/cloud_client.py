"""Makes requests to Google Cloud Storage and Azure Blob Storage: the clients, their retries, the store's clock.

obstore (Rust's object_store) is an extra of the distribution, so it is loaded where it is used.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, Request, build_opener

from tandem.backup_avro.errors import ConfigError
from tandem.sink.process import clock
from tandem.sink.process.safe_text import MASK, forms_of
from tandem.sink.store.cloud_answers import FailedRequest, error_of, read_error
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.store.contract.store_clock import StoreClock
from tandem.sink.store.contract.store_settings import StoreAccess

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureStore, ClientConfig, GCSConfig, GCSStore, RetryConfig

    Client = AzureStore | GCSStore

_T = TypeVar("_T")
_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"
_WHOLE: Final = 10
"""The longest time of a whole request, in read timeouts: obstore counts the transfer of the body too."""
_ASK_AGAIN_S: Final = 60.0
"""Seconds after which the store's time is asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPlace:
    """A bucket of Google Cloud Storage (`gs`) or a container of Azure Blob Storage (`az`)."""

    scheme: Literal["gs", "az"]
    bucket: str


class CloudCaller:
    """Makes requests for one bucket or container, repeats them, and turns all errors into errors of the store.

    obstore itself repeats nothing but the pages of a listing, so that one place knows how often a put was sent.
    `client` is for small requests, `bulk` for large bodies, during whose upload no answer can come, `pages` for
    listings.
    """

    def __init__(self, place: CloudPlace, settings: StoreAccess, *, monotonic: Callable[[], float] = clock.now) -> None:
        if importlib.util.find_spec("obstore") is None:
            raise ConfigError(
                f"{place.scheme}:// needs a library that is not installed: obstore",
                code="TDM-S115",
                remedy="pip install 'tandem-kafka-backup[cloud]'",
            )
        self.place = place
        self._settings = settings
        account = settings.account_name or os.environ.get(_ACCOUNT, "")
        if place.scheme == "az" and not account:
            raise ConfigError(
                "account_name: az:// needs the name of the storage account",
                code="TDM-S116",
                remedy=f"set account_name, or {_ACCOUNT} in the environment",
            )
        default = (
            f"https://{account}.blob.core.windows.net" if place.scheme == "az" else "https://storage.googleapis.com"
        )
        self.endpoint = settings.endpoint_url or default
        self._account = account
        self.client = self._make(read_timeout=settings.read_timeout)
        self.bulk = self._make(read_timeout=None)
        self.pages = self._make(read_timeout=settings.read_timeout, retries=settings.attempts - 1)
        self._monotonic = monotonic
        self._clock = StoreClock()
        self._asking = threading.Lock()
        self._asked: float | None = None

    def call(
        self,
        action: str,
        request: Callable[[], _T],
        answers: Mapping[int | str, Callable[[], _T]] | None = None,
        *,
        once: bool = False,
    ) -> _T:
        """Return the result of `request`; repeat it unchanged after transient errors, unless it can only run `once`.

        `answers` maps the code, the reason or the status of a failed request to the result that it means here. Raises
        the errors of `cloud_answers.error_of`.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415 (an extra, loaded only where it is used)

        known = answers or {}
        for attempt in self._settings.paced_attempts(StoreTransientError, 1 if once else self._settings.attempts):
            with attempt:
                try:
                    return request()
                except (BaseError, OSError, ValueError) as error:
                    failed = self._masked(read_error(error))
                    meaning = known.get(failed.code) or known.get(failed.reason) or known.get(failed.status)
                    if meaning is None:
                        # Not chained to that error, which shows the URL with its signature.
                        raise error_of(failed, what=self.describe_action(action)) from None
                return meaning()
        raise AssertionError("the last attempt returns or raises")

    def describe_action(self, action: str) -> str:
        """Return `action` with bucket and endpoint, for messages."""
        return f"{action} in {self.place.bucket!r} at {self.endpoint}"

    def now(self) -> datetime | None:
        """Return the store's time; None if its answers have no `Date`. Raises StoreTransientError before the first.

        obstore hides the headers of answers, so the time is asked for by a request of its own, each minute at most.
        """
        with self._asking:
            at = self._monotonic()
            if self._asked is None or at - self._asked >= _ASK_AGAIN_S:
                try:
                    self._ask_date()
                except (OSError, HTTPException, ValueError) as error:  # ValueError: a redirect to no URL
                    if self._asked is None:
                        raise StoreTransientError(
                            f"{self.describe_action('ask the time')}: {type(error).__name__}",
                            code="TDM-S117",
                            remedy="check that account_name and endpoint_url are right and the store is up",
                        ) from None
                self._asked = at
            return self._clock.now(at=self._monotonic())

    def _ask_date(self) -> None:
        """Read the `Date` of any answer, a refusal too: the request has no credentials."""
        context = ssl.create_default_context(cafile=self._settings.ca_bundle)
        request = Request(self.endpoint, method="HEAD", headers={"User-Agent": "tandem"})  # noqa: S310 (an http(s) URL)
        try:
            with build_opener(HTTPSHandler(context=context)).open(
                request, timeout=self._settings.read_timeout
            ) as answer:
                date = answer.headers["Date"]
        except HTTPError as refusal:
            with refusal:
                date = refusal.headers["Date"]
        if date is not None:
            with suppress(ValueError):
                self._clock.observe(parsedate_to_datetime(date), at=self._monotonic())

    def _masked(self, failed: FailedRequest) -> FailedRequest:
        """Return the same without the account's key, which a proxy may repeat."""
        key, said = self._settings.account_key, failed.said
        for form in forms_of(key) if key else ():
            said = said.replace(form, MASK)
        return replace(failed, said=said)

    def _make(self, *, read_timeout: float | None, retries: int = 0) -> Client:
        from obstore import store  # noqa: PLC0415 (an extra, loaded only where it is used)
        from obstore.exceptions import BaseError  # noqa: PLC0415 (as above)

        settings = self._settings
        for name in ("ca_bundle", "credentials_file"):
            file = getattr(settings, name)
            if file is not None and not Path(file).is_file():
                raise ConfigError(
                    f"{name}: {file}: no such file", code="TDM-S118", remedy="mount it, or correct the path"
                )
        options: ClientConfig = {
            "allow_http": self.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=settings.connect_timeout),
            "timeout": timedelta(seconds=settings.read_timeout * _WHOLE),
            "pool_max_idle_per_host": str(settings.max_pool_connections),
            "user_agent": "tandem",
        }
        if read_timeout is not None:
            options["read_timeout"] = timedelta(seconds=read_timeout)
        initial, longest = timedelta(seconds=settings.backoff_initial), timedelta(seconds=settings.backoff_max)
        retry: RetryConfig = {
            "max_retries": retries, "backoff": {"init_backoff": initial, "max_backoff": longest}
        }  # fmt: skip
        bucket = self.place.bucket
        try:
            if settings.ca_bundle is not None:
                options["root_certificate"] = Path(settings.ca_bundle).read_bytes()
            if self.place.scheme == "az":
                azure: AzureConfig = {"account_name": self._account, "endpoint": self.endpoint}
                if settings.account_key is not None:
                    azure["account_key"] = str(settings.account_key)
                return store.AzureStore(bucket, config=azure, client_options=options, retry_config=retry)
            google: GCSConfig = {"base_url": self.endpoint}
            if settings.credentials_file is not None:
                google["service_account"] = settings.credentials_file
            return store.GCSStore(bucket, config=google, client_options=options, retry_config=retry)
        except (BaseError, OSError, ValueError):
            # Without the error's text, which may quote a key.
            raise ConfigError(
                f"{self.place.scheme}://{bucket}: the settings and the environment make no client",
                code="TDM-S119",
                remedy="check account_key, credentials_file, ca_bundle and the variables AZURE_… and GOOGLE_…",
            ) from None
