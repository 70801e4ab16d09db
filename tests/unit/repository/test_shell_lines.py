"""Each shell line of README, docs and the chart's page is run by a test, or has a reason why not.

Those that begin with `tandem` are held by `test_cli_lines.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple

from chart import walk
from kube.guide import guide
from support.pages import command_story, documented, shell_lines


def run_whole() -> set[str]:
    """The blocks that are run whole: by a test, or by what walks the page."""
    by_tools = {one.line for one in command_story.TOOLS if "\n" in one.line}
    return {
        shell_lines.quickstart(),
        guide().secrets,
        guide().upgrade,
        *(f"{step.command}\n" for step in walk.STEPS),
        *by_tools,
    }


def shown() -> Iterator[str]:
    """The blocks that are run whole, and each line of the others."""
    whole = run_whole()
    for page in shell_lines.pages():
        for block in shell_lines.blocks(page):
            yield from [block] if block in whole else shell_lines.lines(block)


def test_every_shell_line_is_run_or_excused() -> None:
    """And nothing is left of lines that went."""
    installed = {line for block in shell_lines.installations() for line in shell_lines.lines(block)}
    run = {*run_whole(), *(one.line for one in command_story.TOOLS), *installed}
    assert run <= {*shown()}
    typed = {command for command in astuple(guide()) if isinstance(command, str)}  # on Kubernetes
    assert {*shown()} - run - typed == {*shell_lines.NOT_RUN}
    assert all(len(reason) > 20 for reason in shell_lines.NOT_RUN.values())


def test_arguments_of_the_image_are_those_that_it_takes() -> None:
    """No engine is here that would say so."""
    named = {name for line in shell_lines.NOT_RUN for name in re.findall(r"--build-arg (\w+)=", line)}
    assert {"PYTHON_IMAGE", "VERSION"} <= named
    dockerfile = (documented.ROOT / "Dockerfile").read_text("utf-8")
    # SOURCE_DATE_EPOCH is BuildKit's own.
    assert named - {"SOURCE_DATE_EPOCH"} <= {*re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE)}
