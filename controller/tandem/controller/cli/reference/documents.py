"""The dataclass that each command prints with `-o json` and `-o yaml`; docs/schemas is generated from them.

Scripts may rely on them. `show` adds `schemaVersion` and `kind`; `backup_avro.json_fields` selects the printed fields.
Within one schemaVersion fields may be added, but never removed or given another meaning. Times are strings in ISO 8601,
UTC, ending in Z.

This module imports the dependencies of all commands; no command imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandem.backup_avro.documents.pause import Pause
from tandem.controller.cli.inspect.records import RecordsDocument
from tandem.controller.cli.inspect.wait import WaitDocument
from tandem.controller.cli.keys.policy import CloudPolicy, S3Policy
from tandem.controller.cli.keys.signing_key import SigningKey
from tandem.controller.cli.maintain.sweep_view import RetentionDocument
from tandem.controller.cli.restore.adopt import RestoreAdopted
from tandem.controller.cli.restore.begun import RestoreAbandoned, Restores
from tandem.controller.cli.restore.drill import DrillDocument
from tandem.controller.cli.restore.export import ExportDocument
from tandem.controller.cli.restore.vanished import VanishedKeysDocument
from tandem.controller.cli.restore.view import RestoreReportDocument
from tandem.controller.cli.run.config import ConfigDocument
from tandem.controller.cli.run.version import VersionDocument
from tandem.controller.coordination.topic_reader import TopicRecordDocument
from tandem.controller.demo.story import DemoDocument
from tandem.controller.history.describe import GenerationDescription, TopicDescription
from tandem.controller.history.handover_progress import Failover
from tandem.controller.history.releasable import ReleaseDocument
from tandem.controller.history.store_history import History, ServedHistory
from tandem.controller.roles.kafka import KafkaPolicy
from tandem.controller.sandbox.sandbox import SandboxStatus
from tandem.controller.status import check
from tandem.controller.status.checkpoint_view import CheckpointDeleted, CheckpointDocument, Checkpoints
from tandem.controller.status.instance_state import InstanceState
from tandem.controller.status.key_use import KeysDocument
from tandem.controller.status.overview import Overview
from tandem.controller.status.pair_list import Pairs
from tandem.spark_jobs.catch_up.job import CatchUpResult
from tandem.spark_jobs.connector import verify_files
from tandem.spark_jobs.erasure.erasure_job import ErasureReport
from tandem.spark_jobs.restore.groups.restore_groups import RestoreGroups, RestoreGroupsRolledBack
from tandem.spark_jobs.restore.prepare.prepare import RestorePlanDocument
from tandem.spark_jobs.rewind.rewind_plan import RewindPlan, RewindReport
from tandem.spark_jobs.verify import verify_plan
from tandem.spark_jobs.verify.compare_keys import CompareResult

#: Command -> (kind, dataclass) of each document; its schema is docs/schemas/<command>.json, spaces as dashes.
DOCUMENTS: Final[Mapping[str, tuple[tuple[str, type], ...]]] = {
    "list": (("Pairs", Pairs),),
    "status": (("Status", Overview),),
    "wait": (("Wait", WaitDocument),),
    "check": (("Check", check.CheckReport),),
    "describe": (("GenerationDescription", GenerationDescription), ("TopicDescription", TopicDescription)),
    "rotate": (("Failover", Failover),),
    "failover": (("Failover", Failover),),
    "reinit": (("Failover", Failover),),
    "pause": (("Pause", Pause),),
    "resume": (("Pause", Pause),),
    "history": (("History", History),),
    "keys": (("Keys", KeysDocument),),
    "coordination tail": (("CoordinationMessage", TopicRecordDocument),),
    "catch-up": (("CatchUp", CatchUpResult),),
    "checkpoint create": (("Checkpoint", CheckpointDocument),),
    "checkpoint list": (("Checkpoints", Checkpoints),),
    "checkpoint show": (("Checkpoint", CheckpointDocument),),
    "checkpoint delete": (("CheckpointDeleted", CheckpointDeleted),),
    "restore": (("Restore", RestorePlanDocument), ("Restore", RestoreReportDocument)),
    "restore groups": (("RestoreGroups", RestoreGroups), ("RestoreGroups", RestoreGroupsRolledBack)),
    "restore list": (("Restores", Restores),),
    "restore abandon": (("RestoreAbandoned", RestoreAbandoned),),
    "restore adopt": (("RestoreAdopted", RestoreAdopted),),
    "restore vanished": (("VanishedKeys", VanishedKeysDocument),),
    "rewind": (("Rewind", RewindPlan), ("Rewind", RewindReport)),
    "records": (("Records", RecordsDocument),),
    "export": (("Export", ExportDocument),),
    "verify": (("Verify", verify_plan.VerifyResult), ("Verify", verify_files.FilesResult), ("Verify", CompareResult)),
    "drill": (("Drill", DrillDocument),),
    "retention": (("Retention", RetentionDocument),),
    "erase": (("Erasure", ErasureReport),),
    "release": (("Release", ReleaseDocument),),
    "policy s3": (("S3Policy", S3Policy),),
    "policy bucket": (("S3Policy", S3Policy),),
    "policy gcs": (("CloudPolicy", CloudPolicy),),
    "policy azure": (("CloudPolicy", CloudPolicy),),
    "policy kafka": (("KafkaPolicy", KafkaPolicy),),
    "signing-key generate": (("SigningKey", SigningKey),),
    "signing-key show": (("SigningKey", SigningKey),),
    "config show": (("Config", ConfigDocument),),
    "sandbox status": (("SandboxStatus", SandboxStatus),),
    "demo": (("Demo", DemoDocument),),
    "version": (("Version", VersionDocument),),
}
"""The documents that each command prints."""

SERVED: Final[Mapping[str, tuple[tuple[str, type], ...]]] = {
    "/status": (("Instance", InstanceState),),
    "/history": (("History", ServedHistory),),
}
"""The documents that an instance serves at each HTTP path."""
