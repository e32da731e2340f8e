"""A scripted model on loopback that speaks both message formats, streamed; faults on demand."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

#: what a script may give in place of a text
Fault = tuple[str, Any]
Script = Callable[[dict[str, Any]], str | Fault]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def shutdown_request(self, request: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                # an answer that ends with its connection is whole only with TLS's own end
                request.unwrap()
        super().shutdown_request(request)


class ScriptedEndpoint:
    """Use as a context manager. script: decoded body to the answer's text, or to a fault: `("status", 429)`,
    `("cut", text)` (the stream breaks off), `("raw", bytes)`, `("hang", seconds)`, `("flood", text)` (without end).
    tls: the server's context, for an endpoint that speaks TLS."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                try:
                    outer.reply(self, body)
                except OSError:
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
                """Silence."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            # each connection's own thread shakes hands, on its first read
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        said = self.script(body)
        fault: str = said[0] if isinstance(said, tuple) else ""
        value: Any = said[1] if isinstance(said, tuple) else said
        if fault == "status":
            handler.send_response(value)
            handler.send_header("Content-Length", "0")
            handler.send_header("Retry-After", "0")
            handler.end_headers()
            return
        if fault == "hang":
            self.closing.wait(value)
            handler.close_connection = True
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        if fault == "raw":
            handler.wfile.write(value)
            return
        if fault == "flood":
            while not self.closing.is_set():
                handler.wfile.write(b"".join(events(body, str(value), whole=False)))
        for event in events(body, str(value), whole=fault != "cut"):
            handler.wfile.write(event)
            handler.wfile.flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def events(body: dict[str, Any], text: str, *, whole: bool) -> Iterator[bytes]:
    """The answer as server-sent events, a few characters at a time, in the format of the request."""
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    for event in _anthropic(body, pieces, whole) if "system" in body else _openai(pieces, whole):
        yield b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\r\n\r\n"


def _openai(pieces: list[str], whole: bool) -> Iterator[Any]:
    for piece in pieces:
        yield {"choices": [{"delta": {"content": piece}, "finish_reason": None}]}
    if whole:
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": len(pieces)}}
        yield b"[DONE]"


def _anthropic(body: dict[str, Any], pieces: list[str], whole: bool) -> Iterator[Any]:
    yield {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 1}}}
    for piece in pieces:
        delta = (
            {"type": "input_json_delta", "partial_json": piece}
            if "tools" in body
            else {"type": "text_delta", "text": piece}
        )
        yield {"type": "content_block_delta", "delta": delta}
    if whole:
        yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": len(pieces)}}
        yield {"type": "message_stop"}
