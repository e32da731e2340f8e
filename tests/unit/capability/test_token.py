"""Twin of capability.token, mint and verify: each refusal with its own reason, both clocks at their edges."""

from __future__ import annotations

import hmac
import os
from dataclasses import replace

import pytest

from saggar.audit import canonical
from saggar.capability.grant import compile_capability
from saggar.capability.keys import TOKEN_DOMAIN, PrivateKey, b64, unb64
from saggar.capability.mint import Issuer, attenuate, attenuate_local, block_hash
from saggar.capability.token import LOCAL, SIGNED, parse
from saggar.capability.verify import PROOF_LIFE_S, Proof, Revocations, VerifiedToken, Verifier, prove
from saggar.core.clock import ManualClock
from saggar.core.errors import Denied, ParseError, UsageError
from saggar.testing import forged_token
from saggar.testing.capability_desk import DECLARATIONS
from saggar.testing.forged_token import reseal

WIDE = compile_capability("send:email[to=*@acme.com, max=5]", DECLARATIONS)
NARROW = compile_capability("send:email[to=bob@acme.com, max=2]", DECLARATIONS)
OTHER = compile_capability("send:email[to=*@evil.example, max=2]", DECLARATIONS)
BROKER = PrivateKey(b"b" * 32)
WORKER = PrivateKey(b"w" * 32)
CHILD = PrivateKey(b"c" * 32)
THIEF = PrivateKey(b"t" * 32)


class House:
    """An issuer, and a verifier on another host whose wall clock may be off."""

    def __init__(self, task="task-1"):
        self.clock = ManualClock(monotonic=100.0, wall=1_800_000_000.0)
        self.issuer = Issuer(task, key=BROKER, secret=b"s" * 32, clock=self.clock, random=os.urandom)
        self.near = Verifier(task, roots=[BROKER.public], clock=self.clock, secret=b"s" * 32, minted=self.issuer.minted)
        self.far_clock = ManualClock(monotonic=5.0, wall=1_800_000_000.0)
        self.far = Verifier(task, roots=[BROKER.public], clock=self.far_clock)

    def mint(self, grants=WIDE, **options):
        return self.issuer.mint(grants, holder=WORKER.public, **options)


def refused(verifier, text):
    with pytest.raises(Denied) as caught:
        verifier.verify(text)
    return caught.value.decision.reason


def add_child(text, key, **changes):
    return forged_token.add_child(text, key, CHILD, **changes)


def test_only_a_verifier_makes_a_verified_token():
    token = parse(House().mint())
    with pytest.raises(TypeError):
        VerifiedToken(object(), token=token, grants=(), deadline=None)


def test_mint_attenuate_verify():
    house = House()
    child = attenuate(house.mint(), NARROW, key=WORKER, holder=CHILD.public, random=os.urandom)
    for verifier in (house.near, house.far):
        token = verifier.verify(child)
        assert token.task == "task-1"
        assert [h.grant for h in token.grants] == list(NARROW)
        assert [budget.calls for _, budget in token.grants[0].charges] == [5, 2]


@pytest.mark.parametrize(
    ("life", "reason"), [(59.999, ""), (60.0, "expired"), (61.0, "expired")], ids=["just before", "at", "after"]
)
def test_in_the_minting_process_the_monotonic_clock_decides(life, reason):
    house = House()
    text = house.mint()
    house.clock.advance(life)
    house.clock.step_wall(-3600)  # setting the wall clock back does not lengthen a token
    if reason:
        assert refused(house.near, text) == reason
    else:
        house.near.verify(text)


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(-5.0, ""), (-5.001, "not_yet_valid"), (60.0, ""), (64.999, ""), (65.0, "expired")],
)
def test_on_another_host_the_wall_clock_decides_within_the_skew(seconds, reason):
    house = House()
    text = house.mint()
    house.far_clock.step_wall(seconds)
    if reason:
        assert refused(house.far, text) == reason
    else:
        house.far.verify(text)


@pytest.mark.parametrize("kind", ["local", "signed"])
def test_what_ran_out_stays_so_when_it_is_forgotten_and_the_clock_set_back(kind):
    house = House()
    old = house.issuer.mint_local(WIDE) if kind == "local" else house.mint()
    house.clock.advance(61)
    for _ in range(4096):  # enough that the table of deadlines is cleared of what ran out
        house.issuer.mint_local(WIDE)
    fresh = house.issuer.mint_local(WIDE)
    back = Verifier(
        "task-1",
        roots=[BROKER.public],
        clock=ManualClock(monotonic=161.0, wall=1_800_000_000.0),
        secret=b"s" * 32,
        minted=house.issuer.minted,
    )
    assert refused(back, old) == "expired"
    assert back.verify(fresh).kind == "local"


def test_a_local_token_of_an_earlier_process_has_run_out():
    house = House()
    token = house.issuer.mint_local(WIDE)
    later = Verifier("task-1", roots=[], clock=house.clock, secret=b"s" * 32)
    assert refused(later, token) == "expired"


def test_a_childs_shorter_life_counts_on_the_monotonic_clock():
    house = House()
    text = attenuate(
        house.mint(), NARROW, key=WORKER, holder=CHILD.public, random=os.urandom, ttl_s=10, wall=house.clock.wall()
    )
    house.clock.advance(9.9)
    house.near.verify(text)
    house.clock.advance(0.2)
    assert refused(house.near, text) == "expired"


def test_a_cached_chain_still_expires_and_is_still_revoked():
    house = House()
    text = house.mint()
    house.near.verify(text)
    house.near.revocations.revoke_task("task-1")
    assert refused(house.near, text) == "revoked"
    house = House()
    text = house.mint()
    house.near.verify(text)
    house.clock.advance(60)
    assert refused(house.near, text) == "expired"


def test_revoking_a_parent_revokes_its_children_and_no_sibling():
    house = House()
    parent, sibling = house.mint(), house.mint()
    child = attenuate(parent, NARROW, key=WORKER, holder=CHILD.public, random=os.urandom)
    house.near.revocations.revoke_token(parse(parent).blocks[0].claims.jti)
    assert refused(house.near, child) == "revoked"
    house.near.verify(sibling)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda h: reseal(h.mint(), THIEF), "signature"),
        (lambda h: reseal(h.mint(), THIEF, issuer=THIEF.public), "issuer_unknown"),
        (lambda h: reseal(h.mint(), BROKER, task="task-2"), "cross_task"),
        (lambda h: House("task-2").mint(), "cross_task"),
        (lambda h: reseal(h.mint(), BROKER, expires=1_900_000_000), "root_form"),
        (lambda h: reseal(h.mint(), BROKER, depth=1), "root_form"),
        (lambda h: reseal(h.mint(), BROKER, holder=b""), "holder_missing"),
        (lambda h: add_child(h.mint(), THIEF), "wrong_holder"),
        (lambda h: add_child(h.mint(), THIEF, issuer=WORKER.public), "signature"),
        (lambda h: add_child(h.mint(), WORKER, grants=OTHER), "widened"),
        (lambda h: add_child(h.mint(NARROW), WORKER, grants=WIDE), "widened"),
        (lambda h: add_child(h.mint(), WORKER, expires=1_800_000_061), "widened"),
        (lambda h: add_child(h.mint(), WORKER, not_before=1_799_999_999), "widened"),
        (lambda h: add_child(h.mint(), WORKER, task="task-2"), "cross_task"),
        (lambda h: add_child(h.mint(), WORKER, depth=2), "too_deep"),
        (lambda h: add_child(h.mint(), WORKER, max_depth=7), "too_deep"),
        (lambda h: add_child(h.mint(max_depth=0), WORKER), "too_deep"),
        (lambda h: add_child(h.mint(), WORKER, parent=""), "chain_broken"),
        (lambda h: add_child(h.mint(), WORKER, parent=block_hash(parse(h.mint()).blocks[0])), "chain_broken"),
        (lambda h: h.mint()[:-1], "token_malformed"),
        (lambda h: h.mint() + "=", "token_malformed"),
        (lambda h: h.mint() + "~", "token_malformed"),
        (lambda h: "", "token_malformed"),
        (lambda h: None, "token_malformed"),
        (lambda h: b"sgr1.", "token_malformed"),
        (lambda h: "sgr1." + "a.b~" * 9, "token_malformed"),
        (lambda h: h.issuer.mint_local(WIDE), "local_token_outside"),
    ],
)
def test_refused_with_its_own_reason(make, reason):
    house = House()
    assert refused(house.far, make(house)) == reason


def sealed(secret, *claims):
    """A local token with a right HMAC over any claims: what only the broker's own bug could make."""
    seal = secret
    for c in claims:
        seal = hmac.digest(seal, TOKEN_DOMAIN + c.to_bytes(), "sha256")
    return f"{LOCAL}{'~'.join(b64(c.to_bytes()) for c in claims)}.{b64(seal)}"


@pytest.mark.parametrize("change", [{"holder": WORKER.public}, {"issuer": BROKER.public}])
def test_a_local_token_names_no_keys(change):
    house = House()
    claims = parse(house.issuer.mint_local(WIDE)).blocks[0].claims
    house.near.verify(sealed(b"s" * 32, claims))
    assert refused(house.near, sealed(b"s" * 32, replace(claims, **change))) == "holder_form"


def test_a_root_has_no_parent_and_lives_an_hour_at_most():
    house = House()
    assert refused(house.far, reseal(house.mint(), BROKER, parent="x")) == "root_form"
    house.far.verify(house.mint(ttl_s=3600))
    assert refused(house.far, reseal(house.mint(), BROKER, expires=1_800_003_601)) == "root_form"


def test_a_chain_may_be_as_deep_as_it_says():
    house = House()
    text = attenuate(house.mint(max_depth=1), NARROW, key=WORKER, holder=CHILD.public, random=os.urandom)
    house.far.verify(text)


def test_a_child_that_begins_later_begins_later():
    house = House()
    text = add_child(house.mint(), WORKER, not_before=1_800_000_030)
    assert refused(house.far, text) == "not_yet_valid"
    house.far_clock.step_wall(25)
    house.far.verify(text)


def test_revocations_are_shared_among_verifiers():
    house, dead = House(), Revocations()
    both = [Verifier("task-1", roots=[BROKER.public], clock=house.clock, revocations=dead) for _ in range(2)]
    text = house.mint()
    for verifier in both:
        verifier.verify(text)
    dead.revoke_task("task-1")
    assert [refused(v, text) for v in both] == ["revoked", "revoked"]


def test_caches_stay_small_and_forget_nothing_that_matters(monkeypatch):
    from saggar.capability import verify

    monkeypatch.setattr(verify, "CACHE_SIZE", 2)
    house = House()
    texts = [house.issuer.mint(WIDE, holder=PrivateKey(bytes([i]) * 32).public) for i in range(1, 6)]
    for text in texts * 2:
        assert house.far.verify(text).text == text
    assert len(house.far._cache) == 2
    assert house.far.verify(texts[-1]) is house.far.verify(texts[-1])


def test_a_local_child_cannot_be_turned_back_into_its_parent():
    house = House()
    parent = house.issuer.mint_local(WIDE)
    child = attenuate_local(parent, NARROW, random=os.urandom)
    assert [h.grant for h in house.near.verify(child).grants] == list(NARROW)
    chain, _, seal = child[len(LOCAL) :].rpartition(".")
    assert refused(house.near, f"{LOCAL}{chain.split('~')[0]}.{seal}") == "signature"
    assert refused(house.near, f"{LOCAL}{chain.split('~')[1]}.{seal}") == "signature"


def test_attenuate_refuses_to_widen_before_it_signs():
    house = House()
    with pytest.raises(UsageError, match="not narrower"):
        attenuate(house.mint(), OTHER, key=WORKER, holder=CHILD.public, random=os.urandom)
    with pytest.raises(UsageError, match="does not hold"):
        attenuate(house.mint(), NARROW, key=THIEF, holder=CHILD.public, random=os.urandom)
    with pytest.raises(UsageError, match="so deep"):
        attenuate(house.mint(max_depth=0), NARROW, key=WORKER, holder=CHILD.public, random=os.urandom)


def test_attenuation_after_expiry_does_not_help():
    house = House()
    text = attenuate(
        house.mint(), NARROW, key=WORKER, holder=CHILD.public, random=os.urandom, ttl_s=3600, wall=1_800_000_050
    )
    house.clock.advance(60)
    assert refused(house.near, text) == "expired"


class TestPossession:
    def proof(self, house, text, key=WORKER, args_hash="a" * 64, call_id="c1", wall=None):
        return prove(text, args_hash, key=key, call_id=call_id, wall=house.far_clock.wall() if wall is None else wall)

    def reason(self, house, text, proof, args_hash="a" * 64):
        token = house.far.verify(text)
        with pytest.raises(Denied) as caught:
            house.far.possess(token, args_hash, proof)
        return caught.value.decision.reason

    def test_the_holder_passes(self):
        house = House()
        text = house.mint()
        house.far.possess(house.far.verify(text), "a" * 64, self.proof(house, text))

    def test_refusals(self):
        house = House()
        text, other = house.mint(), house.mint()
        good = self.proof(house, text)
        assert self.reason(house, text, None) == "proof_missing"
        assert self.reason(house, text, self.proof(house, text, key=THIEF)) == "wrong_holder"
        assert self.reason(house, text, good, args_hash="b" * 64) == "wrong_holder"
        assert self.reason(house, other, good) == "wrong_holder"
        assert self.reason(house, text, replace(good, call_id="c2")) == "wrong_holder"
        assert self.reason(house, text, replace(good, made=good.made + 1)) == "wrong_holder"

    @pytest.mark.parametrize(
        ("age", "ok"), [(-5, True), (-6, False), (PROOF_LIFE_S + 5, True), (PROOF_LIFE_S + 6, False)]
    )
    def test_a_proof_is_fresh_within_the_skew(self, age, ok):
        house = House()
        text = house.mint()
        proof = self.proof(house, text, wall=house.far_clock.wall() - age)
        if ok:
            house.far.possess(house.far.verify(text), "a" * 64, proof)
        else:
            assert self.reason(house, text, proof) == "proof_stale"

    def test_a_local_token_cannot_be_possessed(self):
        house = House()
        token = house.near.verify(house.issuer.mint_local(WIDE))
        with pytest.raises(Denied) as caught:
            house.near.possess(token, "a" * 64, None)
        assert caught.value.decision.reason == "local_token_outside"

    def test_a_token_signature_is_no_proof(self):
        house = House()
        text = house.mint()
        seal = parse(text).blocks[0].seal
        assert self.reason(house, text, Proof("c1", int(house.far_clock.wall()), seal)) == "wrong_holder"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("jti"),
        lambda d: d.update(extra=1),
        lambda d: d.update(v=2),
        lambda d: d.update(v=True),
        lambda d: d.update(exp=str(d["exp"])),
        lambda d: d.update(exp=True),
        lambda d: d.update(del_depth=-1),
        lambda d: d.update(authorization_details=[]),
        lambda d: d.update(authorization_details={}),
        lambda d: d["authorization_details"][0].update(type="other"),
        lambda d: d["authorization_details"][0]["arguments"].update(to={"type": "regex", "value": ".*"}),
        lambda d: d["authorization_details"][0]["budget"].update(calls=-1),
        lambda d: d["authorization_details"][0]["budget"].update(calls=True),
        lambda d: d["authorization_details"][0]["budget"].update(amount="1e9"),
        lambda d: d["cnf"].update(kid="x"),
        lambda d: d["cnf"]["jwk"].update(crv="P-256"),
        lambda d: d["cnf"]["jwk"].update(x="AA=="),
        lambda d: d.update(task=["task-1"]),
        lambda d: d.update(sub="x" * 300),
    ],
)
def test_claims_are_closed(spoil):
    payload = unb64(House().mint()[len(SIGNED) :].split(".")[0])
    data = canonical.decode(payload)
    spoil(data)
    raw = canonical.encode(data)
    text = f"{SIGNED}{b64(raw)}.{b64(BROKER.sign(TOKEN_DOMAIN, raw))}"
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.reason == "token_malformed"


def test_claims_in_another_spelling_do_not_parse():
    payload = unb64(House().mint()[len(SIGNED) :].split(".")[0])
    spaced = payload.replace(b'","', b'", "', 1)
    with pytest.raises(ParseError):
        parse(f"{SIGNED}{b64(spaced)}.{b64(BROKER.sign(TOKEN_DOMAIN, spaced))}")


def test_a_private_key_does_not_leak():
    import pickle

    assert "77" * 8 not in repr(WORKER)
    with pytest.raises(TypeError):
        pickle.dumps(WORKER)
