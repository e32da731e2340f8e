"""Starting a sub-agent is an operation like any other: its policy is narrower than its parent's on every wall.

I1  `wider` names every key on which the child may do what the parent may not; a child with one is not started.
I2  A key that this module does not know how to compare must be equal.
I3  The child's rules keep every ask and deny of the parent's; its allows are each within one of the parent's.

Pure. The tiers' order is that of DESIGN L1: microvm above gvisor above process above container.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from saggar.capability.declare import Tool, from_json_schema
from saggar.capability.grant import compile_capability, narrower_grant
from saggar.capability.rule import Rule, bind_rule, from_policy
from saggar.capability.rule_check import covered
from saggar.core.decision import ALLOW, DENY, Decision
from saggar.core.errors import Denied
from saggar.core.tool import ToolDeclaration
from saggar.policy.load import parse
from saggar.policy.model import EgressPolicy, EgressRule, LimitsPolicy, Policy, WorkspacePolicy

TIER_RANK = {"container": 0, "process": 1, "gvisor": 2, "microvm": 3}
MODE_RANK = {"none": 0, "read-only": 1, "copy-on-write": 2, "read-write": 3}


def wider(child: Policy, parent: Policy, tools: Iterable[ToolDeclaration] = ()) -> list[str]:
    """The dotted keys on which `child` is wider than `parent`; empty when it is narrower or equal everywhere.

    tools: declarations that the capabilities of both speak of. Raises `UsageError` for a capability that fits none.
    """
    known = list(tools)
    found = [
        *_isolation(child, parent),
        *_limits(child.limits, parent.limits),
        *_workspace(child.workspace, parent.workspace),
        *_egress(child.egress, parent.egress),
        *_environment(child, parent),
        *_capabilities(child, parent, known),
        *_rules(child, parent, known),
    ]
    rest = set(Policy.__slots__) - {
        "isolation",
        "limits",
        "workspace",
        "egress",
        "environment",
        "tools",
        "file",
        "origins",
    }
    return found + [name for name in sorted(rest) if getattr(child, name) != getattr(parent, name)]


def check_narrower(child: Policy, parent: Policy, tools: Iterable[ToolDeclaration] = ()) -> None:
    """Raises `Denied` with the reason `subagent_wider` (I1)."""
    found = wider(child, parent, tools)
    if found:
        detail = {"wider": found}
        raise Denied(
            Decision(DENY, "subagent_wider", layer="policy", rule="subagent", public="not allowed", detail=detail)
        )


def agent_tool(parent: Policy, tools: Sequence[Tool], start: Callable[[Policy, str], Any]) -> Tool:
    """The tool `start_agent`, operation `start:agent`: checks, then starts.

    start: gets the child's policy and its task, and gives the result. The `ToolSession` (or `open_session`) that it opens
    is the parent's child (`runtime.starter`): its calls are charged to the parent's budgets as well. A capability for it is written
    `start:agent[name={reader, writer}]`; rules and approvals see the policy's text as the argument `policy`.
    """
    declarations = [t.declaration for t in tools]

    def body(name: str, policy: str, task: str) -> Any:
        child = parse(policy, name)
        check_narrower(child, parent, declarations)
        return start(child, task)

    text = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "name": text | {"description": "what the agent is called"},
            "policy": text | {"description": "its policy file: TOML, within the policy of the one who starts it"},
            "task": text | {"description": "what it shall do"},
        },
        "required": ["name", "policy", "task"],
    }
    return from_json_schema(
        "start_agent",
        "start:agent",
        schema,
        body,
        effect="write",
        roles={"name": "target", "policy": "content", "task": "content"},
        description="Start an agent with less than your own rights.",
    )


def _isolation(child: Policy, parent: Policy) -> Iterator[str]:
    mine, theirs = child.isolation.tier, parent.isolation.tier
    if mine not in (theirs, "auto"):
        floor = TIER_RANK[theirs] if theirs != "auto" else max(TIER_RANK.values())
        if TIER_RANK[mine] < floor:
            yield "isolation.tier"
    if mine == "auto" and theirs not in ("auto", "process", "container"):
        # `auto` takes the strongest that this host has, which may be less than the parent's floor
        yield "isolation.tier"
    if any(not any(_under(path, root) for root in parent.isolation.read) for path in child.isolation.read):
        yield "isolation.read"


def _under(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _limits(child: LimitsPolicy, parent: LimitsPolicy) -> Iterator[str]:
    for name in ("memory_bytes", "tasks", "cpus", "disk_bytes", "output_bytes"):
        if getattr(child, name) > getattr(parent, name):
            yield f"limits.{name}"
    if parent.timeout_s is not None and (child.timeout_s is None or child.timeout_s > parent.timeout_s):
        yield "limits.timeout_s"
    if parent.require == "enforced" and child.require != "enforced":
        yield "limits.require"


def _workspace(child: WorkspacePolicy, parent: WorkspacePolicy) -> Iterator[str]:
    if MODE_RANK[child.mode] > MODE_RANK[parent.mode]:
        yield "workspace.mode"
    if child.mode != "none" and child.path != parent.path and not (parent.path and _under(child.path, parent.path)):
        yield "workspace.path"
    if child.unsafe_broad and not parent.unsafe_broad:
        yield "workspace.unsafe_broad"
    if child.mode != "none" and not set(parent.protect) <= set(child.protect):
        yield "workspace.protect"


def _egress(child: EgressPolicy, parent: EgressPolicy) -> Iterator[str]:
    for rule in child.allow:
        if not all(_reaches(rule, port, child, parent) for port in rule.ports):
            yield f"egress.allow.{rule.host}"
    if not _budget_within(child.budget, parent.budget):
        yield "egress.budget"
    if child.processes > parent.processes:
        yield "egress.processes"


def _reaches(rule: EgressRule, port: int, child: EgressPolicy, parent: EgressPolicy) -> bool:
    """Does the parent give at least these terms for this host and port?"""
    exact = next((r for r in parent.allow if r.host == rule.host and port in r.ports), None)
    if not rule.host.startswith("*."):
        above = exact or next((r for r in parent.allow if _covers(r, rule.host) and port in r.ports), None)
        return above is not None and rule.same_terms(above)
    if exact is None or not rule.same_terms(exact):
        return False
    # an exact rule of the parent's beats its wildcard; without it the child's wildcard would give the host other terms
    special = [r for r in parent.allow if _covers(rule, r.host) and port in r.ports and not r.same_terms(rule)]
    return all(any(c.host == r.host and port in c.ports and c.same_terms(r) for c in child.allow) for r in special)


def _covers(wildcard: EgressRule, host: str) -> bool:
    label, dot, rest = host.partition(".")
    return wildcard.host.startswith("*.") and label != "*" and bool(dot) and rest == wildcard.host[2:]


def _budget_within(child: str, parent: str) -> bool:
    if not parent:
        return True
    mine, theirs = json.loads(child or "{}"), json.loads(parent)
    for name, bound in theirs.items():
        number = type(bound) in (int, float)
        if name not in mine or (mine[name] != bound and not (number and mine[name] <= bound)):
            return False
    return True


def _environment(child: Policy, parent: Policy) -> Iterator[str]:
    if not set(child.environment.pass_) <= set(parent.environment.pass_):
        yield "environment.pass"
    if not set(child.environment.set) <= set(parent.environment.set):
        yield "environment.set"


def _capabilities(child: Policy, parent: Policy, tools: list[ToolDeclaration]) -> Iterator[str]:
    theirs = [g for text in parent.tools.capabilities for g in compile_capability(text, tools)]
    for text in child.tools.capabilities:
        if not all(any(narrower_grant(g, p) for p in theirs) for g in compile_capability(text, tools)):
            yield f"tools.capabilities.{text}"


def _rules(child: Policy, parent: Policy, tools: list[ToolDeclaration]) -> Iterator[str]:
    if child.tools.rule == parent.tools.rule:
        return
    mine, theirs = [from_policy(r) for r in child.tools.rule], [from_policy(r) for r in parent.tools.rule]
    for rule in theirs:
        if rule.effect != ALLOW and rule not in mine:
            yield f"tools.rule.{rule.id}"
    if theirs and not mine:
        yield "tools.rule"  # without rules each capability would allow its tools
    if not theirs:
        # the parent's capabilities allow their tools and nothing answers for a built-in rule
        yield from (f"tools.rule.{r.id}" for r in mine if r.accepts)
        return
    for rule in mine:
        if rule.effect == ALLOW and not _allowed(rule, theirs, tools):
            yield f"tools.rule.{rule.id}"


def _allowed(rule: Rule, theirs: list[Rule], tools: list[ToolDeclaration]) -> bool:
    if rule.predicate is not None:
        return False
    for declaration in tools:
        if not rule.names(declaration):
            continue
        bound = bind_rule(rule, declaration)
        above = [bind_rule(r, declaration) for r in theirs if r.effect == ALLOW and r.names(declaration)]
        if not any(covered(bound, a) and set(rule.accepts) <= set(a.rule.accepts) for a in above):
            return False
    return True
