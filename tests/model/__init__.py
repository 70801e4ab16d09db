"""Exhaustive model checks of the handover and of the order of a scan: `python -m tests.model`.

The page docs/quality/model-check.md explains them.

The models hold no rule of their own about what may be written, completed, sealed, cleared or restored: they call the
production functions (`backup_avro.chain.generation`, `backup_avro.selection`, `controller.decision.decide`,
`spark_jobs.retention.retention_plan`, `sink.read.progress.next_scan_range`) on small states.
What they do model is the world around those: two instances, processes that stop at any
step and go on at any later one, logs, a store, and people.
"""
