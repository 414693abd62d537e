"""How errors become answers."""

from __future__ import annotations

import json
import traceback
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from t3d.ship.serve_messages import RequestRefused

JSON = "application/json"
WHERE = "POST /act, GET /info, /health and /metrics, and the WebSocket /ws"
FAILED = "the server failed; its terminal shows why"


def encoded(value: Any) -> bytes:
    """Plain values as JSON."""
    return json.dumps(value, allow_nan=False).encode()


def error_answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """An error as an answer: its status, and the sentence in JSON."""
    return Response(encoded({"error": sentence}), status, headers, JSON)


def _refused(_: Any, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)  # noqa: S101 (registered for it)
    return error_answer(error.status, error.sentence, {"connection": "close"} if error.closes else None)


def _http_error(request: Any, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for it)
    sentences = {
        404: f"there is nothing at {request.scope['path']!r:.60}; available: {WHERE}",
        405: f"{request.method:.20} is not allowed here; available: {WHERE}",
    }
    return error_answer(error.status_code, sentences.get(error.status_code, error.detail), dict(error.headers or {}))


def _left(_: Any, __: Exception) -> Response:
    return error_answer(400, "the client left before the request was complete")


def _failed(_: Any, error: Exception) -> Response:
    traceback.print_exception(error)
    return error_answer(500, FAILED)


HANDLERS = {RequestRefused: _refused, HTTPException: _http_error, ClientDisconnect: _left, Exception: _failed}
