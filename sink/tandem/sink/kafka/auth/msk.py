"""IAM tokens for Amazon MSK: AWS's own library signs them with the credentials that the AWS SDK finds.

The SDK looks in the environment, in profiles, at web identities (IRSA), pod identities and instances, and renews
credentials that expire. A token is a signed request, made on this machine; it is valid for 15 minutes.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from tandem.backup_avro.errors import ConfigError
from tandem.sink.aws.credential_agents import keep_answers_out_of_logs
from tandem.sink.kafka.auth.tokens import Token, Tokens
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError

IAM: Final = "aws.msk.iam"
REGION: Final = "aws.msk.region"
PROPERTIES: Final = frozenset({IAM, REGION})
"""Tandem's own properties, unknown to both clients."""

_LIBRARY: Final = "aws_msk_iam_sasl_signer"
_HOST: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?(?::\d+)?$")
_NAME: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")

_PASSING: Final = frozenset(
    {
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "ConnectionError",
        "CredentialRetrievalError",
        "EndpointConnectionError",
        "HTTPClientError",
        "MetadataRetrievalError",
        "ProxyConnectionError",
        "ReadTimeoutError",
    }
)
"""Names of the SDK's errors that are transient: the network or a server fails for now."""


def region_of(props: Mapping[str, str | float | bool], servers: str) -> str:
    """Return the cluster's region: as set, else from the brokers' host names. Raises ConfigError if there is none."""
    region = str(props.get(REGION, ""))
    if region:
        if not _NAME.fullmatch(region):
            raise ConfigError(f"kafka: {REGION} is no region", code="TDM-K021", remedy="write it as in eu-central-1")
        return region
    for server in servers.split(","):
        found = _HOST.search(server.strip())
        if found:
            return found[1]
    raise ConfigError(
        f"kafka: {REGION} is missing", code="TDM-K022", remedy="bootstrap.servers are no MSK names that tell it"
    )


def tokens_for(region: str) -> Tokens:
    """Return a source of tokens for clusters in `region`. Raises ConfigError if AWS's library is not installed."""
    if importlib.util.find_spec(_LIBRARY) is None:
        raise ConfigError(
            f"kafka: {IAM} needs a library that is not installed",
            code="TDM-K023",
            remedy="pip install 'tandem-kafka-backup[msk]'",
        )
    return Tokens(partial(sign_token, region))


def sign_token(region: str) -> Token:
    """Sign a token for clusters in `region`.

    Raises ClusterAuthenticationError if there are no credentials to sign with, ClusterUnreachableError if the service
    that issues them does not answer.
    """
    keep_answers_out_of_logs()
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 - optional, and it loads boto3

    try:
        value, ends_at_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # noqa: BLE001 - the SDK's, which only the store's adapter may import, and ValueError
        kind = type(error).__name__
        if kind in _PASSING:
            raise ClusterUnreachableError(
                f"No IAM token for MSK in {region}: AWS gives no credentials now ({kind})",
                code="TDM-K024",
                remedy="check the network to AWS STS or the instance's metadata; it is tried again",
            ) from None
        raise ClusterAuthenticationError(
            f"No IAM token for MSK in {region}: the AWS SDK has no credentials that work ({kind})",
            code="TDM-K025",
            remedy="provide them by environment, profile, service account or instance; docs/connections.md",
        ) from None
    return Token(value=value, lifetime_s=max(ends_at_ms / 1000 - time.time(), 0.0))
