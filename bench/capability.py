"""L3's costs in one run, beside other libraries on the same decision.

    python bench/capability.py [--json FILE] [--calls N]

The decision: may this holder send mail to bob@acme.com, when the parent token allows *@acme.com and the child only
him? Each line is the median of N calls after a warm-up, in microseconds, and the 95th percentile beside it. Libraries
that are not installed are said to be missing. Targets are those of docs/CAPABILITIES.md; exit code 1 where one is missed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from saggar.audit.sink_host import AuditLog
from saggar.capability.builtin import Flow
from saggar.capability.call import prepare
from saggar.capability.declare import tool
from saggar.capability.desk_host import Desk
from saggar.capability.keys import PrivateKey
from saggar.capability.mint import attenuate, attenuate_local
from saggar.capability.request import request_hash
from saggar.capability.rule import CallView, Rule
from saggar.capability.rules import RuleSet
from saggar.capability.verify import Verifier, prove
from saggar.core.clock_host import SystemClock
from saggar.core.tool import FieldLabel
from saggar.testing.capability import MemoryLog

ARGS = {"to": "bob@acme.com", "subject": "hello", "body": "the numbers of the quarter are final"}
TASK = "bench"
PUBLIC = {"*": FieldLabel(integrity="system", readers="*", private=False)}


@tool(
    "send:email",
    effect="egress",
    roles={"to": "recipient", "subject": "content", "body": "content"},
    formats={"to": "email"},
    labels=PUBLIC,
)
def send_email(to: str, subject: str, body: str) -> str:
    return "sent"


@tool("read:notes", effect="read", roles={"day": "selector"}, labels=PUBLIC)
def read_notes(day: str) -> str:
    return "a note"


RULES = [
    Rule("inside", "allow", tool="send_email", when={"to": "*@acme.com"}),
    Rule("never", "deny", tool="send_email", when={"to": "boss@acme.com"}),
    Rule("notes", "allow", tool="read_notes"),
]
WIDE, NARROW = "send:email[to=*@acme.com]", "send:email[to=bob@acme.com]"


def timed(function: Callable[[], object], calls: int) -> tuple[float, float]:
    """(median, 95th percentile) in microseconds."""
    for _ in range(min(200, calls)):
        function()
    clock = time.perf_counter_ns
    samples = []
    for _ in range(calls):
        start = clock()
        function()
        samples.append(clock() - start)
    samples.sort()
    return samples[calls // 2] / 1000, samples[calls * 95 // 100] / 1000


def ours(calls: int, directory: str) -> dict[str, tuple[float, float]]:
    log = AuditLog(os.path.join(directory, "audit.jsonl"), TASK)
    desk = Desk(TASK, [send_email, read_notes], audit=log, rules=RULES)
    gateway, issuer, clock = desk.gateway, desk.issuer, SystemClock()
    wide, narrow = gateway.grants([WIDE]), gateway.grants([NARROW])
    worker, child, leaf = (PrivateKey(os.urandom(32)) for _ in range(3))
    out: dict[str, tuple[float, float]] = {}
    random = os.urandom

    local = attenuate_local(issuer.mint_local(wide, ttl_s=3600), narrow, random=random)
    out["saggar: mint, in-broker"] = timed(lambda: issuer.mint_local(wide), calls)
    parent = issuer.mint_local(wide, ttl_s=3600)
    out["saggar: attenuate, in-broker"] = timed(lambda: attenuate_local(parent, narrow, random=random), calls)
    out["saggar: verify + decide, in-broker"] = timed(lambda: gateway.explain(local, "send_email", ARGS), calls)

    root = issuer.mint(wide, holder=worker.public, ttl_s=3600)
    second = attenuate(root, narrow, key=worker, holder=child.public, random=random)
    third = attenuate(second, narrow, key=child, holder=leaf.public, random=random)
    out["saggar: mint, Ed25519"] = timed(lambda: issuer.mint(wide, holder=worker.public), calls)
    out["saggar: attenuate, Ed25519"] = timed(
        lambda: attenuate(root, narrow, key=worker, holder=child.public, random=random), calls
    )
    rules = RuleSet(RULES, [send_email.declaration, read_notes.declaration])

    def decide(verifier: Verifier, text: str, key: PrivateKey) -> Callable[[], object]:
        digest = request_hash(TASK, "send_email", ARGS)
        proof = prove(text, digest, key=key, call_id="c", wall=time.time())

        def run() -> object:
            token = verifier.verify(text)
            call = prepare(send_email.declaration, ARGS, TASK)
            verifier.possess(token, request_hash(TASK, "send_email", ARGS), proof)
            held = next(h for h in token.grants if h.grant.refuses(send_email.declaration, call.args) == ("", ""))
            verdict = rules.decide(CallView(send_email.declaration, call.args, {}), held.grant, Flow())
            if not verdict.decision.allowed:
                raise SystemExit(f"the benchmark's call was refused: {verdict.decision}")
            return verdict

        return run

    def fresh() -> Verifier:
        return Verifier(TASK, roots=[issuer.public], clock=clock, minted=issuer.minted)

    seen = fresh()
    out["saggar: verify + possession + decide, seen chain of two"] = timed(decide(seen, second, child), calls)
    out["saggar: verify + possession + decide, seen chain of three"] = timed(decide(seen, third, leaf), calls)
    keys = fresh()
    run_two, run_three = decide(keys, second, child), decide(keys, third, leaf)

    def unseen(run: Callable[[], object]) -> Callable[[], object]:
        def once() -> object:
            keys._cache.clear()  # a chain not seen before; the keys of its holders are
            return run()

        return once

    out["saggar: verify + possession + decide, unseen chain of two"] = timed(unseen(run_two), calls)
    out["saggar: verify + possession + decide, unseen chain of three"] = timed(unseen(run_three), calls)

    notes = gateway.token(["read:notes[day=*]"], ttl_s=3600)
    day = {"day": "2026-05-15"}
    out["saggar: gateway call, audit on"] = timed(lambda: gateway.call(notes, "read_notes", day), calls)
    mail = gateway.token([WIDE], ttl_s=3600)
    out["saggar: gateway call with side effect, audit on"] = timed(
        lambda: gateway.call(mail, "send_email", ARGS), calls
    )
    quiet = Desk(TASK, [send_email, read_notes], audit=MemoryLog(), rules=RULES)
    silent = quiet.gateway.token(["read:notes[day=*]"], ttl_s=3600)
    out["saggar: gateway call, log in memory"] = timed(lambda: quiet.gateway.call(silent, "read_notes", day), calls)
    out["the tool's body alone"] = timed(lambda: read_notes.unguarded(**day), calls)
    return out


def one_signature(calls: int) -> dict[str, tuple[float, float]]:
    from saggar.capability.keys import TOKEN_DOMAIN, PublicKey

    key = PrivateKey(os.urandom(32))
    public, message = PublicKey(key.public), os.urandom(800)
    seal = key.sign(TOKEN_DOMAIN, message)
    return {
        "one Ed25519 signature (cryptography)": timed(lambda: key.sign(TOKEN_DOMAIN, message), calls),
        "one Ed25519 verification (cryptography)": timed(lambda: public.verifies(TOKEN_DOMAIN, message, seal), calls),
    }


def biscuit(calls: int) -> dict[str, tuple[float, float]]:
    from biscuit_auth import AuthorizerBuilder, Biscuit, BiscuitBuilder, BlockBuilder, KeyPair

    pair = KeyPair()
    until = datetime.now(tz=UTC) + timedelta(hours=1)

    def mint() -> Biscuit:
        code = 'right("send", "email"); check if time($t), $t < {until}; check if to($x), $x.ends_with("@acme.com")'
        return BiscuitBuilder(code, {"until": until}).build(pair.private_key)

    root = mint()

    def narrow() -> Biscuit:
        return root.append(BlockBuilder("check if to({who})", {"who": "bob@acme.com"}))

    wire = narrow().to_base64()

    def verify() -> object:
        token = Biscuit.from_base64(wire, pair.public_key)
        code = 'time({now}); to({who}); subject({s}); body({b}); allow if right("send", "email")'
        facts = {"now": datetime.now(tz=UTC), "who": ARGS["to"], "s": ARGS["subject"], "b": ARGS["body"]}
        builder = AuthorizerBuilder(code, facts)
        limits = builder.limits()
        limits.max_time = timedelta(seconds=1)  # the default of 1 ms refuses valid calls on a busy machine
        builder.set_limits(limits)
        return builder.build(token).authorize()

    return {
        "biscuit-python: mint": timed(mint, calls),
        "biscuit-python: attenuate": timed(narrow, calls),
        "biscuit-python: verify + decide, no possession": timed(verify, calls),
    }


def tenuo_warrants(calls: int) -> dict[str, tuple[float, float]]:
    from tenuo import Authorizer, Exact, Pattern, SigningKey, Warrant, Wildcard

    root, worker, child = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()
    wide = {"send_email": {"to": Pattern("*@acme.com"), "subject": Wildcard(), "body": Wildcard()}}
    narrow = {"send_email": {"to": Exact("bob@acme.com"), "subject": Wildcard(), "body": Wildcard()}}

    def mint() -> Warrant:
        return Warrant.issue(root, wide, ttl_seconds=3600, holder=worker.public_key)

    parent = mint()

    def attenuated() -> Warrant:
        return parent.attenuate(narrow, worker, ttl_seconds=600, holder=child.public_key)

    leaf = attenuated()
    authorizer = Authorizer(trusted_roots=[root.public_key])
    proof = bytes(leaf.sign(child, "send_email", ARGS, int(time.time())))

    def verify() -> object:
        return authorizer.check_chain([parent, leaf], "send_email", ARGS, proof)

    return {
        "tenuo: mint": timed(mint, calls),
        "tenuo: attenuate": timed(attenuated, calls),
        "tenuo: verify + possession + decide, two warrants": timed(verify, calls),
    }


def macaroons(calls: int) -> dict[str, tuple[float, float]]:
    from pymacaroons import Macaroon
    from pymacaroons import Verifier as MacaroonVerifier

    key = os.urandom(32)

    def mint() -> Macaroon:
        m = Macaroon(location="saggar", identifier="send:email", key=key)
        m.add_first_party_caveat(f"time < {int(time.time()) + 3600}")
        m.add_first_party_caveat("to ends @acme.com")
        return m

    root = mint()

    def narrow() -> Macaroon:
        m = root.copy()
        m.add_first_party_caveat("to = bob@acme.com")
        return m

    wire = narrow().serialize()

    def check(caveat: str) -> bool:
        if caveat.startswith("time < "):
            return time.time() < int(caveat[7:])
        if caveat.startswith("to ends "):
            return ARGS["to"].endswith(caveat[8:])
        return caveat == f"to = {ARGS['to']}"

    def verify() -> object:
        verifier = MacaroonVerifier()
        verifier.satisfy_general(check)
        return verifier.verify(Macaroon.deserialize(wire), key)

    return {
        "pymacaroons: mint": timed(mint, calls),
        "pymacaroons: attenuate": timed(narrow, calls),
        "pymacaroons: verify + decide, no possession": timed(verify, calls),
    }


def cedar(calls: int) -> dict[str, tuple[float, float]]:
    import cedarpy

    policies = """
permit(principal == Holder::"bench", action == Action::"send", resource == Tool::"send_email")
  when { context.to like "*@acme.com" };
forbid(principal, action, resource) when { context.to == "boss@acme.com" };"""
    request = {
        "principal": 'Holder::"bench"',
        "action": 'Action::"send"',
        "resource": 'Tool::"send_email"',
        "context": ARGS,
    }
    return {"cedarpy: decide, policy only": timed(lambda: cedarpy.is_authorized(request, policies, []), calls)}


OTHERS = {
    "biscuit-python": biscuit,
    "tenuo": tenuo_warrants,
    "pymacaroons": macaroons,
    "cedarpy": cedar,
}
#: line to bound on its median, microseconds
TARGETS = {
    "saggar: verify + decide, in-broker": 60.0,
    "saggar: verify + possession + decide, seen chain of two": 250.0,
    "saggar: gateway call, audit on": 150.0,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        results = ours(args.calls, directory)
    results |= one_signature(args.calls)
    versions, missing = {}, []
    for package, measure in OTHERS.items():
        try:
            versions[package] = importlib.metadata.version(package)
            results |= measure(args.calls)
        except (ImportError, importlib.metadata.PackageNotFoundError):
            missing.append(package)
    print(f"{platform.machine()}, Python {platform.python_version()}, median of {args.calls} calls, microseconds\n")
    for name, (median, p95) in results.items():
        target = f"  target {TARGETS[name]:.0f}" if name in TARGETS else ""
        print(f"{median:9.1f} {p95:9.1f}  {name}{target}")
    print(
        "\n"
        + ", ".join(f"{k} {v}" for k, v in versions.items())
        + (f"; missing: {', '.join(missing)}" if missing else "")
    )
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"microseconds": {k: list(v) for k, v in results.items()}, "versions": versions}, f, indent=2)
    missed = [name for name, bound in TARGETS.items() if results[name][0] > bound]
    for name in missed:
        print(f"missed: {name}: {results[name][0]:.1f} > {TARGETS[name]:.0f}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
