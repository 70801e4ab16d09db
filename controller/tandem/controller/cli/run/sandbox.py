"""`tandem sandbox up|down|status`: a broker and an S3 server on this machine, for trying Tandem out."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.options.help_sections import SectionedGroup
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption
from tandem.controller.sandbox.sandbox import Endpoints, Sandbox, SandboxStatus


class _Servers(SectionedGroup):
    """The commands of the sandbox."""

    other_words = MappingProxyType({"start": "up", "stop": "down", "ps": "status"})


app = typer.Typer(
    cls=_Servers,
    name="sandbox",
    help="A broker and an S3 server on this machine, on loopback only, to try things with.",
    no_args_is_help=True,
)

DEFAULT_FOLDER = Path(".sandbox")
FolderOption = Annotated[Path, typer.Option("--dir", help="Folder of the data, the logs and the state.")]


@app.command(epilog=examples('eval "$(tandem sandbox up)"', "tandem sandbox up --dir /tmp/sandbox"))
def up(folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Start both and print how to reach them.

    What runs already is left alone. The servers go on when the command has ended. What is printed can be given to a
    shell: eval "$(tandem sandbox up)". The first time, the broker's jars are fetched: about a minute.

    Ctrl-C ends it with 130: what it has started by then is stopped, what ran before goes on.
    """
    endpoints = Sandbox(folder, say=output.note).up()
    # Not through output.note, which masks secrets: the user asked for the secret of this local server.
    typer.echo(how_to_reach(endpoints))


@app.command(epilog=examples("tandem sandbox down"))
def down(folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Stop both servers. Their data stays; remove the folder to be rid of it."""
    sandbox = Sandbox(folder, say=output.note)
    existed = sandbox.down()
    output.note(f"down; data and logs stay in {sandbox.folder}" if existed else f"no sandbox in {sandbox.folder}")


@app.command(epilog=examples("tandem sandbox status -o json"))
def status(folder: FolderOption = DEFAULT_FOLDER, form: OutputOption = OutputFormat.TABLE) -> None:
    """Ask both servers. Exit code 0 if both answer, 3 if not."""
    found = Sandbox(folder).status()
    output.show(kind="SandboxStatus", body=found, output=form, tables=[_table(found)])
    if not found.running:
        raise typer.Exit(ExitCode.UNHEALTHY)


def how_to_reach(endpoints: Endpoints) -> str:
    """Return lines for a shell and for a configuration file that describe how to reach both servers."""
    return f"""\
# Kafka  {endpoints.bootstrap_servers}
# S3     {endpoints.s3_endpoint_url}, bucket {endpoints.bucket}

# For a shell:
export AWS_ACCESS_KEY_ID={shlex.quote(endpoints.access_key)}
export AWS_SECRET_ACCESS_KEY={shlex.quote(endpoints.secret_key)}
export AWS_DEFAULT_REGION={endpoints.region}
export AWS_ENDPOINT_URL={endpoints.s3_endpoint_url}
export KAFKA_BOOTSTRAP_SERVERS={endpoints.bootstrap_servers}

# For a configuration file; the key comes from the shell above:
# kafka:
#   bootstrap.servers: {endpoints.bootstrap_servers}
# store:
#   root: s3://{endpoints.bucket}/backup
#   endpoint_url: {endpoints.s3_endpoint_url}
#   addressing_style: path
#   region: {endpoints.region}
# coordination:
#   replication_factor: 1"""


def _table(status: SandboxStatus) -> output.Table | str:
    if not status.servers:
        return f"no sandbox in {status.folder}; `tandem sandbox up` makes one"
    return output.Table(
        columns=("server", "state", "address", "pid", "log"),
        rows=[(one.name, one.state.value, one.address, one.pid, one.log) for one in status.servers],
    )
