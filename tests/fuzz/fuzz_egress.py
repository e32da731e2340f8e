"""Coverage-guided fuzzing of the egress wall's parsers: `python tests/fuzz/fuzz_egress.py PARSER [-max_total_time=60]`.

Needs `atheris` (the `fuzz` extra). A value or `ParseError`; what is parsed must also hold what the parser promises, and whatever is written
anew must be read the same. libFuzzer's own options follow the parser's name; a crash is written to the current directory. Inputs have up to
8 KiB; one that takes more than half a second, or a process of more than 600 MiB, is a crash.
"""

import os
import sys
import tempfile
import time

import atheris

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "src"))

with atheris.instrument_imports(include=["saggar"]):
    from saggar.core.errors import ParseError
    from saggar.egress import dns_message as dns
    from saggar.egress.admit import Admitted, admit
    from saggar.egress.admit import write_request as write_admitted
    from saggar.egress.answer import write_answer, write_interim
    from saggar.egress.body_keys import KeyStream
    from saggar.egress.client_hello import MAX_HELLO, NeedMore
    from saggar.egress.client_hello import parse as parse_hello
    from saggar.egress.connect import parse_connect, parse_greeting, parse_socks_request
    from saggar.egress.destination import Destination, parse_authority, parse_host
    from saggar.egress.glob import PathPattern
    from saggar.egress.http_body import ChunkedReader, last_chunk
    from saggar.egress.http_head import parse_request, parse_response, write_request
    from saggar.egress.oauth import swap_tokens
    from saggar.egress.packet import parse_reply
    from saggar.egress.path import canonical
    from saggar.egress.placeholder import Canary
    from saggar.egress.sigv4 import parse_claim
    from saggar.egress.terms import Terms
    from saggar.egress.trailers import is_harmless, judge, of_answer
    from saggar.egress.websocket import FrameReader

#: generous for one input: what takes longer is a parser without a bound
SLOW_S = 0.5


def hello(data):
    result = parse_hello(data)
    if isinstance(result, NeedMore):
        assert len(data) < result.total <= MAX_HELLO + 16389
    else:
        assert result.size <= len(data)


def request(data):
    first = parse_request(data)
    wire = write_request(first, "a.test")
    again = parse_request(wire)
    assert write_request(again, "a.test") == wire
    assert (again.method, again.target, again.body) == (first.method, first.target, first.body)


def query(data):
    parsed = dns.parse_query(data)
    assert parsed.question in data
    dns.response(parsed, 0, (b"\0" * 4,))


def host(data):
    name = parse_host(data)
    assert parse_host(name.encode()) == name == name.lower()


def in_pieces(feed, data, done=lambda: False):
    out = []
    for i in range(len(data)):
        if done():
            break
        out.append(feed(data[i : i + 1]))
    return out


def chunked(data):
    whole, pieces = ChunkedReader(), ChunkedReader()
    body = b"".join(whole.feed(data))
    cut = b"".join(p for found in in_pieces(pieces.feed, data, lambda: pieces.done) for p in found)
    assert (cut, pieces.done, pieces.trailers) == (body, whole.done, whole.trailers)
    if whole.done:
        again = ChunkedReader()
        again.feed(last_chunk(whole.trailers))
        assert (again.done, again.trailers, again.rest) == (True, whole.trailers, b"")
        passing, _, _ = judge(whole.trailers, TERMS)
        assert all(is_harmless(n) for n, _ in (*passing, *of_answer(whole.trailers, bound=True)))


PLACE = Destination("a.test", 443, "https")
CANARY = Canary(["sk-" + "0123456789abcdefghijABCDEFGHIJ0123456789abcdefgh"])
TERMS = Terms()


def admitted(data):
    """A head through the whole decision: what goes upstream is read there as it was decided."""
    head = parse_request(data, default_port=443)
    found = admit(head, PLACE, TERMS, CANARY)
    if not isinstance(found, Admitted):
        assert found.decision.reason
        assert "a.test:443" in found.decision.public
        return
    wire = write_admitted(found, head.body, PLACE.authority, target=found.target.raw, fields=found.fields)
    again = parse_request(wire, default_port=443)
    assert (again.method, again.target, again.host, again.body) == (head.method, found.target.raw, "a.test", head.body)
    assert canonical(again.target) == found.target
    assert found.decision.detail["path"] == found.target.path.decode()[:512]


ASKED = parse_request(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", default_port=443)


def answer(data):
    head = parse_response(data, "GET")
    if head.status < 200:
        out = write_interim(head, ASKED)
        if out:
            assert parse_response(out, "GET").status == head.status
        return
    out, framing, _ = write_answer(head, ASKED, bound=True, scanned=True, keep=True)
    again = parse_response(out, "GET")
    assert (again.status, again.body.kind) == (head.status, framing)
    assert not {n.lower() for n, _ in again.fields} & {b"set-cookie", b"alt-svc", b"upgrade"}


def frames(masked):
    def run(data):
        whole, pieces = FrameReader(masked=masked), FrameReader(masked=masked)
        found, forward = whole.feed(data)
        assert len(data) - len(forward) <= 14
        cut = in_pieces(pieces.feed, data)
        assert b"".join(f for _, f in cut) == forward
        assert b"".join(p for parts, _ in cut for _, p in parts) == b"".join(p for _, p in found)
        assert (pieces.frames, pieces.closing) == (whole.frames, whole.closing)

    return run


def path(data):
    once = canonical(data)
    assert canonical(once.raw) == once
    assert not {b".", b".."} & set(once.path.split(b"/"))
    assert once.raw.isascii()


def glob(data):
    text, _, subject = data.decode("latin-1").partition("\n")
    PathPattern.parse(text).matches("/" + subject)


def keys(data):
    whole = KeyStream().seen(data)
    if whole and len(data) <= 200 and b"\\" not in data and b"%" not in data:
        cut = KeyStream()
        assert any(in_pieces(cut.seen, data))


def tokens(data):
    body, swapped = swap_tokens(data, lambda form: f"placeholder-of-{form}")
    assert isinstance(body, bytes)
    assert all(isinstance(v, str) for v in swapped.values())


PARSERS = {
    "hello": hello,
    "request": request,
    "response": lambda d: parse_response(d, "GET"),
    "query": query,
    "host": host,
    "authority": lambda d: parse_authority(d, 80),
    "connect": parse_connect,
    "greeting": parse_greeting,
    "socks": parse_socks_request,
    "chunked": chunked,
    "packet": parse_reply,
    "admitted": admitted,
    "answer": answer,
    "frames-masked": frames(masked=True),
    "frames": frames(masked=False),
    "path": path,
    "glob": glob,
    "keys": keys,
    "tokens": tokens,
    "claim": parse_claim,
}

#: something valid for each, so that the first seconds are not spent on finding a beginning
SEEDS = {
    "request": [b"POST /a?b HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\n"],
    "admitted": [
        b"POST /a?b HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nCookie: a\r\n\r\n"
    ],
    "response": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"],
    "answer": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\nSet-Cookie: a\r\n\r\n",
        b"HTTP/1.1 103 X\r\nLink: </a>\r\n\r\n",
    ],
    "query": [b"\x12\x34\1\0\0\1\0\0\0\0\0\1\3api\4test\0\0\1\0\1\0\0\x29\4\xd0\0\0\0\0\0\0"],
    "host": [b"xn--bcher-kva.test"],
    "authority": [b"api.allowed.test:443"],
    "connect": [b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"],
    "greeting": [b"\5\2\0\1"],
    "socks": [b"\5\1\0\3\6a.test\1\xbb"],
    "chunked": [b"3;x=y\r\nabc\r\n0\r\nA: b\r\nC: d\r\n\r\nrest"],
    "packet": [b"\x45" + b"\0" * 60, b"\x60" + b"\0" * 80],
    "frames": [b"\x81\5hello\x82\x7e\0\x80" + b"x" * 128, b"\x88\2\3\xf0"],
    "frames-masked": [b"\x81\x85abcdhello\x89\x80abcd"],
    "path": [b"/a/%e2%82%ac/./b?c=%7e;d", b"/%ef%bc%8f"],
    "glob": [b"/a/**/b*c/**\na/x/bxc/d"],
    "keys": [b'{"k":"ghp_0123456789abcdefghij"}', b"a=%73k-0123456789abcdefghij", b'"\\u0073k-0123456789abcdefghij"'],
    "tokens": [b'{"access_token":"a","refresh_token":"b","expires_in":1}'],
    "claim": [
        b"AWS4-HMAC-SHA256 Credential=AKIAABCDEFGHIJKLMNOP/20261130/r/s/aws4_request, SignedHeaders=host, Signature="
        + b"a" * 64
    ],
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"one of: {' '.join(PARSERS)}")
    name = sys.argv.pop(1)
    parser = PARSERS[name]

    def one(data):
        started = time.process_time()
        try:
            parser(data)
        except ParseError as e:
            assert e.reason
        assert time.process_time() - started < SLOW_S, "unbounded time"

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS.get(name, ())):
            with open(os.path.join(corpus, str(number)), "wb") as f:
                f.write(seed)
        atheris.Setup([*sys.argv, "-max_len=8192", "-rss_limit_mb=600", "-timeout=10", corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
