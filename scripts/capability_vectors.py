"""Writes docs/vectors/*.json: what the specification in docs/CAPABILITIES.md means, for other implementations to run.

    PYTHONPATH=src python scripts/capability_vectors.py

Everything is fixed (keys, ids, times), and Ed25519 is deterministic, so the files change only when the meaning does;
tests/conformance/test_vectors.py runs them against this implementation and checks that they are current.
"""

# ruff: noqa: E402  # the path comes first

from __future__ import annotations

import json
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "src"))

from saggar.capability.call import BadCall, prepare
from saggar.capability.constraint import from_json
from saggar.capability.declare import from_json_schema
from saggar.capability.grammar import parse
from saggar.capability.grant import compile_capability
from saggar.capability.keys import PrivateKey, b64
from saggar.capability.mint import Issuer, attenuate, attenuate_local
from saggar.capability.narrower import narrower
from saggar.capability.request import request_hash
from saggar.capability.verify import Verifier, prove
from saggar.core.clock import ManualClock
from saggar.core.errors import Denied, ParseError, UsageError
from saggar.testing.forged_token import add_child, reseal

TEXT = {"type": "string"}
TOOLS = [
    ("gmail_threads", "read:gmail.threads", "read", {"day": TEXT}, {"day": "selector"}, ["day"]),
    (
        "send_email", "send:email", "egress",
        {"to": TEXT, "subject": TEXT, "body": TEXT, "cc": {"type": ["array", "null"], "items": TEXT}},
        {"to": "recipient", "subject": "content", "body": "content", "cc": "recipient"}, ["to", "subject", "body"],
    ),
    ("write_file", "write:file", "write", {"path": TEXT | {"format": "path"}, "text": TEXT}, {"path": "target", "text": "content"}, ["path", "text"]),
    ("http", "call:http", "egress", {"url": TEXT | {"format": "uri"}}, {"url": "destination"}, ["url"]),
    ("pay", "pay:bill", "pay", {"iban": TEXT, "amount": TEXT | {"format": "decimal"}}, {"iban": "recipient", "amount": "amount"}, ["iban", "amount"]),
    ("resize", "set:size", "write", {"n": {"type": "integer"}, "wide": {"type": "boolean"}}, {"n": "option", "wide": "option"}, ["n"]),
]  # fmt: skip


def declarations():
    out = []
    for name, grant, effect, properties, roles, required in TOOLS:
        schema = {"type": "object", "properties": properties, "required": required}
        out.append(from_json_schema(name, grant, schema, print, effect=effect, roles=roles).declaration)
    return out


CAPABILITIES = [
    "read:gmail.threads[2026-05-15]",
    "send:email[to=*@acme.com, max=3]",
    "send:email[{bob@acme.com, eve@acme.com}, cc=*@acme.com]",
    "write:file[/workspace/**]",
    "write:file[/workspace/*.txt&len<=64, max_bytes=4096]",
    "call:http[api.example.com/repos/acme/*]",
    "call:http[*.example.com/**]",
    "pay:bill[iban=prefix(DE), amount=0.01..10.50, max_amount=100]",
    "set:size[n=1..3]",
    'send:email[to="a, b"]',
    # refused
    "send:email",
    "send:email[]",
    "send:email[bcc=*]",
    "send:email[to=a, to=b]",
    "send:email[to=a*b*c]",
    "send:mail[to=*]",
    "write:file[/workspace/../etc/**]",
    "call:http[https://user@api.example.com/]",
    "pay:bill[iban=DE1, amount=1e3]",
    "set:size[n=1.5]",
    "Send:email[to=*]",
    "send:email[to=b\u0430b@acme.com]",
]
CALLS = [
    (0, {"day": "2026-05-15"}), (0, {"day": "2026-05-16"}), (0, {"day": 20260515}),
    (1, {"to": "bob@acme.com", "subject": "", "body": ""}),
    (1, {"to": "a@evil.example,b@acme.com", "subject": "", "body": ""}),
    (1, {"to": "bob@acme.com", "subject": "", "body": "", "cc": ["bob@acme.com"]}),
    (1, {"to": "bob@acme.com", "subject": "", "body": "", "bcc": "x"}),
    (1, {"to": "bob@acme.com\u200b", "subject": "", "body": ""}),
    (1, {"to": "b\u043eb@acme.com", "subject": "", "body": ""}),
    (2, {"to": "eve@acme.com", "subject": "", "body": "", "cc": ["bob@acme.com", "x@evil.example"]}),
    (3, {"path": "/workspace/a/b", "text": ""}), (3, {"path": "/workspace/../etc/passwd", "text": ""}),
    (3, {"path": "/workspace2/a", "text": ""}), (3, {"path": "/workspace//a", "text": ""}),
    (4, {"path": "/workspace/a.txt", "text": ""}), (4, {"path": "/workspace/a/b.txt", "text": ""}),
    (5, {"url": "https://api.example.com/repos/acme/x"}), (5, {"url": "https://api.example.com/repos/acme/x/y"}),
    (5, {"url": "https://api.example.com/repos/acme/%2e%2e/x"}), (5, {"url": "https://api.example.com:443/repos/acme/x"}),
    (6, {"url": "https://a.example.com/"}), (6, {"url": "https://a.b.example.com/"}),
    (7, {"iban": "DE1", "amount": "10.50"}), (7, {"iban": "DE1", "amount": "10.51"}), (7, {"iban": "DE1", "amount": "-1"}),
    (7, {"iban": "DE1", "amount": "01"}),
    (8, {"n": 3}), (8, {"n": True}), (8, {"n": "3"}), (8, {"n": 3.0}), (8, {"n": 3, "wide": True}),
]  # fmt: skip


def _url(host: str, path: str, scheme: str = "https", port: int = 443) -> dict[str, object]:
    return {"type": "url", "scheme": scheme, "host": host, "port": port, "path": path}


CONSTRAINTS = [
    {"type": "any"},
    {"type": "exact", "value": "a@acme.com"},
    {"type": "exact", "value": 1},
    {"type": "exact", "value": ["a@acme.com"]},
    {"type": "one_of", "values": ["a@acme.com", "b@acme.com"]},
    {"type": "one_of", "values": ["a@acme.com", "b@acme.com", "c"]},
    {"type": "range", "min": "1", "max": "5"},
    {"type": "range", "min": "2", "max": "3"},
    {"type": "range", "max": "5"},
    {"type": "range", "max": "4"},
    {"type": "range", "min": "2"},
    {"type": "range", "min": "1"},
    {"type": "prefix", "value": "a"},
    {"type": "prefix", "value": "ab"},
    {"type": "prefix", "value": "/w"},
    {"type": "glob", "value": "*@acme.com"},
    {"type": "glob", "value": "a*@acme.com"},
    {"type": "glob", "value": "ab*m"},
    {"type": "glob", "value": "*m"},
    {"type": "glob", "value": "a@x*@acme.com"},
    {"type": "glob", "value": "a*b@acme.com"},
    {"type": "glob", "value": "a,*@acme.com"},
    {"type": "cidr", "value": "10.0.0.0/8"},
    {"type": "cidr", "value": "10.1.0.0/16"},
    {"type": "cidr", "value": "2001:db8::/32"},
    _url("*.example.com", "/**"),
    _url("*.example.com", "/a"),
    _url("*.b.example.com", "/**"),
    _url("api.example.com", "/**"),
    _url("api.example.com", "/**", "http", 80),
    _url("api.example.com", "/**", "http", 443),
    _url("api.example.com", "/**", "https", 80),
    _url("b.api.example.com", "/**"),
    _url("api.example.org", "/**"),
    _url("localhost", "/**"),
    _url("x.i.example.com", "/**"),
    _url("api.example.com", "/a"),
    _url("api.example.com", "/b"),
    _url("api.example.com", "/a/*"),
    _url("api.example.com", "/a/**"),
    _url("api.example.com", "/a/b"),
    _url("api.example.com", "/a/b/c"),
    _url("api.example.com", "/a/"),
    _url("api.example.com", "/ab"),
    _url("api.example.com", "/ab/*"),
    _url("api.example.com", "/*"),
    _url("api.example.com", "/"),
    {"type": "path_under", "value": "/"},
    {"type": "path_under", "value": "/w"},
    {"type": "path_under", "value": "/w/a"},
    {"type": "path_under", "value": "/ww"},
    {"type": "max_length", "value": 3},
    {"type": "max_length", "value": 4},
    {"type": "each", "constraint": {"type": "glob", "value": "*@acme.com"}},
    {"type": "each", "constraint": {"type": "exact", "value": "a@acme.com"}},
    {"type": "each", "constraint": {"type": "prefix", "value": "a"}},
    {"type": "all", "constraints": [{"type": "prefix", "value": "ab"}, {"type": "max_length", "value": 2}]},
    {"type": "all", "constraints": [{"type": "prefix", "value": "a"}, {"type": "max_length", "value": 3}]},
]
VALUES = [
    "a@acme.com", "b@acme.com", "a@x.example,b@acme.com", "ab", "abc", "/w", "/w/a/b", "/ww", "/w/../x", "10.1.2.3",
    "010.1.2.3", "https://api.example.com/a/b", "https://api.example.com/a/b?c=1", "HTTPS://api.example.com/a/b",
    1, 1.0, True, "1", 3, 6, None, [], ["a@acme.com"], ["a@acme.com", "x@evil.example"], {"a": 1},
]  # fmt: skip


def capability_vectors():
    known = declarations()
    out = []
    for text in CAPABILITIES:
        try:
            (grant,) = compile_capability(text, known)
            out.append({"text": text, "grant": grant.to_json(), "canonical": grant.to_text()})
        except UsageError:
            try:
                parse(text)
                out.append({"text": text, "error": "bind"})
            except ParseError:
                out.append({"text": text, "error": "parse"})
    calls = []
    for index, args in CALLS:
        (grant,) = compile_capability(CAPABILITIES[index], known)
        declaration = next(d for d in known if d.name == grant.tool)
        try:
            call = prepare(declaration, args, "task-1")
            reason, argument = grant.refuses(declaration, call.args)
            made = {"args_hash": call.args_hash}
        except BadCall as e:
            reason, argument, made = e.reason, e.argument, {}
        calls.append({"capability": index, "args": args, "reason": reason, "argument": argument, **made})
    tools = [{"name": d.name, "declaration": d.to_json(), "tool_hash": d.digest} for d in known]
    return {"tools": tools, "capabilities": out, "calls": calls}


def constraint_vectors():
    parsed = [from_json(c) for c in CONSTRAINTS]
    allows = [[i for i, v in enumerate(VALUES) if c.allows(v)] for c in parsed]
    pairs = [[i for i, p in enumerate(parsed) if narrower(c, p)] for c in parsed]
    return {"constraints": CONSTRAINTS, "values": VALUES, "allows": allows, "narrower_than": pairs}


class Counter:
    """Random bytes that are not: 16 bytes that count."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, size: int) -> bytes:
        self.n += 1
        return self.n.to_bytes(size, "big")


def token_vectors():
    known = declarations()
    broker, worker, child = (PrivateKey(bytes([b]) * 32) for b in (1, 2, 3))
    clock, random = ManualClock(), Counter()
    issuer = Issuer("task-1", key=broker, secret=bytes([9]) * 32, clock=clock, random=random)
    wide = compile_capability("send:email[to=*@acme.com, max=3]", known)
    narrow = compile_capability("send:email[to=bob@acme.com, max=1]", known)
    other = compile_capability("send:email[to=*@evil.example, max=1]", known)
    root = issuer.mint(wide, holder=worker.public)
    second = attenuate(root, narrow, key=worker, holder=child.public, random=random)
    local = issuer.mint_local(wide)
    local_child = attenuate_local(local, narrow, random=random)

    def appended(text, key, **changes):
        return add_child(text, key, child, **changes)

    cases = [
        ("root", root, 0), ("child", second, 0), ("local", local, 0), ("local child", local_child, 0),
        ("expired", root, 65), ("just in time", root, 64), ("not yet", root, -6), ("early within the skew", root, -5),
        ("forged", reseal(root, child), 0), ("another issuer", reseal(root, child, issuer=child.public), 0),
        ("another task", reseal(root, broker, task="task-2"), 0), ("widened", appended(root, worker, grants=other), 0),
        ("longer", appended(root, worker, expires=1_800_000_061), 0), ("child by a thief", appended(root, child), 0),
        ("too deep", appended(root, worker, depth=2), 0), ("not linked", appended(root, worker, parent=""), 0),
        ("cut", root[:-1], 0), ("empty", "", 0),
    ]  # fmt: skip
    out = []
    for name, text, after in cases:
        away = ManualClock(monotonic=clock.monotonic() + after, wall=clock.wall() + after)
        # a local token lives by its issuer's monotonic deadlines: any other process takes it for one that ran out
        minted = issuer.minted if text.startswith("sgh1.") else None
        verifier = Verifier("task-1", roots=[broker.public], clock=away, secret=bytes([9]) * 32, minted=minted)
        try:
            held = verifier.verify(text).grants
            out.append(
                {
                    "name": name,
                    "token": text,
                    "seconds_after_mint": after,
                    "reason": "",
                    "grants": [h.grant.to_json() for h in held],
                }
            )
        except Denied as e:
            out.append({"name": name, "token": text, "seconds_after_mint": after, "reason": e.decision.reason})
    args = {"to": "bob@acme.com", "subject": "s", "body": "b"}
    digest = request_hash("task-1", "send_email", args)
    made = prove(second, digest, key=child, call_id="call-1", wall=clock.wall())
    proof = {
        "token": second, "task": "task-1", "tool": "send_email", "args": args, "request_hash": digest, "call_id": "call-1",
        "iat": made.made, "signature": b64(made.signature),
    }  # fmt: skip
    keys = {
        "broker": b64(broker.public),
        "worker": b64(worker.public),
        "child": b64(child.public),
        "local_secret": b64(bytes([9]) * 32),
    }
    return {"task": "task-1", "minted": int(clock.wall()), "skew_s": 5, "keys": keys, "tokens": out, "proof": proof}


FILES = {"capabilities.json": capability_vectors, "constraints.json": constraint_vectors, "tokens.json": token_vectors}


def text_of(name: str) -> str:
    return json.dumps(FILES[name](), indent=1, ensure_ascii=True, sort_keys=True) + "\n"


if __name__ == "__main__":
    for file in FILES:
        with open(os.path.join(ROOT, "docs", "vectors", file), "w") as f:
            f.write(text_of(file))
