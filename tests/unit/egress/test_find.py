"""The C library's search answers as Python's does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saggar.egress import find
from saggar.egress.find import LONG, lies_in

FEW = st.text("ab\0", max_size=60).map(str.encode)


@given(FEW, FEW.filter(bool))
def test_it_says_what_in_says(data, needle):
    assert lies_in(needle, data) is (needle in data)


@pytest.mark.parametrize("at", [0, 1, LONG // 2, LONG - 3])
def test_it_finds_in_long_data_wherever_it_is(at):
    data = bytearray(LONG)
    data[at : at + 3] = b"key"
    assert lies_in(b"key", bytes(data))
    assert not lies_in(b"yek", bytes(data))


def test_without_a_library_that_knows_it_python_searches(monkeypatch):
    monkeypatch.setattr(find, "_find", None)
    assert lies_in(b"b", b"abc")
    assert not lies_in(b"d", b"abc")


def test_it_takes_what_is_like_bytes():
    assert lies_in(b"b", bytearray(b"abc"))
