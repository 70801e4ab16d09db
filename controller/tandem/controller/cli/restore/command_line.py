"""How `tandem restore` reads its command line: topics as arguments, and the sections of its help."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from tandem.controller.cli.options.help_sections import SectionedGroup

TOPICS_ARGUMENT: Final = "named_topics"
_HAS_SUBCOMMAND: Final = "tandem.restore.subcommand"
_NEAR: Final = 0.8
"""Likeness, of 0 to 1, from which on a word is taken for a mistyped subcommand, not for a topic."""


class RestoreGroup(SectionedGroup):
    """`tandem restore TOPIC…` beside `tandem restore groups` and the like.

    The first word that is no option decides: the name of a subcommand calls it, a word close to such a name is refused,
    and any other word is a topic. A topic with such a name is given with `--topics`.
    """

    option_sections: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Which backup and which state": (
            *("config", "overrides", "root", "pair", "at", "generation", "commit", "checkpoint", "merge"),
            *("until", "until_timestamp", "expect_head"),
        ),
        "What is restored": (
            *("topics", "key", "key_format", "exclude_key", "exclude_keys_file", "excluded", "filter_timestamp"),
            *("latest", "tombstones"),
        ),
        "Where to": (
            *("target_servers", "target_config", "to", "rename", "patterns", "suffix", "replication_factor"),
            *("topic_config", "repartition", "partitions", "append"),
        ),
        "Offsets": ("offsets", "max_fill", "wait_cleaned"),
        "Safety": ("dry_run", "plan", "apply", "yes", "keep_load_config"),
        "Speed, Spark and output": ("rate", "compression", "master", "output_", "wide"),
        "Files of the connector before Tandem": (
            *("layout", "empty_as_null", "instance", "prefer", "leave_out", "index", "leave_map"),
        ),
    }

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer hides click's types
        """Return the parameters; those of a subcommand's call have no topics, which would take all words."""
        params: list[Any] = super().get_params(ctx)
        return [one for one in params if one.name != TOPICS_ARGUMENT] if ctx.meta.get(_HAS_SUBCOMMAND) else params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - likewise
        """Parse the options and the topics, or the options before the name of a subcommand."""
        ctx.meta[_HAS_SUBCOMMAND] = True
        _, words, _ = self.make_parser(ctx).parse_args(args=list(args))
        has_subcommand = bool(words) and words[0] in self.commands
        ctx.meta[_HAS_SUBCOMMAND] = has_subcommand
        if words and not has_subcommand and (near := get_close_matches(words[0], self.commands, 1, _NEAR)):
            other = f"A topic of that name: --topics {words[0]}"
            ctx.fail(f"No such command {words[0]!r}. Did you mean {near[0]!r}? {other}")
        ctx.allow_interspersed_args = not has_subcommand
        left: list[str] = super().parse_args(ctx, args)
        return left
