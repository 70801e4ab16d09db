"""`tandem config`: check the configuration, show the effective values, describe the keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from tandem.controller.cli.options.invocation import ConfigOption, SetOption, read
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table

if TYPE_CHECKING:
    from tandem.controller.config import Config

_EXAMPLE = r"""# tandem.yaml: the same file for both instances
pair: orders
topics:
  include: [customers, _schemas]
  patterns: ["orders\\..*"]
kafka:                                  # librdkafka's property names
  bootstrap.servers: broker-1:9093,broker-2:9093
  security.protocol: SASL_SSL
  sasl.mechanism: SCRAM-SHA-512
  sasl.username: tandem
  sasl.password.file: /run/secrets/kafka-password
store:
  root: s3://acme-kafka-backup/prod
  region: eu-central-1
flush:
  interval: 60s                         # the recovery point objective
rotation:
  interval: 7d                          # age of a generation at which the other instance takes its turn
recovery:
  window: 1d                            # any moment of the last day can be restored, also after a turn
"""

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Check and show the configuration.")


@app.command(
    epilog=examples("tandem config validate -c a.yaml", "tandem config validate -c a.yaml --set rotation.interval=14d")
)
def validate(context: typer.Context, config: ConfigOption = None, overrides: SetOption = None) -> None:
    """Check the configuration and report each problem with its place.

    File, environment and overrides together; all problems at once, each with its place and what to do.
    """
    loaded = read(context, config, overrides)
    from tandem.controller.config.loading import open_to_others  # noqa: PLC0415 - `--help` does without
    from tandem.sink.kafka.auth.client_config import for_kafka_python  # noqa: PLC0415 - `--help` does without

    for_kafka_python(loaded.config.kafka.reveal())  # this conversion checks properties that the model does not check
    for warning in (*loaded.config.warnings(), *open_to_others(loaded)):
        output.warn(warning)
    instance = loaded.config.instance
    who = f"instance {instance}" if instance else "no instance (only `tandem run` needs one)"
    output.note(f"ok: pair {loaded.config.pair}, {who}, store {loaded.config.store.root}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDocument:
    """`tandem config show`; keys are those of the file. `origins`: key path -> where its value came from."""

    config: Mapping[str, Any]
    origins: Mapping[str, str]


@app.command(epilog=examples("tandem config show -c a.yaml -o table"))
def show(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    output_: OutputOption = OutputFormat.YAML,
) -> None:
    """Show what takes effect, and where it came from.

    All keys with their defaults; secrets are masked.
    """
    loaded = read(context, config, overrides)
    values = loaded.config.model_dump(mode="json")
    flat = dict(_flat(values, ()))
    origins = {path: loaded.origin(path).place for path in flat}
    rows = [(path, _cell(value), origins[path]) for path, value in flat.items()]
    output.show(
        kind="Config",
        body=ConfigDocument(config=values, origins=origins),
        output=output_,
        tables=[Table(columns=("key", "value", "from"), rows=rows)],
    )
    output.note(_window(loaded.config))


@app.command(epilog=examples("tandem config example > tandem.yaml"))
def example() -> None:
    """Print a configuration file to begin with: change its values, then run `tandem config validate`."""
    sys.stdout.write(_EXAMPLE)


@app.command(epilog=examples("tandem config schema > tandem.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    from tandem.controller.config.reference import schema as describe  # noqa: PLC0415 - pydantic is not needed for --help

    sys.stdout.write(json.dumps(describe(), indent=2) + "\n")


def _window(config: Config) -> str:
    """Say what is promised of the past, and what that costs."""
    from tandem.controller.decision.recovery_window import most_copies  # noqa: PLC0415 - `--help` does without

    window, every = config.recovery.window, config.rotation.interval
    copies = most_copies(window.total_seconds(), every.total_seconds())
    past = f"{output.duration(window)} stay restorable" if window else "a turn ends the past"
    return f"recovery.window: {past}; a turn every {output.duration(every)} stores at most {copies} copies at once"


def _flat(values: Mapping[str, object], above: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*above, key))
        else:
            yield ".".join((*above, key)), value


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or None
    return str(value).lower() if isinstance(value, bool) else value
