"""`unescape` against the same said slowly."""

import random
from urllib.parse import unquote_to_bytes

import pytest

from saggar.egress.needles import unescape

_HEX = b"0123456789abcdefABCDEF"


def slowly(data):
    plain = unquote_to_bytes(data) if b"%" in data else None
    if b"\\" in data:
        first, *pieces = (data if plain is None else plain).split(b"\\")
        plain = first + b"".join(map(_piece, pieces))
    return plain


def _piece(piece):
    size = 3 if piece[:3] in (b"u00", b"U00") else 1 if piece[:1] in (b"x", b"X") else 0
    digits = piece[size : size + 2]
    if size and len(digits) == 2 and all(d in _HEX for d in digits):
        return bytes((int(digits, 16),)) + piece[size + 2 :]
    return piece


@pytest.mark.parametrize("seed", range(4))
def test_unescape_is_what_it_says(seed):
    draw = random.Random(seed)
    for _ in range(20_000):
        data = bytes(draw.choice(b"\\\\\\%%xXuU0045cfFgz\n") for _ in range(draw.randrange(24)))
        assert unescape(data) == slowly(data), data


def test_an_escape_that_gives_a_backslash_or_percent_is_not_read_twice():
    assert unescape(b"%2541") == b"%41"
    assert unescape(b"\\x5cx41") == b"\\x41"
    assert unescape(b"plain") is None
