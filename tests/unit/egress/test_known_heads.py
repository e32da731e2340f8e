"""Heads that are byte for byte the same are judged once; everything else about them happens each time."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from terminated_rig import Rig, get, ok

from saggar.egress.client_request_host import HEAD_BYTES, MAX_HEADS
from saggar.egress.headers import answer_field, response_header_passes

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


@pytest.mark.parametrize(
    "name", [b"Alt-Svc", b"alt_svc", b"Set-Cookie", b"SET_COOKIE", b"Content-Type", b"Connection", b"X-Any"]
)
def test_answer_field_says_what_response_header_passes_says(name):
    for _ in range(2):
        lower = name.lower()
        wanted = lower, response_header_passes(lower, bound=False), response_header_passes(lower, bound=True)
        assert answer_field(name) == wanted
