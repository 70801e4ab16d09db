"""`tandem demo`: backup, handover and restore with a real broker and S3 server, step by step with explanations."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table
from tandem.controller.sandbox.sandbox import Sandbox

app = typer.Typer()


@app.command(epilog=examples("tandem demo", "tandem demo --dir /tmp/demo --keep"))
def demo(
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the demo; its content is replaced.")] = Path(
        ".sandbox/demo"
    ),
    keep: Annotated[bool, typer.Option("--keep", help="Leave broker and S3 running afterwards.")] = False,
    form: OutputOption = OutputFormat.TABLE,
) -> int:
    """Back up a compacted topic, hand over, compact, restore with Spark, compare every field.

    Starts a broker and an S3 server of its own on loopback, two instances and Spark, and stops them at the end. Exit
    code 3 if the restored topic differs from the source.
    """
    from tandem.controller.demo.story import DemoServers, telling  # noqa: PLC0415 (Kafka and S3 are slow to import)
    from tandem.sink.store import StoreAccess, open_store  # noqa: PLC0415

    began = time.monotonic()
    _clean(folder)
    output.note("Tandem demo: a compacted topic, two instances that take turns, and a restore that is checked")
    sandbox = Sandbox(folder, attached=not keep, say=lambda text: output.note(f"   {text}"))
    try:
        endpoints = sandbox.up()
        root = f"s3://{endpoints.bucket}/demo"
        access: dict[str, Any] = {
            "endpoint_url": endpoints.s3_endpoint_url,
            "region": endpoints.region,
            "addressing_style": "path",
        }
        secrets: dict[str, Any] = {"access_key_id": endpoints.access_key, "secret_access_key": endpoints.secret_key}
        servers = DemoServers(
            bootstrap_servers=endpoints.bootstrap_servers,
            store=open_store(root, StoreAccess(**access, **secrets)),
            section={"root": root, **access},
            variables={f"TANDEM_STORE__{key.upper()}": secret for key, secret in secrets.items()},
        )
        with telling(folder.resolve(), servers, output.note) as story:
            figures = story.run()
    finally:
        if keep:
            output.note(f"the servers go on: `tandem sandbox down --dir {shlex.quote(str(folder))}` stops them")
        else:
            sandbox.down()
    figures.seconds = round(time.monotonic() - began, 1)
    output.note("")
    table = Table(
        columns=("FIGURE", "VALUE"),
        rows=list(output.plain(figures).items()),
        right=frozenset({"VALUE"}),
    )
    output.show(kind="Demo", body=figures, output=form, tables=[table])
    return int(ExitCode.OK if figures.exact else ExitCode.UNHEALTHY)


def _clean(folder: Path) -> None:
    """Stop and remove an earlier demo. Raises BadParameter unless the folder is a demo's or empty."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "sandbox.json").exists():
        raise typer.BadParameter(f"{folder} holds something else than a demo; choose another folder with --dir")
    Sandbox(folder).down()
    shutil.rmtree(folder)
