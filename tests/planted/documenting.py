"""Mistakes in the site of the documentation, and in what its pages rest on."""

from __future__ import annotations

from planted.mistakes import Mistake

_SITE = "scripts/docs_site.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="site: a heading that is not there is linked to",
        file=_SITE,
        old="anchor not in built[target].anchors",
        new="not built[target].anchors",
    ),
    Mistake(
        name="site: what is loaded by a whole address is not noticed",
        file=_SITE,
        old='r"(?:https?:)?//[a-z0-9-]',
        new='r"//[a-z0-9-]',
    ),
    Mistake(
        name="site: a list below a paragraph stays a part of it",
        file=_SITE,
        old="marker and not in_list and not blank_before",
        new="marker and in_list and not blank_before",
    ),
    Mistake(
        name="site: the users of Strimzi lack a right that a role got",
        file="controller/tandem/controller/roles/kafka.py",
        old='yield _topic(PROGRESS, "Read", "Write", "Create", "DescribeConfigs")',
        new='yield _topic(PROGRESS, "Read", "Write", "Create", "DescribeConfigs", "AlterConfigs")',
    ),
)
