"""The roles: who asks the store and the brokers for something, each with a credential of its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Role(StrEnum):
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


#: What runs under each role.
COMMANDS: Final[Mapping[Role, str]] = {
    Role.WRITER: "`tandem run`, one of the two instances",
    Role.CATCH_UP: "`tandem catch-up`",
    Role.JANITOR: "`tandem retention`, with and without `--horizon` and `--execute`",
    Role.VERIFY: "`tandem verify`, all forms but `--repair`, which needs `operator` too",
    Role.READER: "`tandem export`, `tandem records`, the data source",
    Role.RESTORE: "`tandem restore`",
    Role.RESTORE_GROUPS: "`tandem restore groups`",
    Role.DRILL: "`tandem drill`",
    Role.OPERATOR: "`tandem failover`, `reinit`, `pause`, `resume`, `checkpoint`, `release`, and what a viewer may",
    Role.VIEWER: "`tandem status`, `check`, `wait`, `history`, `describe`, `keys`, `report`, `coordination tail`",
}
