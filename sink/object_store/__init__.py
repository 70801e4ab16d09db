"""Object stores: `file://` and `s3://` behind one protocol, `base.ObjectStore`. Only the S3 adapter imports boto3."""

from sink.object_store.base import (
    BadKeyError,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    OutsizedObjectError,
    Put,
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
    UploadInfo,
)
from sink.object_store.open import open_store
from sink.object_store.settings import StoreSettings

__all__ = [
    "BadKeyError",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectStore",
    "OutsizedObjectError",
    "Put",
    "StoreDeniedError",
    "StoreMissingError",
    "StoreRejectedError",
    "StoreSettings",
    "StoreTransientError",
    "StoreUnfitError",
    "UploadInfo",
    "open_store",
]
