"""The roles: the kinds of processes that use the store and the brokers, each with a credential of its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class CredentialRole(StrEnum):
    """One kind of process. A credential may have several roles; its rights are those of all of them."""

    WRITER = "writer"
    CATCH_UP = "catch-up"
    JANITOR = "janitor"
    VERIFY = "verify"
    READER = "reader"
    RESTORE = "restore"
    RESTORE_GROUPS = "restore-groups"
    DRILL = "drill"
    OPERATOR = "operator"
    VIEWER = "viewer"


#: The commands and jobs that run under each role.
COMMANDS: Final[Mapping[CredentialRole, str]] = {
    CredentialRole.WRITER: "`tandem run`, one of the two instances",
    CredentialRole.CATCH_UP: "`tandem catch-up`",
    CredentialRole.JANITOR: "`tandem retention`, with and without `--horizon` and `--execute`; `tandem erase`, which "
    "needs `verify` on Kafka too, and more for `--purge-versions`",
    CredentialRole.VERIFY: "`tandem verify`, all forms but `--repair`, which needs `operator` too",
    CredentialRole.READER: "`tandem export`, `tandem records`, the data source",
    CredentialRole.RESTORE: "`tandem restore`, `rewind` (its checkpoint needs `operator`)",
    CredentialRole.RESTORE_GROUPS: "`tandem restore groups`",
    CredentialRole.DRILL: "`tandem drill`",
    CredentialRole.OPERATOR: (
        "`tandem rotate`, `failover`, `reinit`, `pause`, `resume`, `checkpoint`, `release`, `restore adopt`, "
        "and what a viewer may"
    ),
    CredentialRole.VIEWER: (
        "`tandem status`, `check`, `wait`, `history`, `describe`, `keys`, `report`, `coordination tail`"
    ),
}
