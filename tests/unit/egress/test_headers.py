from __future__ import annotations

import pytest

from saggar.egress.headers import (
    DROP,
    PASS,
    SECRET,
    SUSPECT,
    classify,
    credential_in_query,
    looks_like_key,
    response_header_passes,
)

NAMES = [
    (b"connection", DROP),
    (b"transfer-encoding", DROP),
    (b"content-length", DROP),
    (b"host", DROP),
    (b"upgrade", DROP),
    (b"x-http-method-override", DROP),
    (b"x-forwarded-host", DROP),
    (b"x_forwarded_host", DROP),
    (b"x-original-url", DROP),
    (b"x-rewrite-url", DROP),
    (b"forwarded", DROP),
    (b"content_length", DROP),
    (b"transfer_encoding", DROP),
    (b"authorization", SECRET),
    (b"cookie", SECRET),
    (b"x-api-key", SECRET),
    (b"x_api_key", SECRET),
    (b"openai-organization", SECRET),
    (b"private-token", SECRET),
    (b"x-acme-token", SUSPECT),
    (b"acme-api-key", SUSPECT),
    (b"x-my-secret", SUSPECT),
    (b"x-auth", SUSPECT),
    (b"accept", PASS),
    (b"user-agent", PASS),
    (b"content-type", PASS),
    (b"idempotency-key", PASS),
    (b"sec-websocket-key", PASS),
    (b"x-author", PASS),
    (b"x-amz-content-sha256", PASS),
]


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_classification(name, kind):
    assert classify(name) == kind


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([("key", "abc")], "key"),
        ([("q", "x"), ("API_KEY", "abc")], "API_KEY"),
        ([("access_token", "abc")], "access_token"),
        ([("X-Amz-Signature", "abc")], "X-Amz-Signature"),
        ([("sig", "x"), ("sv", "2020")], "sig"),
        ([("anything", "sk-ant-api03-abcdefghijklmnop")], "anything"),
        ([("anything", "ghp_0123456789abcdefghij")], "anything"),
        ([("q", "monkey")], ""),
        ([("keyword", "abc")], ""),
        ([("code", "200")], ""),
        ([("page", "2"), ("sort", "stars")], ""),
        ([("token", "")], ""),
        ([("key[]", "v")], "key[]"),
    ],
)
def test_credential_in_query(pairs, found):
    assert credential_in_query(pairs) == found


def test_our_own_slot_is_passed_over():
    assert credential_in_query([("key", "PLACEHOLDER")], ours="key") == ""
    assert credential_in_query([("key", "PLACEHOLDER"), ("Key", "other")], ours="key") == "Key"


@pytest.mark.parametrize(
    "value",
    [
        "sk-proj-abcdefghijklmnop1",
        "Bearer x",
        "Basic eDp5",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJI.eyJzdWIi",
        "xoxb-1-2",
        "glpat-x",
        "AIzaSyA0123456789abcdefghij",
        "realtime, openai-insecure-api-key.sk-abcdefghijklmnop1234",
        "k=ghp_0123456789abcdefghij",
        '{"a": "AKIAIOSFODNN7EXAMPLE"}',
    ],
)
def test_issued_formats_are_known(value):
    assert looks_like_key(value)


@pytest.mark.parametrize(
    "value",
    ["", "hello", "skate", "text/html", "gzip, deflate", "en-US", "do-something", "ghost", "https://x.test/a b"],
)
def test_plain_values_are_not_keys(value):
    assert not looks_like_key(value)


def test_response_side():
    assert not response_header_passes(b"alt-svc", bound=False)
    assert not response_header_passes(b"connection", bound=False)
    assert response_header_passes(b"set-cookie", bound=False)
    assert not response_header_passes(b"set-cookie", bound=True)
    assert response_header_passes(b"location", bound=True)


def test_hostile_values_stay_linear():
    import time

    started = time.process_time()
    for value in ("eyJ" * 5000, "eyJaaaaaaaa." * 1300, "sk-" * 5000, ".sk-a" * 3000, "AKIA" * 4000):
        looks_like_key.__wrapped__(value)
    assert time.process_time() - started < 0.5
