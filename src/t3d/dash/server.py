"""The dashboard's web application: addresses, and which function answers each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from t3d.dash import answers, plotly
from t3d.dash.guard import CLOSE, DROPPED, LARGEST_BODY, POLICY, Access, Guard
from t3d.dash.library import Library, NoSuchRun
from t3d.dash.live import Live
from t3d.dash.videos import NoSuchVideo, open_video, part_of, pieces
from t3d.errors import UserError
from t3d.events import finite
from t3d.store.control import ask
from t3d.store.journal import newest_session
from t3d.store.notes import checked_notes, write_notes
from t3d.store.summary import ALIVE
from t3d.version import __version__

TYPES = {  # of static files
    **{".html": "text/html", ".css": "text/css", ".js": "text/javascript"},
    **{".json": "application/json", ".svg": "image/svg+xml"},
}
TO_PAGE = (  # with the icon, which browsers otherwise ask for where there is none
    '<!doctype html><title>T3D</title><link rel="icon" href="/static/icon.svg">'
    '<meta http-equiv="refresh" content="0; url=/"><a href="/">T3D</a>'
)
Endpoint = Callable[[Request], Any]


class Application:
    """Answers requests about one folder of runs."""

    def __init__(self, library: Library, access: Access) -> None:
        self.library, self.access, self.live = library, access, Live(library)

    def asgi(self) -> Guard:
        """Returns the application, behind its guard."""
        run = "/api/runs/{name}"
        routes = [
            Route("/", self.page, methods=["GET"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/api/session", _json(self.session), methods=["GET"]),
            Route(
                "/api/runs", _json(lambda asked: answers.run_list(self.library, asked.query_params)), methods=["GET"]
            ),
            Route(run, _json(self._of_run(lambda of, name, _: answers.run_page(of, name))), methods=["GET"]),
            Route(f"{run}/config", _json(self._of_run(answers.run_config)), methods=["GET"]),
            Route(f"{run}/series", _json(self._of_run(answers.run_series)), methods=["GET"]),
            Route(f"{run}/steps", _json(self._of_run(answers.run_steps)), methods=["GET"]),
            Route(f"{run}/videos/{{file:path}}", self.video, methods=["GET"]),
            Route(f"{run}/notes", self.notes, methods=["PUT"]),
            Route(f"{run}/control", self.control, methods=["POST"]),
            Route(
                "/api/compare",
                _json(lambda asked: answers.comparison(self.library, asked.query_params)),
                methods=["GET"],
            ),
            Route("/api/live", self.changes, methods=["GET"]),
        ]
        handlers = {
            UserError: _refused,
            NoSuchRun: _missing,
            NoSuchVideo: _missing,
            HTTPException: _http,
            Exception: _failed,
        }
        return Guard(Starlette(routes=routes, exception_handlers=handlers), self.access)

    def session(self, request: Request) -> dict[str, Any]:
        """Says what this is, and whether the browser has the token."""
        may = self.access.has_token(request.headers)
        return {"version": __version__, "root": str(self.library.root), "may_control": may}

    def page(self, request: Request) -> Response:
        """Shows the page; with the token in the address it is stored in a cookie, and the address is left."""
        token = request.query_params.get("token")
        if token is not None and self.access.matches(token):
            answer = HTMLResponse(TO_PAGE)
            answer.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict", path="/")
            return answer
        policy = POLICY.replace("style-src 'self'", f"style-src 'self' {plotly.style_sources()}")
        return HTMLResponse(_static_file("index.html"), headers={"content-security-policy": policy})

    def static(self, request: Request) -> Response:
        """Sends a file of the page, or plotly."""
        name = request.path_params["name"]
        content = plotly.script() if name == "plotly.min.js" else _static_file(name)
        if content is None:
            raise HTTPException(404)
        kind = TYPES[os.path.splitext(name)[1]]  # noqa: PTH122
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    def video(self, request: Request) -> Response:
        """Sends a video, or the part of it that a Range header asks for."""
        path = self.library.run(request.path_params["name"]).entry.path
        file = open_video(path, request.path_params["file"])
        size = os.fstat(file.fileno()).st_size
        asked = request.headers.get("range")
        part = part_of(asked, size)
        if part is None:
            file.close()
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        headers = {"accept-ranges": "bytes", "content-length": str(part.stop - part.start)}
        if asked is not None and part.stop - part.start < size:
            headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        status = 206 if "content-range" in headers else 200
        return StreamingResponse(pieces(file, part), status, headers, media_type="video/mp4")

    async def changes(self, request: Request) -> Response:
        """Streams what changes."""
        names = [*dict.fromkeys(request.query_params.getlist("run"))]
        if len(names) > answers.MOST_RUNS:
            raise UserError(f"at most {answers.MOST_RUNS} runs can be watched at once")
        if self.live.is_full():
            raise HTTPException(429, "too many pages are open")
        for name in names:
            await run_in_threadpool(self.library.run, name)
        return StreamingResponse(self.live.stream(names), media_type="text/event-stream")

    async def notes(self, request: Request) -> Response:
        """Replaces the notes of a run; with those that the writer saw `before`, only if they are still the same."""
        fields, name = await _body(request), request.path_params["name"]
        before = fields.pop("before", None) if isinstance(fields, dict) else None

        def store() -> dict[str, Any]:
            path, notes = self.library.run(name).entry.path, checked_notes(fields)
            write_notes(path, notes, None if before is None else checked_notes(before))
            return {"tags": list(notes.tags), "note": notes.note}

        return _encoded(await run_in_threadpool(store))

    async def control(self, request: Request) -> Response:
        """Asks a run that is training to pause, continue, save or stop."""
        fields, name = await _body(request), request.path_params["name"]
        action = fields.get("action") if isinstance(fields, dict) else None

        def pass_on() -> dict[str, Any]:
            entry = self.library.run(name).entry
            session = newest_session(entry.path)
            if entry.status not in ALIVE or session is None:
                raise HTTPException(409, "it is not training on this machine")
            return ask(entry.path, session, str(action))._asdict()

        return _encoded(await run_in_threadpool(pass_on), 202)

    def _of_run(self, answer: Callable[..., Any]) -> Endpoint:
        return lambda request: answer(self.library, request.path_params["name"], request.query_params)


async def _body(request: Request) -> Any:
    """Reads the JSON that a request carries, up to a limit, however long it says it is."""
    content, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= LARGEST_BODY:
            content += piece
        elif size > LARGEST_BODY + DROPPED:
            break
    if size > LARGEST_BODY:
        raise HTTPException(413, f"a request has at most {LARGEST_BODY:,} bytes", CLOSE)
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be application/json")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None


def _json(answer: Endpoint) -> Endpoint:
    """Makes an endpoint, called in a thread, of a function that returns plain values."""
    return lambda request: _encoded(answer(request))


def _encoded(value: Any, status: int = 200) -> Response:
    """Encodes in ASCII; what is not finite becomes null."""
    try:
        text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise HTTPException(422, "its settings are nested too deeply to be shown") from None
    return Response(text, status, media_type="application/json")


def _refused(_: Request, error: Exception) -> Response:
    return _encoded({"error": str(error)}, 400)


def _missing(_: Request, error: Exception) -> Response:
    return _encoded({"error": str(error) or "there is no such file"}, 404)


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for it)
    answer = _encoded({"error": error.detail}, error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def _failed(_: Request, __: Exception) -> Response:
    return _encoded({"error": "the server failed; its terminal shows why"}, 500)


def _static_file(name: str) -> bytes | None:
    """Returns a file of the page; only those that the package lists exist."""
    pages = resources.files("t3d.dash") / "pages"
    known = {one.name: one for one in pages.iterdir()} if pages.is_dir() else {}
    is_known = name in known and os.path.splitext(name)[1] in TYPES and known[name].is_file()  # noqa: PTH122
    return known[name].read_bytes() if is_known else None
