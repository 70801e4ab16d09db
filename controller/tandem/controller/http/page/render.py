"""Render the page. Text from topics, messages and objects is always escaped, never markup."""

from __future__ import annotations

import base64
import hashlib
import shlex
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape

from tandem.controller.cli.output.output import age, duration, size
from tandem.controller.cli.output.point_lines import POINT_COLUMNS, point_rows
from tandem.controller.http.page.content import Content, heard
from tandem.controller.http.page.problem_list import FEW
from tandem.controller.http.page.topics import TopicPage
from tandem.controller.status.overview import GenerationStatus
from tandem.sink.process import safe_text

_DOES: Final = {
    "Active": "appends every new record",
    "Catch-up": "reads every topic from its start",
    "Passive": "stands by for its turn",
    "Halted": "nothing: another process has its name",
}
_UNKNOWN: Final = "–"  # noqa: RUF001 (an en dash, as tables have it)


def page(shown: Content) -> str:
    """Return the page that an instance serves; it reloads itself."""
    return _draw(shown, script=_script(), policy="")


def topics(shown: TopicPage) -> str:
    """Return the page of topics."""
    return _draw(shown, script=_script(), policy="", template="topics.html")


def report(shown: Content) -> str:
    """Return the page as a file: it has no script and carries its own Content-Security-Policy."""
    return _draw(shown, script="", policy=f"default-src 'none'; style-src {_hash(_style())}; img-src data:")


@cache
def policy() -> str:
    """Return the Content-Security-Policy of `page`: its own styles and script, and no other source."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(_style())}",
            f"script-src {_hash(_script())}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def _draw(shown: Content | TopicPage, *, script: str, policy: str, template: str = "page.html") -> str:
    text = (
        _templates()
        .get_template(template)
        .render(
            page=shown,
            does=_DOES,
            few=FEW,
            point_columns=POINT_COLUMNS,
            style=Markup(_style()),  # noqa: S704 (a file of this package)
            script=Markup(script),  # noqa: S704 (likewise)
            policy=policy,
        )
    )
    return text.lstrip() + "\n"


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tandem.controller.http.page", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age,
        "count": lambda number: _UNKNOWN if number is None else f"{number:,}",
        "duration": duration,
        "growth": _growth,
        "heard": heard,
        "margin": _margin,
        "marked": _marked,
        "points": point_rows,
        "quoted": shlex.quote,
        "size": size,
        "stamp": _stamp,
    }
    return environment


def _plain(value: Any) -> Any:  # noqa: ANN401 (whatever the template prints)
    """Return a value with control characters, which could reorder or hide text, escaped, and with secrets masked."""
    return safe_text.printable(safe_text.redact(value)) if type(value) is str else value


def _marked(text: str) -> Markup:
    """Return markup with the text between backticks as code."""
    parts = [escape(_plain(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def _stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _margin(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    return duration(seconds) if seconds > 0 else f"over since {duration(-seconds)}"


def _growth(one: GenerationStatus) -> str:
    return f"{one.records / one.base_records:.1f}" if one.base_records else _UNKNOWN


@cache
def _style() -> str:
    return _file("page.css")


@cache
def _script() -> str:
    return _file("page.js")


def _file(name: str) -> str:
    return resources.files("tandem.controller.http.page").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
