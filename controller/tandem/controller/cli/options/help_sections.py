"""Help of commands in sections: related options, and related commands, stand together under a title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import typer.core

OTHER: Final = "Other options"
"""Title of the last section, with the options that no other section names."""


class SectionedGroup(typer.core.TyperGroup):
    """A group whose `--help` shows options and commands in sections.

    `option_sections` is title -> names of parameters (Python's), `command_sections` title -> names of commands; both
    in the order of the help. Options that no section names come last; commands that no section names come under
    "Commands".
    """

    option_sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    command_sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    other_words: ClassVar[Mapping[str, str]] = {}
    """What other tools call a command -> its name here, which is offered; typer offers what is written alike."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer hides click's types
        """Return the command that the first word calls; a usage error says which one may be meant."""
        meant = self.other_words.get(args[0])
        if meant is not None and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer hides click's types
        """Write the arguments, the options and the commands, each under the title of its section."""
        records = {one.name: (one, one.get_help_record(ctx)) for one in self.get_params(ctx)}
        shown = {name: record for name, (_, record) in records.items() if record is not None}
        arguments = [name for name in shown if records[name][0].param_type_name == "argument"]
        named = {name for names in self.option_sections.values() for name in names}
        others = [name for name in shown if name not in named and name not in arguments]
        last = OTHER if self.option_sections else "Options"
        for title, names in {"Arguments": arguments, **self.option_sections, last: others}.items():
            _write(formatter, title, [shown[name] for name in names if name in shown])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - likewise
        """Write the commands, each under the title of its section."""
        left = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        width = max(map(len, left), default=0)
        for title, names in {**self.command_sections, "Commands": tuple(left)}.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(formatter.width - 6 - width))
                for name in names
                if name in left
            ]
            left = [name for name in left if name not in names]
            _write(formatter, title, rows)


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:  # noqa: ANN401 - likewise
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
