from __future__ import annotations

import datetime as dt
import hashlib

import pytest

from saggar.core.errors import ParseError
from saggar.egress import sigv4

botocore = pytest.importorskip("botocore", reason="botocore is the oracle for SigV4")
from botocore.auth import S3SigV4Auth, SigV4Auth  # noqa: E402
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials  # noqa: E402

NOW = "20261130T101112Z"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


class Clock(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 30, 10, 11, 12, tzinfo=tz)

    @classmethod
    def utcnow(cls):
        return cls(2026, 11, 30, 10, 11, 12)


CASES = [
    ("GET", "/", "", {}, b"", "s3"),
    ("GET", "/bucket/a%20b/%C3%A9~x", "", {}, b"", "s3"),
    ("GET", "/bucket", "prefix=a%2Fb&delimiter=%2F&list-type=2", {}, b"", "s3"),
    ("PUT", "/bucket/key", "", {"content-type": "text/plain", "x-amz-meta-a": "  b   c "}, b"hello", "s3"),
    (
        "POST",
        "/",
        "",
        {"content-type": "application/x-amz-json-1.1", "x-amz-target": "DynamoDB_20120810.ListTables"},
        b"{}",
        "dynamodb",
    ),
    ("GET", "/a%20b/c", "b=2&a=1&a=0", {}, b"", "execute-api"),
    (
        "POST",
        "/",
        "Action=X&Version=1",
        {"content-type": "application/x-www-form-urlencoded; charset=utf-8"},
        b"a=b",
        "sts",
    ),
]


@pytest.mark.parametrize(("method", "path", "query", "headers", "body", "service"), CASES)
@pytest.mark.parametrize("token", ["", "session/token+x="])
def test_same_signature_as_botocore(monkeypatch, method, path, query, headers, body, service, token):
    import botocore.auth

    monkeypatch.setattr(
        botocore.auth, "datetime", type("m", (), {"datetime": Clock, "timezone": dt.timezone}), raising=False
    )
    if hasattr(botocore.auth, "get_current_datetime"):
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *a, **k: Clock(2026, 11, 30, 10, 11, 12))
    host = f"{service}.eu-west-1.aws.test"
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers=dict(headers), data=body)
    auth = (S3SigV4Auth if service == "s3" else SigV4Auth)(
        Credentials("AKIAIOSFODNN7EXAMPLE", SECRET, token or None), service, "eu-west-1"
    )
    request.headers["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
    request.context["payload_signing_enabled"] = True
    auth.add_auth(request)
    from saggar.egress.path import canonical

    scope = sigv4.Scope("eu-west-1", service)
    target = canonical(path.encode() + (b"?" + query.encode() if query else b""), keep_slash=True)
    ours = dict(
        sigv4.sign(
            method=method, host=host, path=target.path.decode(), query=target.pairs,
            headers=[(n.encode(), v.encode()) for n, v in headers.items()] + [(b"x-amz-content-sha256", b"stale"), (b"authorization", b"theirs")],
            body_hash=hashlib.sha256(body).hexdigest(), key_id="AKIAIOSFODNN7EXAMPLE",
            signing_key=sigv4.derive(SECRET, "20261130", scope), scope=scope, now=NOW, session_token=token,
        )
    )  # fmt: skip
    theirs = request.headers["Authorization"]
    if b"x-amz-content-sha256" not in ours:
        # ours leaves the header away for an empty body outside S3: sign theirs the same way
        request = AWSRequest(method, url, headers=dict(headers), data=body)
        auth.add_auth(request)
        theirs = request.headers["Authorization"]
    assert ours[b"authorization"].decode() == theirs


CLAIM = (
    b"AWS4-HMAC-SHA256 Credential=AKIAPLACEHOLDER00000/20261130/eu-west-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature="
    + b"a" * 64
)


def test_claim():
    assert sigv4.parse_claim(CLAIM) == sigv4.Claim("AKIAPLACEHOLDER00000", "eu-west-1", "s3")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"Bearer x",
        CLAIM[:-1],
        CLAIM + b",x",
        CLAIM.replace(b"/s3/", b"/s3/x/"),
        CLAIM.replace(b"Credential=", b"Credential=;"),
    ],
)
def test_malformed_claim(bad):
    with pytest.raises(ParseError) as e:
        sigv4.parse_claim(bad)
    assert e.value.reason == "sigv4_malformed"


HASH = hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    ("stated", "service", "body", "expected"),
    [
        (HASH.encode(), "s3", None, HASH),
        (None, "s3", None, "UNSIGNED-PAYLOAD"),
        (b"UNSIGNED-PAYLOAD", "s3", None, "UNSIGNED-PAYLOAD"),
        (b"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "s3", None, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        (None, "sts", b"x", HASH),
    ],
)
def test_payload_hash(stated, service, body, expected):
    assert sigv4.payload_hash(stated, service, body) == expected


@pytest.mark.parametrize(
    ("stated", "service", "reason"),
    [
        (b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "s3", "sigv4_streaming"),
        (b"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "sts", "sigv4_streaming"),
        (b"nonsense", "s3", "sigv4_malformed"),
        (None, "sts", "sigv4_needs_body"),
    ],
)
def test_payload_that_cannot_be_signed(stated, service, reason):
    with pytest.raises(ParseError) as e:
        sigv4.payload_hash(stated, service, None)
    assert e.value.reason == reason


def test_a_day_that_ended_meanwhile_is_signed_as_its_last_second():
    from saggar.egress.admit import Lease, _sign
    from saggar.egress.path import canonical

    class Admitted:
        method, fields, stated_hash, target = "GET", (), None, canonical(b"/b/k")

    class Credential:
        region, service = "eu-west-1", "s3"

    key = sigv4.derive("secret", "20261130", sigv4.Scope("eu-west-1", "s3"))
    lease = Lease("c", 1, 0.0, {"key_id": "AKIAREAL", "signing_key": key.hex(), "date": "20261130"})
    for now, told in (("20261130T101112Z", b"20261130T101112Z"), ("20261201T000001Z", b"20261130T235959Z")):
        fields = dict(_sign(Admitted, Credential, lease, authority="s3.test", now=now, body=None))
        assert fields[b"x-amz-date"] == told
        assert b"/20261130/eu-west-1/s3/" in fields[b"authorization"]
