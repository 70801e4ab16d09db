"""Object stores behind one protocol, `contract.object_store.ObjectStore`: `file://`, `s3://`, `gs://` and `az://`.

`open_store` opens a store by its URL, `signed_store` signs documents, `encrypted_objects` encrypts data. Of
these modules only `s3.client` imports boto3, and only `cloud_client` makes clients of obstore. `chain` reads and writes
chains and documents in a store.
"""

from tandem.sink.store.contract.object_store import (
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
from tandem.sink.store.contract.store_settings import StoreAccess
from tandem.sink.store.open_store import open_store

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
