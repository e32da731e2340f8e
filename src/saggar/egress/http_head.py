"""HTTP/1.1 heads (RFC 9110, 9112), read strictly, because what we decide on must be what the upstream sees.

I1  Bytes give a head or `ParseError`; a head is at most `MAX_HEAD` bytes and `MAX_FIELDS` fields.
I2  One meaning only: bare LF or CR, obs-fold, space before a colon, NUL, non-ASCII in a name or target, two
    Content-Length or Host fields, Content-Length beside Transfer-Encoding, any coding but `chunked`: refused, never mended.
I3  A request names exactly one authority: Host, and an absolute target that must say the same.
I4  What is sent on is written anew from the parsed values, never copied bytes of a line.
I5  Fields of the hop (RFC 9110, section 7.6.1) and fields by which a client overrides method, host or path never pass;
    the client's own Connection list is not honoured: it could name a field that we add.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from saggar.core.errors import ParseError
from saggar.egress.destination import parse_authority

MAX_HEAD = 64 * 1024
MAX_FIELDS = 200
MAX_TARGET = 16 * 1024

METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    # WebDAV and its kin (RFC 4918, 3253, 5323), which git and package hosts use
    | {
        "PROPFIND",
        "PROPPATCH",
        "MKCOL",
        "COPY",
        "MOVE",
        "LOCK",
        "UNLOCK",
        "REPORT",
        "SEARCH",
        "MKACTIVITY",
        "CHECKOUT",
        "MERGE",
    }
)

#: doing it twice does what doing it once does (RFC 9110, section 9.2.2)
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PROPFIND", "REPORT", "SEARCH"})

_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: a value: visible ASCII, space, tab and obs-text (RFC 9110, section 5.5)
_VALUE = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
#: what a head consists of: values and line ends. No byte above 0x7e is in a name, so _lower sees to those
_HEAD = _VALUE + b"\r\n"
_TARGET = bytes(c for c in range(0x21, 0x7F) if c not in b'"#<>\\^`{|}')

#: never forwarded in either direction
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
#: written by clients to make an upstream see another method, host or path than the one that was decided on
OVERRIDES = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-server",
        b"x-host",
        b"x-http-host-override",
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-original-host",
        b"x-original-url",
        b"x-real-ip",
        b"x-rewrite-url",
    }
)

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Body:
    """How a message's body ends. kind: `none`, `length`, `chunked` or `close`; length counts for `length` alone."""

    kind: str
    length: int = 0


NO_BODY = Body("none")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """method in upper case; target in origin form (path and query); host and port as the request names them;
    absolute: the target was in absolute form. upgrade: the lower-case protocol of Upgrade, b"" without one."""

    method: str
    target: bytes
    host: str
    port: int
    version: int
    fields: Fields
    body: Body
    absolute: bool
    keep_alive: bool
    upgrade: bytes
    expects_continue: bool

    def get(self, name: bytes) -> bytes | None:
        """The value of the first field called `name` (lower case)."""
        return next((v for n, v in self.fields if n.lower() == name), None)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """status: 100..599. fields keep their order and case. body is what the status and the request's method leave.
    made: what was written of it for clients, by whoever keeps it (`client_host`)."""

    status: int
    reason: bytes
    version: int
    fields: Fields
    body: Body
    keep_alive: bool
    made: dict[object, tuple[bytes, str, bool, bool]] = field(default_factory=dict, compare=False, repr=False)


def _bad(text: str, reason: str = "malformed_request") -> ParseError:
    return ParseError(text, reason=reason)


def find_end(data: bytes | bytearray, start: int = 0) -> int:
    """Index just behind the blank line that ends a head; -1 where it is not there yet.

    Raises ParseError (`head_too_large`) as soon as a head can only be too long.
    """
    end = data.find(b"\r\n\r\n", max(0, start - 3))
    if end < 0:
        if len(data) > MAX_HEAD:
            raise _bad("the head is too long", "head_too_large")
        return -1
    if end > MAX_HEAD:
        raise _bad("the head is too long", "head_too_large")
    return end + 4


def _lower(name: bytes) -> bytes:
    """`name` in lower case; checked the first time, then remembered: the same forty names make up all traffic."""
    known = _NAMES.get(name)
    if known is None:
        # an empty rest after deleting the allowed bytes is the fastest full match there is
        if not name or name.translate(None, _TOKEN):
            raise _bad("a field name is malformed")
        known = name.lower()
        if len(_NAMES) < _MAX_NAMES:
            _NAMES[name] = known
    return known


_NAMES: dict[bytes, bytes] = {}
_MAX_NAMES = 2048


def _fields(lines: list[bytes]) -> tuple[Fields, dict[bytes, list[bytes]]]:
    """(fields in order, values of those that say how the message is to be read)."""
    if len(lines) > MAX_FIELDS:
        raise _bad("the head has too many fields", "head_too_large")
    found: list[tuple[bytes, bytes]] = []
    telling: dict[bytes, list[bytes]] = {}
    known = _NAMES.get
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise _bad("a field has no colon")
        lowered = known(name) or _lower(name)
        value = value.strip(b" \t")
        if lowered in _TELLING:
            telling.setdefault(lowered, []).append(value)
        found.append((name, value))
    return tuple(found), telling


def read_field(line: bytes) -> tuple[bytes, bytes]:
    """(lower-case name, value) of one line behind a chunked body, read as a head's. Raises ParseError."""
    name, colon, value = line.partition(b":")
    if not colon:
        raise _bad("a field has no colon")
    value = value.strip(b" \t")
    if value.translate(None, _VALUE):
        raise _bad("a field's value holds a control byte")
    return _lower(name), value


_TELLING = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect"})


def _lines(head: bytes) -> list[bytes]:
    if not head.endswith(b"\r\n\r\n"):
        raise _bad("the head is not complete")
    if head.translate(None, _HEAD):
        raise _bad("the head holds a control byte")
    lines = head[:-4].split(b"\r\n")
    ends = len(lines) + 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise _bad("a line ends in something other than CRLF")
    return lines


def _tokens(values: list[bytes]) -> set[bytes]:
    return {token.strip(b" \t").lower() for value in values for token in value.split(b",")}


def _length(values: list[bytes]) -> int:
    if len(values) != 1 or not values[0].isdigit() or len(values[0]) > 18:
        raise _bad("Content-Length is not one plain number", "bad_framing")
    return int(values[0])


def _framing(collected: dict[bytes, list[bytes]], version: int) -> Body | None:
    codings = collected.get(b"transfer-encoding")
    lengths = collected.get(b"content-length")
    if codings is not None:
        if lengths is not None or version == 0 or len(codings) != 1 or codings[0].lower() != b"chunked":
            raise _bad("the message's framing is ambiguous", "bad_framing")
        return Body("chunked")
    return None if lengths is None else Body("length", _length(lengths))


def _keep_alive(collected: dict[bytes, list[bytes]], version: int) -> bool:
    values = collected.get(b"connection")
    if values is None:
        return version == 1
    tokens = _tokens(values)
    return b"close" not in tokens and (version == 1 or b"keep-alive" in tokens)


def _version(word: bytes) -> int:
    if word == b"HTTP/1.1":
        return 1
    if word == b"HTTP/1.0":
        return 0
    raise _bad("the protocol version is not HTTP/1.1 or HTTP/1.0")


#: one connection asks for one host again and again; what does not parse is not kept
_authority = lru_cache(maxsize=512)(parse_authority)


def parse_request(head: bytes, *, default_port: int = 80, more_methods: frozenset[str] = frozenset()) -> RequestHead:
    """Read one complete request head (through its blank line). default_port: of a Host field without one. more_methods: that a
    rule of the host names.

    Raises ParseError: `malformed_request`, `bad_framing`, `head_too_large`, `method_refused`, `name_mismatch`,
    `bad_host_name`, `ip_literal`, `bad_port`.
    """
    lines = _lines(head)
    words = lines[0].split(b" ")
    if len(words) != 3:
        raise _bad("the request line is not three words")
    method, target, version = words[0], words[1], _version(words[2])
    if not method or method.translate(None, _TOKEN):
        raise _bad("the method is malformed")
    if method.decode() not in METHODS and method.decode() not in more_methods:
        raise _bad("the method is not served", "method_refused")
    fields, collected = _fields(lines[1:])
    hosts = collected.get(b"host", [])
    if len(hosts) != 1:
        raise _bad("the request has no Host field, or two")
    authority, path, absolute = _split_target(target, method, secure=default_port == 443)
    host, port = _authority(hosts[0], default_port)
    if authority is not None and _authority(authority, default_port) != (host, port):
        raise _bad("the target and Host name different places", "name_mismatch")
    upgrades = collected.get(b"upgrade", [])
    expects = collected.get(b"expect", [])
    if expects and [e.lower() for e in expects] != [b"100-continue"]:
        raise _bad("an expectation is not known")
    return RequestHead(
        method=method.decode(),
        target=path,
        host=host,
        port=port,
        version=version,
        fields=fields,
        body=_framing(collected, version) or NO_BODY,
        absolute=absolute,
        keep_alive=_keep_alive(collected, version),
        upgrade=b",".join(upgrades).lower(),
        expects_continue=bool(expects) and version == 1,
    )


def _split_target(target: bytes, method: bytes, *, secure: bool) -> tuple[bytes | None, bytes, bool]:
    """(authority or None, path with query, absolute). secure: inside TLS, where the scheme is https. Raises ParseError."""
    if len(target) > MAX_TARGET:
        raise _bad("the target is too long", "head_too_large")
    if not target or target.translate(None, _TARGET):
        raise _bad("the target holds a forbidden byte")
    if target == b"*" and method == b"OPTIONS":
        return None, target, False
    if target[:1] == b"/":
        return None, target, False
    scheme = b"https://" if secure else b"http://"
    if target[: len(scheme)].lower() != scheme:
        raise _bad("the target is neither a path nor a URL of this scheme")
    rest = target[len(scheme) :]
    cut = min((i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if not authority:
        raise _bad("the target has no authority")
    return authority, path if path.startswith(b"/") else b"/" + path, True


def parse_response(head: bytes, method: str) -> ResponseHead:
    """Read one complete response head to a request of `method`.

    Raises ParseError (`bad_response`): what an upstream sends is judged as strictly as what a client does.
    """
    try:
        lines = _lines(head)
        words = lines[0].split(b" ", 2)
        if len(words) < 2:
            raise _bad("the status line is cut")
        version = _version(words[0])
        if len(words[1]) != 3 or not words[1].isdigit() or not 100 <= int(words[1]) <= 599:
            raise _bad("the status is no number of 100 to 599")
        phrase = words[2] if len(words) == 3 else b""
        if phrase.translate(None, _VALUE):
            raise _bad("the reason phrase is malformed")
        fields, collected = _fields(lines[1:])
        body = _framing(collected, version)
    except ParseError as e:
        raise _bad(str(e), "bad_response") from None
    status = int(words[1])
    if method == "HEAD" or status < 200 or status in (204, 304):
        body = NO_BODY
    elif body is None:
        body = Body("close")
    alive = _keep_alive(collected, version) and body.kind != "close"
    return ResponseHead(status, phrase, version, fields, body, alive)


def _forwarded(fields: Fields, dropped: frozenset[bytes]) -> list[bytes]:
    return [b"%s: %s\r\n" % (name, value) for name, value in fields if name.lower() not in dropped]


_REQUEST_DROPPED = HOP_BY_HOP | OVERRIDES | {b"host", b"content-length", b"expect"}
#: `alt-svc` would send a client to QUIC or another port, which it cannot reach
_RESPONSE_DROPPED = HOP_BY_HOP | {b"content-length", b"alt-svc"}


def write_request(request: RequestHead, authority: str, *, extra: Fields = (), keep_alive: bool = True) -> bytes:
    """The head to send upstream (I4, I5). extra: fields of ours, e.g. for an agreed upgrade."""
    lines = [b"%s %s HTTP/1.1\r\n" % (request.method.encode(), request.target), b"Host: %s\r\n" % authority.encode()]
    lines += _forwarded(request.fields, _REQUEST_DROPPED)
    lines += _framing_lines(request.body)
    if request.expects_continue:
        lines.append(b"Expect: 100-continue\r\n")
    lines += [b"%s: %s\r\n" % field for field in extra]
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def write_response(response: ResponseHead, *, body: Body, keep_alive: bool, head_only: bool = False) -> bytes:
    """The head to send to the client. body: the framing towards it. head_only: to HEAD or 304, where a length is told
    but nothing follows."""
    lines = [b"HTTP/1.1 %d %s\r\n" % (response.status, response.reason)]
    lines += _forwarded(response.fields, _RESPONSE_DROPPED)
    if head_only:
        lines += [b"Content-Length: %s\r\n" % v for n, v in response.fields if n.lower() == b"content-length"][:1]
    elif response.status >= 200 and response.status != 204:
        lines += _framing_lines(body, explicit_zero=True)
    if response.status >= 200 and not keep_alive:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _framing_lines(body: Body, *, explicit_zero: bool = False) -> list[bytes]:
    if body.kind == "chunked":
        return [b"Transfer-Encoding: chunked\r\n"]
    if body.kind == "length" or (explicit_zero and body.kind == "none"):
        return [b"Content-Length: %d\r\n" % body.length]
    return []


#: what a client is told; everything else is a 403
STATUS = {
    "malformed_request": 400,
    "bad_framing": 400,
    "bad_host_name": 400,
    "bad_port": 400,
    "h2_refused": 400,
    "method_refused": 405,
    "sniff_timeout": 408,
    "name_mismatch": 421,
    "head_too_large": 431,
    "too_many_connections": 429,
    "budget_requests": 429,
    "budget_bytes_up": 413,
    "budget_bytes_down": 502,
    "budget_rate": 429,
    "budget_connections": 429,
    "budget_hosts": 429,
    "budget_wall": 429,
    "bad_response": 502,
    "resolve_failed": 502,
    "unreachable": 502,
    "out_of_descriptors": 503,
    "upstream_timeout": 504,
}
_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    421: "Misdirected Request",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def refusal(reason: str, public: str, *, rule: str = "", head_only: bool = False) -> bytes:
    """The whole response that tells a client why; the connection ends with it. rule: the one that decided, if any."""
    status = STATUS.get(reason, 403)
    named = f" [rule `{rule}`]" if rule else ""
    body = f"saggar: {public}{named} ({reason})\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        f"X-Saggar-Reason: {reason}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head if head_only else head + body
