"""Believing a token: `UnverifiedToken` in, `VerifiedToken` out, or a refusal with its own reason.

I1  Only `Verifier.verify` makes a `VerifiedToken`; it carries the chain's intersection: the leaf's grants, each with
    the budgets of all its ancestors.
I2  Every block is sealed by the holder of the block before, of the same task, no wider, no longer, one deeper.
I3  A cached chain skips signatures and attenuation, never time, revocation or possession.
I4  A token minted in this process ends by the monotonic clock, so setting the wall clock back does not lengthen it.
    Others end by the wall clock, give or take `skew_s`, the stated bound between hosts: such a token may be used up to
    `skew_s` after `exp` and from `skew_s` before `nbf`, never beyond.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from saggar.audit import canonical
from saggar.capability.grant import Grant, narrower_grant
from saggar.capability.keys import PROOF_DOMAIN, TOKEN_DOMAIN, PrivateKey, PublicKey, b64
from saggar.capability.mint import MAX_TTL_S, Minted, block_hash
from saggar.capability.token import Block, Claims, UnverifiedToken, parse
from saggar.core.decision import DENY, Decision
from saggar.core.errors import Denied, ParseError
from saggar.core.tool import Budget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.clock import Clock

DEFAULT_SKEW_S = 5
PROOF_LIFE_S = 30
CACHE_SIZE = 4096
REFUSED = "this call is not allowed"
_MADE_HERE = object()


def refusal(reason: str, **detail: object) -> Decision:
    """A denial of L3's. Its public line is one constant: a reason would tell a model what it may not see."""
    return Decision(DENY, reason, layer="L3", rule="token", public=REFUSED, detail=dict(detail))


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """A leaf's grant with what it stands under: account and budget of itself and each ancestor.

    root: what the issuer granted. What a holder narrowed it to bounds the call; it says nothing of what the policy's
    author meant, since the holder wrote it, maybe after reading what an attacker wrote.

    A root's account is named after the grant, not the token: minting the same capability afresh every minute must not
    fill its budget up again. A child's is its token's own.
    """

    grant: Grant
    charges: tuple[tuple[tuple[str, ...], Budget], ...]
    root: Grant


class VerifiedToken:
    """A chain whose seals and attenuation hold. Time, revocation and possession are asked at each use."""

    __slots__ = (
        "deadline",
        "expires",
        "grants",
        "holder",
        "jtis",
        "kind",
        "leaf",
        "not_before",
        "subject",
        "task",
        "text",
    )

    def __init__(
        self,
        made: object,
        *,
        token: UnverifiedToken,
        grants: tuple[HeldGrant, ...],
        deadline: float | None,
    ) -> None:
        if made is not _MADE_HERE:
            raise TypeError("only a verifier makes a verified token")
        leaf = token.blocks[-1].claims
        self.text = token.text
        self.kind = token.kind
        self.task = leaf.task
        self.subject = leaf.subject
        self.holder = PublicKey(leaf.holder) if leaf.holder else None
        self.leaf = block_hash(token.blocks[-1]) if token.kind == "signed" else b64(token.seal)
        self.jtis = tuple(block.claims.jti for block in token.blocks)
        self.not_before = max(block.claims.not_before for block in token.blocks)
        self.expires = leaf.expires
        self.deadline = deadline
        self.grants = grants


@dataclass(frozen=True, slots=True)
class Proof:
    """Possession of a token's key, shown for one call. call_id: one-shot. made: wall seconds."""

    call_id: str
    made: int
    signature: bytes


def proof_message(leaf: str, args_hash: str, call_id: str, made: int) -> bytes:
    return canonical.encode({"ath": leaf, "args_hash": args_hash, "call_id": call_id, "iat": made})


def prove(text: str, args_hash: str, *, key: PrivateKey, call_id: str, wall: float) -> Proof:
    """What a holder sends beside its token (as DPoP, RFC 9449, over the argument hash). Raises `ParseError`."""
    made = int(wall)
    message = proof_message(block_hash(parse(text).blocks[-1]), args_hash, call_id, made)
    return Proof(call_id, made, key.sign(PROOF_DOMAIN, message))


class Revocations:
    """Tasks and token ids that are dead from now on; asked at every call."""

    __slots__ = ("_jtis", "_tasks")

    def __init__(self) -> None:
        self._tasks: set[str] = set()
        self._jtis: set[str] = set()

    def revoke_task(self, task: str) -> None:
        self._tasks.add(task)

    def revoke_token(self, jti: str) -> None:
        """This token and all that was attenuated from it."""
        self._jtis.add(jti)

    def covers(self, token: VerifiedToken) -> bool:
        return token.task in self._tasks or not self._jtis.isdisjoint(token.jtis)


class Verifier:
    """Verifies tokens of one task. roots: the raw public keys that may mint. secret: of local tokens, if any."""

    __slots__ = ("_cache", "_clock", "_keys", "_minted", "_roots", "_secret", "_skew_s", "_task", "revocations")

    def __init__(
        self,
        task: str,
        *,
        roots: Iterable[bytes],
        clock: Clock,
        secret: bytes = b"",
        minted: Minted | None = None,
        revocations: Revocations | None = None,
        skew_s: int = DEFAULT_SKEW_S,
    ) -> None:
        self._task = task
        self._roots = frozenset(roots)
        self._secret = secret
        self._clock = clock
        self._minted = minted or Minted()
        self._skew_s = skew_s
        self._keys: dict[bytes, PublicKey] = {}
        self._cache: dict[str, VerifiedToken] = {}
        self.revocations = revocations or Revocations()

    def verify(self, text: str) -> VerifiedToken:
        """Everything but possession. Raises `Denied`."""
        token = self._cache.get(text) if type(text) is str else None
        if token is None:
            token = self._believe(text)
            if len(self._cache) >= CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
            self._cache[text] = token
        self._in_time(token)
        if self.revocations.covers(token):
            raise Denied(refusal("revoked", jti=token.jtis[-1]))
        return token

    def possess(self, token: VerifiedToken, args_hash: str, proof: Proof | None) -> None:
        """The caller holds the token's key and means these arguments. Raises `Denied`."""
        if token.holder is None:
            raise Denied(refusal("local_token_outside"))
        if proof is None:
            raise Denied(refusal("proof_missing"))
        now = self._clock.wall()
        if not -self._skew_s <= now - proof.made <= PROOF_LIFE_S + self._skew_s:
            raise Denied(refusal("proof_stale", made=proof.made))
        message = proof_message(token.leaf, args_hash, proof.call_id, proof.made)
        if not token.holder.verifies(PROOF_DOMAIN, message, proof.signature):
            raise Denied(refusal("wrong_holder", jti=token.jtis[-1]))

    def _in_time(self, token: VerifiedToken) -> None:
        if token.deadline is not None:
            if self._clock.monotonic() >= token.deadline:
                raise Denied(refusal("expired", jti=token.jtis[-1], clock="monotonic"))
            return
        now = self._clock.wall()
        if now >= token.expires + self._skew_s:
            raise Denied(refusal("expired", jti=token.jtis[-1], clock="wall"))
        if now < token.not_before - self._skew_s:
            raise Denied(refusal("not_yet_valid", jti=token.jtis[-1]))

    def _believe(self, text: str) -> VerifiedToken:
        try:
            token = parse(text)
        except ParseError as e:
            raise Denied(refusal(e.reason, error=str(e))) from None
        if token.kind == "signed":
            self._signatures(token.blocks)
        else:
            self._hmac(token)
        root, leaf = token.blocks[0].claims, token.blocks[-1].claims
        if any(block.claims.task != self._task for block in token.blocks):
            raise Denied(refusal("cross_task", task=leaf.task))
        if root.expires - root.not_before > MAX_TTL_S or root.depth != 0 or root.parent:
            raise Denied(refusal("root_form"))
        grants = tuple(HeldGrant(g, ((("grant", grant_key(g)), g.budget),), g) for g in root.grants)
        for above, below in zip(token.blocks, token.blocks[1:], strict=False):
            grants = _attenuated(above, below.claims, grants)
        deadline = self._minted.deadline(root.jti, leaf.expires)
        if deadline is None and (token.kind == "local" or root.issuer == self._minted.issuer):
            # ours, and forgotten: the wall clock, which may have been set back, has no say in it
            raise Denied(refusal("expired", jti=leaf.jti, clock="monotonic"))
        return VerifiedToken(_MADE_HERE, token=token, grants=grants, deadline=deadline)

    def _signatures(self, blocks: tuple[Block, ...]) -> None:
        if blocks[0].claims.issuer not in self._roots:
            raise Denied(refusal("issuer_unknown"))
        signer = blocks[0].claims.issuer
        for block in blocks:
            if block.claims.issuer != signer:
                raise Denied(refusal("wrong_holder", jti=block.claims.jti))
            if not self._key(signer).verifies(TOKEN_DOMAIN, block.payload, block.seal):
                raise Denied(refusal("signature", jti=block.claims.jti))
            signer = block.claims.holder
            if len(signer) != 32:
                raise Denied(refusal("holder_missing", jti=block.claims.jti))

    def _hmac(self, token: UnverifiedToken) -> None:
        if not self._secret:
            raise Denied(refusal("local_token_outside"))
        seal = self._secret
        for block in token.blocks:
            if block.claims.holder or block.claims.issuer:
                raise Denied(refusal("holder_form", jti=block.claims.jti))
            seal = hmac.digest(seal, TOKEN_DOMAIN + block.payload, "sha256")
        if not hmac.compare_digest(seal, token.seal):
            raise Denied(refusal("signature"))

    def _key(self, raw: bytes) -> PublicKey:
        key = self._keys.get(raw)
        if key is None:
            if len(self._keys) >= CACHE_SIZE:
                self._keys.clear()
            try:
                key = self._keys[raw] = PublicKey(raw)
            except ValueError:
                raise Denied(refusal("signature")) from None
        return key


def grant_key(grant: Grant) -> str:
    """A short name for a grant: 128 bits of SHA-256 over its canonical JSON, in hex."""
    return hashlib.sha256(canonical.encode(grant.to_json())).hexdigest()[:32]


def _attenuated(above: Block, child: Claims, held: tuple[HeldGrant, ...]) -> tuple[HeldGrant, ...]:
    parent = above.claims
    if child.parent != block_hash(above):
        raise Denied(refusal("chain_broken", jti=child.jti))
    if child.depth != parent.depth + 1 or child.depth > parent.max_depth or child.max_depth > parent.max_depth:
        raise Denied(refusal("too_deep", jti=child.jti))
    if child.expires > parent.expires or child.not_before < parent.not_before:
        raise Denied(refusal("widened", jti=child.jti, what="time"))
    out = []
    for i, grant in enumerate(child.grants):
        under = next((h for h in held if narrower_grant(grant, h.grant)), None)
        if under is None:
            raise Denied(refusal("widened", jti=child.jti, what=grant.to_text()))
        out.append(HeldGrant(grant, (*under.charges, (("token", child.jti, str(i)), grant.budget)), under.root))
    return tuple(out)
