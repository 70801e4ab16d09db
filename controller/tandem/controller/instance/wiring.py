"""Settings of the pipelines and their worker processes, made from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tandem.backup_avro.chain.entries import Opening
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import store_settings
from tandem.controller.process import memory_allocator
from tandem.sink.kafka.auth.client_config import Value
from tandem.sink.pipeline import PipelinePolicy
from tandem.sink.process import log, safe_text
from tandem.sink.read.scan.worker_processes import WorkerSettings
from tandem.sink.write.merge_plan import MergeRules

_Value = TypeVar("_Value", bound=Value | None)
_SURVEY_S = 10.0


def pipeline_policy_of(config: Config) -> PipelinePolicy:
    """Return the settings by which pipelines read and commit."""
    flush_s = config.flush.interval.total_seconds()
    return PipelinePolicy(
        flush_interval_s=flush_s,
        max_objects=config.commit.max_objects,
        object_size=config.object.target_size,
        block_size=config.object.block_size,
        codec=config.object.codec,
        compression_level=config.object.compression_level,
        memory_budget=config.memory.budget,
        chunk_ceiling_s=config.scan.chunk_duration.total_seconds(),
        scan_rate=config.scan.rate_limit,
        survey_interval_s=min(_SURVEY_S, flush_s),
        groups_interval_s=config.groups.interval.total_seconds() if config.groups.enabled else None,
        offers_patience_s=config.scan.patience.total_seconds() if config.scan.by == "spark" else None,
        merge=MergeRules(
            limit=config.object.target_size // 2, grace_ms=round(config.grace.rewrite.total_seconds() * 1000)
        ),
    )


def workers_of(config: Config, props: Mapping[str, Value]) -> WorkerSettings:
    """Return the settings of worker processes with secrets in plain text: only a pipe of this process carries them."""
    settings = store_settings(config)
    return WorkerSettings(
        props={name: _plain(value) for name, value in props.items()},
        root=config.store.root,
        settings=replace(
            settings,
            access_key_id=_plain(settings.access_key_id),
            secret_access_key=_plain(settings.secret_access_key),
            session_token=_plain(settings.session_token),
            account_key=_plain(settings.account_key),
        ),
        prepare=partial(
            _prepare_worker,
            {"pair": config.pair, "instance": config.require_instance()},
            level=config.log.level,
            fmt=config.log.format,
            secrets=safe_text.registered_secrets(),
        ),
        batch_limit=config.memory.largest_batch,
    )


def _plain(value: _Value) -> _Value | str:
    """Return a secret as a plain `str`, which pickle keeps as it is; other values unchanged."""
    return str(value) if isinstance(value, str) else value


def _prepare_worker(lines: Mapping[str, object], *, level: str, fmt: log.Format, secrets: tuple[str, ...]) -> None:
    memory_allocator.set_up()
    safe_text.register_secrets(secrets)
    log.configure_instance(level=level, fmt=fmt)
    log.bind(**lines)


def opening_of(config: Config, sync: bytes) -> Opening:
    """Return the settings that a new generation fixes for its life."""
    return Opening(isolation_level=config.isolation_level, codec=config.object.codec, sync=sync.hex())
