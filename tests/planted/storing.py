"""Mistakes in the stores that are reached by obstore."""

from __future__ import annotations

from planted.mistakes import Mistake

_STORE = "sink/tandem/sink/store/cloud_store.py"
_ANSWERS = "sink/tandem/sink/store/cloud_answers.py"

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="cloud stores: a put overwrites",
        file=_STORE,
        old='view, mode="create", use_multipart=False',
        new='view, mode="overwrite", use_multipart=False',
    ),
    Mistake(
        name="cloud stores: any conflict means that the object exists",
        file=_STORE,
        old='{412: exists, "BlobAlreadyExists": exists}',
        new="{412: exists, 409: exists}",
    ),
    Mistake(
        name="cloud stores: a listing that broke off looks complete",
        file=_STORE,
        old="partial(next, stream, None), once=True)",
        new="partial(next, stream, None))",
    ),
    Mistake(
        name="cloud stores: the 404 of a gateway is a missing object",
        file=_ANSWERS,
        old="    if failed.code in _MISSING_OBJECT:\n",
        new="    if failed.code in _MISSING_OBJECT or (failed.status == 404 and not failed.code):\n",
    ),
    Mistake(
        name="cloud stores: former versions are told to be none",
        file=_STORE,
        old='        """Raise StoreUnfitError."""\n',
        new='        """Raise StoreUnfitError."""\n        if prefix:\n            return iter(())\n',
    ),
    Mistake(
        name="typed entries: a count may be negative",
        file="avro/tandem/backup_avro/chain/typed_json.py",
        old="_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]\n",
        new="_Count = _Int\n",
    ),
    Mistake(
        name="typed entries: an unknown field of a part is left out",
        file="avro/tandem/backup_avro/chain/typed_json.py",
        old="class _PartForm(Struct, frozen=True, gc=False, forbid_unknown_fields=True):\n",
        new="class _PartForm(Struct, frozen=True, gc=False):\n",
    ),
    Mistake(
        name="typed entries: the usual form is not recognized",
        file="avro/tandem/backup_avro/chain/typed_json.py",
        old='_OTHERS: Final = ("v", "enc", *(',
        new='_OTHERS: Final = ("v", *(',
    ),
    Mistake(
        name="the hash of a plan is of other bytes than before",
        file="spark_jobs/tandem/spark_jobs/restore/plan/plan.py",
        old='            yield ("," if place else "") + _json(partition)\n',
        new='            yield ("," if place > 1 else "") + _json(partition)\n',
    ),
)
