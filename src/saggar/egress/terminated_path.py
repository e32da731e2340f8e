"""The seam between a client's connection and what serves hosts whose requests are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from saggar.egress.authorize import AuthorizedRequest
    from saggar.egress.connection_host import Connection
    from saggar.egress.wire_host import Wire


class TerminatedPath(Protocol):
    """Who serves the connections of terminated hosts; one for a cell."""

    def close(self) -> None:
        """The cell is closed."""
        ...

    async def serve(self, connection: Connection, request: AuthorizedRequest, wire: Wire) -> None:
        """Serve one client connection to its end, and close its socket.

        The host was decided, nothing else: no record of an allow is written yet, nothing was resolved or dialled.
        wire: the client's raw, non-blocking socket. With TLS nothing was taken from it (the ClientHello waits in the
        kernel); with plain HTTP its buffer begins with the first request's head. Each request is judged and recorded
        with `connection.record_allowed` or `record_refused` before its effect; a further one may name another host, so
        it goes through `connection.judge`. Cancelled when the cell is closed or the rule revoked.
        """
        ...
