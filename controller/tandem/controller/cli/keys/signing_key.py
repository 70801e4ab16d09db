"""`tandem signing-key`: create private keys that sign chains, claims and requests, and show their public keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.backup_place import of_store
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption
from tandem.controller.process.whole_file import write_whole

if TYPE_CHECKING:
    from tandem.backup_avro.chain.signatures import Signer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Keys that sign a backup.")

_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """`tandem signing-key generate` and `show`. `public` goes into signing.trusted; `id` is its short name."""

    id: str
    public: str


@app.command(
    epilog="\b\nExamples:\n  tandem signing-key generate /etc/tandem/signing.pem\n"
    "  tandem signing-key generate b.pem -o json"
)
def generate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the private key.")],
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a private key, and print the public one for signing.trusted.

    The file is readable by its owner alone, has no passphrase, and must not exist yet. Keep a copy where the bucket's
    administrators can't reach: whoever has it can sign, and without it an instance can't go on signing.
    """
    from tandem.backup_avro.chain.signatures import Signer  # noqa: PLC0415 - loaded when the command runs, not for --help

    signer = Signer.generate()
    try:
        write_whole(file, signer.pem(), place=str(file), mode=_OWNER_ONLY)
    except FileExistsError:
        raise ConfigError(
            f"{file} exists", code="TDM-N024", remedy="name a new file: a key that is in use must not get lost"
        ) from None
    _show(signer, output_)


@app.command(epilog="\b\nExamples:\n  tandem signing-key show b.pem\n  tandem signing-key show -c a.yaml -o json")
def show(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Private key; left out: that of the configuration.")
    ] = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the public key that belongs to a private one, and its short name, as errors have it."""
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store import StoreAccess  # noqa: PLC0415 - likewise
    from tandem.sink.store.signed_store import load_signer  # noqa: PLC0415 - likewise

    if file is None:
        signer = load_signer(store_settings(of_store(context, config, overrides)))
    else:
        signer = load_signer(StoreAccess(signing_key_file=str(file)))
    if signer is None:
        raise ConfigError(
            "the configuration has no signing key", code="TDM-N020", remedy="set signing.key_file, or name a FILE"
        )
    _show(signer, output_)


def _show(signer: Signer, form: OutputFormat) -> None:
    output.show(
        kind="SigningKey",
        body=SigningKey(id=signer.id, public=signer.public),
        output=form,
        tables=[f"{signer.public} # {signer.id}"],
    )
