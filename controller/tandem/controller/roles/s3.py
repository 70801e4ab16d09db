"""The rights of each role on the store, as policies in the syntax of AWS IAM.

A role's policy has only Allow statements, and no condition key but `s3:prefix`, so that other servers understand it
too. Rules that only AWS can enforce are in the bucket's policy.

A missing object must be distinguishable from a forbidden one: the head of a chain is found by requests for entries that
may not exist. S3 answers 404 only to a principal that may list the key's prefix, so each role may list the keys that it
may get.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import ConfigError
from tandem.controller.roles.role import CredentialRole
from tandem.sink.store.chain.pins import LASTING, READING

Policy = dict[str, Any]

_VERSION: Final = "2012-10-17"
_MEANS_MORE: Final = re.compile(r"[*?$]")


def _all_below(prefix: Callable[[str], str]) -> str:
    """Return the key pattern of a folder of the layout, relative to the pair's folder."""
    return f"{prefix('').removeprefix('/')}*"


_CHAINS: Final = _all_below(layout.claims_prefix)
_PINS: Final = _all_below(layout.pins_prefix)
# Pins of readers, held for a while; the pins of checkpoints are relied on for years.
_READERS: Final = f"{_PINS.removesuffix('*')}{READING}*"
_KEEPERS: Final = f"{_PINS.removesuffix('*')}{LASTING}*"
_CHECKPOINTS: Final = _all_below(layout.checkpoints_prefix)
_OUTCOMES: Final = _all_below(layout.outcomes_prefix)
_RELEASES: Final = _all_below(layout.releases_prefix)
_PAUSES: Final = _all_below(layout.pauses_prefix)
_RESTORES: Final = _all_below(layout.restores_prefix)
_RESTORE_TARGETS: Final = _all_below(layout.restore_targets_prefix)
_RESULTS: Final = _all_below(layout.results_prefix)
_PROBE: Final = f"{layout.PROBES}*"
_ALL: Final = "*"
# Placeholders for the data of the role's own instance, and of both instances.
_OWN: Final = "<own>"
_DATA: Final = "<data>"
# The keys that describe a pair and hold no records.
_TOLD: Final = (_CHAINS, _PINS, _CHECKPOINTS, _RELEASES, _PAUSES, _RESULTS, _RESTORE_TARGETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rights:
    """Key patterns below the pair's folder. Keys in `get` and `put` may be listed, further ones are in `lists`.

    `aborts`: abort multipart uploads. `uploads`: list them. `versioning`: get the bucket's versioning state.
    `lifecycle`: get its lifecycle rules, which may take the backup away.
    """

    get: tuple[str, ...]
    put: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    aborts: tuple[str, ...] = ()
    uploads: bool = False
    versioning: bool = False
    lifecycle: bool = False


_READ: Final = (*_TOLD, _DATA)
_RIGHTS: Final[Mapping[CredentialRole, _Rights]] = {
    CredentialRole.WRITER: _Rights(
        # Before it clears its own copy it compares the keys with the other instance's copy.
        get=(*_TOLD, _DATA, _PROBE),
        put=(_CHAINS, _OWN, _PINS, _OUTCOMES, _PROBE),
        delete=(_OWN, _PINS, _CHECKPOINTS, _PROBE),
        aborts=(_OWN, _PROBE),
        uploads=True,
        versioning=True,
        lifecycle=True,
    ),
    CredentialRole.CATCH_UP: _Rights(get=_TOLD, put=(_DATA,), lists=(_DATA,)),
    CredentialRole.JANITOR: _Rights(
        get=_READ,
        put=(_CHAINS, _DATA, _READERS, _RESULTS),
        delete=(_DATA, _READERS, _RESULTS),
        lists=(_ALL,),
        aborts=(_DATA,),
        uploads=True,
    ),
    CredentialRole.VERIFY: _Rights(get=_READ, put=(_READERS, _RESULTS), delete=(_READERS, _RESULTS)),
    CredentialRole.READER: _Rights(get=_READ, put=(_READERS,), delete=(_READERS,)),
    CredentialRole.RESTORE: _Rights(get=(*_READ, _RESTORES), put=(_READERS, _RESTORES), delete=(_READERS,)),
    CredentialRole.RESTORE_GROUPS: _Rights(get=(*_READ, _RESTORES), put=(_RESTORES,), delete=(_RESTORES,)),
    CredentialRole.DRILL: _Rights(get=_READ, put=(_READERS, _RESULTS), delete=(_READERS, _RESULTS)),
    CredentialRole.OPERATOR: _Rights(
        get=_TOLD,
        put=(_CHECKPOINTS, _PAUSES, _RELEASES, _RESTORE_TARGETS),
        delete=(_CHECKPOINTS, _KEEPERS, _RESTORE_TARGETS),
        lifecycle=True,
    ),
    CredentialRole.VIEWER: _Rights(get=_TOLD, lifecycle=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """The place of a pair's backup. `prefix` has no slashes at its ends and may be empty; `partition` is that of ARNs.

    `server_key` is the ARN of the key that the store encrypts with, `data_keys` are those of Tandem's own encryption.
    """

    bucket: str
    prefix: str
    pair: str
    instances: tuple[str, ...]
    partition: str = "aws"
    server_key: str | None = None
    data_keys: tuple[str, ...] = ()

    def arn(self, pattern: str | None = None) -> str:
        """Return the ARN of the bucket, or of the keys that a pattern below the pair's folder matches."""
        bucket = f"arn:{self.partition}:s3:::{self.bucket}"
        return bucket if pattern is None else f"{bucket}/{self.key(pattern)}"

    def key(self, pattern: str) -> str:
        """Return a pattern relative to the pair's folder as a pattern of whole keys."""
        return "/".join(part for part in (self.prefix, self.pair, pattern) if part)


def place_of(
    root: str,
    *,
    pair: str,
    instances: Sequence[str],
    region: str | None = None,
    server_key: str | None = None,
    data_keys: Sequence[str] = (),
) -> BucketPlace:
    """Return the place below `root`, `s3://bucket/prefix` or the like. Raises ConfigError for a folder.

    It also raises it for characters with a meaning in a policy: wildcards and the "$" of variables.
    A `server_key` that is no ARN (an id, an alias) can't stand in a policy and is left out.
    """
    scheme, _, rest = root.partition("://")
    if scheme == "file":
        raise ConfigError(
            f"store.root {root}: policies are for buckets",
            code="TDM-C048",
            remedy="protect a folder by the rights of its files",
        )
    for setting, texts in (
        ("store.root", (root,)),
        ("pair", (pair,)),
        ("instances", instances),
        ("store.kms_key_id", (server_key or "",)),
        ("encryption", data_keys),
    ):
        for text in texts:
            if _MEANS_MORE.search(text):
                raise ConfigError(
                    f"{setting} {text}: a policy would take '*', '?' and '$' for other names too",
                    code="TDM-C049",
                    remedy=f"choose a {setting} without them, or write the policy by hand",
                )
    bucket, _, prefix = rest.partition("/")
    return BucketPlace(
        bucket=bucket,
        prefix=prefix.strip("/"),
        pair=pair,
        instances=tuple(instances),
        partition=_partition(region),
        server_key=server_key if server_key is not None and server_key.startswith("arn:") else None,
        data_keys=tuple(data_keys),
    )


def _partition(region: str | None) -> str:
    """Return the partition of ARNs: regions of China and of the US government have their own."""
    if region is not None and region.startswith("cn-"):
        return "aws-cn"
    if region is not None and region.startswith("us-gov-"):
        return "aws-us-gov"
    return "aws"


def policy(place: BucketPlace, role: CredentialRole, *, instance: str | None = None) -> Policy:
    """Return the policy of a role's credential. `instance` is the writer's own; the others have none.

    Raises ConfigError if a writer's instance is missing or none of the pair.
    """
    check_instance(place, role, instance)
    return {"Version": _VERSION, "Statement": list(_statements(place, _RIGHTS[role], instance or ""))}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRights:
    """What a role may do with objects: patterns of whole keys, which end in `*`."""

    get: Sequence[str]
    put: Sequence[str]
    delete: Sequence[str]
    lists: Sequence[str]


def key_rights(place: BucketPlace, role: CredentialRole, *, instance: str | None = None) -> KeyRights:
    """Return what the policy of a role says of objects, for stores with another language. Raises as `policy`."""
    check_instance(place, role, instance)
    rights, own = _RIGHTS[role], instance or ""

    def keys(wanted: tuple[str, ...]) -> list[str]:
        return [place.key(pattern) for pattern in _patterns(place, wanted, own)]

    return KeyRights(
        get=keys(rights.get), put=keys(rights.put), delete=keys(rights.delete), lists=keys(_listed(rights))
    )


def check_instance(place: BucketPlace, role: CredentialRole, instance: str | None) -> None:
    """Raise ConfigError if a writer's instance is missing or none of the pair."""
    if role is CredentialRole.WRITER and instance not in place.instances:
        raise ConfigError(
            f"role writer: {'which instance?' if instance is None else f'{instance} is no instance of the pair'}",
            code="TDM-C050",
            remedy=f"give --instance {' or '.join(place.instances)}",
        )


def _patterns(place: BucketPlace, wanted: tuple[str, ...], own: str) -> list[str]:
    of_data = {_OWN: (own,), _DATA: place.instances}
    return list(
        dict.fromkeys(
            pattern
            for one in wanted
            for pattern in ([f"{name}/*" for name in of_data[one]] if one in of_data else [one])
        )
    )


def _listed(rights: _Rights) -> tuple[str, ...]:
    return (_ALL,) if _ALL in rights.lists else (*rights.get, *rights.put, *rights.lists)


def _statements(place: BucketPlace, rights: _Rights, own: str) -> Iterator[Policy]:
    def objects(sid: str, action: str, wanted: tuple[str, ...]) -> Iterator[Policy]:
        if wanted:
            yield _allow(sid, [action], [place.arn(pattern) for pattern in _patterns(place, wanted, own)])

    listed = [place.key(pattern) for pattern in _patterns(place, _listed(rights), own)]
    below = {"StringLike": {"s3:prefix": listed}}
    yield {**_allow("List", ["s3:ListBucket"], [place.arn()]), "Condition": below}
    if rights.uploads:
        # No condition: AWS knows no s3:prefix here.
        yield _allow("ListUploads", ["s3:ListBucketMultipartUploads"], [place.arn()])
    if rights.versioning:
        yield _allow("AskVersioning", ["s3:GetBucketVersioning"], [place.arn()])
    if rights.lifecycle:
        yield _allow("AskLifecycle", ["s3:GetLifecycleConfiguration"], [place.arn()])
    yield from objects("Get", "s3:GetObject", rights.get)
    yield from objects("Put", "s3:PutObject", rights.put)
    yield from objects("Delete", "s3:DeleteObject", rights.delete)
    yield from objects("AbortUploads", "s3:AbortMultipartUpload", rights.aborts)
    yield from _keys(place, rights)


def _keys(place: BucketPlace, rights: _Rights) -> Iterator[Policy]:
    writes_data = not {_OWN, _DATA}.isdisjoint(rights.put)
    reads_data = writes_data or _DATA in rights.get
    decrypt = [place.server_key] if place.server_key else []
    make = list(decrypt) if rights.put else []
    if reads_data:
        decrypt += place.data_keys
    if writes_data:
        make += place.data_keys
    if decrypt:
        yield _allow("UseKeys", ["kms:Decrypt"], decrypt)
    if make:
        yield _allow("MakeDataKeys", ["kms:GenerateDataKey"], make)


def _allow(sid: str, actions: list[str], resources: list[str]) -> Policy:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}


def bucket_policy(place: BucketPlace) -> Policy:
    """Return the bucket policy: requests that the bucket refuses to every principal, whatever its own policy allows.

    It refuses puts below the pair's folder without If-None-Match (which the parts of an upload can't carry), and
    deletes of claims and chain entries while the pair lives. The condition keys are those of AWS.
    """
    return {
        "Version": _VERSION,
        "Statement": [
            {
                "Sid": "NothingIsOverwritten",
                "Effect": "Deny",
                "Principal": "*",
                "Action": ["s3:PutObject"],
                "Resource": [place.arn(_ALL)],
                "Condition": {
                    "Null": {"s3:if-none-match": "true"},
                    "BoolIfExists": {"s3:ObjectCreationOperation": "true"},
                },
            },
            {
                "Sid": "ChainsStay",
                "Effect": "Deny",
                "Principal": "*",
                "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
                "Resource": [place.arn(_CHAINS)],
            },
        ],
    }
