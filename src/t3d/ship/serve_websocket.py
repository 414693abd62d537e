"""WebSocket connections with limits on what uvicorn leaves without one."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

MOST_UNREAD_PONGS = 2**16  # bytes that wait for a client that does not read; chosen
MOST_FRAGMENTS = 2**12  # of a message; chosen: 8 MiB in pieces of 2 KiB


class WebSocketConnection(WebSocketsSansIOProtocol):
    """Limits what a client can make the server keep: answers to pings that it does not read, and fragments."""

    _unread_pongs = 0

    def handle_ping(self) -> None:
        """Answers a ping; drops a client that sends pings and does not read. Other answers wait until it reads."""
        before = self.transport.get_write_buffer_size()
        super().handle_ping()
        added = self.transport.get_write_buffer_size() - before
        self._unread_pongs = 0 if self.writable.is_set() else self._unread_pongs + added
        if self._unread_pongs > MOST_UNREAD_PONGS:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        """Takes a fragment, unless there are too many: empty ones do not count towards the limit on bytes."""
        if self.close_sent:
            return
        if len(self.frames) < MOST_FRAGMENTS:
            super().handle_cont(event)
            return
        self.frames = []
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "the message has too many fragments")
        self.handle_parser_exception()

    def keepalive_timeout(self) -> None:
        """Ends a connection on which a ping got no answer; closing alone would wait until the client has read all."""
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
