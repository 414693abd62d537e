"""The web application that serves a policy: who may ask, limits, and what is answered."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from t3d.errors import UserError
from t3d.policy.acting import Controller, LoadedPolicy
from t3d.ship.serve_access import Access, Limits
from t3d.ship.serve_errors import FAILED, HANDLERS, JSON, encoded, error_answer
from t3d.ship.serve_info import about_policy, facts
from t3d.ship.serve_messages import Messages, Question, RequestRefused
from t3d.ship.serve_metrics import Metrics
from t3d.web import Connections

BINARY = "application/octet-stream"
PATHS = ("/act", "/info", "/health", "/metrics", "/ws")
# Smaller messages are answered on the spot, in less time than it takes to hand them to a thread and back; larger ones
# must not hold up the others. Chosen: 60 observations of HalfCheetah as bytes, which take 0.2 ms.
SMALL = 2**12
# Bytes beyond the limit that are read and dropped: if a server closes a connection on which something is unread, the
# client may never see the answer.
DROPPED = 2**20
TRY_AGAIN_LATER = 1013  # of the codes with which a WebSocket is closed


class Application:
    """Answers requests for the actions of one policy."""

    def __init__(self, policy: LoadedPolicy, access: Access, limits: Limits) -> None:
        self.policy, self.access = policy, access
        self.messages = Messages(policy.spec, limits.batch)
        self.limits, self.most_bytes = limits, limits.bytes or self.messages.most_bytes
        self.metrics = Metrics()
        self.waiting = self.sockets = 0
        self.connections: Connections | None = None  # of the server, once it listens
        self.is_stopping = False
        self._info = encoded(about_policy(policy, self.messages, {**limits._asdict(), "bytes": self.most_bytes}))
        self._worker = ThreadPoolExecutor(1, "policy")
        routes = [
            Route("/act", self.act, methods=["POST"]),
            Route("/info", self.info, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.figures, methods=["GET"]),
            WebSocketRoute("/ws", self.socket),
        ]
        self._routes = Starlette(routes=routes, exception_handlers=HANDLERS)
        self._routes.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request or WebSocket."""
        started = time.perf_counter()
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def counted(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                self.metrics.count(path, message["status"])
            await send(message)

        refused = self.access.refusal(Headers(scope=scope))
        app = self._routes if refused is None else error_answer(refused.status, refused.sentence)
        await app(scope, receive, counted)
        if path == "/act":
            self.metrics.seconds.add(time.perf_counter() - started)

    async def act(self, request: Request) -> Response:
        """Answers POST /act, in the kind of the question."""
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
            answer = await self._answer(kind, await self._body(request), self.policy)
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
        """Says what the policy is."""
        return Response(self._info, media_type=JSON)

    async def health(self, _: Request) -> Response:
        """Says whether requests are taken."""
        if self.is_stopping:
            raise RequestRefused(503, "the server is stopping")
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def figures(self, _: Request) -> Response:
        """Sends the figures for Prometheus."""
        gauges: dict[str, tuple[str, float]] = {
            "t3d_queue": ("Requests that are being received, wait or are answered.", self.waiting),
            "t3d_queue_limit": ("Limit on t3d_queue.", self.limits.queue),
            "t3d_websockets": ("Open WebSockets.", self.sockets),
            "t3d_connections": ("Open connections.", len(self.connections.open) if self.connections else 0),
            "t3d_connections_refused": ("Connections refused.", self.connections.refused if self.connections else 0),
            "process_resident_memory_bytes": ("Memory of the server.", psutil.Process().memory_info().rss),
        }
        text = self.metrics.text(gauges, facts(self.policy))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

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

    async def _body(self, request: Request) -> bytes:
        """Reads a request, up to the limits on bytes and time, however long it says it is."""
        most, size = self.most_bytes, int(request.headers.get("content-length", "0"))  # the parser takes only numbers
        content = b""
        if size <= most + DROPPED:
            try:
                async with asyncio.timeout(self.limits.seconds):
                    content, size = await _received(request, most)
            except TimeoutError:
                sentence = f"the request did not arrive within {self.limits.seconds:g} s"
                raise RequestRefused(408, sentence, closes=True) from None
        if size > most:
            raise RequestRefused(413, f"a request has at most {most:,} bytes", closes=size > most + DROPPED)
        return content

    async def _reply(self, socket: WebSocket, message: Message, controller: Controller) -> None:
        """Answers one message of a WebSocket."""
        started, text, status, closes = time.perf_counter(), message.get("text"), 200, False
        kind, content = (BINARY, message["bytes"]) if text is None else (JSON, text)
        try:
            with self._turn():
                answer = await self._answer(kind, content, controller)
        except RequestRefused as refused:
            status, closes = refused.status, refused.closes
            answer = encoded({"error": refused.sentence, "status": status})
        except Exception as error:  # of ours; the next message may be answered again
            traceback.print_exception(error)
            status, answer = 500, encoded({"error": FAILED, "status": 500})
        self.metrics.count("/ws", status)
        self.metrics.seconds.add(time.perf_counter() - started)
        is_text = kind == JSON or status != 200
        await (socket.send_text(answer.decode()) if is_text else socket.send_bytes(answer))
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
            self.metrics.rows.add(rows)
        return answer

    def _act(self, kind: str, content: Any, policy: LoadedPolicy | Controller) -> tuple[bytes, int]:
        """Reads a question, asks the policy and writes its answer; also returns how many observations it had."""
        question = self.messages.from_json(content) if kind == JSON else self.messages.from_bytes(content)
        try:
            with np.errstate(invalid="ignore"):  # of signalling NaNs, which the policy refuses
                actions = _controlled(policy, question) if isinstance(policy, Controller) else _alone(policy, question)
        except UserError as error:
            raise RequestRefused(422, str(error)) from None
        if actions is None:
            return b'{"reset": true}', 0
        return self.messages.to_json(actions) if kind == JSON else self.messages.to_bytes(actions), question.rows


def _alone(policy: LoadedPolicy, question: Question) -> NDArray[Any]:
    """Answers a request that stands alone."""
    if question.observation is None:
        raise RequestRefused(400, "the request has no observation")
    if question.reset is not False:
        raise RequestRefused(400, "reset is for the WebSocket /ws: a request to /act belongs to no episode")
    if policy.spec.max_action_change and question.previous is None:
        raise RequestRefused(
            422,
            "this policy limits how much actions change, so it takes previous_action too (in JSON); the WebSocket /ws "
            "keeps it for you",
        )
    return policy(question.observation, question.previous)


def _controlled(controller: Controller, question: Question) -> NDArray[Any] | None:
    """Answers a message of a WebSocket, which keeps previous action and frames; None if it only starts an episode."""
    if question.reset is True:
        controller.reset(question.previous)
    elif question.previous is not None:
        raise RequestRefused(400, 'a WebSocket keeps the previous action itself; send it only with "reset": true')
    if question.observation is not None:
        return controller(question.observation, question.reset if isinstance(question.reset, list) else None)
    if not question.reset:
        raise RequestRefused(400, "the request has no observation")
    return None


async def _received(request: Request, most: int) -> tuple[bytes, int]:
    """Returns up to `most` bytes of a request, and how many it has; one that is much longer is not read to its end."""
    content, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size > most + DROPPED:
            break
        if size <= most:
            content += piece
    return bytes(content), size
