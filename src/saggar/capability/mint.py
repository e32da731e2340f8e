"""Making tokens: the issuer mints, a holder attenuates offline.

I1  `attenuate` refuses to widen before it signs (and verification refuses again: the holder is not believed).
I2  A minted token lives `ttl_s`, 60 seconds by default, never more than `MAX_TTL_S`; a child never outlives its parent.
I3  A holder that attenuates keeps nothing of the issuer's: it signs with its own key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

from saggar.capability.grant import Grant, narrower_grant
from saggar.capability.keys import TOKEN_DOMAIN, PrivateKey, b64
from saggar.capability.token import LOCAL, MAX_BLOCKS, SIGNED, Block, Claims, UnverifiedToken, parse
from saggar.core.errors import ParseError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.clock import Clock

DEFAULT_TTL_S = 60
MAX_TTL_S = 3600
DEFAULT_MAX_DEPTH = 3

Random = Callable[[int], bytes]


class Minted:
    """The monotonic deadlines of what this process minted; shared by its issuer and its verifier.

    What has run out is forgotten, so a token of ours without a deadline here is one that has run out. issuer: the raw
    public key whose tokens these are.
    """

    __slots__ = ("_deadlines", "issuer")

    def __init__(self, issuer: bytes = b"") -> None:
        self.issuer = issuer
        self._deadlines: dict[str, tuple[float, int]] = {}

    def note(self, jti: str, deadline: float, expires: int, now: float) -> None:
        if len(self._deadlines) >= 4096:
            self._deadlines = {k: v for k, v in self._deadlines.items() if v[0] > now}
        self._deadlines[jti] = (deadline, expires)

    def deadline(self, root_jti: str, expires: int) -> float | None:
        """When a chain from `root_jti` that expires at wall second `expires` ends, on this process' monotonic clock."""
        found = self._deadlines.get(root_jti)
        return None if found is None else found[0] - (found[1] - expires)


class Issuer:
    """Mints for one task. key: the broker's. secret: 32 bytes for local tokens, never leaving the process."""

    __slots__ = ("_clock", "_key", "_random", "_secret", "minted", "task")

    def __init__(self, task: str, *, key: PrivateKey, secret: bytes, clock: Clock, random: Random) -> None:
        self.task = task
        self._key = key
        self._secret = secret
        self._clock = clock
        self._random = random
        self.minted = Minted(key.public)

    @property
    def public(self) -> bytes:
        return self._key.public

    @property
    def secret(self) -> bytes:
        return self._secret

    def mint(
        self,
        grants: Sequence[Grant],
        *,
        holder: bytes,
        subject: str = "worker",
        ttl_s: int = DEFAULT_TTL_S,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> str:
        """A signed token for the process that holds the private half of `holder` (32 raw bytes)."""
        claims = self._claims(grants, holder=holder, issuer=self.public, subject=subject, ttl_s=ttl_s, depth=max_depth)
        return SIGNED + _sealed(claims, self._key)

    def mint_local(
        self,
        grants: Sequence[Grant],
        *,
        subject: str = "host",
        ttl_s: int = DEFAULT_TTL_S,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> str:
        """A token for use within this process: HMAC, no proof of possession. A socket gateway refuses it."""
        claims = self._claims(grants, holder=b"", issuer=b"", subject=subject, ttl_s=ttl_s, depth=max_depth)
        payload = claims.to_bytes()
        return f"{LOCAL}{b64(payload)}.{b64(hmac.digest(self._secret, TOKEN_DOMAIN + payload, 'sha256'))}"

    def _claims(
        self, grants: Sequence[Grant], *, holder: bytes, issuer: bytes, subject: str, ttl_s: int, depth: int
    ) -> Claims:
        if not 0 < ttl_s <= MAX_TTL_S:
            raise UsageError(f"a token lives 1 to {MAX_TTL_S} seconds, not {ttl_s}")
        if not grants:
            raise UsageError("a token carries at least one capability")
        if not 0 <= depth < MAX_BLOCKS:
            raise UsageError(f"a chain is at most {MAX_BLOCKS} long")
        issued = int(self._clock.wall())
        now = self._clock.monotonic()
        jti = self._random(16).hex()
        self.minted.note(jti, now + ttl_s, issued + ttl_s, now)
        return Claims(
            jti=jti,
            task=self.task,
            subject=subject,
            issuer=issuer,
            holder=holder,
            issued=issued,
            not_before=issued,
            expires=issued + ttl_s,
            depth=0,
            max_depth=depth,
            parent="",
            grants=tuple(grants),
        )


def _sealed(claims: Claims, key: PrivateKey) -> str:
    payload = claims.to_bytes()
    return f"{b64(payload)}.{b64(key.sign(TOKEN_DOMAIN, payload))}"


def block_hash(block: Block) -> str:
    """What a child's `par_hash` names: SHA-256 (base64url) over the parent's payload and seal."""
    return b64(hashlib.sha256(len(block.payload).to_bytes(4, "big") + block.payload + block.seal).digest())


def attenuate(
    text: str,
    grants: Sequence[Grant],
    *,
    key: PrivateKey,
    holder: bytes,
    random: Random,
    subject: str = "worker",
    ttl_s: int | None = None,
    wall: float | None = None,
    max_depth: int | None = None,
) -> str:
    """A narrower child of a signed token, made offline by its holder. key: the holder's own. holder: the child's.

    ttl_s counts from `wall` (seconds since 1970); without both the child ends with its parent.
    Raises `UsageError` where the child would be wider (I1).
    """
    token = _parsed(text, "signed")
    leaf = token.blocks[-1]
    if leaf.claims.holder != key.public:
        raise UsageError("this key does not hold the token")
    claims = _child(leaf, grants, key.public, holder, random, subject, ttl_s, wall, max_depth)
    return f"{text}~{_sealed(claims, key)}"


def attenuate_local(
    text: str,
    grants: Sequence[Grant],
    *,
    random: Random,
    subject: str = "host",
    ttl_s: int | None = None,
    wall: float | None = None,
    max_depth: int | None = None,
) -> str:
    """As `attenuate`, for a local token. The child's HMAC is keyed with the parent's, so the parent's is gone."""
    token = _parsed(text, "local")
    claims = _child(token.blocks[-1], grants, b"", b"", random, subject, ttl_s, wall, max_depth)
    payload = claims.to_bytes()
    chain = text[len(LOCAL) :].rpartition(".")[0]
    return f"{LOCAL}{chain}~{b64(payload)}.{b64(hmac.digest(token.seal, TOKEN_DOMAIN + payload, 'sha256'))}"


def _parsed(text: str, kind: str) -> UnverifiedToken:
    try:
        token = parse(text)
    except ParseError as e:
        raise UsageError(f"not a token: {e}") from None
    if token.kind != kind:
        raise UsageError(f"a {token.kind} token where a {kind} one was expected")
    return token


def _child(  # noqa: PLR0917  # two callers, just above
    leaf: Block,
    grants: Sequence[Grant],
    issuer: bytes,
    holder: bytes,
    random: Random,
    subject: str,
    ttl_s: int | None,
    wall: float | None,
    max_depth: int | None,
) -> Claims:
    parent = leaf.claims
    if parent.depth >= parent.max_depth or (max_depth is not None and max_depth > parent.max_depth):
        raise UsageError("the token may not be delegated so deep")
    for grant in grants:
        if not any(narrower_grant(grant, theirs) for theirs in parent.grants):
            raise UsageError(f"`{grant.to_text()}` is not narrower than what the token allows")
    issued = parent.issued if wall is None else max(parent.issued, int(wall))
    expires = parent.expires if ttl_s is None else min(parent.expires, issued + ttl_s)
    return Claims(
        jti=random(16).hex(),
        task=parent.task,
        subject=subject,
        issuer=issuer,
        holder=holder,
        issued=issued,
        not_before=max(parent.not_before, issued),
        expires=expires,
        depth=parent.depth + 1,
        max_depth=parent.max_depth if max_depth is None else max_depth,
        parent=block_hash(leaf),
        grants=tuple(grants),
    )
