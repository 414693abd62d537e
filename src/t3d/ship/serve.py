"""Serves a policy over HTTP and WebSocket: who may ask, limits, and what is answered."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from t3d.events import finite
from t3d.policy.acting import Controller, LoadedPolicy
from t3d.ship.serve_messages import Messages, actions_of
from t3d.version import __version__
from t3d.web import FAILED, Access, RequestRefused, error_handlers, json_answer, read_body, refuse
from t3d.web_server import Connections, Server

JSON, BINARY = "application/json", "application/octet-stream"
PATHS = ("/act", "/info", "/health", "/metrics", "/ws")
AVAILABLE = "POST /act, GET /info, /health and /metrics, and the WebSocket /ws"
# Smaller messages are answered on the spot, in less time than it takes to hand them to a thread and back; larger ones
# must not hold up the others. Chosen: 60 observations of HalfCheetah as bytes, which take 0.2 ms.
SMALL = 2**12
IDLE_SECONDS = 60.0  # after which an idle connection is closed; chosen
TRY_AGAIN_LATER = 1013  # of the codes with which a WebSocket is closed
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)  # bounds of the histograms
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TRAINING = ("kind", "seed", "step", "updates", "mean_return", "std_return", "episodes", "values", "t3d")
ENVIRONMENT = ("pixels", "camera", "action_repeat")


class Limits(NamedTuple):
    """What a client may ask for; whatever is beyond is refused in a sentence."""

    batch: int = 256  # observations of a request
    bytes: int | None = None  # of a request; None: what a full batch takes in JSON
    seconds: float = 5.0  # until a request has arrived, and again until it is answered
    queue: int = 64  # requests that are being received, wait or are answered
    connections: int = 128


class Metrics:
    """What a server has answered, and how quickly, for Prometheus."""

    def __init__(self, policy: LoadedPolicy) -> None:
        prometheus.disable_created_metrics()
        self.registry = prometheus.CollectorRegistry()
        into: dict[str, Any] = {"registry": self.registry}
        self.requests = prometheus.Counter("t3d_requests", "Answers by path and status.", ["path", "status"], **into)
        self.seconds = prometheus.Histogram(
            "t3d_act_seconds", "Seconds from a request for an action to its answer.", buckets=SECONDS, **into
        )
        self.rows = prometheus.Histogram(
            "t3d_act_rows", "Observations of a request that got actions.", buckets=ROWS, **into
        )
        about = policy.about
        facts = {"environment": about.get("env") or "", "seed": about["seed"], "step": about["step"]}
        info = prometheus.Info("t3d_policy", "The policy.", **into)
        info.info({**{name: str(value) for name, value in facts.items()}, "sha256": policy.sha256})
        prometheus.ProcessCollector(**into)

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        prometheus.Gauge(name, meaning, registry=self.registry).set_function(read)

    def in_words(self) -> str:
        """Returns how many requests were answered and refused."""
        counted = [sample for metric in self.requests.collect() for sample in metric.samples]
        refused = sum(sample.value for sample in counted if int(sample.labels["status"]) >= 400)
        acted = self.registry.get_sample_value("t3d_act_rows_count") or 0.0
        answered = sum(sample.value for sample in counted)
        return f"{answered:,.0f} requests: {acted:,.0f} answered with actions, {refused:,.0f} refused"


class Application:
    """Answers requests for the actions of one policy."""

    def __init__(self, policy: LoadedPolicy, access: Access, limits: Limits) -> None:
        self.policy, self.access = policy, access
        self.messages = Messages(policy.spec, limits.batch)
        self.most_bytes = limits.bytes or self.messages.most_bytes
        self.limits = limits._replace(bytes=self.most_bytes)
        self.waiting = self.sockets = 0
        self.is_stopping = False
        self.metrics = Metrics(policy)
        self.metrics.gauge("t3d_queue", "Requests being received, waiting or answered.", lambda: self.waiting)
        self.metrics.gauge("t3d_queue_limit", "Limit on t3d_queue.", lambda: limits.queue)
        self.metrics.gauge("t3d_websockets", "Open WebSockets.", lambda: self.sockets)
        self._worker = ThreadPoolExecutor(1, "policy")
        routes = [
            Route("/act", self.act, methods=["POST"]),
            Route("/info", self.info, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.report, methods=["GET"]),
            WebSocketRoute("/ws", self.socket),
        ]
        self._routes = Starlette(routes=routes, exception_handlers=error_handlers(AVAILABLE))
        self._routes.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def counted(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                self.metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        try:
            self._check_access(Headers(scope=scope))
        except RequestRefused as refused:
            await refuse(refused, scope, receive, counted)
        else:
            await self._routes(scope, receive, counted)
        if path == "/act":
            self.metrics.seconds.observe(time.perf_counter() - started)

    def _check_access(self, headers: Headers) -> None:
        """With a token nothing else matters: a page of another site does not know it, under whatever name it comes."""
        if not self.access.token:
            self.access.refuse_foreign(headers)
        elif not self.access.has_bearer(headers):
            raise RequestRefused(401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN")

    async def act(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, BINARY):
            raise RequestRefused(415, f"the content type must be {JSON} or {BINARY}")
        if self.policy.spec.stack > 1:
            raise RequestRefused(
                409,
                f"this policy sees the newest {self.policy.spec.stack} frames of an episode, which a request of its "
                "own does not have; use the WebSocket /ws, one for each episode",
            )
        with self._turn():
            content = await read_body(request, self.most_bytes, self.limits.seconds)
            answer = await self._answer(kind, content, self.policy)
        return Response(answer, media_type=kind)

    async def socket(self, socket: WebSocket) -> None:
        """Answers messages one by one; each connection has its own episode."""
        controller = self.policy.controller()
        await socket.accept()
        self.sockets += 1
        try:
            with suppress(WebSocketDisconnect):
                while (message := await socket.receive())["type"] == "websocket.receive":
                    await self._reply(socket, message, controller)
                    await asyncio.sleep(0)  # others have their turn, however many messages have arrived here
        finally:
            self.sockets -= 1

    async def info(self, _: Request) -> Response:
        about = self.policy.about
        exported = about.get("training")
        hashes = {name: about[name] for name in ("tensors_sha256", "model_sha256") if name in about}
        environment = {"id": about.get("env"), **{name: about[name] for name in ENVIRONMENT if name in about}}
        training = {name: about[name] for name in TRAINING if name in about}
        about_policy = {
            "policy": repr(self.policy),
            "environment": environment,
            **self.messages.described(),
            "network": about["network"],
            "training": training | (exported if isinstance(exported, dict) else {}),
            "hashes": {"tensors_sha256": self.policy.sha256, **hashes},
            "limits": self.limits._asdict(),
            "served_by": f"t3d {__version__}",
        }
        return json_answer(finite(about_policy))

    async def health(self, _: Request) -> Response:
        if self.is_stopping:
            raise RequestRefused(503, "the server is stopping")
        return json_answer({"status": "ok"})

    async def report(self, _: Request) -> Response:
        text = prometheus.generate_latest(self.metrics.registry)
        return Response(text, headers={"content-type": prometheus.CONTENT_TYPE_LATEST})

    async def finish(self) -> None:
        """Refuses what is new, and waits for what is not."""
        self.is_stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.seconds):
                while self.waiting:
                    await asyncio.sleep(0.01)
        self._worker.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Counts a request from its arrival until it is answered; refuses it if there are too many."""
        if self.is_stopping:
            raise RequestRefused(503, "the server is stopping")
        if self.waiting >= self.limits.queue:
            raise RequestRefused(
                503, f"{self.waiting} requests are waiting already, and no more are taken; try again later"
            )
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def _reply(self, socket: WebSocket, message: Message, controller: Controller) -> None:
        started, text, status, closes = time.perf_counter(), message.get("text"), 200, False
        kind, content = (BINARY, message["bytes"]) if text is None else (JSON, text)
        try:
            with self._turn():
                answer = await self._answer(kind, content, controller)
        except RequestRefused as refused:
            status, closes, sentence = refused.status, refused.closes, refused.sentence
        except Exception as error:  # of ours; the next message may be answered again
            traceback.print_exception(error)
            status, sentence = 500, FAILED
        self.metrics.requests.labels("/ws", str(status)).inc()
        self.metrics.seconds.observe(time.perf_counter() - started)
        if status != 200:
            await socket.send_json({"error": sentence, "status": status})
        else:
            await (socket.send_text(answer.decode()) if kind == JSON else socket.send_bytes(answer))
        if closes:
            await socket.close(TRY_AGAIN_LATER)

    async def _answer(self, kind: str, content: bytes | str, policy: LoadedPolicy | Controller) -> bytes:
        if len(content) <= SMALL:
            answer, rows = self._act(kind, content, policy)
        else:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(self.limits.seconds):
                    answer, rows = await loop.run_in_executor(self._worker, self._act, kind, content, policy)
            except TimeoutError:
                # a WebSocket's episode is lost with it: the worker may be at this step of it still
                sentence = f"the policy did not answer within {self.limits.seconds:g} s"
                raise RequestRefused(503, sentence, closes=True) from None
        if rows:
            self.metrics.rows.observe(rows)
        return answer

    def _act(self, kind: str, content: Any, policy: LoadedPolicy | Controller) -> tuple[bytes, int]:
        """Reads a question, asks the policy and writes its answer; also returns how many observations it had."""
        question = self.messages.from_json(content) if kind == JSON else self.messages.from_bytes(content)
        most, rows = self.limits.batch, question.rows
        if rows > most:
            raise RequestRefused(413, f"a request has at most {most} observations, and this one has {rows}")
        actions = actions_of(policy, question)
        if actions is None:
            return b'{"reset": true}', 0
        return self.messages.written(actions, as_json=kind == JSON), rows


def serve(opened: socket.socket, application: Application, announce: Callable[[], None]) -> None:
    """Calls `announce`, and answers requests until Ctrl-C or SIGTERM."""
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look through it again and again
    metrics, most_bytes, most = application.metrics, application.most_bytes, application.limits.connections
    server = Server(application, opened, most, idle_seconds=IDLE_SECONDS, max_message_bytes=most_bytes)
    connections: Connections = server.connections
    metrics.gauge("t3d_connections", "Open connections.", lambda: len(connections.open))
    metrics.gauge("t3d_connections_refused", "Connections refused.", lambda: connections.refused)
    server.answer(announce, application.finish)
