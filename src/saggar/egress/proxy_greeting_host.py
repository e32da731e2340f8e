"""What a client that insists on a proxy says first: CONNECT, or SOCKS 5.

I1  What follows the request stays in the kernel: only what was read of it is consumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from saggar.core.errors import ParseError
from saggar.egress import connect, http_head
from saggar.egress.authorize import public_text, refuse
from saggar.egress.client_hello import NeedMore
from saggar.egress.wire_host import consume, peek

if TYPE_CHECKING:
    import socket

    from saggar.core.decision import Decision


class Client(Protocol):
    """The connection that is read."""

    sock: socket.socket

    def turn_away(self, decision: Decision, words: bytes | None) -> None:
        """Record the refusal, tell `words`, and end."""


async def read_connect(client: Client) -> connect.ConnectTarget | None:
    """The target of a CONNECT; None where it was refused, and the connection is over."""
    least = 1
    while True:
        data = await peek(client.sock, least, connect.MAX_HEAD + 4)
        try:
            target = connect.parse_connect(data)
        except ParseError as e:
            client.turn_away(refuse(e.reason, cause=str(e)), http_head.refusal(e.reason, public_text(e.reason)))
            return None
        if not isinstance(target, NeedMore):
            return target
        if len(data) < least:
            raise ParseError("the CONNECT head is cut", reason="malformed_request")
        least = target.total


async def read_socks(client: Client) -> connect.ConnectTarget | None:
    """The same of SOCKS 5, whose greeting is answered."""
    least = 2
    while isinstance(greeting := connect.parse_greeting(await peek(client.sock, least, 512)), NeedMore):
        if greeting.total <= least:
            raise ParseError("the SOCKS greeting is cut", reason="malformed_request")
        least = greeting.total
    consume(client.sock, greeting.size)
    if not greeting.anonymous:
        client.turn_away(refuse("malformed_request"), connect.SOCKS_NO_METHOD)
        return None
    client.sock.send(connect.SOCKS_NO_AUTH)
    least = 5
    while True:
        data = await peek(client.sock, least, 512)
        try:
            target = connect.parse_socks_request(data)
        except ParseError as e:
            code = {
                "method_refused": connect.SOCKS_COMMAND_UNSUPPORTED,
                "ip_literal": connect.SOCKS_ADDRESS_UNSUPPORTED,
            }.get(e.reason, connect.SOCKS_NOT_ALLOWED)
            client.turn_away(refuse(e.reason, cause=str(e)), connect.socks_reply(code))
            return None
        if not isinstance(target, NeedMore):
            return target
        if len(data) < least:
            raise ParseError("the SOCKS request is cut", reason="malformed_request")
        least = target.total
