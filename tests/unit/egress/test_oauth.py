from __future__ import annotations

import base64
import json

import pytest

from saggar.core.errors import ParseError, PeerError
from saggar.egress.oauth import Token, TokenCache, parse_token, swap_tokens, token_request


def test_client_credentials_as_basic():
    headers, body = token_request(client_id="id:x", client_secret="s&c", scope="a b")
    assert dict(headers)["Authorization"] == "Basic " + base64.b64encode(b"id%3Ax:s%26c").decode()
    assert body == b"grant_type=client_credentials&scope=a+b"


def test_refresh_in_body():
    headers, body = token_request(client_id="i", client_secret="s", refresh_token="r", in_body=True)
    assert "Authorization" not in dict(headers)
    assert body == b"grant_type=refresh_token&refresh_token=r&client_id=i&client_secret=s"


def test_answer():
    token = parse_token(200, b'{"access_token":"t","token_type":"Bearer","expires_in":60,"refresh_token":"r2"}', 100.0)
    assert (token.value, token.ends, token.refresh) == ("t", 160.0, "r2")
    assert token.live(129.9)
    assert not token.live(130.0)
    assert "t" not in repr(token).replace("Token(ends", "")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"nope secret-value"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"access_token":"a b"}'),
        (200, b'{"access_token":"a\\nb"}'),
        (200, b'{"access_token":"a","token_type":"mac"}'),
        (400, b'{"error":"invalid_client","error_description":"secret-value"}'),
        (500, b'{"error":"secret-value is bad"}'),
    ],
)
def test_refusal_never_quotes_the_answer(status, body):
    with pytest.raises(PeerError) as e:
        parse_token(status, body, 0.0)
    assert "secret-value" not in str(e.value)


def test_cache_fetches_once_until_the_margin():
    fetched = []

    def fetch(refresh):
        fetched.append(refresh)
        return Token(f"t{len(fetched)}", 60.0 * len(fetched), f"r{len(fetched)}")

    cache = TokenCache("r0")
    assert cache.get(0.0, fetch).value == "t1"
    assert cache.get(29.0, fetch).value == "t1"
    assert cache.get(31.0, fetch).value == "t2"
    assert fetched == ["r0", "r1"]
    cache.drop()
    assert cache.get(31.0, fetch).value == "t3"


def test_failed_fetch_leaves_no_last_known_good():
    cache = TokenCache()
    cache.get(0.0, lambda _: Token("t", 60.0))

    def down(_):
        raise PeerError("down")

    with pytest.raises(PeerError):
        cache.get(50.0, down)
    with pytest.raises(PeerError):
        cache.get(0.0, down)


def test_tokens_of_an_answer_become_placeholders():
    body = b'{"access_token":"real-a","refresh_token":"real-r","id_token":"eyJreal","expires_in":5,"nested":{"access_token":"real-n"},"list":[{"token":"real-l"}]}'
    count = iter(range(9))
    clean, swapped = swap_tokens(body, lambda form: f"{form}-{next(count)}")
    assert b"real" not in clean
    assert set(swapped.values()) == {"real-a", "real-r", "eyJreal", "real-n", "real-l"}
    assert json.loads(clean)["expires_in"] == 5
    assert json.loads(clean)["id_token"].startswith("jwt-")


@pytest.mark.parametrize(
    "body", [b" ", b"[]", b"access_token=x", b'{"a":1,"a":2}', b"{" * 70000, b'{"a":' * 20000, b"\xff"]
)
def test_answer_that_cannot_be_understood_is_not_passed(body):
    with pytest.raises(ParseError):
        swap_tokens(body, lambda form: form)
