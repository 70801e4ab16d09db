"""How chain-signed/ was written: `python tests/golden/capture_signed.py`. Never run again over what is there."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.backups.build_backup import Backup, TopicSpec, records

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.signatures import Signer
from tandem.sink.store import StoreAccess, open_store

FOLDER = Path(__file__).parent / "chain-signed"


def main() -> None:
    """Write a chain of six entries: a large one and a SNAPSHOT among them."""
    signer = Signer.generate()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "key.pem").write_bytes(signer.pem())
        (folder / "store").mkdir()
        store = open_store((folder / "store").as_uri(), StoreAccess(signing_key_file=str(folder / "key.pem")))
        backup = Backup.claim(store, topics=[TopicSpec("orders")], number=7, pair="airports", incarnation="a-1")
        backup.commit(records("orders", 0, range(8)))
        backup.commit(records("orders", 0, range(8, 12)), config={"orders": {"x": "y" * 10_000}})
        backup.complete()
        backup.append(EntryKind.SNAPSHOT)
        FOLDER.mkdir()
        (FOLDER / "claim.json").write_bytes((folder / "store" / layout.claim_key("airports", 7)).read_bytes())
        for path in (folder / "store" / layout.chain_prefix("airports", 7)).iterdir():
            (FOLDER / path.name).write_bytes(path.read_bytes())
    (FOLDER / "public.txt").write_text(f"{signer.public}\n")


if __name__ == "__main__":
    main()
