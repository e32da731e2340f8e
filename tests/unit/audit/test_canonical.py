"""RFC 8785: numbers, strings, order, and what is refused with which reason."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saggar.audit.canonical import MAX_INTEGER, decode, encode, number
from saggar.core.errors import ParseError

# RFC 8785 appendix B, and ECMA-262's borders of each layout
NUMBERS = [
    (0x0000000000000000, "0"),
    (0x8000000000000000, "0"),
    (0x0000000000000001, "5e-324"),
    (0x8000000000000001, "-5e-324"),
    (0x7FEFFFFFFFFFFFFF, "1.7976931348623157e+308"),
    (0xFFEFFFFFFFFFFFFF, "-1.7976931348623157e+308"),
    (0x4340000000000000, "9007199254740992"),
    (0xC340000000000000, "-9007199254740992"),
    (0x4430000000000000, "295147905179352830000"),
    (0x44B52D02C7E14AF5, "9.999999999999997e+22"),
    (0x44B52D02C7E14AF6, "1e+23"),
    (0x44B52D02C7E14AF7, "1.0000000000000001e+23"),
    (0x444B1AE4D6E2EF4E, "999999999999999700000"),
    (0x444B1AE4D6E2EF4F, "999999999999999900000"),
    (0x444B1AE4D6E2EF50, "1e+21"),
    (0x3EB0C6F7A0B5ED8C, "9.999999999999997e-7"),
    (0x3EB0C6F7A0B5ED8D, "0.000001"),
    (0x41B3DE4355555553, "333333333.3333332"),
    (0x41B3DE4355555554, "333333333.33333325"),
    (0x41B3DE4355555555, "333333333.3333333"),
    (0x41B3DE4355555556, "333333333.3333334"),
    (0x41B3DE4355555557, "333333333.33333343"),
    (0xBECBF647612F3696, "-0.0000033333333333333333"),
    (0x43143FF3C1CB0959, "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_print_as_ecmascript_prints_them(bits, text):
    (value,) = struct.unpack(">d", struct.pack(">Q", bits))
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ([], "[]"),
        ({"b": 1, "a": [True, False, None, ()]}, '{"a":[true,false,null,[]],"b":1}'),
        ('\b\t\n\f\r"\\/\x00\x1f\x7f', '"\\b\\t\\n\\f\\r\\"\\\\/\\u0000\\u001f\x7f"'),
        # UTF-16 code units: a surrogate pair sorts before U+FB33
        ({"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "\r": 4, "1": 5, "\u0080": 6, "\u00f6": 7},
         '{"\\r":4,"1":5,"\u0080":6,"\u00f6":7,"\u20ac":3,"\U0001f600":2,"\ufb33":1}'),
        ("e\u0301", '"e\u0301"'),  # not normalised
        (-0.0, "0"),
        (MAX_INTEGER, "9007199254740991"),
    ],
)  # fmt: skip
def test_form(value, text):
    assert encode(value) == text.encode()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "not_finite"),
        (float("inf"), "not_finite"),
        (-float("inf"), "not_finite"),
        (MAX_INTEGER + 1, "integer_range"),
        (-MAX_INTEGER - 1, "integer_range"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        ({1: 2}, "key_type"),
        ({None: 2}, "key_type"),
        (b"x", "type"),
        ({"a": {1}}, "type"),
        (eval("[" * 70 + "]" * 70), "depth"),
    ],
)
def test_what_json_cannot_carry_is_refused(value, reason):
    with pytest.raises(ParseError) as e:
        encode(value)
    assert e.value.reason == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":2}', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b"NaN", "not_finite"),
        (b"-Infinity", "not_finite"),
        (b"1e999", "not_finite"),
        (b"9007199254740993", "integer_range"),
        (b"1" * 5000, "not_finite"),
        (b"\xff", "utf8"),
        (b"{", "malformed"),
        (b"", "malformed"),
        (b"[" * 100000, "depth"),
        (b"\xef\xbb\xbf{}", "malformed"),
    ],
)
def test_decode_refuses(data, reason):
    with pytest.raises(ParseError) as e:
        decode(data)
    assert e.value.reason == reason


text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | text
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_i1_round_trip_and_i2_stable(value):
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1e16)
@example(123456789012345680000.0)
def test_i1_numbers_read_back_exactly(value):
    assert float(number(value)) == value
    assert float(json.loads(number(value))) == value


@given(st.binary(max_size=64))
def test_i3_decode_gives_a_value_or_parse_error(data):
    try:
        decode(data)
    except ParseError:
        pass


@given(
    st.dictionaries(
        st.text(max_size=4), st.one_of(st.text(max_size=6), st.integers(), st.booleans(), st.none()), max_size=4
    )
)
@example({"a": '"\\\u2028', "b": -1})
@example({"\uff61": 1, "\U0001f600": 2})
def test_short_way_for_flat_objects_gives_what_the_long_way_gives(value):
    """The long way is taken for anything inside a list."""
    try:
        inside = encode([value])
    except ParseError as e:
        with pytest.raises(ParseError) as found:
            encode(value)
        assert found.value.reason == e.reason
    else:
        assert encode(value) == inside[1:-1]
