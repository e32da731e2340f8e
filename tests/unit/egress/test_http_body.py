import pytest

from saggar.core.errors import ParseError
from saggar.egress.http_body import ChunkedReader, LengthReader, chunk

GOOD = {
    b"0\r\n\r\n": (b"", b""),
    b"3\r\nabc\r\n0\r\n\r\n": (b"abc", b""),
    b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET /": (b"abcde", b"GET /"),
    b"A;ext=1\r\n0123456789\r\n0\r\nX: y\r\n\r\n": (b"0123456789", b""),
    b"000003\r\nabc\r\n0\r\n\r\n": (b"abc", b""),
}

BAD = [
    b"0x5\r\nabcde\r\n0\r\n\r\n",
    b"+5\r\nabcde\r\n0\r\n\r\n",
    b" 5\r\nabcde\r\n0\r\n\r\n",
    b"5 \r\nabcde\r\n0\r\n\r\n",
    b"5\nabcde\r\n0\r\n\r\n",
    b"5\r\nabcdeX\r\n0\r\n\r\n",
    b"5\r\nabcde\n0\r\n\r\n",
    b"5\r\nabcde\r0\r\n\r\n",
    b"\r\n",
    b"g\r\n",
    b"1234567890abcdef\r\n",
    b"0\r\nX y\r\n\r\n",
    b"0\r\n X: y\r\n\r\n",
    b"0\r\nX: y\n\r\n",
    b"5" + b"0" * 5000,
    b"0\r\n" + (b"X: " + b"y" * 4000 + b"\r\n") * 6,
    b"5;\x00\r\nabcde\r\n0\r\n\r\n",
]


def feed(data, size):
    reader = ChunkedReader()
    found = b""
    for i in range(0, len(data), size):
        if reader.done:
            return found, reader.rest + data[i:]
        found += b"".join(reader.feed(data[i : i + size]))
    assert reader.done
    return found, reader.rest


@pytest.mark.parametrize("data", GOOD)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_chunked(data, size):
    assert feed(data, size) == GOOD[data]


@pytest.mark.parametrize("data", BAD)
@pytest.mark.parametrize("size", [1, 1000])
def test_chunked_refuses(data, size):
    with pytest.raises(ParseError) as caught:
        feed(data, size)
    assert caught.value.reason == "bad_framing"


def test_chunk_never_writes_the_last_one():
    assert chunk(b"abc") == b"3\r\nabc\r\n"
    assert chunk(b"") == b""


def test_length():
    reader = LengthReader(5)
    assert reader.feed(b"abc") == [b"abc"]
    assert not reader.done
    assert reader.feed(b"deGET") == [b"de"]
    assert reader.done
    assert reader.rest == b"GET"
