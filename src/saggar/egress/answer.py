"""The head of an upstream's answer, as it goes to the client: written anew.

I1  One framing: the body that follows is what the head says, whatever the upstream's own framing was.
I2  No hop-by-hop field, no `Alt-Svc`, and from a host with our credential no cookie.
I3  Of interim answers only 102 and 103 pass, and of their fields only `Link`: nothing else there is a hint.
I4  An answer that must be read for our secret is not encoded; one that is gives `encoded_response`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saggar.core.errors import ParseError
from saggar.egress.headers import answer_field
from saggar.egress.trailers import announced

if TYPE_CHECKING:
    from saggar.egress.http_head import RequestHead, ResponseHead

PHRASES = {
    400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 408: "Request Timeout", 411: "Length Required",
    413: "Content Too Large", 414: "URI Too Long", 415: "Unsupported Media Type", 421: "Misdirected Request", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip


def write_answer(
    head: ResponseHead, request: RequestHead, *, bound: bool, scanned: bool, keep: bool
) -> tuple[bytes, str, bool]:
    """(head bytes, framing towards the client, whether its connection stays). framing: `none`, `length`, `chunked`, `close`.

    bound: the host has our credential. scanned: the body will be searched. keep: the client's connection may stay.
    Raises ParseError (`encoded_response`).
    """
    lines = [b"HTTP/1.1 %d %s\r\n" % (head.status, head.reason)]
    length = b""
    promised = b""
    for name, value in head.fields:
        lower, passes, passes_bound = answer_field(name)
        if passes_bound if bound else passes:
            if scanned and lower == b"content-encoding" and value.lower() not in (b"", b"identity"):
                raise ParseError("the upstream compressed an answer that must be read", reason="encoded_response")
            lines.append(b"%s: %s\r\n" % (name, value))
        elif lower == b"content-length":
            length = value
        elif lower == b"trailer":
            promised = announced([promised, value])
    body = head.body
    framing = "none"
    if body.kind == "length":
        lines.append(b"Content-Length: %d\r\n" % body.length)
        framing = "length"
    elif body.kind in ("chunked", "close"):
        if request.version == 1:
            lines.append(b"Transfer-Encoding: chunked\r\n")
            framing = "chunked"
            if promised and body.kind == "chunked":
                lines.append(b"Trailer: %s\r\n" % promised)
        else:
            keep = False
            framing = "close"
    elif request.method == "HEAD" or head.status == 304:
        if length:
            lines.append(b"Content-Length: %s\r\n" % length)
    elif head.status != 204:
        lines.append(b"Content-Length: 0\r\n")
    if not keep:
        lines.append(b"Connection: close\r\n")
    elif request.version == 0:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines), framing, keep


def write_interim(head: ResponseHead, request: RequestHead) -> bytes:
    """An interim answer as it goes on (RFC 9110, section 15.2; RFC 8297), b"" where it does not: to HTTP/1.0, which has
    none, and of a status that nobody asked for."""
    if request.version == 0 or head.status not in (102, 103):
        return b""
    links = b"".join([b"Link: %s\r\n" % value for name, value in head.fields if name.lower() == b"link"])
    if head.status == 103 and not links:
        return b""
    return b"HTTP/1.1 %d %s\r\n%s\r\n" % (head.status, b"Processing" if head.status == 102 else b"Early Hints", links)


def refusal_page(
    status: int, reason: str, public: str, *, rule: str = "", extra: str = "", head_only: bool = False
) -> bytes:
    """The whole answer that says no, and why; the connection ends with it. rule: whose terms they are. extra: further
    header lines."""
    named = f" [rule `{rule}`]" if rule else ""
    body = f"saggar: {public}{named} ({reason})\n".encode("ascii", "replace")
    text = (
        f"HTTP/1.1 {status} {PHRASES.get(status, 'Refused')}\r\nContent-Type: text/plain; charset=us-ascii\r\n"
        f"Content-Length: {len(body)}\r\nX-Saggar-Reason: {reason}\r\n{extra}Connection: close\r\n\r\n"
    ).encode()
    return text if head_only else text + body
