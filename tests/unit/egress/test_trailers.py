from __future__ import annotations

import pytest

from saggar.core.decision import DENY
from saggar.egress.headers import CREDENTIAL, HOP, OVERRIDE
from saggar.egress.http_head import HOP_BY_HOP, OVERRIDES
from saggar.egress.placeholder import Slot
from saggar.egress.rules import HttpRules, parse_rule
from saggar.egress.terms import Credential, Terms
from saggar.egress.trailers import announced, is_harmless, judge, of_answer

RULES = HttpRules.of([parse_rule({"effect": DENY, "headers": {"x-mode": "admin"}}, "r")])
BOUND = Terms(
    rules=RULES, credential=Credential("c", "header", Slot("header", "x-slot")), set_headers=((b"x-set", b"1"),)
)


@pytest.mark.parametrize("name", sorted(HOP | OVERRIDE | CREDENTIAL | HOP_BY_HOP | OVERRIDES))
def test_what_frames_routes_or_authenticates_is_no_trailer(name):
    assert not is_harmless(name)
    assert not is_harmless(name.replace(b"-", b"_"))


@pytest.mark.parametrize(
    "name",
    [b"content-digest", b"repr-digest", b"grpc-status", b"grpc-message", b"server-timing", b"etag", b"x-checksum"],
)
def test_what_tells_of_the_body_is_one(name):
    assert is_harmless(name)


@pytest.mark.parametrize("name", [b"x-mode", b"x_mode", b"x-slot", b"x-set", b"content-type", b"content_type"])
def test_what_the_terms_look_at_does_not_come_late(name):
    assert judge([(name, b"admin"), (b"x-fine", b"1")], BOUND) == ([(b"x-fine", b"1")], [name.decode()], "")


@pytest.mark.parametrize(
    "pair", [(b"x-api-key", b"a"), (b"cookie", b"a"), (b"x-any", b"Bearer abc"), (b"x-any", b"AKIAABCDEFGHIJKLMNOP")]
)
def test_a_credential_is_told(pair):
    assert judge([pair], BOUND) == ([], [pair[0].decode()], pair[0].decode())


def test_of_an_answer():
    found = [(b"set-cookie", b"a"), (b"grpc-status", b"0"), (b"x-accel-redirect", b"/"), (b"link", b"</a>")]
    assert of_answer(found, bound=False) == [(b"grpc-status", b"0")]


def test_what_is_announced():
    assert announced([b"Grpc-Status,  Content-Length", b"", b"grpc-status, X-A"]) == b"grpc-status, x-a"
    assert announced([b"Host"]) == b""
