"""Heads that are byte for byte the same are judged once; everything else about them happens each time."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from terminated_rig import SECRET, Rig, get, ok

from saggar.egress.headers import answer_field, response_header_passes
from saggar.egress.known import HEAD_BYTES, MAX_HEADS, Answers

BEARER = {"credential": {"source": "env:REAL_KEY", "env": "KEY", "format": "openai"}, "budget": {"requests": 4}}


def auth(rig):
    return b"Authorization: Bearer " + rig.placeholder.encode()


def known(rig):
    return [len(heads) for _, heads in rig.termination._heads.values()]


def status(answer):
    return int(answer.split(b" ", 2)[1])


def test_same_head_is_counted_and_recorded_each_time():
    with Rig(ok(), BEARER) as rig:
        conn = rig.connect()
        for _ in range(4):
            assert status(rig.ask(get(b"/a", auth(rig)), conn)) == 200
        assert known(rig) == [1]
        assert len(rig.port.records) == 4
        assert len(rig.upstream.received) == 4
        answer = rig.ask(get(b"/a", auth(rig)), conn)
        assert (status(answer), b"budget_requests" in answer) == (429, True)


def test_refused_head_is_judged_anew():
    with Rig(ok(), BEARER) as rig:
        for _ in range(2):
            assert status(rig.ask(get(b"/a", b"Authorization: Bearer sk-foreign"))) == 403
        assert len(rig.port.refusals) == 2
        assert known(rig) == [0]


def test_new_placeholder_makes_a_known_head_a_canary():
    """What a token endpoint issued since then is looked for in a head that was harmless before."""
    with Rig(ok(), BEARER) as rig:
        conn = rig.connect()
        request = get(b"/a", auth(rig), b"X-Note: saggar-issued-1234567890abcdef")
        assert status(rig.ask(request, conn)) == 200
        rig.call(lambda: rig.termination.issue({"saggar-issued-1234567890abcdef": "real"}, "another"))
        answer = rig.ask(request, conn)
        assert (status(answer), b"canary" in answer) == (403, True)
        assert len(rig.upstream.received) == 1


def test_question_is_asked_each_time():
    terms = {**BEARER, "rules": [{"effect": "ask", "paths": ["/a"]}]}
    with Rig(ok(), terms) as rig:
        conn = rig.connect()
        for _ in range(2):
            assert status(rig.ask(get(b"/a", auth(rig)), conn)) == 200
        assert known(rig) == [0]
        assert [r.effect for r in rig.port.records].count("ask") == 2


def test_other_terms_have_heads_of_their_own():
    with Rig(ok(), BEARER) as rig:
        rig.ask(get(b"/a", auth(rig)))
        termination, destination = rig.termination, rig.authorized.destination
        assert len(termination.heads(destination, rig.terms)) == 1
        assert termination.heads(destination, replace(rig.terms)) == {}


def test_memory_is_bounded():
    with Rig(ok(), {**BEARER, "budget": {"requests": 10_000}}) as rig:
        conn = rig.connect()
        for i in range(MAX_HEADS + 10):
            rig.ask(get(b"/%d" % i, auth(rig)), conn)
        rig.ask(get(b"/long", auth(rig), b"X-Long: " + b"x" * HEAD_BYTES), conn)
        assert known(rig) == [MAX_HEADS]


def test_a_known_head_carries_the_secret_of_its_moment(tmp_path):
    key = tmp_path / "key"
    key.write_text("first-secret-value\n")
    key.chmod(0o600)
    with Rig(ok(), {"credential": {"source": f"file:{key}", "env": "K"}}) as rig:
        conn = rig.connect()
        for _ in range(2):
            rig.ask(get(b"/a", auth(rig)), conn)
        key.write_text("second-secret-value\n")
        for _ in range(2):
            rig.ask(get(b"/a", auth(rig)), conn)
        assert [r.split(b"Bearer ")[1].split(b"-")[0] for r in rig.upstream.received] == [b"first"] * 2 + [
            b"second"
        ] * 2
        assert known(rig) == [1]


def test_a_secret_in_a_known_answer_is_cut_out_and_recorded_each_time():
    with Rig(ok(b"hello", b"X-Echo: " + SECRET.encode()), {**BEARER, "budget": {"requests": 9}}) as rig:
        conn = rig.connect()
        for _ in range(3):
            answer = rig.ask(get(b"/a", auth(rig)), conn)
            assert SECRET.encode() not in answer
            assert b"X-Echo: " in answer
        # of each: before the head goes out
        assert len({id(d) for d in rig.port.records if d.reason == "secret_redacted"}) >= 3


def test_the_same_head_answers_a_head_request_otherwise():
    """Its length is told, and nothing follows."""

    def script(request, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + (b"" if request[:4] == b"HEAD" else b"hello"))
        return True

    with Rig(script, {**BEARER, "budget": {"requests": 9}}) as rig:
        conn = rig.connect()
        for _ in range(2):
            assert rig.ask(get(b"/a", auth(rig)), conn).endswith(b"\r\n\r\nhello")
            conn.sendall(get(b"/a", auth(rig), method=b"HEAD"))
            answer = conn.recv(65536)
            assert b"Content-Length: 5" in answer
            assert answer.endswith(b"\r\n\r\n")


def test_answers_are_read_once_and_bounded():
    answers = Answers()
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    first = answers.read(raw, "GET")
    assert answers.read(raw, "POST") is first
    assert answers.read(raw, "HEAD").body.kind == "none"
    for n in range(2 * MAX_HEADS):
        answers.read(b"HTTP/1.1 200 OK\r\nX: %d\r\n\r\n" % n, "GET")
        assert len(answers._heads) <= MAX_HEADS
    answers.read(b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES + b"\r\n\r\n", "GET")
    assert max(map(len, answers._heads)) <= HEAD_BYTES


@pytest.mark.parametrize(
    "name", [b"Alt-Svc", b"alt_svc", b"Set-Cookie", b"SET_COOKIE", b"Content-Type", b"Connection", b"X-Any"]
)
def test_answer_field_says_what_response_header_passes_says(name):
    for _ in range(2):
        lower = name.lower()
        wanted = lower, response_header_passes(lower, bound=False), response_header_passes(lower, bound=True)
        assert answer_field(name) == wanted
