"""Object stores behind one protocol, `object_store.ObjectStore`: `file://`, `s3://`, `gs://` and `az://`.

`open_store` opens a store by its URL, `probe` refuses a store that ignores put-if-absent, `signed_store` signs
documents. Only the modules of `s3` import boto3, and only
`cloud_client` makes clients of obstore. `chain` reads and writes chains and documents in a store.
"""

from tandem.sink.store.object_store import (
    BadKeyError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    OutsizedObjectError,
    PutResult,
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
    UploadInfo,
)
from tandem.sink.store.open_store import open_store
from tandem.sink.store.store_settings import StoreAccess

__all__ = [
    "BadKeyError",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectStore",
    "OutsizedObjectError",
    "PutResult",
    "StoreAccess",
    "StoreDeniedError",
    "StoreMissingError",
    "StoreRejectedError",
    "StoreTransientError",
    "StoreUnfitError",
    "UploadInfo",
    "open_store",
]
