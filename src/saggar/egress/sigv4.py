"""AWS Signature Version 4, made anew: the client signs with a placeholder, what leaves is signed for the pinned scope.

I1  Host, region and service come from the policy; a client's credential scope that differs is refused, never followed.
I2  Nothing of the client's signature survives: no `Authorization`, no `X-Amz-*` of authentication in header or query.
I3  The secret key is not needed here: the secrets process derives a key for one day, region and service.

Source: AWS, "Create a signed AWS API request" and "Signature Version 4 signing process"; checked against botocore in tests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

_SCOPE = re.compile(
    rb"AWS4-HMAC-SHA256 +Credential=([A-Za-z0-9]{8,128})/([0-9]{8})/([a-z0-9\-]{1,40})/([a-z0-9\-]{1,40})/aws4_request,"
    rb" *SignedHeaders=[a-z0-9\-;]{1,4096}, *Signature=[0-9a-f]{64}"
)
_SHA256 = re.compile(rb"[0-9a-f]{64}")
# of the client's authentication, whatever their values; `x-amz-date` too, since ours is the broker's clock
_STRIP = frozenset({b"authorization", b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256", b"date", b"x-amz-region-set",
                    b"x-amz-s3session-token"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scope:
    """What a credential is pinned to."""

    region: str
    service: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What the client's `Authorization` says: the key id that it signed with, and its scope."""

    key_id: str
    region: str
    service: str


def parse_claim(value: bytes) -> Claim:
    """Raises ParseError for anything but one well-formed SigV4 `Authorization` value."""
    match = _SCOPE.fullmatch(value)
    if match is None:
        raise ParseError("not a well-formed SigV4 authorization", reason="sigv4_malformed")
    return Claim(match.group(1).decode(), match.group(3).decode(), match.group(4).decode())


def payload_hash(stated: bytes | None, service: str, body: bytes | None) -> str:
    """What goes into the signature for the body.

    stated: the client's `x-amz-content-sha256`. body: the whole body where it was read, else None. A stated hash is kept
    (the service checks the body against it). Raises ParseError (`sigv4_streaming`) for chunk signatures, which only the
    holder of the key can make, and (`sigv4_needs_body`) where only the body would tell.
    """
    if stated is not None and _SHA256.fullmatch(stated):
        return stated.decode()
    if stated == UNSIGNED_TRAILER.encode() and service == "s3":
        return UNSIGNED_TRAILER
    if stated is not None and stated.startswith(b"STREAMING-"):
        raise ParseError(
            "chunk signatures cannot be made anew; use an unsigned or hashed payload", reason="sigv4_streaming"
        )
    if stated is not None and stated != UNSIGNED.encode():
        raise ParseError("`x-amz-content-sha256` is neither a hash nor a known word", reason="sigv4_malformed")
    if body is not None:
        return hashlib.sha256(body).hexdigest()
    if service == "s3":
        return UNSIGNED
    raise ParseError("the body must be read before this service's request can be signed", reason="sigv4_needs_body")


def derive(secret_key: str, date: str, scope: Scope) -> bytes:
    """The signing key of one day (`YYYYMMDD`), region and service: all that the broker ever gets."""
    key = ("AWS4" + secret_key).encode()
    for part in (date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _encode(text: str, safe: str = "") -> str:
    from urllib.parse import quote

    return quote(text.encode("utf-8", "surrogateescape"), safe="-_.~" + safe)


def canonical_uri(path: str, service: str) -> str:
    """The path as signed: as sent for S3, encoded once more for all others."""
    return path if service == "s3" else _encode(path, "/")


def canonical_query_string(pairs: Sequence[tuple[str, str]]) -> str:
    return "&".join(f"{n}={v}" for n, v in sorted((_encode(n), _encode(v)) for n, v in pairs))


def sign(
    *,
    method: str,
    host: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Sequence[tuple[bytes, bytes]],
    body_hash: str,
    key_id: str,
    signing_key: bytes,
    scope: Scope,
    now: str,
    session_token: str = "",
) -> list[tuple[bytes, bytes]]:
    """The headers to send (without `host`), signed.

    host: as on the wire, without a default port. path: canonical, as sent. headers: those to forward. now:
    `YYYYMMDDThhmmssZ`, of the day that `signing_key` was derived for.
    """
    out = [(n, v) for n, v in headers if n not in _STRIP]
    out.append((b"x-amz-date", now.encode()))
    if scope.service == "s3" or body_hash != EMPTY_SHA256:
        out.append((b"x-amz-content-sha256", body_hash.encode()))
    if session_token:
        out.append((b"x-amz-security-token", session_token.encode()))
    signed: dict[str, list[str]] = {"host": [host]}
    for name, value in out:
        if name.startswith(b"x-amz-") or name in (b"content-type", b"content-md5"):
            signed.setdefault(name.decode(), []).append(" ".join(value.decode("latin-1").split()))
    names = ";".join(sorted(signed))
    lines = "".join(f"{n}:{','.join(signed[n])}\n" for n in sorted(signed))
    request = "\n".join(
        [method, canonical_uri(path, scope.service), canonical_query_string(query), lines, names, body_hash]
    )
    place = f"{now[:8]}/{scope.region}/{scope.service}/aws4_request"
    text = "\n".join([ALGORITHM, now, place, hashlib.sha256(request.encode("latin-1")).hexdigest()])
    signature = hmac.digest(signing_key, text.encode(), "sha256").hex()
    claim = f"{ALGORITHM} Credential={key_id}/{place}, SignedHeaders={names}, Signature={signature}"
    out.append((b"authorization", claim.encode()))
    return out
