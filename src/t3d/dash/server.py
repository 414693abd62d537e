"""The dashboard's web application: who may ask, addresses, and which function answers each."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from t3d.dash import answers
from t3d.dash.library import Library
from t3d.events import finite
from t3d.store.control import add_request, checked_notes, write_notes
from t3d.store.details import open_video
from t3d.store.log import newest_session
from t3d.store.summary import ALIVE
from t3d.version import __version__
from t3d.web import Access, RequestRefused, error_handlers, json_answer, read_body, refuse

LARGEST_BODY, BODY_SECONDS = 2**16, 5.0
AVAILABLE = "/ and what docs/watching.md lists"
READING = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{also}; img-src 'self' data: blob:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY.format(also=""),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
TO_PAGE = (  # with the icon, which browsers otherwise ask for where there is none
    '<!doctype html><title>T3D</title><link rel="icon" href="/static/icon.svg">'
    '<meta http-equiv="refresh" content="0; url=/"><a href="/">T3D</a>'
)
PAGES = Path(str(resources.files("t3d.dash"))) / "pages"
PLOTLY = Path(str(resources.files("plotly"))) / "package_data" / "plotly.min.js"
PANELS = Path(str(resources.files("t3d.insight"))) / "panels.json"
STATIC = StaticFiles(directory=PAGES)
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
SHEET = re.compile(rb"\.textContent='((?:[^'\\]|\\.)*)'")  # of plotly, for maps, which no page of ours has


class Application:
    """Answers requests about one folder of runs.

    A page of another site that the user has open must be able neither to read runs nor to change them.
    """

    def __init__(self, library: Library, access: Access) -> None:
        self.library, self.access = library, access
        self.cookie = f"t3d-{access.port}"  # browsers keep one jar for all ports of a machine
        run, encoded = "/api/runs/{name}", self._encoded
        routes = [
            Route("/", self.page),
            *[Route(f"/static/{file.name}", _static(file)) for file in (PLOTLY, PANELS)],
            Mount("/static", STATIC),
            Route("/api/session", self.session),
            Route("/api/live", self.changes),
            Route("/api/runs", encoded(answers.run_list)),
            Route("/api/compare", encoded(answers.comparison)),
            Route(run, encoded(answers.run_page)),
            Route(f"{run}/config", encoded(answers.run_config)),
            Route(f"{run}/series", encoded(answers.run_series)),
            Route(f"{run}/steps", encoded(answers.run_steps)),
            Route(f"{run}/videos/{{file:path}}", self.video),
            Route(f"{run}/notes", self.notes, methods=["PUT"]),
            Route(f"{run}/control", self.control, methods=["POST"]),
        ]
        self._routes = Starlette(routes=routes, exception_handlers=error_handlers(AVAILABLE))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-cache"  # it has an ETag
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check_access(Request(scope))
        except RequestRefused as refused:
            await refuse(refused, scope, receive, strict)
        else:
            await self._routes(scope, receive, strict)

    def _check_access(self, request: Request) -> None:
        headers, changes = request.headers, request.method not in READING
        self.access.refuse_foreign(headers)
        shows_token = request.scope["path"] == "/" and self.access.matches(request.query_params.get("token", ""))
        if (changes or not self.access.on_loopback) and not shows_token and not self._has_token(request):
            raise RequestRefused(401, "the token is missing or wrong: open the address that t3d dash printed")
        if changes and "origin" not in headers and not self.access.has_bearer(headers):
            raise RequestRefused(403, "a change with the cookie needs an Origin")

    def _has_token(self, request: Request) -> bool:
        by_cookie = self.access.matches(request.cookies.get(self.cookie, ""))
        return by_cookie or self.access.has_bearer(request.headers)

    def session(self, request: Request) -> Response:
        root = str(self.library.root)
        return json_answer({"version": __version__, "root": root, "may_control": self._has_token(request)})

    def page(self, request: Request) -> Response:
        """Shows the page; with the token in the address it is stored in a cookie, and the address is left."""
        if self.access.matches(request.query_params.get("token", "")):
            answer = HTMLResponse(TO_PAGE)
            answer.set_cookie(self.cookie, self.access.token, httponly=True, samesite="strict", path="/")
            return answer
        policy = POLICY.format(also=f" {style_sources()}")
        return FileResponse(PAGES / "index.html", headers={"content-security-policy": policy})

    def changes(self, request: Request) -> Response:
        """Says in what state runs are, or all that are listed; 304 if that is what a page knows already."""
        runs, tag = answers.state(self.library, request.query_params)
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return json_answer({"runs": runs}, headers={"etag": tag})

    def video(self, request: Request) -> Response:
        """Sends a video, or the part of it that a Range header asks for."""
        run = self.library.run(request.path_params["name"])
        file = open_video(run.path, request.path_params["file"])
        if file is None:
            raise RequestRefused(404, "there is no such video")
        path, stat = f"/proc/self/fd/{file.fileno()}", os.fstat(file.fileno())
        first = _first_byte(request.headers.get("range", ""), stat.st_size)
        if first is None:
            del MutableHeaders(scope=request.scope)["range"]  # all of it is sent
        elif first >= stat.st_size:
            file.close()
            size = {"content-range": f"bytes */{stat.st_size}"}
            raise HTTPException(416, f"the video has {stat.st_size} bytes", size)
        return FileResponse(path, media_type="video/mp4", stat_result=stat, background=BackgroundTask(file.close))

    async def notes(self, request: Request) -> Response:
        """Replaces the notes of a run; with those that the writer saw `before`, only if they are still the same."""
        fields = await _body(request)
        before = fields.pop("before", None) if isinstance(fields, dict) else None
        notes = checked_notes(fields)
        run = await run_in_threadpool(self.library.run, request.path_params["name"])
        await run_in_threadpool(write_notes, run.path, notes, None if before is None else checked_notes(before))
        return json_answer({"tags": list(notes.tags), "note": notes.note})

    async def control(self, request: Request) -> Response:
        fields = await _body(request)
        action = fields.get("action") if isinstance(fields, dict) else None
        run = await run_in_threadpool(self.library.run, request.path_params["name"])
        session = await run_in_threadpool(newest_session, run.path)
        if run.status not in ALIVE or session is None:
            raise RequestRefused(409, "it is not training on this machine")
        control = await run_in_threadpool(add_request, run.path, session, str(action))
        return json_answer(control._asdict(), 202)

    def _encoded(self, answer: Callable[[Library, Request], Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            try:
                return json_answer(finite(answer(self.library, request)))
            except RecursionError:
                raise RequestRefused(422, "its settings are nested too deeply to be shown") from None

        return respond


def _static(file: Path) -> Callable[[Request], Response]:
    return lambda request: STATIC.file_response(file, file.stat(), request.scope)


def _first_byte(header: str, size: int) -> int | None:
    """Returns where the part begins that a Range header asks for; None: HTTP ignores such a header, or we do."""
    match = RANGE.fullmatch(header)
    first, last = match.groups() if match else ("", "")
    if not first:
        return max(0, size - int(last)) if last else None
    return None if last and int(last) < int(first) else int(first)


async def _body(request: Request) -> Any:
    content = await read_body(request, LARGEST_BODY, BODY_SECONDS)
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RequestRefused(415, "the body must be application/json")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the body is not JSON") from None


@functools.cache
def style_sources() -> str:
    """Returns the hashes of plotly's style sheets, which the policy then allows and no other inline style."""
    sheets = [re.sub(rb"\\(.)", rb"\1", sheet) for sheet in SHEET.findall(PLOTLY.read_bytes())]
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(sheet).digest()).decode()}'" for sheet in sheets)
