"""Whatever a file, a variable or a flag holds: a configuration or a ConfigError, never another exception."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.backup_avro.errors import ConfigError
from tandem.controller.config import Config, load
from tandem.controller.config.sources import OTHER_VARIABLES, keys, sections, variable

KEYS = sorted(
    {part for key in (*keys(), *sections()) for part in key} | {"bootstrap.servers", "sasl.password.file", "<<", ""}
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(["7d", "64MiB", "s3://bucket", "file:///x", "a", "from-hostname", "[a", "h:1", "\0", "9" * 5000]),
)
TREES = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)),
        max_leaves=6,
    ),
    max_size=8,
)
VARIABLES = st.sampled_from(
    sorted(
        {variable(key) for key in (*keys(), *sections())} | {*OTHER_VARIABLES, "TANDEM_", "TANDEM_KAFKA__", "TANDEM_X"}
    )
)
FLAGS = st.builds(
    "{}={}".format, st.sampled_from(sorted(".".join(key) for key in (*keys(), *sections()))), st.text(max_size=8)
)


def attempt(text: str, environ: dict[str, str], overrides: list[str]) -> None:
    """Load; a refusal must have lines and no cause that could carry a value."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_text(text)
        outcome: Config | ConfigError
        try:
            outcome = load(path, environ, overrides, hostname=lambda: "x-0")
        except ConfigError as error:
            outcome = error
    if isinstance(outcome, ConfigError):
        assert str(outcome.args[0]).strip()
        assert outcome.__cause__ is None


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@example("a: &a [*a]")
@example("? {a: b}\n: c")
@example("pair: !!python/object:os.system x")
@example("%YAML 9.9\n---\npair: x")
@example("pair: \x00")
def test_any_text_is_a_configuration_or_a_clear_refusal(text: str) -> None:
    """Not even YAML."""
    attempt(text, {}, [])


@given(
    TREES,
    st.dictionaries(VARIABLES, st.text(max_size=8), max_size=3),
    st.lists(st.one_of(FLAGS, st.text(max_size=8)), max_size=3),
)
def test_any_tree_is_a_configuration_or_a_clear_refusal(
    tree: dict[str, object], environ: dict[str, str], flags: list[str]
) -> None:
    """Right keys with wrong values of all kinds, in all sources at once."""
    attempt(yaml.safe_dump(tree), environ, flags)
