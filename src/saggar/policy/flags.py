"""Command-line flags on top of a policy. On the `saggar run` path."""

from __future__ import annotations

from saggar.core.errors import UsageError
from saggar.policy import values
from saggar.policy.model import MAX_RULES, TIERS, WORKSPACE_MODES, EgressRule, Origin, Policy
from saggar.policy.values import WrongValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_FLAG = Origin("flag")


def with_flags(
    policy: Policy,
    *,
    allow: Iterable[str] = (),
    tier: str | None = None,
    workspace: str | None = None,
    env: Iterable[str] = (),
    timeout: str | float | None = None,
) -> Policy:
    """`policy` with the flags of one command over it.

    allow: `HOST[:PORT]` each, port 443 where none is given. workspace: `DIR[:MODE]`, DIR absolute or left empty.
    env: `K=V`. timeout: a duration, or `none`. Raises `UsageError` that names the flag.
    """
    origins: dict[str, Origin] = {}
    changes: dict[str, Any] = {}
    if tier is not None:
        if tier not in TIERS:
            raise _wrong("--tier", f"`{values.show(tier)}` is not a tier", _one_of(TIERS))
        changes["isolation"] = policy.isolation.replace(tier=tier)
        origins["isolation.tier"] = _FLAG
    if workspace is not None:
        changes["workspace"] = _workspace(policy, workspace, origins)
    if timeout is not None:
        # on a command line a number alone is seconds, as `timeout(1)` has it; in a file it is a number, not a string
        plain = isinstance(timeout, str) and timeout.isascii() and timeout.isdigit() and len(timeout) <= 9
        seconds = _value("--timeout", values.duration_or_none, int(timeout) if plain else timeout)
        changes["limits"] = policy.limits.replace(timeout_s=seconds)
        origins["limits.timeout"] = _FLAG
    variables = _variables(policy, env, origins)
    if variables is not None:
        changes["environment"] = policy.environment.replace(set=variables)
    rules = _allow(policy, allow, origins)
    if rules is not None:
        changes["egress"] = policy.egress.replace(allow=rules)
    if not changes:
        return policy
    return policy.replace(**changes, origins={**policy.origins, **origins})


def _workspace(policy: Policy, given: str, origins: dict[str, Origin]) -> Any:
    path, colon, mode = given.rpartition(":")
    if not colon:
        path, mode = given, ""
    elif mode not in WORKSPACE_MODES:
        if not path.startswith("/") or "/" in mode:
            path, mode = given, ""
        else:
            raise _wrong("--workspace", f"`{values.show(mode)}` is not a mode", _one_of(WORKSPACE_MODES))
    changes: dict[str, Any] = {}
    if path:
        changes["path"] = _value("--workspace", values.absolute_path, path)
        origins["workspace.path"] = _FLAG
    if mode:
        changes["mode"] = mode
        origins["workspace.mode"] = _FLAG
    return policy.workspace.replace(**changes)


def _variables(policy: Policy, env: Iterable[str], origins: dict[str, Origin]) -> tuple[tuple[str, str], ...] | None:
    merged = dict(policy.environment.set)
    touched = False
    for given in env:
        name, equals, value = given.partition("=")
        if not equals:
            raise _wrong("--env", f"`{values.show(given)}` is not `NAME=VALUE`")
        name = _value("--env", values.variable, name)
        merged[name] = _value("--env", values.text, value)
        origins[f"environment.set.{values.key_text(name)}"] = _FLAG
        touched = True
    return tuple(sorted(merged.items())) if touched else None


def _allow(policy: Policy, allow: Iterable[str], origins: dict[str, Origin]) -> tuple[EgressRule, ...] | None:
    rules = list(policy.egress.allow)
    known = {(rule.host, port) for rule in rules for port in rule.ports}
    touched = False
    for given in allow:
        touched = True
        host, port = _host_port(given)
        if _enable(rules, host, port if ":" in given else None, origins) or (host, port) in known:
            continue
        known.add((host, port))
        rule = EgressRule(host=host, ports=(port,), id=f"egress.allow[{len(rules)}]")
        _check(rule, given)
        origins[f"egress.allow[{len(rules)}]"] = _FLAG
        rules.append(rule)
    if len(rules) > MAX_RULES:
        raise _wrong("--allow", f"more than {MAX_RULES} rules")
    return tuple(rules) if touched else None


def _enable(rules: list[EgressRule], host: str, port: int | None, origins: dict[str, Origin]) -> bool:
    """Enable the rules that a file has ready for the host, of each the named port alone where one is named; whether there was one."""
    found = [i for i, r in enumerate(rules) if not r.enabled and r.host == host and (port is None or port in r.ports)]
    for i in found:
        rule = rules[i]
        rest = tuple(p for p in rule.ports if port is not None and p != port)
        if rest:
            # the same rule in two: its id stands for both, as after `saggar allow` in a running task
            rules.append(rule.replace(ports=rest))
            rule = rule.replace(ports=(port,))
            origins[f"egress.allow[{i}].ports"] = _FLAG
            origins[f"egress.allow[{len(rules) - 1}]"] = _FLAG
        rules[i] = rule.replace(enabled=True)
        origins[f"egress.allow[{i}].enabled"] = _FLAG
    return bool(found)


def _host_port(given: str) -> tuple[str, int]:
    if "/" in given:
        host = given.partition("://")[2].partition("/")[0] or given.partition("/")[0]
        raise _wrong(
            "--allow", f"`{values.show(given)}` is a URL or a path, not a host", f"write `--allow {values.show(host)}`"
        )
    name, colon, number = given.rpartition(":")
    if not colon:
        return _value("--allow", values.host, given), 443
    if ":" in name and name[0] != "[":
        # a bare IPv6 literal: the host parser says so
        name, number = given, "443"
    return _value("--allow", values.host, name), _value("--allow", values.port_text, number)


def _check(rule: EgressRule, given: str) -> None:
    from saggar.policy.rules import problems_of

    for _, message, hint in problems_of(rule):
        raise _wrong("--allow", f"`{values.show(given)}`: {message}", hint)


def _value(flag: str, parse: Any, given: Any) -> Any:
    try:
        return parse(given)
    except WrongValue as e:
        raise _wrong(flag, e.message, e.hint) from None


def _wrong(flag: str, message: str, hint: str = "") -> UsageError:
    return UsageError(f"`{flag}`: {message}", hint=hint)


def _one_of(words: tuple[str, ...]) -> str:
    return "one of " + ", ".join(words)
