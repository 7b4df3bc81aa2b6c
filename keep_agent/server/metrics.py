"""Figures for Prometheus, in a registry of their own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"  # methods and paths that no route has: a label for all of them
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
log = logging.getLogger(__name__)


class Metrics:
    """Requests and what the model did for them. Safe to use from several threads."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        counter = partial(Counter, namespace="keep_agent", registry=self.registry)
        seconds = partial(Histogram, namespace="keep_agent", registry=self.registry, buckets=SECONDS)
        self.requests = counter("requests", "Requests that were answered", labels)
        self.seconds = seconds("request_seconds", "From a request to the end of its answer", ("route",))
        spent = "Of prompts, of these those whose rows were there, and generated ones"
        self.tokens = counter("chat_tokens", spent, ("kind",))
        self.ttft = seconds("chat_ttft_seconds", "From a chat request to its first token, the wait included")
        planned = "Of a plan: parts of the time to the first token, the wait and the choice"
        self.plans = seconds("plan_seconds", planned, ("part",))
        encoded = "Tokens of memory that were encoded: ahead, or while a plan waited for them"
        self.encoded = counter("encoded_tokens", encoded, ("when",))

    def planned(self, trace: Mapping[str, Any]) -> None:
        """A decision was made; of one that was made before there is no trace."""
        if not trace:
            return
        for part, ms in {**trace["timings"], "queued": trace["queued_ms"]}.items():
            self.plans.labels(part).observe(ms / 1e3)
        counts = trace["counts"]
        self.encoded.labels("in_plan").inc(counts.get("encoded_token_layers", 0) / counts["layers"])
        self.encoded.labels("ahead").inc(trace.get("ahead", {}).get("tokens", 0))

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A gauge that is asked for when somebody reads the figures; NaN where asking fails."""

        def reading() -> float:
            try:
                return float(value())
            except Exception:
                log.exception("gauge %s", name)
                return math.nan

        Gauge(f"keep_agent_{name}", about, registry=self.registry).set_function(reading)

    def chatted(self, prompt: int, cached: int, generated: int, ttft: float | None) -> None:
        """A chat request has ended."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("generated", generated)):
            self.tokens.labels(kind).inc(count)
        if ttft is not None:
            self.ttft.observe(ttft)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class MetricsMiddleware:
    """ASGI middleware: counts requests by the template of their route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = "none", time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            method, route = scope["method"], getattr(scope.get("route"), "path", OTHER)
            self._metrics.requests.labels(method if method in METHODS else OTHER, route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)
