"""Build the metrics page of a process from the configuration."""

from __future__ import annotations

import time

from tandem.controller.config import Config
from tandem.controller.metrics.page import MetricDetail, MetricsPage
from tandem.sink.transcode.implementation_choice import best_transcoder


def page_of(config: Config) -> MetricsPage:
    """Return the metrics page of the configured instance, which shows no instance state yet."""
    return MetricsPage(
        pair=config.pair,
        instance=config.require_instance(),
        transcoder=lambda: best_transcoder(batch_limit=config.memory.largest_batch).name,
        detail=MetricDetail(max_topics=config.metrics.max_topics, partitions=config.metrics.partitions),
        now=time.time,
    )
