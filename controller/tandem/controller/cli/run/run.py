"""`tandem run`: one instance, until SIGTERM or SIGINT."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load, log_format, named
from tandem.controller.cli.output.examples import examples
from tandem.sink.process import log

if TYPE_CHECKING:
    from tandem.controller.config import Config

app = typer.Typer()


@app.command(
    epilog=examples("TANDEM_INSTANCE=a tandem run -c tandem.yaml", "tandem run -c tandem.yaml --set instance=b")
)
def run(context: typer.Context, config: ConfigOption = None, overrides: SetOption = None) -> int:
    """Run one instance of the pair until SIGTERM. Logs go to stderr.

    It waits for brokers and store that do not answer, and ends with an error for a problem that waiting does not solve.
    """
    from tandem.controller.config.derived_settings import store_of  # noqa: PLC0415
    from tandem.controller.http.health import HealthSource, health_of, serve, starting  # noqa: PLC0415
    from tandem.controller.http.page.page_source import PageSource  # noqa: PLC0415
    from tandem.controller.instance.loop import Instance, new_incarnation  # noqa: PLC0415 (Kafka and S3 are slow to import)
    from tandem.controller.instance.start import StoppedEarlyError, set_up  # noqa: PLC0415
    from tandem.controller.metrics.instance_metrics import BackupMetricsCache, collect_instance_metrics  # noqa: PLC0415
    from tandem.controller.metrics.job_results import ResultsWatch  # noqa: PLC0415
    from tandem.controller.metrics.wiring import page_of  # noqa: PLC0415
    from tandem.controller.process import file_descriptors, memory_allocator  # noqa: PLC0415

    memory_allocator.set_up()
    settings = _load_settings(context, config, overrides)
    incarnation = new_incarnation()
    log.configure_instance(level=settings.log.level, fmt=settings.log.format)
    log.bind(pair=settings.pair, instance=settings.require_instance(), incarnation=incarnation)
    file_descriptors.raise_limit()
    stop, wake = threading.Event(), threading.Event()

    def on_signal(_: int, __: object) -> None:
        if not stop.is_set():
            # A store or broker that hangs would keep the process alive beyond shutdown.grace. The next incarnation
            # reads uncommitted records again.
            last = threading.Timer(settings.shutdown.grace.total_seconds(), os._exit, [int(ExitCode.OK)])
            last.daemon = True
            last.start()
        stop.set()
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    # The server answers probes from the start: Kubernetes must not restart an instance that waits for store or broker.
    health = HealthSource(partial(starting, settings.pair, settings.require_instance(), incarnation))
    site = PageSource(settings, config_file=named(context, config))
    metrics = page_of(settings)
    log.count_retries(lambda: metrics.tally.retried("store"))
    address = settings.http.address
    server = None if address is None else serve(address, health, site.pages, metrics.render, settings.http.hosts)
    try:
        with ExitStack() as ending:
            if server is not None:
                ending.callback(site.close)
                ending.callback(server.shutdown)
            parts = set_up(settings, partial(store_of, settings), incarnation=incarnation, stop=stop, wake=wake)
            ending.callback(parts.store.close)
            instance = Instance(
                settings,
                parts,
                stop=stop,
                wake=wake,
                meters=metrics.tally.meters,
                give_back=memory_allocator.return_free_memory,
            )
            backups = BackupMetricsCache(settings.require_instance())
            health.look = lambda: health_of(instance.view())
            metrics.look = lambda: collect_instance_metrics(instance.view(), backups, instance.readings())
            if server is not None:
                site.show(instance.view)
                results = ResultsWatch(parts.store, settings.pair)
                metrics.results = results.results
                results.start()
                ending.callback(results.stop)
            return int(instance.run())
    except StoppedEarlyError:
        return int(ExitCode.OK)


def _load_settings(context: typer.Context, config: Path | None, overrides: list[str] | None) -> Config:
    """Return the configuration. Before an error in it is reported, the log gets its form, as far as that is known.

    What collects the logs of pods expects one form of line, also from a pod that never started.
    """
    try:
        return load(context, config, overrides)
    except ConfigError:
        log.configure_instance(level="info", fmt=log_format(context, config, overrides))
        raise
