"""References to keys, never the keys themselves: the process that needs a key reads it at its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

from tandem.backup_avro.errors import ConfigError
from tandem.sink.encryption import key_text

_ARN: Final = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):[0-9]{12}:key/[A-Za-z0-9-]+")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """New objects are encrypted with the one key that is named by file, environment variable or ARN, if there is one.

    The `decrypt_…` keys are only for reading. With `require`, objects that are not encrypted are neither read nor
    written. Raises ConfigError that names the field.
    """

    key_file: str | None = None
    key_env: str | None = None
    aws_kms_key_arn: str | None = None
    decrypt_key_files: tuple[str, ...] = ()
    decrypt_key_envs: tuple[str, ...] = ()
    decrypt_aws_kms_key_arns: tuple[str, ...] = ()
    aws_kms_endpoint_url: str | None = None
    require: bool = False

    def __post_init__(self) -> None:
        """Refuse two keys for new objects, and values that name no key."""
        for field, problem in problems(self):
            raise ConfigError(f"encryption.{field}: {problem}", code="TDM-N001")

    @property
    def encrypts(self) -> bool:
        """Whether new objects are encrypted."""
        return any(name is not None for name in (self.key_file, self.key_env, self.aws_kms_key_arn))


class KeyNames(Protocol):
    """The fields that name keys, in `KeySettings` and in the configuration's section."""

    @property
    def key_file(self) -> str | None:
        """File with the key for new objects."""
        ...

    @property
    def key_env(self) -> str | None:
        """Environment variable with the key for new objects."""
        ...

    @property
    def aws_kms_key_arn(self) -> str | None:
        """Key of AWS KMS for new objects."""
        ...

    @property
    def decrypt_key_files(self) -> tuple[str, ...]:
        """Files with older keys."""
        ...

    @property
    def decrypt_key_envs(self) -> tuple[str, ...]:
        """Environment variables with older keys."""
        ...

    @property
    def decrypt_aws_kms_key_arns(self) -> tuple[str, ...]:
        """Older keys of AWS KMS."""
        ...

    @property
    def aws_kms_endpoint_url(self) -> str | None:
        """URL of the KMS, None: AWS."""
        ...

    @property
    def require(self) -> bool:
        """Whether only encrypted objects are read and written."""
        ...


def problems(named: KeyNames) -> Iterator[tuple[str, str]]:
    """Yield (field, problem) for each wrong field."""
    new = {"key_file": named.key_file, "key_env": named.key_env, "aws_kms_key_arn": named.aws_kms_key_arn}
    older = {
        "decrypt_key_files": named.decrypt_key_files,
        "decrypt_key_envs": named.decrypt_key_envs,
        "decrypt_aws_kms_key_arns": named.decrypt_aws_kms_key_arns,
    }
    yield from _empty({name: (value,) for name, value in new.items()})
    yield from _empty(older)
    first, *more = [name for name, value in new.items() if value] or [""]
    for name in more:
        yield (
            name,
            f"is set beside {first}, and new objects are encrypted with one key; move the older to a `decrypt_…` list",
        )
    for field, path in _each("key_file", named.key_file, "decrypt_key_files", named.decrypt_key_files):
        if key_text.is_key(path):
            yield field, key_text.NOT_A_PATH
    for field, variable in _each("key_env", named.key_env, "decrypt_key_envs", named.decrypt_key_envs):
        if not VARIABLE.fullmatch(variable) or key_text.is_key(variable):
            # The message must not show the value: it may be a key that was put here by mistake.
            yield field, "is not the name of an environment variable; write the name, not the key"
        elif variable.startswith("TANDEM_"):
            yield field, f"{variable} would be taken for a configuration key; choose a name without TANDEM_"
    if named.require and not any((*new.values(), *chain.from_iterable(older.values()))):
        yield "require", "is set, and no key is named: nothing could be read"
    arns = tuple(
        _each("aws_kms_key_arn", named.aws_kms_key_arn, "decrypt_aws_kms_key_arns", named.decrypt_aws_kms_key_arns)
    )
    for field, arn in arns:
        if not _ARN.fullmatch(arn):
            # A value that is no ARN at all may be the key itself.
            what = f"{arn!r} is" if arn.startswith("arn:") and arn.isprintable() else "is"
            yield field, f"{what} not a key's ARN; write arn:aws:kms:region:account:key/id, not an alias"
    if named.aws_kms_endpoint_url and not arns:
        yield "aws_kms_endpoint_url", "has no use without a key of AWS KMS"


def _empty(settings: Mapping[str, tuple[str | None, ...]]) -> Iterator[tuple[str, str]]:
    """Yield the settings with an empty name; if that counted as left out, objects would be stored in the clear."""
    for name, values in settings.items():
        if "" in values:
            yield name, "is empty; name a key, or leave the setting out"


def _each(field: str, new: str | None, fields: str, older: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (field, value) for each value that is not empty."""
    if new:
        yield field, new
    for value in filter(None, older):
        yield fields, value


UNENCRYPTED: Final = KeySettings()
"""No keys at all."""


def region_of(arn: str) -> str:
    """Return the region of a key of AWS KMS."""
    match = _ARN.fullmatch(arn)
    assert match is not None, "checked by the settings"
    return match[1]
