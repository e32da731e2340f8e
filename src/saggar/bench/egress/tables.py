"""Attacks as data: what is sent, and the reason with which it must be refused. Rows are those of the L2 behaviours.

The allowlist beside them: `api.allowed.test` (443, 80, 8080), `b.allowed.test` (443, 80), `*.wild.test` (443).
"""

from __future__ import annotations

HOST = b"Host: api.allowed.test\r\n"

#: name on the wire -> (reason, status), the same in SNI, CONNECT, SOCKS and Host: rows 1 to 9
BAD_NAMES: dict[bytes, tuple[str, int]] = {
    b"evil.test": ("host_not_listed", 403),
    b"evilapi.allowed.test": ("host_not_listed", 403),
    b"api.allowed.test.evil.test": ("host_not_listed", 403),
    b"wild.test": ("host_not_listed", 403),
    b"a.b.wild.test": ("host_not_listed", 403),
    b"metadata.google.internal": ("metadata_name", 403),
    b"api.allowed.test.": ("bad_host_name", 400),
    b"evil.test\0.wild.test": ("bad_host_name", 400),
    b"x%00.wild.test": ("bad_host_name", 400),
    b"x%2ewild.test": ("bad_host_name", 400),
    b"x\\.wild.test": ("bad_host_name", 400),
    b"evil.test@api.allowed.test": ("bad_host_name", 400),
    b"evil.test,api.allowed.test": ("bad_host_name", 400),
    b"_.wild.test": ("bad_host_name", 400),
    b"..wild.test": ("bad_host_name", 400),
    b"a" * 64 + b".wild.test": ("bad_host_name", 400),
    b"a." * 125 + b"wild.test": ("bad_host_name", 400),
    "\uff58.wild.test".encode(): ("bad_host_name", 400),
    "x\u00ad.wild.test".encode(): ("bad_host_name", 400),
    "x。wild.test".encode(): ("bad_host_name", 400),
    "①②⑦.⓪.⓪.①".encode(): ("bad_host_name", 400),
    b"127.1": ("bad_host_name", 400),
    b"0x7f000001": ("bad_host_name", 400),
    b"2130706433": ("bad_host_name", 400),
    b"0177.0.0.1": ("bad_host_name", 400),
    b"0": ("bad_host_name", 400),
    b"[api.allowed.test]": ("ip_literal", 403),
    b"[::1]": ("ip_literal", 403),
    b"::1%lo": ("ip_literal", 403),
    b"192.0.2.1": ("ip_literal", 403),
    b"127.0.0.1": ("ip_literal", 403),
}


#: address that a listed name resolves to -> why it is not dialled: rows 12 and 13
RESOLVED: dict[str, str] = {
    "127.0.0.1": "loopback",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "192.168.0.1": "private",
    "169.254.169.254": "metadata",
    "100.64.0.1": "carrier_grade_nat",
    "0.0.0.0": "this_network",
    "192.0.0.1": "protocol_assignments",
    "198.18.1.0": "synthetic",
    "224.0.0.1": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::1": "loopback",
    "::": "unspecified",
    "::127.0.0.1": "ipv4_compatible",
    "64:ff9b::7f00:1": "nat64_loopback",
    "64:ff9b:1::1": "local_nat64",
    "2002:7f00:1::": "6to4",
    "2001:0:7f00:1::": "teredo",
    "fc00::1": "private",
    "fd00:ec2::254": "metadata",
    "fe80::1": "link_local",
    "fec0::1": "site_local",
    "ff02::1": "multicast",
    "3fff::1": "documentation",
    "5f00::1": "segment_routing",
    "100::1": "discard_only",
}


#: record types that carry data out or lead round the wall: row 24
DNS_TYPES: dict[str, int] = {
    "TXT": 16,
    "NULL": 10,
    "ANY": 255,
    "AXFR": 252,
    "SRV": 33,
    "MX": 15,
    "HTTPS": 65,
    "SVCB": 64,
    "AAAA": 28,
}


#: row and what is wrong -> (request, status, reason): rows 34 to 45
BAD_HTTP: dict[str, tuple[bytes, int, str]] = {
    "36 two Host": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400, "malformed_request"),
    "36 no Host": (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),
    "36 userinfo": (b"GET / HTTP/1.1\r\nHost: u@api.allowed.test\r\n\r\n", 400, "bad_host_name"),
    "36 another port": (b"GET / HTTP/1.1\r\nHost: api.allowed.test:8080\r\n\r\n", 421, "name_mismatch"),
    "36 a port that is not listed": (b"GET / HTTP/1.1\r\nHost: api.allowed.test:81\r\n\r\n", 403, "port_not_listed"),
    "37 absolute form differs": (b"GET http://b.allowed.test/ HTTP/1.1\r\n" + HOST + b"\r\n", 421, "name_mismatch"),
    "38 CL and TE": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_framing",
    ),
    "38 two CL": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        400,
        "bad_framing",
    ),
    "38 CL list": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5,5\r\n\r\nabcde", 400, "bad_framing"),
    "38 xchunked": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_framing",
    ),
    "38 chunked, identity": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        400,
        "bad_framing",
    ),
    "38 two TE": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        400,
        "bad_framing",
    ),
    "38 TE on 1.0": (
        b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_framing",
    ),
    "38 bare LF": (b"GET / HTTP/1.1\r\nHost: api.allowed.test\nX: y\r\n\r\n", 400, "malformed_request"),
    "38 obs-fold": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", 400, "malformed_request"),
    "38 space before colon": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length : 5\r\n\r\nabcde",
        400,
        "malformed_request",
    ),
    "38 NUL": (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n", 400, "malformed_request"),
    "39 fragment": (b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n", 400, "malformed_request"),
    "39 backslash": (b"GET /a\\b HTTP/1.1\r\n" + HOST + b"\r\n", 400, "malformed_request"),
    "39 non-ASCII": ("GET /ä HTTP/1.1\r\n".encode() + HOST + b"\r\n", 400, "malformed_request"),
    "34 h2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
    "34 h2c": (
        b"GET / HTTP/1.1\r\n"
        + HOST
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        400,
        "h2_refused",
    ),
    "44 websocket": (
        b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        403,
        "upgrade_refused",
    ),
    "45 TRACE": (b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n", 405, "method_refused"),
    "45 unknown method": (b"FROB / HTTP/1.1\r\n" + HOST + b"\r\n", 405, "method_refused"),
    "huge head": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 70000 + b"\r\n\r\n", 431, "head_too_large"),
}


#: bodies whose chunks are read differently by different servers: row 38
BAD_CHUNKS: tuple[bytes, ...] = (
    b"0x5\r\nabcde\r\n0\r\n\r\n",
    b"5\r\nabcdeX\r\n0\r\n\r\n",
    b"5\nabcde\n0\n\n",
    b"+5\r\nabcde\r\n0\r\n\r\n",
    b"zz\r\n",
)


#: what an upstream may not send: row 46
BAD_RESPONSES: dict[str, bytes] = {
    "two CL": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "CL and TE": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
    "NUL": b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n",
    "unsolicited 101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "a megabyte of head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
    "endless interim": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40,
    "no HTTP": b"SSH-2.0-x\r\n\r\n\r\n",
}
