"""Attempts against terminated hosts: credentials, pinning, rules, framing both ways, canaries, budgets (rows 33 to 60).

Each is bytes inside TLS from a real cell. `{P}` stands for the placeholder that the cell holds. The control of each host is a
request that must reach its upstream with the real secret in place.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from saggar.bench.egress.attack import (
    API,
    AWS_ID,
    BUDGET,
    BUDGET_UP,
    GIT,
    GIT_SECRET,
    QUERY,
    S3,
    SECRET,
    SOCKET,
    WILD,
    Attack,
    auth,
    bare,
    head_of,
    raw,
    request,
)
from saggar.bench.egress.late import body_keys, trailers
from saggar.bench.egress.services import services, sockets

if TYPE_CHECKING:
    from collections.abc import Callable


def _paths() -> list[Attack]:
    """Row 39: what has no canonical form, and what canonicalises into a deny."""
    bad = {
        b"/v1/../admin": "path_dot_segment", b"/v1/./../x": "path_dot_segment", b"/./..": "path_dot_segment", b"/v1/..": "path_dot_segment",
        b"/v1/%2e%2e/admin": "path_dot_segment", b"/v1/.%2e/admin": "path_dot_segment", b"/v1/%2E%2E%2fadmin": "path_dot_segment",
        b"/v1//admin": "path_empty_segment", b"//evil.test/v1/x": "path_empty_segment", b"/v1/a%2fb": "path_encoded_slash",
        b"/v1/a%2Fb": "path_encoded_slash", b"/v1/%252e%252e/admin": "path_double_encoding", b"/v1/%2500": "path_double_encoding",
        b"/v1/a%5cb": "path_backslash", b"/v1/x;/../admin": "path_parameters", b"/v1/x;jsessionid=1": "path_parameters",
        b"/v1/a%3bb": "path_parameters", b"/v1/a%00b": "path_control", b"/v1/a%0d%0aX:%20y": "path_control",
        b"/v1/a%23b": "path_fragment", b"/v1/a%3fb": "path_encoded_query", b"/v1/%zz": "path_bad_escape", b"/v1/%": "path_bad_escape",
        b"/v1/%u002e": "path_bad_escape", b"/v1/x?a=%0d%0a": "query_control", b"/v1/x?a=%00": "query_control", b"/v1/x?a=%zz": "query_bad_escape",
        b"/v1/%c0%ae%c0%ae/admin": "path_not_utf8", b"/v1/a%c0%afb": "path_not_utf8", b"/v1/%e0%80%ae./x": "path_not_utf8", b"/v1/%ff": "path_not_utf8",
        b"/v1/%ef%bc%8e%ef%bc%8e/admin": "path_lookalike", b"/v1/%e2%80%a5/admin": "path_lookalike", b"/v1/a%ef%bc%8fb": "path_lookalike",
        b"/v1/..;/admin": "path_parameters", b"/v1/..%5cadmin": "path_backslash", b"/v1/a%25%32%66b": "path_double_encoding",
        b"/v1/x?%c0%e1dmin=1": "query_not_utf8",
    }  # fmt: skip
    found = [Attack(f"path {p.decode()}", "39", API, request(p), 400, why) for p, why in bad.items()]
    closed = [
        b"/v1/files/x", b"/v1/./files/x", b"/./v1/files/.", b"/v1/FILES/x", b"/v1/Files", b"/v1/files/", b"/v1/%66iles/x", b"/v1/fi%6Ces",
    ]  # fmt: skip
    found += [Attack(f"denied path {p.decode()}", "54", API, request(p), 403, "files_closed") for p in closed]
    for query in (b"admin=1", b"a=1&admin=", b"ADMIN=1", b"a=1;admin=1", b"%61dmin=1"):
        found.append(
            Attack(f"denied query {query.decode()}", "54", API, request(b"/v1/x?" + query), 403, "admin_closed")
        )
    for path in (b"/v2/x", b"/v1x", b"/V1/x", b"/admin", b"/.well-known/x"):
        found.append(Attack(f"unlisted path {path.decode()}", "54", API, request(path), 403, "no_rule_matches"))
    return found


def _names() -> list[Attack]:
    """Rows 30, 36, 37: another name inside the connection."""
    others = (
        "evil.test",
        WILD,
        f"{API}:8443",
        f"{API}:80",
        "evilapi.allowed.test",
        f"{API}.evil.test",
        "allowed.test",
    )
    found = [Attack(f"Host {h}", "36", API, request(b"/v1/x", host=h), 421, "name_mismatch") for h in others]
    for host in (
        "u@api.allowed.test",
        "api.allowed.test.",
        "api..allowed.test",
        "api.allowed.test,evil.test",
        "[::1]",
        "127.0.0.1",
        "0x7f000001",
    ):
        reason = "ip_literal" if host in ("[::1]", "127.0.0.1") else "bad_host_name"
        status = 403 if reason == "ip_literal" else 400
        found.append(Attack(f"Host {host}", "36", API, request(b"/v1/x", host=host), status, reason))
    found += [
        Attack("absolute form, other host", "37", API, request(b"https://evil.test/v1/x"), 421, "name_mismatch"),
        Attack(
            "absolute form, other port", "37", API, request(b"https://api.allowed.test:8443/v1/x"), 421, "name_mismatch"
        ),
        Attack("absolute form, http", "37", API, request(b"http://api.allowed.test/v1/x"), 400, "malformed_request"),
        Attack("absolute form, userinfo", "37", API, request(b"https://u@api.allowed.test/v1/x"), 400, "bad_host_name"),
        Attack("two Host", "36", API, request(b"/v1/x", b"Host: evil.test"), 400, "malformed_request"),
        Attack("no Host", "36", API, raw(b"GET /v1/x HTTP/1.1\r\n{A}\r\n\r\n"), 400, "malformed_request"),
        Attack("asterisk form", "37", API, request(b"*", method=b"OPTIONS"), 400, "path_not_absolute"),
        Attack(
            "CONNECT inside TLS",
            "27",
            API,
            raw(b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"),
            405,
            "method_refused",
        ),
    ]
    return found


def _methods() -> list[Attack]:
    found = [
        Attack(f"method {m}", "45", API, request(b"/v1/x", method=m.encode()), 405, "method_refused")
        for m in ("TRACE", "TRACK", "DEBUG", "FROB", "get")
    ]
    found += [
        Attack(f"method {m} without a rule", "54", API, request(b"/v1/x", method=m.encode()), 405, "method_not_allowed")
        for m in ("DELETE", "PATCH", "OPTIONS")
    ]
    found.append(
        Attack(
            "POST to a read-only host", "54", WILD, bare(b"/x", method=b"POST", host=WILD), 405, "method_not_allowed"
        )
    )
    found.append(
        Attack(
            "body over the rule",
            "54",
            API,
            request(b"/v1/x", b"Content-Length: 65537", method=b"POST"),
            403,
            "no_rule_matches",
        )
    )
    return found


def _framing() -> list[Attack]:
    """Rows 38, 42, 43: what two servers would cut apart differently."""
    post = b"POST /v1/x HTTP/1.1\r\nHost: api.allowed.test\r\nConnection: close\r\n{A}\r\n"
    bad = {
        "CL and TE": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "two CL": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        "equal CL twice": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
        "CL list": b"Content-Length: 5,5\r\n\r\nabcde",
        "CL plus": b"Content-Length: +5\r\n\r\nabcde",
        "CL hex": b"Content-Length: 0x5\r\n\r\nabcde",
        "CL minus": b"Content-Length: -1\r\n\r\n",
        "CL blank inside": b"Content-Length: 1 5\r\n\r\nabcde",
        "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "chunked, identity": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "two TE": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "TE quoted": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    }
    found = [Attack(f"framing {n}", "38", API, raw(post + b), 400, "bad_framing") for n, b in bad.items()]
    lines = {
        "bare LF": b"X: a\nY: b\r\n\r\n",
        "obs-fold": b"X: a\r\n b\r\n\r\n",
        "space before colon": b"X : a\r\n\r\n",
        "TE space before colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "bare CR": b"X: a\rb\r\n\r\n",
        "NUL": b"X: a\0b\r\n\r\n",
        "no colon": b"X\r\n\r\n",
        "empty name": b": a\r\n\r\n",
        "non-ASCII name": b"X\xc3\xa4: a\r\n\r\n",
    }
    found += [Attack(f"line {n}", "38", API, raw(post + b), 400, "malformed_request") for n, b in lines.items()]
    chunks = {
        "0x5": b"0x5\r\nabcde\r\n0\r\n\r\n",
        "plus": b"+5\r\nabcde\r\n0\r\n\r\n",
        "bare LF": b"5\nabcde\n0\n\n",
        "no CRLF behind": b"5\r\nabcdeX\r\n0\r\n\r\n",
        "letters": b"zz\r\nabcde\r\n0\r\n\r\n",
        "huge size": b"fffffffffffffffff\r\nabcde\r\n0\r\n\r\n",
    }
    found += [
        Attack(
            f"chunk {n}",
            "38",
            API,
            raw(post + b"Transfer-Encoding: chunked\r\n\r\n" + b),
            400,
            "bad_framing",
            forwarded=True,
        )
        for n, b in chunks.items()
    ]
    second = b"GET /v1/files/stolen HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n"
    found += [
        Attack("second request in a body", "43", API, request(b"/v1/x", method=b"POST", body=second), 200, "rule_allows", forwarded=True),
        Attack("HTTP/1.0 with TE", "38", API, raw(post.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, "bad_framing"),
        Attack("HTTP/0.9", "38", API, raw(b"GET /v1/x\r\n\r\n"), 400, "malformed_request"),
        Attack("HTTP/2 preface", "34", API, raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400, "malformed_request"),
        Attack("h2c upgrade", "34", API, request(b"/v1/x", b"Upgrade: h2c", b"HTTP2-Settings: AA"), 400, "h2_refused"),
        Attack("huge head", "29", API, request(b"/v1/x", b"X: " + b"y" * 70000), 431, "head_too_large"),
        Attack("TLS inside TLS", "29", API, raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400, "malformed_request"),
        Attack("WebSocket without leave", "44", API, request(b"/v1/x", b"Upgrade: websocket"), 403, "upgrade_refused"),
        Attack("unknown upgrade", "44", API, request(b"/v1/x", b"Upgrade: tcp"), 400, "h2_refused"),
    ]  # fmt: skip
    return found


def _credentials() -> list[Attack]:
    """Rows 47 to 49: the attacker's own key on an allowed host."""
    key = b"sk-ATTACKERATTACKERATTACKERATTACKERATTACKER00000000"
    slots = {
        "bearer": b"Authorization: Bearer " + key,
        "lower-case scheme": b"authorization: bearer " + key,
        "token scheme": b"Authorization: token " + key,
        "basic": b"Authorization: Basic " + base64.b64encode(b"u:" + key),
        "digest": b'Authorization: Digest username="a"',
        "aws": b"Authorization: AWS4-HMAC-SHA256 Credential=AKIAATTACKERATTACKER/20261130/r/s/aws4_request, SignedHeaders=host, Signature="
        + b"a" * 64,
    }
    found = [
        Attack(f"attacker's {n} in the slot", "48", API, bare(b"/v1/x", f), 403, "foreign_credential")
        for n, f in slots.items()
    ]
    beside = {
        "second authorization": b"Authorization: Bearer " + key,
        "x-api-key": b"x-api-key: " + key,
        "api-key": b"api-key: " + key,
        "X_API_KEY": b"X_API_KEY: " + key,
        "x-goog-api-key": b"x-goog-api-key: AIza" + b"a" * 35,
        "cookie": b"Cookie: session=" + key,
        "private-token": b"PRIVATE-TOKEN: glpat-abc",
        "x-auth-token": b"X-Auth-Token: " + key,
        "x-amz-security-token": b"X-Amz-Security-Token: abc",
        "organisation": b"OpenAI-Organization: org-attacker",
        "a key under any name": b"X-Anything: " + key,
        "a bearer under any name": b"X-Anything: Bearer abc",
        "a key in a WebSocket's protocol": b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key." + key,
        "a key inside a value": b"X-Anything: a=1; k=" + key,
        "a JWT under any name": b"X-Anything: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.x",
    }
    found += [
        Attack(f"{n} beside ours", "48", API, request(b"/v1/x", f), 403, "foreign_credential")
        for n, f in beside.items()
    ]
    for query in (
        b"key=abc",
        b"api_key=abc",
        b"access_token=abc",
        b"X-Amz-Signature=abc&X-Amz-Credential=x",
        b"sig=abc&sv=1&se=2",
        b"%6Bey=abc",
        b"a=1;key=abc",
        b"t=" + key,
    ):
        found.append(
            Attack(
                f"in the query {query[:30].decode()}", "48", API, request(b"/v1/x?" + query), 403, "foreign_credential"
            )
        )
    found += [
        Attack("no placeholder", "47", API, bare(b"/v1/x"), 403, "placeholder_missing"),
        Attack("empty bearer", "47", API, bare(b"/v1/x", b"Authorization: Bearer "), 403, "foreign_credential"),
        Attack("on an unbound host", "49", WILD, bare(b"/x?key=" + key + b"&q=1", b"Authorization: Bearer " + key, b"Cookie: a=" + key,
               b"X-Api-Key: " + key, b"X-Acme-Token: " + key, host=WILD), 200, "wild.methods", forwarded=True, absent=(key,)),
        Attack("Connection names our header", "41", API, request(b"/v1/x", b"Connection: Authorization, x-api-key"), 200, "rule_allows", forwarded=True),
        Attack("overrides", "40", API, request(b"/v1/x", b"X-HTTP-Method-Override: DELETE", b"X-Forwarded-Host: EVIL", b"X-Original-URL: /EVIL", b"Forwarded: host=EVIL", b"X-HTTP-Host-Override: EVIL",
               b"X-Rewrite-URL: /EVIL", b"X_Forwarded_Host: EVIL"), 200, "rule_allows", forwarded=True, absent=(b"EVIL", b"DELETE")),
        Attack("query slot with the attacker's key", "48", QUERY, bare(b"/x?key=" + key, host=QUERY), 403, "foreign_credential"),
        Attack("query slot twice", "48", QUERY, lambda n: [head_of(QUERY, b"/x?key=%s&key=%s" % (n["BENCH_QUERY_PLACEHOLDER"].encode(), key))], 403, "foreign_credential"),
        Attack("another host's placeholder in the query slot", "50", QUERY, bare(b"/x?key={P}", host=QUERY), 403, "canary"),
    ]  # fmt: skip
    return found


def _canaries() -> list[Attack]:
    """Row 50: the placeholder where it does not belong."""

    def with_form(form: Callable[[bytes], bytes], place: str) -> Callable[[dict[str, str]], list[bytes]]:
        def make(names: dict[str, str]) -> list[bytes]:
            shown = form(names["BENCH_PLACEHOLDER"].encode())
            if place == "header":
                return [head_of(WILD, b"/x", b"X-Data: " + shown)]
            if place == "path":
                return [head_of(WILD, b"/" + shown)]
            if place == "query":
                return [head_of(WILD, b"/x?q=" + shown)]
            if place == "authorization":
                return [head_of(WILD, b"/x", b"Authorization: " + shown)]
            head = head_of(API, b"/v1/x", auth(names), b"Content-Length: %d" % len(shown), method=b"POST")
            return [head + shown]

        return make

    forms: dict[str, Callable[[bytes], bytes]] = {
        "raw": lambda p: p,
        "without its prefix": lambda p: p[3:],
        "percent": lambda p: b"".join(b"%%%02x" % b for b in p),
        "partly percent": lambda p: b"".join(b"%%%02X" % b if b % 3 == 0 else bytes((b,)) for b in p),
        "base64": lambda p: base64.b64encode(b"x" + p),
        "basic": lambda p: b"Basic " + base64.b64encode(b"user:" + p),
        "hex": lambda p: p.hex().encode(),
        "u-escaped": lambda p: b"".join(b"\\u%04x" % b for b in p),
        "JSON": lambda p: json.dumps({"k": p.decode()}).encode(),
        "percent of base64": lambda p: quote(base64.b64encode(b"yz" + p)).encode(),
    }
    found = []
    for name, form in forms.items():
        if name in ("raw", "without its prefix", "percent", "base64", "hex", "basic"):
            place = "authorization" if name == "basic" else "header"
            found.append(
                Attack(
                    f"placeholder {name} in another host's {place}", "50", WILD, with_form(form, place), 403, "canary"
                )
            )
        if name in ("raw", "percent", "partly percent", "hex", "without its prefix"):
            found.append(
                Attack(f"placeholder {name} in another host's path", "50", WILD, with_form(form, "path"), 403, "canary")
            )
        if name in ("without its prefix", "partly percent", "percent of base64", "hex"):
            found.append(
                Attack(
                    f"placeholder {name} in another host's query", "50", WILD, with_form(form, "query"), 403, "canary"
                )
            )
        found.append(
            Attack(f"placeholder {name} in a body", "50", API, with_form(form, "body"), 403, "canary", forwarded=True)
        )

    def chunked(names: dict[str, str]) -> list[bytes]:
        placeholder = names["BENCH_PLACEHOLDER"].encode()
        parts = [placeholder[i : i + 5] for i in range(0, len(placeholder), 5)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
        return [head_of(API, b"/v1/x", auth(names), b"Transfer-Encoding: chunked", method=b"POST") + body]

    found.append(Attack("placeholder over chunks", "50", API, chunked, 403, "canary", forwarded=True))
    return found


def _echoes() -> list[Attack]:
    """Row 51: the upstream says the secret back; row 46: it lies about its answer."""
    secret = SECRET.encode()
    forms = {
        "raw": secret,
        "base64": base64.b64encode(secret),
        "base64 at 1": base64.b64encode(b"x" + secret),
        "base64 at 2": base64.b64encode(b"xy" + secret),
        "basic": base64.b64encode(b"user:" + secret),
        "percent": b"".join(b"%%%02X" % b for b in secret),
        "JSON": json.dumps(SECRET).encode(),
        "u-escaped": b"".join(b"\\u%04x" % b for b in secret),
        "hex": secret.hex().encode(),
    }
    found = []
    for name, form in forms.items():
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(form) + 4) + b"a " + form + b" z"
        found.append(
            Attack(f"echo {name}", "51", API, request(b"/v1/x"), 200, "secret_redacted", True, plain, (form, secret))
        )
    raw_form = forms["raw"]
    pieces = b"".join(
        b"%x\r\n%s\r\n" % (len(raw_form[i : i + 7]), raw_form[i : i + 7]) for i in range(0, len(raw_form), 7)
    )
    found += [
        Attack("echo over chunks", "51", API, request(b"/v1/x"), 200, "secret_redacted", True,
               b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n", (secret,)),
        Attack("echo in a header", "51", API, request(b"/v1/x"), 200, "secret_redacted", True,
               b"HTTP/1.1 200 OK\r\nX-Echo: " + secret + b"\r\nContent-Length: 0\r\n\r\n", (secret,)),
        Attack("echo in an error page", "53", API, request(b"/v1/x"), 500, "secret_redacted", True,
               b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n" % len(secret) + secret, (secret,)),
        Attack("echo in a location", "52", API, request(b"/v1/x"), 302, "secret_redacted", True,
               b"HTTP/1.1 302 Found\r\nLocation: https://evil.test/?k=" + secret + b"\r\nContent-Length: 0\r\n\r\n", (secret,)),
        Attack("echo in a reason phrase", "51", API, request(b"/v1/x"), 200, "secret_redacted", True,
               b"HTTP/1.1 200 " + secret + b"\r\nContent-Length: 0\r\n\r\n", (secret,)),
        Attack("echo gzip'ed", "51", API, request(b"/v1/x"), 502, "encoded_response", True,
               b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", (secret,)),
        Attack("cookie of our account", "51", API, request(b"/v1/x"), 200, "rule_allows", True,
               b"HTTP/1.1 200 OK\r\nSet-Cookie: session=OURSESSION\r\nContent-Length: 0\r\n\r\n", (b"OURSESSION",)),
        Attack("Alt-Svc", "23", API, request(b"/v1/x"), 200, "rule_allows", True,
               b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: 0\r\n\r\n', (b"h3=",)),
    ]  # fmt: skip
    lies = {
        "two CL": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        "CL and TE": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "NUL": b"HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 0\r\n\r\n",
        "bare LF": b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\nContent-Length: 0\r\n\r\n",
        "unsolicited 101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        "a megabyte of head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        "endless hints": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40,
        "no HTTP": b"SSH-2.0-x\r\n\r\n\r\n",
        "status 99": b"HTTP/1.1 99 No\r\nContent-Length: 0\r\n\r\n",
        "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    }
    reasons = {"unsolicited 101": "unsolicited_upgrade"}
    found += [
        Attack(f"answer: {n}", "46", API, request(b"/v1/x"), 502, reasons.get(n, "bad_response"), True, b)
        for n, b in lies.items()
    ]
    return found


#: named after the path, since the tunnel has attempts of the same names
ATTACKS: tuple[Attack, ...] = tuple(
    replace(a, name=f"terminated: {a.name}")
    for a in (
        *_paths(),
        *_names(),
        *_methods(),
        *_framing(),
        *trailers(),
        *body_keys(),
        *_credentials(),
        *_canaries(),
        *_echoes(),
        *services(),
        *sockets(),
    )
)

#: host -> request that must reach its upstream, and what must then stand in it
CONTROLS: dict[str, tuple[Callable[[dict[str, str]], list[bytes]], bytes]] = {
    API: (request(b"/v1/x"), b"authorization: Bearer " + SECRET.encode()),
    WILD: (bare(b"/x", host=WILD), b"GET /x "),
    GIT: (
        bare(b"/acme/widget.git/info/refs?service=git-upload-pack", host=GIT),
        b"authorization: Basic " + base64.b64encode(b"x-access-token:" + GIT_SECRET.encode()),
    ),
    S3: (
        lambda n: [
            head_of(
                S3,
                b"/mine/key",
                f"Authorization: AWS4-HMAC-SHA256 Credential={n['AWS_ACCESS_KEY_ID']}/20261130/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature={'a' * 64}".encode(),
            )
        ],
        b"Credential=" + AWS_ID.encode(),
    ),
    QUERY: (
        lambda n: [head_of(QUERY, b"/x?key=" + n["BENCH_QUERY_PLACEHOLDER"].encode())],
        b"GET /x?key=" + SECRET.encode(),
    ),
    BUDGET: (bare(b"/x", host=BUDGET), b"GET /x "),
    BUDGET_UP: (bare(b"/x", method=b"POST", host=BUDGET_UP, body=b"ok"), b"POST /x "),
    SOCKET: (
        lambda n: [head_of(SOCKET, b"/", b"Authorization: Bearer " + n["BENCH_WS_PLACEHOLDER"].encode())],
        b"authorization: Bearer " + SECRET.encode(),
    ),
}
