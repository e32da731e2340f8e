from __future__ import annotations

import base64
import os
import re
from urllib.parse import quote

import pytest

from saggar.core.errors import ParseError
from saggar.egress.placeholder import FORMATS, Canary, CanaryStream, core, mint

FORMS = {
    "openai": r"sk-[A-Za-z0-9]{48}",
    "anthropic": r"sk-ant-api03-[A-Za-z0-9]{93}AA",
    "github": r"ghp_[A-Za-z0-9]{36}",
    "gitlab": r"glpat-[A-Za-z0-9]{20}",
    "google": r"AIza[A-Za-z0-9]{35}",
    "aws": r"AKIA[A-Z2-7]{16}",
    "aws-secret": r"[A-Za-z0-9]{40}",
    "jwt": r"eyJ[\w-]+\.eyJ[\w-]+\.[A-Za-z0-9]{43}",
    "generic": r"saggar_[A-Za-z0-9]{40}",
}


@pytest.mark.parametrize(("form", "pattern"), FORMS.items())
def test_form_is_the_services_own(form, pattern):
    assert re.fullmatch(pattern, mint(form, os.urandom))


def test_two_are_never_the_same():
    for form in [*FORMATS, "jwt"]:
        assert mint(form, os.urandom) != mint(form, os.urandom)


def test_unknown_format():
    with pytest.raises(ParseError, match="not one of"):
        mint("nope", os.urandom)


P = mint("openai", os.urandom)
CORE = core(P)
HIDDEN = {
    "raw": P.encode(),
    "without prefix": CORE,
    "basic": b"Basic " + base64.b64encode(b"user:" + P.encode()),
    "basic1": b"Basic " + base64.b64encode(b"u:" + P.encode()),
    "basic2": b"Basic " + base64.b64encode(b":" + P.encode()),
    "url-safe base64": base64.urlsafe_b64encode(b"x" + P.encode() + b"yz"),
    "percent all": "".join(f"%{b:02x}" for b in P.encode()).encode(),
    "percent some": "".join(f"%{ord(c):02x}" if c in "sAa1" else c for c in P).encode(),
    "percent of base64": quote(base64.b64encode(b"k" + P.encode())).encode(),
    "u-escaped": "".join(f"\\u{b:04x}" for b in P.encode()).encode(),
    "u-escaped some": "".join(f"\\u{ord(c):04x}" if c in "kb96" else c for c in P).encode(),
    "x-escaped": "".join(f"\\x{b:02x}" for b in P.encode()).encode(),
    "hex": P.encode().hex().encode(),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_found_however_it_is_written(how):
    canary = Canary([P])
    assert canary.seen(b'{"a": "' + HIDDEN[how] + b'"}')


@pytest.mark.parametrize("how", HIDDEN)
def test_found_across_any_cut(how):
    data = b"x" * 20 + HIDDEN[how] + b"y" * 20
    canary = Canary([P])
    for step in (1, 2, 3, 7, 13):
        stream = CanaryStream(canary)
        assert any(stream.seen(data[i : i + step]) for i in range(0, len(data), step)), step


def test_others_are_not_found():
    canary = Canary([P])
    assert not canary.seen(mint("openai", os.urandom).encode())
    assert not canary.seen(os.urandom(65536))
    assert not CanaryStream(Canary([])).seen(P.encode())


def test_stream_keeps_a_bounded_tail():
    stream = CanaryStream(Canary([P]))
    for _ in range(50):
        stream.seen(b"z" * 65536)
    assert len(stream._tail) <= Canary([P]).hold
