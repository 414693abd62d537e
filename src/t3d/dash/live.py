"""Tells pages what has changed: one watcher for each run that is looked at, however many pages look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from t3d.dash.library import Library, stamp_of
from t3d.errors import UserError
from t3d.store.summary import peek

EVERY = 0.5  # seconds between two looks at a run's files; chosen
EVERY_LIST = 1.0  # the same for the list
STILL_HERE = 15.0  # seconds after which a quiet stream says so, which shows whether anybody still reads
MOST_STREAMS = 256  # open at once; chosen

Message = tuple[str, dict[str, Any]]  # the event's name and its data


class Watcher:
    """Looks at one thing again and again, and tells everybody who subscribed when it has changed."""

    def __init__(self, look: Callable[[], Any], tell: Callable[[], Message], every: float) -> None:
        self.look, self.tell, self.every = look, tell, every
        self.readers: set[asyncio.Queue[Message]] = set()
        self.has_looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, queue: asyncio.Queue[Message]) -> None:
        self.readers.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    def unsubscribe(self, queue: asyncio.Queue[Message]) -> bool:
        """Returns whether nobody is left."""
        self.readers.discard(queue)
        if not self.readers and self._task is not None:
            self._task.cancel()
            self._task = None
        return not self.readers

    async def _watch(self) -> None:
        before = await asyncio.to_thread(self.look)
        self.has_looked.set()
        while True:
            await asyncio.sleep(self.every)
            now = await asyncio.to_thread(self.look)
            if now != before:
                before = now
                message = await asyncio.to_thread(self.tell)
                for queue in [*self.readers]:
                    with suppress(asyncio.QueueFull):  # a page that does not read gets the next one
                        queue.put_nowait(message)


class Live:
    """The watchers of a library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.watchers: dict[str | None, Watcher] = {}  # by run; None: the list
        self.streams = 0
        self.is_over = False

    def end(self) -> None:
        """Ends all streams, because the server ends."""
        self.is_over = True
        for watcher in self.watchers.values():
            for queue in watcher.readers:
                with suppress(asyncio.QueueFull):  # then it is not waiting
                    queue.put_nowait(("end", {}))

    def is_full(self) -> bool:
        return self.streams >= MOST_STREAMS

    async def stream(self, names: Sequence[str]) -> AsyncIterator[bytes]:
        """Yields server-sent events about runs, or about the list if none is named."""
        queue: asyncio.Queue[Message] = asyncio.Queue(maxsize=64)
        watched: list[str | None] = [*names] or [None]
        self.streams += 1
        try:
            with self.library.using(names):
                for name in watched:
                    self._watcher(name).subscribe(queue)
                for name in watched:
                    await self.watchers[name].has_looked.wait()  # from then on no change is missed
                    yield _formatted(await asyncio.to_thread(self._tell, name))
                while not self.is_over:
                    try:
                        yield _formatted(await asyncio.wait_for(queue.get(), STILL_HERE))
                    except TimeoutError:
                        yield b": still here\n\n"
        finally:
            self.streams -= 1
            for name in watched:
                if self.watchers[name].unsubscribe(queue):
                    del self.watchers[name]

    def _watcher(self, name: str | None) -> Watcher:
        if name not in self.watchers:
            every = EVERY_LIST if name is None else EVERY
            self.watchers[name] = Watcher(lambda: self._look(name), lambda: self._tell(name), every)
        return self.watchers[name]

    def _look(self, name: str | None) -> Any:
        """Returns something that differs when the run, or the list, has changed."""
        if name is None:
            return self.library.state()
        try:
            path = self.library.path(name)
            return stamp_of(path), peek(path)[0]
        except UserError:
            return None

    def _tell(self, name: str | None) -> Message:
        if name is None:
            return "runs", {}
        try:
            path = self.library.path(name)
            status, step = peek(path)
        except UserError:
            return "run", {"name": name, "size": 0, "status": "gone", "step": 0}
        return "run", {"name": name, "size": stamp_of(path)[0][1], "status": status, "step": step}


def _formatted(message: Message) -> bytes:
    name, data = message
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
