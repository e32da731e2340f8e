"""Ed25519 keys (RFC 8032) as small values.

I1  A private key never prints, pickles or compares.
I2  Each use signs under its own domain word, so a token never verifies as a proof.
"""

from __future__ import annotations

import base64
import binascii
from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from saggar.core.errors import ParseError

TOKEN_DOMAIN = b"saggar-token-v1\0"
PROOF_DOMAIN = b"saggar-proof-v1\0"


def b64(data: bytes) -> str:
    """base64url without padding (RFC 7515, section 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    """Strict: the one spelling of each byte string. Raises `ParseError`."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise ParseError("not base64url", reason="malformed") from None
    if b64(raw) != text:
        raise ParseError("not the canonical base64url", reason="malformed")
    return raw


class PrivateKey:
    """Signs. `public` is the 32 raw bytes of the other half."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, domain: bytes, message: bytes) -> bytes:
        return self._key.sign(domain + message)

    def __repr__(self) -> str:
        return f"PrivateKey(public={b64(self.public)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is not pickled")


class PublicKey:
    """Verifies. Kept once per key: loading one costs a third of a verification."""

    __slots__ = ("_key", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != 32:
            raise ParseError("an Ed25519 public key is 32 bytes", reason="malformed")
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def verifies(self, domain: bytes, message: bytes, signature: bytes) -> bool:
        try:
            self._key.verify(signature, domain + message)
        except InvalidSignature:
            return False
        return True
