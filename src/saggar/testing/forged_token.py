"""Tokens as an attacker with a key of his own can make them: nothing here goes through `mint` or `attenuate`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from saggar.capability.keys import TOKEN_DOMAIN, PrivateKey, b64
from saggar.capability.mint import block_hash
from saggar.capability.token import SIGNED, parse


def reseal(text: str, key: PrivateKey, **changes: Any) -> str:
    """The first block with other claims, signed by `key`."""
    payload = replace(parse(text).blocks[0].claims, **changes).to_bytes()
    return f"{SIGNED}{b64(payload)}.{b64(key.sign(TOKEN_DOMAIN, payload))}"


def add_child(text: str, key: PrivateKey, holder: PrivateKey, **changes: Any) -> str:
    """A hand-made child block, for `holder`, that no `attenuate` has checked."""
    leaf = parse(text).blocks[-1]
    claims = replace(
        leaf.claims,
        jti="x",
        issuer=key.public,
        holder=holder.public,
        depth=leaf.claims.depth + 1,
        parent=block_hash(leaf),
    )
    payload = replace(claims, **changes).to_bytes()
    return f"{text}~{b64(payload)}.{b64(key.sign(TOKEN_DOMAIN, payload))}"
