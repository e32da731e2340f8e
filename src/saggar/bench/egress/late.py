"""Attempts that come late: in a body, in fields behind it, and in answers before the answer."""

from __future__ import annotations

from saggar.bench.egress.attack import API, SECRET, Attack, auth, raw, request


def trailers() -> list[Attack]:
    """Rows 38, 43, 46, 48, 50, 51: fields behind a body, and answers before the answer."""
    post = (
        b"POST /v1/x HTTP/1.1\r\nHost: api.allowed.test\r\nConnection: close\r\n{A}\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
    )
    found = []
    for line in (
        b"Host: EVIL", b"Content-Length: 77777", b"Transfer-Encoding: EVIL", b"X-HTTP-Method-Override: EVIL", b"X_Forwarded_Host: EVIL",
        b"Content-Type: text/EVIL", b"Connection: EVIL", b"If-Match: EVIL", b"X-Acme-Token: EVIL", b"Trailer: EVIL", b"Upgrade: EVIL",
    ):  # fmt: skip
        name = line.partition(b":")[0].decode()
        absent = (b"EVIL", b"77777")
        found.append(Attack(f"trailer {name}", "38", API, raw(post + line + b"\r\n\r\n"), 200, "trailers_dropped", True, absent=absent))  # fmt: skip
    key = b"sk-ATTACKERATTACKERATTACKERATTACKERATTACKER00000000"
    for line in (b"Authorization: Bearer " + key, b"X-Api-Key: " + key, b"Cookie: a=" + key, b"X-Any: " + key):
        name = line.partition(b":")[0].decode()
        found.append(Attack(f"attacker's key in the trailer {name}", "48", API, raw(post + line + b"\r\n\r\n"), 403, "foreign_credential", True, absent=(key,)))  # fmt: skip
    for what, line in {
        "without a colon": b"X", "folded": b"X: a\r\n b", "with a space before its colon": b"X : a", "with a bare LF": b"X: a\nHost: b",
        "with a NUL": b"X: a\0b", "with a bare CR": b"X: a\rb", "without a name": b": a",
    }.items():  # fmt: skip
        found.append(
            Attack(f"trailer {what}", "38", API, raw(post + line + b"\r\n\r\n"), 400, "bad_framing", forwarded=True)
        )
    second = b"GET /v1/files/stolen HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n"
    found.append(Attack("request as trailers", "43", API, raw(post + second), 400, "bad_framing", True, absent=(b"stolen",)))  # fmt: skip

    def leaking(names: dict[str, str]) -> list[bytes]:
        return [post.replace(b"{A}", auth(names)) + b"X-Any: " + names["BENCH_PLACEHOLDER"].encode() + b"\r\n\r\n"]

    found.append(Attack("placeholder in a trailer", "50", API, leaking, 403, "canary", forwarded=True))
    found.append(
        Attack(
            "body that waits for a word it does not get",
            "54",
            API,
            request(b"/v1/files/x", b"Expect: 100-continue", b"Content-Length: 5", method=b"POST"),
            403,
            "files_closed",
        )
    )
    return found + _late_answers()


def _late_answers() -> list[Attack]:
    secret = SECRET.encode()
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n"
    ask = request(b"/v1/x")
    return [
        Attack("echo in a trailer", "51", API, ask, 200, "secret_redacted", True, chunked + b"X-Echo: " + secret + b"\r\n\r\n", (secret,)),
        Attack("echo in a hint", "51", API, ask, 103, "secret_redacted", True,
               b"HTTP/1.1 103 Early Hints\r\nLink: </?k=" + secret + b">\r\n\r\n" + final, (secret,)),
        Attack("cookie in a hint", "46", API, ask, 103, "rule_allows", True, hint + b"Set-Cookie: EVIL\r\n\r\n" + final, (b"EVIL",)),
        Attack("Alt-Svc in a hint", "23", API, ask, 103, "rule_allows", True, hint + b'Alt-Svc: h3=":443"\r\n\r\n' + final, (b"h3=",)),
        Attack("hint of another status", "46", API, ask, 200, "rule_allows", True, b"HTTP/1.1 199 EVIL\r\nLink: EVIL\r\n\r\n" + final, (b"EVIL",)),
        *(
            Attack(f"answer with the trailer {n}", "46", API, ask, 200, "rule_allows", True, chunked + n.encode() + b": EVIL\r\n\r\n", (b"EVIL",))
            for n in ("Set-Cookie", "Content-Length", "Transfer-Encoding", "Location", "Alt-Svc", "Connection", "WWW-Authenticate")
        ),
        Attack("word to go on that nobody asked for", "46", API, ask, 200, "rule_allows", True, b"HTTP/1.1 100 EVIL\r\n\r\n" + final, (b"EVIL",)),
    ]  # fmt: skip


def body_keys() -> list[Attack]:
    """Row 48: the attacker's own key in a body, where the host's terms say `foreign_keys = "refuse"`."""
    key = b"sk-ATTACKERATTACKERATTACKERATTACKERATTACKER00000000"
    escaped = b"".join(b"\\u%04x" % b for b in key)
    percent = b"".join(b"%%%02X" % b for b in key)
    json_, form = b"Content-Type: application/json", b"Content-Type: application/x-www-form-urlencoded"
    bodies = {
        "JSON": (json_, b'{"api_key":"' + key + b'"}'),
        "escaped JSON": (json_, b'{"api_key":"' + escaped + b'"}'),
        "a form": (form, b"a=1&client_secret=" + key),
        "a form, percent-encoded": (form, b"a=1&client_secret=" + percent),
        "multipart": (
            b"Content-Type: multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="k"\r\n\r\n' + key + b"\r\n--b--\r\n",
        ),
        "no declared type": (b"X-A: b", b"key " + key),
        "UTF-16": (b"Content-Type: text/plain", key.decode().encode("utf-16-le")),
        "an AWS key in JSON": (json_, b'{"AccessKeyId":"AKIAATTACKERATTACKER"}'),
        "a GitHub token in JSON": (json_, b'{"token":"ghp_ATTACKERATTACKERATTACKER00000000"}'),
        "a JWT in JSON": (json_, b'{"t":"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.x"}'),
        "a private key in JSON": (json_, b'{"k":"-----BEGIN EC PRIVATE KEY-----"}'),
    }
    found = [
        Attack(f"attacker's key in a body: {name}", "48", API, request(b"/v1/x", field, method=b"POST", body=body), 403, "foreign_credential", True, absent=(key,))
        for name, (field, body) in bodies.items()
    ]  # fmt: skip
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(key[i : i + 4]), key[i : i + 4]) for i in range(0, len(key), 4))
    post = b"POST /v1/x HTTP/1.1\r\nHost: api.allowed.test\r\nConnection: close\r\n{A}\r\nTransfer-Encoding: chunked\r\n\r\n"
    found += [
        Attack("attacker's key in a body: over chunks", "48", API, raw(post + pieces + b"0\r\n\r\n"), 403, "foreign_credential", True),
        Attack("attacker's key in a body: compressed", "48", API,
               request(b"/v1/x", json_, b"Content-Encoding: gzip", method=b"POST", body=b"abc"), 415, "body_unreadable"),
        Attack("attacker's key in a body: another charset", "48", API,
               request(b"/v1/x", b"Content-Type: application/json; charset=utf-7", method=b"POST", body=b"abc"), 415, "body_unreadable"),
    ]  # fmt: skip
    return found
