"""`tandem sandbox up|down|status`: a broker and an S3 server on this machine, to try things with."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from backup_avro.errors import ExitCode
from controller.sandbox.sandbox import Endpoints, Sandbox, SandboxStatus

app = typer.Typer(
    name="sandbox",
    help="A broker and an S3 server on this machine, on loopback only, to try things with.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path,
    typer.Option("--dir", help="Where data, logs and state are kept.", file_okay=False, envvar="TANDEM_SANDBOX_DIR"),
]
DEFAULT_FOLDER = Path(".sandbox")


class Output(StrEnum):
    """How a command prints its answer."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@app.command()
def up(folder: Folder = DEFAULT_FOLDER) -> None:
    """Start both servers, or what of them does not run, and print how to reach them.

    The servers go on when the command has ended. The first time it fetches the broker's jars, which takes a minute.
    """
    endpoints = Sandbox(folder, say=_say).up()
    typer.echo(how_to_reach(endpoints))


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop both servers. Their data stays; remove the folder to be rid of it."""
    Sandbox(folder, say=_say).down()
    _say(f"down; data and logs are in {folder}")


@app.command()
def status(
    folder: Folder = DEFAULT_FOLDER,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
) -> None:
    """Ask both servers. Exit code 0 if both answer, 3 if not."""
    found = Sandbox(folder).status()
    if output is Output.TABLE:
        _print_table(found)
    elif output is Output.JSON:
        typer.echo(json.dumps(as_data(found), indent=2))
    else:
        typer.echo(yaml.safe_dump(as_data(found), sort_keys=False).rstrip())
    if not found.running:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def how_to_reach(endpoints: Endpoints) -> str:
    """Return what a person pastes into a shell and into a configuration file."""
    return f"""\
Kafka   {endpoints.bootstrap_servers}
S3      {endpoints.s3_endpoint_url}  bucket {endpoints.bucket}

# for a shell
export AWS_ACCESS_KEY_ID={endpoints.access_key}
export AWS_SECRET_ACCESS_KEY={endpoints.secret_key}
export AWS_DEFAULT_REGION={endpoints.region}
export AWS_ENDPOINT_URL={endpoints.s3_endpoint_url}

# for a configuration file; the key comes from the shell above
kafka:
  bootstrap.servers: {endpoints.bootstrap_servers}
store:
  url: s3://{endpoints.bucket}/backup
  endpoint_url: {endpoints.s3_endpoint_url}
  region: {endpoints.region}"""


def as_data(status: SandboxStatus) -> dict[str, Any]:
    """Return the status for machines, without the secret."""
    endpoints = status.endpoints
    return {
        "folder": str(status.folder),
        "running": status.running,
        "servers": [
            {
                "name": server.name,
                "state": server.state.value,
                "address": server.address,
                "pid": server.pid,
                "log": str(server.log),
            }
            for server in status.servers
        ],
        "bucket": endpoints.bucket if endpoints else None,
        "access_key": endpoints.access_key if endpoints else None,
    }


def _print_table(status: SandboxStatus) -> None:
    if not status.servers:
        typer.echo(f"no sandbox in {status.folder}; `tandem sandbox up` makes one")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("server", "state", "address", "pid", "log"):
        table.add_column(heading, no_wrap=True)
    for server in status.servers:
        table.add_row(server.name, server.state.value, server.address or "-", str(server.pid or "-"), str(server.log))
    Console(width=None if Console().is_terminal else 250).print(table)
