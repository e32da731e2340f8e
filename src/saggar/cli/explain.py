"""`saggar policy explain CALL`: which capability and which rule decide a call, and why. Nothing is called.

Without a call: what the capabilities make reachable in one task.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from saggar.audit import canonical
from saggar.capability.builtin import Flow
from saggar.capability.call import BadCall, prepare
from saggar.capability.declare import Tool
from saggar.capability.desk_host import rules_for
from saggar.capability.grant import Grant, compile_capability
from saggar.capability.reach import lines_of as reach_lines
from saggar.capability.reach import reach
from saggar.capability.rule import CallView, from_policy
from saggar.capability.rules import RuleSet
from saggar.core.decision import ALLOW, ASK
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import INTEGRITY, LabelLike, ToolDeclaration
from saggar.policy.model import Policy


@dataclass(frozen=True, slots=True)
class SaidLabel:
    """A label that the command line names."""

    integrity: str
    sources: frozenset[str] = frozenset()
    readers: frozenset[str] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "call", nargs="?", default="", metavar="CALL", help="`TOOL(arg=value, …)`, values as JSON or as bare words"
    )
    parser.add_argument("--tools", metavar="MODULE", action="append", default=[], help="a Python module with the tools")
    parser.add_argument("--label", metavar="ARG=INTEGRITY", action="append", default=[], help=f"{', '.join(INTEGRITY)}")
    parser.add_argument("--tainted", action="store_true", help="as if the task had read private and untrusted data")
    parser.add_argument("--json", action="store_true", help="print JSON")


def explain(policy: Policy, args: argparse.Namespace) -> int:
    """Exit code 0 for an allow, 3 for a deny or an ask."""
    tools = load_tools([*policy.tools.modules, *args.tools])
    if not args.call:
        return _reach(policy, tools, as_json=args.json)
    name, given = parse_call(args.call)
    if name not in tools:
        raise UsageError(f"there is no tool `{name}`", hint=f"there are {', '.join(sorted(tools)) or 'none'}")
    known = [t.declaration for t in tools.values()]
    grants = [g for text in policy.tools.capabilities for g in compile_capability(text, known)]
    rules = [from_policy(r) for r in policy.tools.rule] or rules_for(policy.tools.capabilities, known)
    loaded = RuleSet(rules, known)
    flow = Flow(args.tainted, args.tainted)
    found = judge(tools[name].declaration, given, grants, loaded, labels=labels_of(args.label), flow=flow)
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines_of(found)))
    return 0 if found["effect"] == ALLOW else 3


def _reach(policy: Policy, tools: Mapping[str, Tool], *, as_json: bool) -> int:
    known = [t.declaration for t in tools.values()]
    found = reach(known, [g for text in policy.tools.capabilities for g in compile_capability(text, known)])
    legs = {name: list(getattr(found, name)) for name in found.__slots__}
    shown = json.dumps(legs | {"trifecta": found.trifecta, "rule_of_two": found.rule_of_two}, indent=2)
    print(shown if as_json else "\n".join(reach_lines(found)))
    return 0


def judge(
    declaration: ToolDeclaration,
    given: Mapping[str, Any],
    grants: Iterable[Grant],
    rules: RuleSet,
    *,
    labels: Mapping[str, LabelLike],
    flow: Flow,
) -> dict[str, Any]:
    """Every step's word, the deciding one last."""
    try:
        call = prepare(declaration, given, "")
    except BadCall as e:
        return _found(declaration, "deny", e.reason, "arguments", argument=e.argument)
    steps = []
    held = None
    for grant in grants:
        if grant.tool != declaration.name:
            continue
        reason, argument = grant.refuses(declaration, call.args)
        steps.append({"capability": grant.to_text(), "fits": not reason, "reason": reason, "argument": argument})
        held = held or (grant if not reason else None)
    if held is None:
        return _found(declaration, "deny", "no_capability", "capability", capabilities=steps)
    view = CallView(declaration, call.args, labels)
    shown = []
    for bound in rules.for_tool(declaration.name):
        try:
            fits: bool | None = bound.fits(view)
        except Exception:  # noqa: BLE001  # a predicate of the policy's
            fits = None
        shown.append({"rule": bound.rule.id, "effect": bound.rule.effect, "fits": fits, "reason": bound.rule.reason})
    verdict = rules.decide(view, held, flow)
    d = verdict.decision
    return _found(
        declaration,
        d.effect,
        d.reason,
        d.rule or "no rule",
        capabilities=steps,
        rules=shown,
        asks=[{"rule": rule, "reason": why} for rule, why in verdict.asks],
        accepted=list(verdict.accepted),
        human_only=verdict.human_only,
    )


def _found(declaration: ToolDeclaration, effect: str, reason: str, decided_by: str, **more: Any) -> dict[str, Any]:
    return {"tool": declaration.name, "effect": effect, "reason": reason, "decided_by": decided_by, **more}


def lines_of(found: Mapping[str, Any]) -> list[str]:
    argument = f" (argument `{found['argument']}`)" if found.get("argument") else ""
    out = [f"{found['effect']}: {found['tool']}: {found['reason']}, decided by {found['decided_by']}{argument}"]
    for c in found.get("capabilities", ()):
        why = "allows it" if c["fits"] else f"does not: {c['reason']} {c['argument']}".rstrip()
        out.append(f"  capability {c['capability']}: {why}")
    for r in found.get("rules", ()):
        fits = {True: "fits", False: "does not fit", None: "raises"}[r["fits"]]
        out.append(f"  rule {r['rule']} ({r['effect']}): {fits}" + (f": {r['reason']}" if r["reason"] else ""))
    out += [f"  asks: {a['rule']}: {a['reason']}" for a in found.get("asks", ())]
    if found.get("accepted"):
        out.append(f"  answered for by an allow: {', '.join(found['accepted'])}")
    if found["effect"] == ASK and found.get("human_only"):
        out.append("  only a person may approve it")
    return out


def load_tools(modules: Iterable[str]) -> dict[str, Tool]:
    """The tools that some modules declare. Imports them: they are the host's own code. Raises `UsageError`."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    out: dict[str, Tool] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ImportError as e:
            raise UsageError(f"the module `{name}` cannot be imported: {e}") from None
        out.update({t.name: t for t in vars(module).values() if isinstance(t, Tool)})
    if not out:
        raise UsageError("no tools are known", hint='`[tools] modules = ["…"]` in the policy, or `--tools MODULE`')
    return out


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """`tool(a=1, b="x", c=word)` or `tool {"a": 1}`. Raises `UsageError`."""
    name, brace, _ = text.partition("{")
    if brace and "(" not in name:
        return name.strip(), _json(text[len(name) :])
    name, bracket, rest = text.strip().partition("(")
    if not bracket or not rest.endswith(")"):
        raise UsageError(f"`{text[:80]}` is no call", hint='send_email(to="bob@example.com", subject=hi)')
    out: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    body = rest[:-1].strip()
    while body:
        key, equals, body = body.partition("=")
        key, body = key.strip(), body.lstrip()
        if not equals or not key.isidentifier() or key in out:
            raise UsageError(f"`{text[:80]}` is no call: `{key[:40]}`", hint="arguments are name=value, each once")
        try:
            out[key], end = decoder.raw_decode(body)
        except ValueError:
            end = min((i for i in (body.find(","),) if i >= 0), default=len(body))
            out[key] = body[:end].strip()
        if body[end:].strip() and not body[end:].lstrip().startswith(","):
            end = min((i for i in (body.find(","),) if i >= 0), default=len(body))
            out[key] = body[:end].strip()
        body = body[end:].lstrip().removeprefix(",").strip()
    return name.strip(), out


def _json(text: str) -> dict[str, Any]:
    try:
        value = canonical.decode(text.encode())
    except ParseError as e:
        raise UsageError(f"the arguments are not JSON: {e}") from None
    if type(value) is not dict:
        raise UsageError("the arguments are one JSON object")
    return value


def labels_of(pairs: Iterable[str]) -> dict[str, LabelLike]:
    out: dict[str, LabelLike] = {}
    for pair in pairs:
        name, _, integrity = pair.partition("=")
        if integrity not in INTEGRITY:
            raise UsageError(f"`{pair}` is not ARG=INTEGRITY", hint=", ".join(INTEGRITY))
        out[name] = SaidLabel(integrity)
    return out
