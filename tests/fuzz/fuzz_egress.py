"""Coverage-guided fuzzing of the egress wall's parsers: `python tests/fuzz/fuzz_egress.py PARSER [-max_total_time=60]`.

Needs `atheris` (the `fuzz` extra). A value or `ParseError`; what is parsed must also hold what the parser promises. libFuzzer's own options
follow the parser's name; a crash is written to the current directory.
"""

import os
import sys
import time

import atheris

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "src"))

with atheris.instrument_imports(include=["saggar"]):
    from saggar.core.errors import ParseError
    from saggar.egress import dns_message as dns
    from saggar.egress.client_hello import MAX_HELLO, NeedMore
    from saggar.egress.client_hello import parse as parse_hello
    from saggar.egress.connect import parse_connect, parse_greeting, parse_socks_request
    from saggar.egress.destination import parse_authority, parse_host
    from saggar.egress.http_body import ChunkedReader
    from saggar.egress.http_head import parse_request, parse_response, write_request
    from saggar.egress.packet import parse_reply

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


def chunked(data):
    whole, pieces = ChunkedReader(), ChunkedReader()
    body = b"".join(whole.feed(data))
    cut = b""
    for i in range(len(data)):
        if pieces.done:
            break
        cut += b"".join(pieces.feed(data[i : i + 1]))
    assert (cut, pieces.done) == (body, whole.done)


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
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"one of: {' '.join(PARSERS)}")
    parser = PARSERS[sys.argv.pop(1)]

    def one(data):
        started = time.process_time()
        try:
            parser(data)
        except ParseError as e:
            assert e.reason
        assert time.process_time() - started < SLOW_S, "unbounded time"

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
