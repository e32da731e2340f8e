"""A smaller allowlist, from what runs have used: proposed as a change to the policy file's text, never made.

I1  The proposed file loads, and its rules are exactly those that were asked for; else there is no proposal.
I2  Only `[[egress.allow]]` tables are touched: whole tables are removed, with the tables that stand in them
    (`[egress.allow.http]`), or their `ports` or `host` line is rewritten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saggar.core.errors import SaggarError
from saggar.policy.load import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from saggar.policy.model import EgressRule

_HEADER = re.compile(r"\s*\[\[\s*egress\s*\.\s*allow\s*\]\]\s*(#.*)?")
_PART = re.compile(r"\s*\[{1,2}\s*egress\s*\.\s*allow\s*\.")
_ANY_HEADER = re.compile(r"\s*\[")
_PORTS = re.compile(r"(\s*ports\s*=\s*)\[[0-9,\s]*\](.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tightened:
    """text: the proposed file. removed: `HOST:PORT` each that the proposal no longer allows."""

    text: str
    removed: tuple[str, ...]


def smaller(rules: tuple[EgressRule, ...], unused: Mapping[str, tuple[int, ...]]) -> tuple[EgressRule | None, ...]:
    """Each rule without its unused ports, None where none is left."""
    kept: list[EgressRule | None] = []
    for rule in rules:
        ports = tuple(p for p in rule.ports if p not in unused.get(rule.id, ()))
        kept.append(rule.replace(ports=ports) if ports else None)
    return tuple(kept)


def tighten(text: str, name: str, unused: Mapping[str, tuple[int, ...]]) -> Tightened | None:
    """The file `text` without what is unused; None where nothing is, or where its form is not one that can be edited
    safely (inline tables, ports over several lines).

    name: for messages. Raises UsageError where `text` does not load.
    """
    rules = parse(text, name).egress.allow
    wanted = smaller(rules, unused)
    removed = tuple(
        f"{rule.host}:{port}"
        for rule, kept in zip(rules, wanted, strict=True)
        for port in rule.ports
        if kept is None or port not in kept.ports
    )
    if not removed:
        return None
    blocks = _blocks(text.splitlines(keepends=True))
    if sum(1 for kind, _ in blocks if kind == "rule") != len(rules):
        return None
    proposed = _rewritten(blocks, rules, wanted)
    if proposed is None:
        return None
    try:
        loaded = parse(proposed, name).egress.allow
    except SaggarError:
        return None
    expected = [_content(rule) for rule in wanted if rule is not None]
    return Tightened(proposed, removed) if [_content(rule) for rule in loaded] == expected else None


def _content(rule: EgressRule) -> EgressRule:
    # ids that the file does not give count the tables, and those have become fewer
    return rule.replace(id="") if rule.id.startswith("egress.allow[") else rule


def _blocks(lines: list[str]) -> list[tuple[str, list[str]]]:
    """The lines in groups, each with its kind: `rule`, one `[[egress.allow]]` table; `part`, a table in the last one of these;
    `other`."""
    blocks: list[tuple[str, list[str]]] = [("other", [])]
    for line in lines:
        if _ANY_HEADER.match(line):
            rule = _HEADER.fullmatch(line.rstrip("\r\n")) is not None
            blocks.append(("rule" if rule else "part" if _PART.match(line) else "other", []))
        blocks[-1][1].append(line)
    return blocks


def _rewritten(
    blocks: list[tuple[str, list[str]]], rules: tuple[EgressRule, ...], wanted: tuple[EgressRule | None, ...]
) -> str | None:
    out: list[str] = []
    at = 0
    for kind, lines in blocks:
        if kind != "rule":
            if kind == "other" or not at or wanted[at - 1] is not None:
                out += lines
            continue
        rule, kept = rules[at], wanted[at]
        at += 1
        if kept is None:
            continue
        if kept.ports == rule.ports:
            out += lines
            continue
        edited = _with_ports(lines, kept.ports)
        if edited is None:
            return None
        out += edited
    return "".join(out)


def _with_ports(lines: list[str], ports: tuple[int, ...]) -> list[str] | None:
    found = [i for i, line in enumerate(lines) if _PORTS.fullmatch(line)]
    if len(found) != 1:
        return None
    inside = ", ".join(map(str, ports))
    edited = list(lines)
    edited[found[0]] = _PORTS.sub(lambda m: f"{m[1]}[{inside}]{m[2]}", lines[found[0]])
    return edited
