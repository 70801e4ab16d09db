"""The rights of each role on Google Cloud Storage and Azure Blob Storage, in the languages of their IAM.

Both bind rights to the beginnings of names by conditions: Google's in CEL on `resource.name`, Azure's by attributes of
the blob. To create an object takes less than to replace one in both, so no role may overwrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tandem.controller.roles.role import CredentialRole
from tandem.controller.roles.s3 import BucketPlace, Policy, key_rights

_MOST_TERMS: Final = 13
"""Terms that one condition of Google may join: it has at most 12 logical operators."""
_BLOBS: Final = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"


def gcs_policy(place: BucketPlace, role: CredentialRole, *, instance: str | None = None) -> Policy:
    """Return the bindings of a role on the bucket: each the permissions of a custom role, and the binding's condition.

    Raises ConfigError if a writer's instance is missing or none of the pair.
    """
    rights = key_rights(place, role, instance=instance)
    bindings = [
        *_bindings("list", "storage.objects.list", [_listed_below(folder) for folder in _folders(rights.lists)]),
        *_bindings("get", "storage.objects.get", [_named(place, key) for key in rights.get]),
        *_bindings("create", "storage.objects.create", [_named(place, key) for key in rights.put]),
        *_bindings("delete", "storage.objects.delete", [_named(place, key) for key in rights.delete]),
    ]
    return {"bucket": place.bucket, "bindings": bindings}


def _named(place: BucketPlace, key: str) -> str:
    return f'resource.name.startsWith("projects/_/buckets/{place.bucket}/objects/{key.removesuffix("*")}")'


def _listed_below(folder: str) -> str:
    return f'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("{folder}")'


def _folders(keys: Sequence[str]) -> list[str]:
    """Return the folders of patterns, each once: obstore lists whole folders."""
    return list(dict.fromkeys(key[: key.rfind("/") + 1] for key in keys))


def _bindings(title: str, permission: str, terms: Sequence[str]) -> list[dict[str, Any]]:
    groups = [terms[at : at + _MOST_TERMS] for at in range(0, len(terms), _MOST_TERMS)]
    return [
        {
            "permissions": [permission],
            "condition": {"title": f"tandem-{title}-{number}", "expression": " || ".join(group)},
        }
        for number, group in enumerate(groups, start=1)
    ]


def azure_policy(place: BucketPlace, role: CredentialRole, *, instance: str | None = None) -> Policy:
    """Return the custom role of a credential, and the condition of its assignment on the container.

    Raises ConfigError if a writer's instance is missing or none of the pair.
    """
    rights = key_rights(place, role, instance=instance)
    read, listing = f"ActionMatches{{'{_BLOBS}/read'}}", "SubOperationMatches{'Blob.List'}"
    conditions = [
        _condition(f"{read} AND NOT {listing}", "@Resource", "path", rights.get),
        _condition(f"{read} AND {listing}", "@Request", "prefix", [f"{folder}*" for folder in _folders(rights.lists)]),
    ]
    actions = ["read"]
    for action, keys in (("add/action", rights.put), ("delete", rights.delete)):
        if keys:
            actions.append(action)
            conditions.append(_condition(f"ActionMatches{{'{_BLOBS}/{action}'}}", "@Resource", "path", keys))
    return {
        "container": place.bucket,
        "role": {
            "Name": f"tandem {place.pair} {role.value}{f' {instance}' if instance else ''}",
            "Actions": [],
            "DataActions": [f"{_BLOBS}/{action}" for action in actions],
        },
        "condition": " AND ".join(conditions),
        "conditionVersion": "2.0",
    }


def _condition(action: str, source: str, attribute: str, keys: Sequence[str]) -> str:
    """Return what allows an action on some keys only: `StringLike` reads `*` as any characters."""
    terms = " OR ".join(f"{source}[{_BLOBS}:{attribute}] StringLike '{key}'" for key in keys)
    return f"((!({action})) OR ({terms}))"
