"""Every parser of L3 gives a value or `ParseError`, for any input, in bounded time."""

from __future__ import annotations

import os
import time

from hypothesis import example, given, settings
from hypothesis import strategies as st

from saggar.audit import canonical
from saggar.capability.constraint import from_json
from saggar.capability.grammar import MAX_TEXT, parse, parse_term, render
from saggar.capability.grant import compile_capability, grant_from_json
from saggar.capability.keys import PrivateKey, b64
from saggar.capability.mint import Issuer
from saggar.capability.token import LOCAL, MAX_TOKEN_CHARS, SIGNED
from saggar.capability.token import parse as parse_token
from saggar.capability.values import check_authority_text, check_host, check_path, parse_decimal, parse_ip, parse_url
from saggar.capability.wire import Frames, frame, proof_of
from saggar.core.clock import ManualClock
from saggar.core.errors import ParseError, UsageError
from saggar.testing.capability_desk import DECLARATIONS

PIECES = st.sampled_from(
    ["send:email", "read:notes", "[", "]", ",", "=", "&", "{", "}", "(", ")", '"', "*", "**", "/", "..", "len<=", "prefix",
     "each", "to", "max", "max_bytes", "1", "-", "a@b.c", " ", "\\", "\u200b", "\u0430", "\n", "url(", "under(", "cidr("]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=24).map("".join) | st.text(max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(
        ["exact", "one_of", "range", "prefix", "glob", "cidr", "url", "path_under", "max_length", "each", "all", "any"]
    ),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["type", "value", "values", "min", "max", "scheme", "host", "port", "path", "constraint", "constraints"]),
        inner, max_size=5,
    ),
    max_leaves=10,
)  # fmt: skip


def value_or_parse_error(parser, *given_):
    try:
        return parser(*given_)
    except ParseError:
        return None


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
@example("send:email[to=" + "each(" * 20)
@example('send:email[to="' + "\\" * 50)
def test_grammar(text):
    got = value_or_parse_error(parse, text)
    if got is not None:
        assert parse(render(got)) == got
    value_or_parse_error(parse_term, text)
    try:
        compile_capability(text, DECLARATIONS)
    except UsageError:
        pass


@settings(max_examples=1500, deadline=None)
@given(JSON)
def test_constraints_and_grants(data):
    got = value_or_parse_error(from_json, data)
    if got is not None:
        assert from_json(got.to_json()) == got
        got.allows(data)
    value_or_parse_error(grant_from_json, data)
    value_or_parse_error(proof_of, data)


@settings(max_examples=800, deadline=None)
@given(st.text(max_size=40) | TEXTS)
def test_values(text):
    for parser in (check_authority_text, check_host, check_path, parse_decimal, parse_ip, parse_url):
        value_or_parse_error(parser, text)


ISSUER = Issuer("t", key=PrivateKey(b"k" * 32), secret=b"s" * 32, clock=ManualClock(), random=os.urandom)
GRANTS = compile_capability("send:email[to=*@acme.com, max=3]", DECLARATIONS)
REAL = [ISSUER.mint(GRANTS, holder=b"h" * 32), ISSUER.mint_local(GRANTS)]


@st.composite
def mangled(draw):
    text = draw(st.sampled_from(REAL))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 5))
        text = text[:at] + draw(st.text(alphabet="aA0_-.~=+/ \u00e9", max_size=4)) + text[at + cut :]
    return text


@settings(max_examples=1500, deadline=None)
@given(mangled() | st.text(max_size=80) | st.binary(max_size=40).map(lambda b: SIGNED + b64(b) + "." + b64(b"0" * 64)))
def test_tokens(text):
    got = value_or_parse_error(parse_token, text)
    if got is not None:
        # one token, one spelling
        assert got.text == text
        assert all(block.claims.to_bytes() == block.payload for block in got.blocks)


@settings(max_examples=500, deadline=None)
@given(JSON)
def test_claims_of_any_json(data):
    try:
        raw = canonical.encode(data)
    except ParseError:
        return
    assert value_or_parse_error(parse_token, SIGNED + b64(raw) + "." + b64(b"0" * 64)) is None
    assert value_or_parse_error(parse_token, LOCAL + b64(raw) + "." + b64(b"0" * 32)) is None


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=6))
def test_frames(pieces):
    frames = Frames()
    try:
        for piece in pieces:
            for message in frames.feed(piece):
                assert type(message) is dict
    except ParseError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers(-5, 5)), max_size=4), st.integers(1, 9))
def test_frames_round_trip_in_any_pieces(messages, step):
    data = b"".join(frame(m) for m in messages)
    frames, got = Frames(), []
    for at in range(0, len(data), step):
        got += frames.feed(data[at : at + step])
    assert got == messages


def test_long_inputs_take_linear_time():
    started = time.monotonic()
    for text in ("a" * MAX_TEXT, "send:email[" + "a=*&" * 1000, "send:email[to=" + "*" * 4000, "(" * 4000, '"' * 4000):
        value_or_parse_error(parse, text)
    for text in (SIGNED + "A" * MAX_TOKEN_CHARS, SIGNED + "~" * 60000, LOCAL + "." * 60000, "sgr1." + "A." * 30000):
        value_or_parse_error(parse_token, text)
    for text in ("https://" + "a." * 2000, "/" + "../" * 1300, "1" * 4000, ":" * 4000):
        for parser in (check_host, check_path, parse_decimal, parse_ip, parse_url):
            value_or_parse_error(parser, text)
    assert time.monotonic() - started < 5.0
