"""Prometheus metrics of one server, in a registry of their own."""

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
NO_ROUTE = "other"  # label of methods and paths without a route
TIME_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
log = logging.getLogger(__name__)


class Metrics:
    """Counts and times of requests, plans and conversations. Safe to use from several threads."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="keep_agent", registry=self.registry)
        seconds = partial(Histogram, namespace="keep_agent", registry=self.registry, buckets=TIME_BUCKETS)
        self.requests = counter("requests", "Answered requests", ("method", "route", "status"))
        self.seconds = seconds("request_seconds", "Time from a request to the end of its answer", ("route",))
        self.tokens = counter("chat_tokens", "Prompt tokens, cached prompt tokens, and generated tokens", ("kind",))
        self.ttft = seconds("chat_ttft_seconds", "Time from a chat request to its first token, queueing included")
        parts = "Parts of a plan's time: those of the time to the first token, the queue and the choice"
        self.plans = seconds("plan_seconds", parts, ("part",))
        self.encoded = counter("encoded_tokens", "Memory tokens encoded before a plan, or during it", ("when",))

    def record_plan(self, trace: Mapping[str, Any]) -> None:
        """Record the times and the encoded tokens of a new decision."""
        for part, ms in {**trace["timings"], "queued": trace["queued_ms"]}.items():
            self.plans.labels(part).observe(ms / 1e3)
        counts = trace["counts"]
        self.encoded.labels("in_plan").inc(counts.get("encoded_token_layers", 0) / counts["layers"])
        self.encoded.labels("ahead").inc(trace.get("ahead", {}).get("tokens", 0))

    def add_gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a gauge that calls ``value`` at every scrape, and is NaN if the call fails."""

        def reading() -> float:
            try:
                return float(value())
            except Exception:
                log.exception("gauge %s", name)
                return math.nan

        Gauge(f"keep_agent_{name}", about, registry=self.registry).set_function(reading)

    def record_chat(self, prompt: int, cached: int, generated: int, ttft: float | None) -> None:
        """Record the end of a chat request: numbers of tokens, and ``ttft`` in seconds (None: no token)."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("generated", generated)):
            self.tokens.labels(kind).inc(count)
        if ttft is not None:
            self.ttft.observe(ttft)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class MetricsMiddleware:
    """ASGI middleware: counts and times HTTP requests by route template, such as ``/v1/agents/{agent}``."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = "none", time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            method, route = scope["method"], getattr(scope.get("route"), "path", NO_ROUTE)
            self._metrics.requests.labels(method if method in METHODS else NO_ROUTE, route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)
