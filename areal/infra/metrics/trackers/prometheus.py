"""Prometheus: an HTTP endpoint with the newest value of every metric.

    areal_reward_mean{experiment="gsm8k",trial="default"} 0.53
    areal_step{experiment="gsm8k",trial="default"} 120.0

The endpoint ends with the process: Prometheus keeps what it has read, and sees by its absence that the run is over.
"""

from __future__ import annotations

import importlib
import re
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from areal.infra.metrics.trackers.config import PrometheusConfig
    from areal.infra.metrics.trackers.tracking import Ending, TrackedRun

logger = getLogger(__name__)

_LABELS: Final = ("experiment", "trial")
_UNUSABLE: Final = re.compile(r"[^a-zA-Z0-9_]")


class PrometheusTracker:
    """The endpoint; `collect` is what the client's registry asks."""

    package: ClassVar[str] = "prometheus_client"
    replaces: ClassVar[bool] = True

    def __init__(self, run: TrackedRun, settings: PrometheusConfig) -> None:
        client: Any = importlib.import_module("prometheus_client")
        self._family = importlib.import_module("prometheus_client.core").GaugeMetricFamily
        self._labels = (run.experiment, run.trial)
        self._values: dict[str, tuple[str, float]] = {}
        # Of our own: the client's default registry belongs to the process.
        registry = client.CollectorRegistry()
        registry.register(self)
        self._server, self._thread = client.start_http_server(settings.port, addr=settings.host, registry=registry)
        self.url = f"http://{settings.host}:{self._server.server_port}/metrics"
        """Where the values are."""
        logger.info("Prometheus reads %s", self.url)

    @staticmethod
    def problem(settings: PrometheusConfig) -> str:
        """Try the address."""
        try:
            family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            return f"cannot listen on {settings.host}:{settings.port} ({error}); choose another port, or 0"
        return ""

    def collect(self) -> Iterator[Any]:
        """Yield one gauge per metric; called by the server's threads."""
        for name, (original, value) in sorted(dict(self._values).items()):
            family = self._family(name, f"areal metric {original}", labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family

    def known(self) -> None:
        """Return None: it has the newest values alone."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Replace the values that are shown."""
        found = {f"areal_{_UNUSABLE.sub('_', name)}": (name, float(value)) for name, value in metrics.items()}
        # One assignment: a reader sees the values of one step or those of the next.
        newest = {"areal_step": ("step", float(step)), "areal_last_update_seconds": ("time", time.time())}
        self._values = {**self._values, **found, **newest}

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Do nothing: Prometheus holds numbers only."""

    def finish(self, ending: Ending) -> None:
        """Close the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
