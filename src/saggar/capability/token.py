"""A capability token as text and as claims: read, not yet believed.

I1  `parse` gives an `UnverifiedToken` or `ParseError`, for any text, in time linear in it.
I2  Nothing in an `UnverifiedToken` authorises anything: only `capability.verify` makes a `VerifiedToken` of it.
I3  Claims are canonical JSON (RFC 8785): one token, one byte sequence, or it does not parse.

Wire form: `sgr1.` and blocks joined by `~`, each `payload.signature` in base64url (Ed25519, between processes); or
`sgh1.`, payloads joined by `~`, `.` and one HMAC-SHA-256 (within the broker's process only). Claims are named as in
the IETF draft on attenuating agent tokens, RFC 7519, RFC 7800 (`cnf`) and RFC 9396 (`authorization_details`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from saggar.audit import canonical
from saggar.capability.grant import Grant, grant_from_json
from saggar.capability.keys import b64, unb64
from saggar.core.errors import ParseError

SIGNED = "sgr1."
LOCAL = "sgh1."
MAX_TOKEN_CHARS = 64 * 1024
MAX_BLOCKS = 8
MAX_GRANTS = 64
VERSION = 1

_CLAIMS = frozenset(
    {
        "v",
        "iss",
        "jti",
        "sub",
        "task",
        "iat",
        "nbf",
        "exp",
        "cnf",
        "del_depth",
        "del_max_depth",
        "par_hash",
        "authorization_details",
    }
)


@dataclass(frozen=True, slots=True)
class Claims:
    """One block. iat, nbf, exp: whole seconds since 1970. holder: raw Ed25519 key (`cnf`), empty in a local token.
    issuer: raw key of the signer, empty in a local token. parent: SHA-256 of the block before, empty in the first."""

    jti: str
    task: str
    subject: str
    issuer: bytes
    holder: bytes
    issued: int
    not_before: int
    expires: int
    depth: int
    max_depth: int
    parent: str
    grants: tuple[Grant, ...]

    def to_bytes(self) -> bytes:
        return canonical.encode(
            {
                "v": VERSION,
                "iss": b64(self.issuer),
                "jti": self.jti,
                "sub": self.subject,
                "task": self.task,
                "iat": self.issued,
                "nbf": self.not_before,
                "exp": self.expires,
                "cnf": {"jwk": {"crv": "Ed25519", "kty": "OKP", "x": b64(self.holder)}} if self.holder else {},
                "del_depth": self.depth,
                "del_max_depth": self.max_depth,
                "par_hash": self.parent,
                "authorization_details": [g.to_json() for g in self.grants],
            }
        )


@dataclass(frozen=True, slots=True)
class Block:
    """payload: the signed bytes. seal: the signature, empty in a local token."""

    claims: Claims
    payload: bytes
    seal: bytes


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """What a text says. seal: the HMAC of a local token."""

    text: str
    kind: Literal["signed", "local"]
    blocks: tuple[Block, ...]
    seal: bytes = b""


def parse(text: Any) -> UnverifiedToken:
    """Raises `ParseError`."""
    if type(text) is not str or not text.isascii():
        raise ParseError("a token is ASCII text", reason="token_malformed")
    if len(text) > MAX_TOKEN_CHARS:
        raise ParseError(f"a token longer than {MAX_TOKEN_CHARS} characters", reason="token_malformed")
    if text.startswith(SIGNED):
        parts = text[len(SIGNED) :].split("~", MAX_BLOCKS)
        if len(parts) > MAX_BLOCKS:
            raise ParseError(f"a chain of more than {MAX_BLOCKS}", reason="token_malformed")
        return UnverifiedToken(text, "signed", tuple(_signed(part) for part in parts))
    if text.startswith(LOCAL):
        chain, dot, seal = text[len(LOCAL) :].rpartition(".")
        parts = chain.split("~", MAX_BLOCKS)
        if not dot or len(parts) > MAX_BLOCKS:
            raise ParseError("not a local token", reason="token_malformed")
        blocks = tuple(Block(claims_of(raw), raw, b"") for raw in map(_raw, parts))
        return UnverifiedToken(text, "local", blocks, _sized(_raw(seal), 32))
    raise ParseError("not a token", reason="token_malformed")


def _signed(part: str) -> Block:
    payload, dot, seal = part.partition(".")
    if not dot:
        raise ParseError("a block without a signature", reason="token_malformed")
    raw = _raw(payload)
    return Block(claims_of(raw), raw, _sized(_raw(seal), 64))


def _raw(text: str) -> bytes:
    try:
        return unb64(text)
    except ParseError as e:
        raise ParseError(str(e), reason="token_malformed") from None


def _sized(raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise ParseError("a seal of the wrong size", reason="token_malformed")
    return raw


def claims_of(payload: bytes) -> Claims:
    """Raises `ParseError` for all but canonical claims of this version."""
    try:
        return _claims(_canonical(payload))
    except ParseError as e:
        raise ParseError(str(e), reason="token_malformed") from None


def _canonical(payload: bytes) -> dict[str, Any]:
    data = canonical.decode(payload)
    if type(data) is not dict or canonical.encode(data) != payload:
        raise ParseError("claims that are not in canonical form")
    return data


def _claims(data: dict[str, Any]) -> Claims:
    if data.keys() != _CLAIMS or _integer(data["v"]) != VERSION:
        raise ParseError("claims that this version does not have")
    details = data["authorization_details"]
    if type(details) is not list or not 0 < len(details) <= MAX_GRANTS:
        raise ParseError(f"a token carries 1 to {MAX_GRANTS} capabilities")
    issued, not_before, expires, depth, max_depth = (
        _integer(data[name]) for name in ("iat", "nbf", "exp", "del_depth", "del_max_depth")
    )
    if not (issued >= 0 and not_before <= expires and 0 <= depth < MAX_BLOCKS and 0 <= max_depth < MAX_BLOCKS):
        raise ParseError("times or depths out of order")
    return Claims(
        jti=_text(data["jti"]),
        task=_text(data["task"]),
        subject=_text(data["sub"]),
        issuer=unb64(_text(data["iss"])),
        holder=_holder(data["cnf"]),
        issued=issued,
        not_before=not_before,
        expires=expires,
        depth=depth,
        max_depth=max_depth,
        parent=_text(data["par_hash"]),
        grants=tuple(grant_from_json(d) for d in details),
    )


def _holder(cnf: Any) -> bytes:
    if cnf == {}:
        return b""
    jwk = cnf.get("jwk") if type(cnf) is dict and cnf.keys() == {"jwk"} else None
    if type(jwk) is not dict or jwk.keys() != {"crv", "kty", "x"} or (jwk["crv"], jwk["kty"]) != ("Ed25519", "OKP"):
        raise ParseError("a confirmation key that is not Ed25519")
    return unb64(_text(jwk["x"]))


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 256:
        raise ParseError("a claim that should be a short text")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ParseError("a claim that should be an integer")
    return value
