"""Makes requests to S3: the client, its retries, and its errors.

Of the modules of `s3` it alone imports boto3 and botocore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import botocore.exceptions as vendor
import urllib3.exceptions
from boto3.session import Session
from botocore.config import Config
from botocore.loaders import create_loader

from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.sink.aws.aws_session import MISREAD, AwsSession, misread_at
from tandem.sink.aws.credential_agents import keep_answers_out_of_logs, without_answer
from tandem.sink.process import clock
from tandem.sink.store.contract.object_store import StoreDeniedError, StoreTransientError
from tandem.sink.store.contract.store_clock import StoreClock
from tandem.sink.store.contract.store_settings import StoreAccess, check_endpoint
from tandem.sink.store.s3.answers import require_end
from tandem.sink.store.s3.error_answers import error_of
from tandem.sink.store.s3.sent_credentials import SentCredentials

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_T = TypeVar("_T")
# The SDK's description of S3 is loaded once, because loading it is most of the cost of making a client.
_DESCRIPTIONS = create_loader()
# Subclasses of OSError and urllib3's own errors can surface while a body is read.
_VENDOR_ERRORS = (vendor.BotoCoreError, urllib3.exceptions.HTTPError, OSError)
_GIVER = "check their source (an agent on the node, the instance's metadata, a command); it is asked again"

keep_answers_out_of_logs()


class ChecksumError(StoreTransientError):
    """A body failed the store's checksum: damaged in transfer, or, if retries fail too, in the store."""


class S3Caller:
    """Makes requests for one bucket, retries them, and turns all errors of the SDK into errors of the store.

    This class retries and not the SDK, so that one place knows how often a put was sent. `client` is safe to use from
    several threads, and so is this class.
    """

    def __init__(self, bucket: str, settings: StoreAccess, *, monotonic: Callable[[], float] = clock.now) -> None:
        self.bucket = bucket
        self._settings = settings
        for attempt in settings.paced_attempts(StoreTransientError, settings.attempts):
            with attempt:
                # Making the client asks some credential sources right here, over the network.
                self.client: S3Client = _make_client(settings)
        self.endpoint: str = self.client.meta.endpoint_url
        # The endpoint may come from the environment, and messages show it.
        check_endpoint(self.endpoint)
        self._monotonic = monotonic
        self._clock = StoreClock()
        self._credentials = SentCredentials(
            (settings.access_key_id, settings.secret_access_key, settings.session_token)
        )
        self._credentials.watch(self.client)
        self.client.meta.events.register("after-call.s3", self._observe_date)
        self.client.meta.events.register("before-parse.s3.*", require_end)

    def call(
        self, action: str, request: Callable[[], _T], answers: Mapping[int | str, Callable[[], _T]] | None = None
    ) -> _T:
        """Return the result of `request`; repeat it unchanged after transient errors.

        `answers` maps an error answer's code or, second, its status to the result that it means here. `action` names
        the operation and its object. `request` reads all needed fields of the answer: an answer that can't be read is
        not from S3, and transient. Raises the errors of `error_answers.error_of`, and ConfigError.
        """
        for attempt in self._settings.paced_attempts(StoreTransientError, self._settings.attempts):
            with attempt:
                try:
                    return request()
                except vendor.ClientError as error:
                    code, status, message = self._answer_of(error)
                    meaning = (answers or {}).get(code) or (answers or {}).get(status)
                    if meaning is None:
                        # Not chained to that error: it would show the server's text unmasked.
                        raise error_of(code, status, message, what=self.describe_action(action)) from None
                except _VENDOR_ERRORS as error:
                    # Likewise: these errors quote invalid answers and texts of credential sources.
                    said = self.masked(without_answer(str(error)))
                    raise _error_without_answer(error, said, self.describe_action(action)) from None
                except MISREAD as error:
                    # Without the error's text, which may quote the answer.
                    raise StoreTransientError(
                        f"{self.describe_action(action)}: the answer is no S3 answer ({misread_at(error)})",
                        code="TDM-S060",
                        remedy="check that endpoint_url is an S3 server",
                    ) from None
                return meaning()
        raise AssertionError("the last attempt returns or raises")

    def masked(self, said: str) -> str:
        """Return `said` without credentials that a server or proxy repeats of the request: messages travel far."""
        return self._credentials.mask(said)

    def _answer_of(self, error: vendor.ClientError) -> tuple[str, int, str]:
        said = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code, message = self.masked(str(said.get("Code", "unknown"))), str(said.get("Message", ""))
        if error.operation_name not in self.client.meta.service_model.operation_names:
            # The error is of a credential source, whose client is the SDK's own: its sent secrets are not known here.
            return code, int(status), f"{error.operation_name} was refused"
        return code, int(status), self.masked(message)

    def describe_action(self, action: str) -> str:
        """Return `action` with bucket and endpoint, for messages."""
        return f"{action} in bucket {self.bucket!r} at {self.endpoint}"

    def now(self) -> datetime | None:
        """Return the store's time, None before the first answer with a `Date`."""
        return self._clock.now(at=self._monotonic())

    def close(self) -> None:
        """Close idle connections."""
        self.client.close()

    def _observe_date(self, parsed: dict[str, Any], **_: object) -> None:
        date = parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            with suppress(ValueError):
                self._clock.observe(parsedate_to_datetime(date), at=self._monotonic())


def _make_client(settings: StoreAccess) -> S3Client:
    if settings.ca_bundle is not None and not Path(settings.ca_bundle).is_file():
        raise ConfigError(
            f"ca_bundle: {settings.ca_bundle}: no such file", code="TDM-S061", remedy="mount it, or correct the path"
        )
    checksums: Literal["when_supported", "when_required"] = (
        "when_required" if settings.checksums == "off" else settings.checksums
    )
    # An endpoint outside AWS ignores the region, but the signature needs one.
    region = settings.region or ("us-east-1" if settings.endpoint_url is not None else None)
    try:
        core = AwsSession()
        core.register_component("data_loader", _DESCRIPTIONS)
        session = Session(botocore_session=core)
        return session.client(
            "s3",
            endpoint_url=settings.endpoint_url,
            region_name=region,
            verify=settings.ca_bundle,
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=settings.secret_access_key,
            aws_session_token=settings.session_token,
            config=Config(
                connect_timeout=settings.connect_timeout,
                read_timeout=settings.read_timeout,
                max_pool_connections=settings.max_pool_connections,
                request_checksum_calculation=checksums,
                response_checksum_validation=checksums,
                retries={"total_max_attempts": 1, "mode": "standard"},
                s3={"addressing_style": settings.addressing_style},
                tcp_keepalive=True,
                user_agent_extra="tandem",
            ),
        )
    except (vendor.CredentialRetrievalError, vendor.MetadataRetrievalError) as error:
        raise StoreTransientError(
            f"no credentials for the store now: {without_answer(str(error))[:300]}",
            code="TDM-S062",
            remedy=_GIVER,
        ) from None
    except (vendor.BotoCoreError, ValueError) as error:
        # A ValueError quotes an endpoint from the environment that is no URL, which may hold secrets.
        said = str(error) if isinstance(error, vendor.BotoCoreError) else "the endpoint is no URL"
        raise ConfigError(
            f"the S3 client can't be made: {said}",
            code="TDM-S063",
            remedy="check endpoint_url, region and the AWS profile",
        ) from None


def _error_without_answer(error: Exception, text: str, what: str) -> TandemError:
    said = f"{what}: {type(error).__name__}: {text[:300]}"
    match error:
        case vendor.NoCredentialsError() | vendor.PartialCredentialsError():
            return StoreDeniedError(
                f"{what}: no credentials found",
                code="TDM-S064",
                remedy="set access_key_id and secret_access_key, or provide them by environment, profile or instance",
            )
        case vendor.CredentialRetrievalError() | vendor.MetadataRetrievalError():
            return StoreTransientError(said, code="TDM-S065", remedy=_GIVER)
        case vendor.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error) or "WRONG_VERSION_NUMBER" in str(error):
            return StoreDeniedError(
                said, code="TDM-S066", remedy="set ca_bundle to the store's CA, or http:// if it speaks no TLS"
            )
        case vendor.FlexibleChecksumError():
            return ChecksumError(said, code="TDM-S067", remedy="it is read again")
        case vendor.EndpointConnectionError() | vendor.ConnectTimeoutError() | vendor.ProxyConnectionError():
            return StoreTransientError(
                said, code="TDM-S068", remedy="check that endpoint_url is right and the store is up"
            )
        case vendor.ParamValidationError() | vendor.NoRegionError() | vendor.UnknownEndpointError():
            return ConfigError(said, code="TDM-S069", remedy="check bucket, region and endpoint_url")
    return StoreTransientError(
        said, code="TDM-S070", remedy="the answer is lost, so the outcome is unknown; it is tried again"
    )
