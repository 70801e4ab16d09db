"""Releases in the store: numbered and put if absent like claims, so they are read without listing and never change."""

from __future__ import annotations

from dataclasses import replace

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.signatures import SignatureError
from tandem.backup_avro.documents.release import Release, decode_release, encode_release
from tandem.backup_avro.errors import DamagedError
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore, PutResult

_RATED = RatedLog(structlog.get_logger())


class ReleaseReader:
    """Reads the releases of one pair. Each refresh continues after the last number; one thread at a time."""

    def __init__(self, store: ObjectStore, pair: str) -> None:
        self._store = store
        self._pair = layout.check_name(pair, "pair")
        self._found: list[Release] = []
        self._number = 0
        self._told = False

    def refresh(self, *, tolerant: bool = False) -> tuple[Release, ...]:
        """Read on; return all releases, ascending. Raises errors of the store, DamagedError.

        If `tolerant`, a release that can't be read is logged once and ends the reading: no data is deleted because of
        it, nor because of later releases. A forged release is logged and ignored, in either case.
        """
        while True:
            key = layout.release_key(self._pair, self._number + 1)
            try:
                self._found.append(self._parse(self._store.get(key), key))
            except ObjectMissingError:
                return tuple(self._found)
            except SignatureError as error:
                _RATED.error("a release is forged and counts for nothing", error=error)
            except DamagedError as error:
                if not tolerant:
                    raise
                if not self._told:
                    _RATED.error("a release can't be read; nothing goes because of it", error=error)
                self._told = True
                return tuple(self._found)
            self._number += 1

    def _parse(self, data: bytes, key: str) -> Release:
        release = decode_release(data, key)
        if (release.number, release.pair) != (self._number + 1, self._pair):
            raise DamagedError(f"{key} is release {release.number} of pair {release.pair}", code="TDM-S023")
        return release

    def append(self, draft: Release) -> Release:
        """Put `draft` under the next free number, which is filled in, and return it as it was written.

        Raises errors of the store: it is then unknown whether the release is there; a second one does no harm.
        """
        while True:
            self.refresh()
            release = replace(draft, number=self._number + 1, pair=self._pair)
            data, key = encode_release(release), layout.release_key(self._pair, release.number)
            if self._store.put_if_absent(key, data) is PutResult.CREATED or self._store.get(key) == data:
                self.refresh()
                return release
