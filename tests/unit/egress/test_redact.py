from __future__ import annotations

import base64
import json
import os
from urllib.parse import quote

import pytest

from saggar.core.errors import ParseError
from saggar.egress.find import LONG
from saggar.egress.redact import Redactor, Secrets

S = b'sk-live/Top+Secret=value&more"quote'
P = "saggar_0123456789"
SECRETS = Secrets([(S, P)], basic_user=b"user")
TEXT = S.decode()
FORMS = {
    "raw": S,
    "percent": quote(S, safe="").encode(),
    "percent lower": quote(S, safe="").lower().replace("sk-live", "sk-live").encode()
    if False
    else "".join(f"%{b:02x}" for b in S).encode(),
    "percent upper": "".join(f"%{b:02X}" for b in S).encode(),
    "json": json.dumps(TEXT)[1:-1].encode(),
    "json slash": json.dumps(TEXT)[1:-1].replace("/", "\\/").encode(),
    "unicode": "".join(f"\\u{b:04x}" for b in S).encode(),
    "hex": S.hex().encode(),
    "html": TEXT.replace("&", "&amp;").replace('"', "&quot;").encode(),
    "basic": base64.b64encode(b"user:" + S),
    "b64 0": base64.b64encode(S + b"tail"),
    "b64 1": base64.b64encode(b"x" + S + b"tail"),
    "b64 2": base64.b64encode(b"xy" + S + b"tail"),
    "b64 url": base64.urlsafe_b64encode(b"xyz" + S),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("at", [0, 7, LONG // 2, LONG])
def test_a_long_piece_is_searched_as_a_short_one_is(name, at):
    before, behind = b"." * at, b"." * (2 * LONG - at)
    # on its own and long: the two ways of searching
    short = SECRETS.clean(FORMS[name])
    assert SECRETS.clean(before + FORMS[name] + behind) == before + short + behind
    assert short != FORMS[name]


def readable(data: bytes) -> bool:
    """Whether somebody could get S back."""
    hay = [data, data.lower()]
    for word in data.replace(b'"', b" ").split():
        for decode in (base64.b64decode, base64.urlsafe_b64decode):
            for cut in range(4):
                piece = word[cut:]
                try:
                    hay.append(decode(piece[: len(piece) // 4 * 4]))
                except ValueError:
                    continue
    return any(S in h or S.hex().encode() in h for h in hay)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1, 2, 5, 17, 64, 100000])
def test_no_rendering_leaves_whatever_the_cuts(form, step):
    data = b'{"echo": " ' + FORMS[form] + b' ", "x": 1} ' * 3
    redactor = Redactor(SECRETS)
    out = b"".join(redactor.feed(data[i : i + step]) for i in range(0, len(data), step)) + redactor.end()
    assert len(out) == len(data)
    assert FORMS[form] not in out
    assert not readable(out)
    assert redactor.hits > 0


def test_raw_form_becomes_the_placeholder():
    redactor = Redactor(SECRETS)
    assert redactor.last(b"a " + S + b" b").startswith(b"a " + P.encode() + b"*")


def test_clean_bytes_pass_at_once():
    redactor = Redactor(SECRETS)
    for event in (b"data: hello\n\n", b"data: {}\n\n", b"data: [DONE]\n\n"):
        assert redactor.feed(event) == event


def test_only_a_possible_beginning_is_held():
    redactor = Redactor(SECRETS)
    assert redactor.feed(b"data: " + S[:5]) == b"data: "
    assert redactor.feed(b"!") == S[:5] + b"!"
    assert redactor.end() == b""


def test_same_object_where_nothing_is_found():
    data = os.urandom(65536)
    assert SECRETS.clean(data) is data


def test_short_secret_is_refused():
    with pytest.raises(ParseError) as e:
        Secrets([(b"short", "")])
    assert e.value.reason == "secret_too_short"


def test_two_secrets_side_by_side():
    both = Secrets([(b"alpha-secret-1", ""), (b"beta-secret-22", "")])
    redactor = Redactor(both)
    assert redactor.last(b"alpha-secret-1beta-secret-22") == b"*" * 28
