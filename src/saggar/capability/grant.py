"""A capability bound to one tool: which calls it allows, and when it is narrower than another.

I1  A grant names the digest of the declaration that it was made for; under another declaration it allows nothing.
I2  An argument that no constraint names is refused, unless it is optional and left at its declared default.
I3  `narrower_grant(c, p)` implies that `p` allows every call that `c` allows, and within `p`'s budgets.
I4  `grant_from_json(g.to_json()) == g`; every other JSON gives `ParseError`.

JSON shape: an authorization details object of RFC 9396, type `saggar_capability`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from saggar.audit import canonical
from saggar.capability import constraint as c
from saggar.capability.grammar import BUDGETS, Capability, Factor, parse
from saggar.capability.narrower import narrower
from saggar.capability.values import check_authority_text, check_path, parse_decimal, parse_url
from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import AUTHORITY_ROLES, ArgumentDeclaration, Budget, ToolDeclaration, TypeSpec

DETAIL_TYPE = "saggar_capability"
_NUMBERS = frozenset({"integer", "number", "decimal"})


@dataclass(frozen=True, slots=True)
class Grant:
    """constraints: sorted pairs of argument and constraint."""

    tool: str
    digest: str
    operation: str
    resource: str
    constraints: tuple[tuple[str, c.Constraint], ...]
    budget: Budget

    def refuses(self, declaration: ToolDeclaration, args: Mapping[str, Any]) -> tuple[str, str]:
        """Why this grant does not allow the call, as (reason, argument); ("", "") when it does.

        args: complete, defaults filled in, types checked.
        """
        if self.tool != declaration.name:
            return "tool_not_granted", ""
        if self.digest != declaration.digest:
            return "declaration_changed", ""
        named = dict(self.constraints)
        for argument in declaration.arguments:
            value = args[argument.name]
            limit = named.get(argument.name)
            if limit is None:
                if argument.required or value != argument.default or type(value) is not type(argument.default):
                    return "argument_not_granted", argument.name
            elif not limit.allows(value) and not (value is None and _absent(argument)):
                return "constraint", argument.name
        return "", ""

    def to_json(self) -> dict[str, Any]:
        return {
            "type": DETAIL_TYPE,
            "tool": self.tool,
            "tool_hash": self.digest,
            "operation": self.operation,
            "resource": self.resource,
            "arguments": {name: limit.to_json() for name, limit in self.constraints},
            "budget": self.budget.to_json(),
        }

    def to_text(self) -> str:
        """The grammar's text, names written out; for humans and for diffs of policies."""
        parts = [f"{name}={render_constraint(limit)}" for name, limit in self.constraints]
        names = (("max", self.budget.calls), ("max_bytes", self.budget.bytes), ("max_amount", self.budget.amount))
        parts += [f"{name}={value}" for name, value in names if value is not None]
        head = f"{self.operation}:{self.resource}"
        return f"{head}[{', '.join(parts)}]" if parts else head


def _absent(argument: ArgumentDeclaration) -> bool:
    return not argument.required and argument.default is None


def narrower_grant(child: Grant, parent: Grant) -> bool:
    """Sound (I3). The two must name the same arguments: a constraint may shrink, never appear or vanish."""
    same = (child.tool, child.digest, child.operation, child.resource)
    if same != (parent.tool, parent.digest, parent.operation, parent.resource):
        return False
    if [n for n, _ in child.constraints] != [n for n, _ in parent.constraints]:
        return False
    pairs = zip(child.constraints, parent.constraints, strict=True)
    return all(narrower(mine, theirs) for (_, mine), (_, theirs) in pairs) and narrower_budget(
        child.budget, parent.budget
    )


def narrower_budget(child: Budget, parent: Budget) -> bool:
    for mine, theirs in ((child.calls, parent.calls), (child.bytes, parent.bytes)):
        if theirs is not None and (mine is None or mine > theirs):
            return False
    if parent.amount is None:
        return True
    return child.amount is not None and Decimal(child.amount) <= Decimal(parent.amount)


def grant_from_json(data: Any) -> Grant:
    """Raises `ParseError`."""
    fields = {"type", "tool", "tool_hash", "operation", "resource", "arguments", "budget"}
    if type(data) is not dict or data.keys() != fields or data["type"] != DETAIL_TYPE:
        raise ParseError("not a capability", reason="grant_form")
    texts = [data[name] for name in ("tool", "tool_hash", "operation", "resource")]
    if any(type(text) is not str or len(text) > 256 for text in texts):
        raise ParseError("a capability's names are texts", reason="grant_form")
    arguments = data["arguments"]
    if type(arguments) is not dict or len(arguments) > 64:
        raise ParseError("a capability's arguments are an object", reason="grant_form")
    constraints = tuple((name, c.from_json(arguments[name])) for name in sorted(arguments))
    return Grant(texts[0], texts[1], texts[2], texts[3], constraints, budget_from_json(data["budget"]))


def budget_from_json(data: Any) -> Budget:
    if type(data) is not dict or not data.keys() <= {"calls", "bytes", "amount"}:
        raise ParseError("not a budget", reason="grant_form")
    for name in ("calls", "bytes"):
        value = data.get(name)
        if name in data and (type(value) is not int or not 0 <= value <= 2**53 - 1):
            raise ParseError("not a budget", reason="grant_form")
    amount = data.get("amount")
    if "amount" in data:
        if type(amount) is not str:
            raise ParseError("not a budget", reason="grant_form")
        parse_decimal(amount)
    return Budget(data.get("calls"), data.get("bytes"), amount)


def compile_capability(text: str, declarations: Iterable[ToolDeclaration]) -> tuple[Grant, ...]:
    """The grants that a text stands for, one for each tool of that operation and resource.

    An argument of role `content` that the text does not name gets `*`: content is free text, and what may flow into it
    is L4's and the budgets' concern. Every other required argument must be named. Raises `UsageError`.
    """
    try:
        capability = parse(text)
    except ParseError as e:
        raise UsageError(f"not a capability: {e}", hint="operation:resource[argument=value, max=3]") from None
    known = list(declarations)
    tools = [d for d in known if (d.operation, d.resource) == (capability.operation, capability.resource)]
    if not tools:
        names = sorted({f"{d.operation}:{d.resource}" for d in known})
        raise UsageError(
            f"no tool has the operation and resource of `{text}`", hint=f"there are {', '.join(names) or 'none'}"
        )
    grants, errors = [], []
    for declaration in tools:
        try:
            grants.append(bind(capability, declaration))
        except UsageError as e:
            errors.append(e)
    if not grants:
        raise errors[0]
    return tuple(grants)


def bind(capability: Capability, declaration: ToolDeclaration) -> Grant:
    """Type a parsed capability by a declaration. Raises `UsageError`."""
    constraints: dict[str, c.Constraint] = {}
    for item in capability.items:
        name = item.name or declaration.primary
        argument = declaration.argument(name)
        if argument is None:
            what = f"argument `{item.name}`" if item.name else "primary argument for a selector without a name"
            have = ", ".join(a.name for a in declaration.arguments) or "none"
            raise UsageError(f"the tool `{declaration.name}` has no {what}", hint=f"it has {have}")
        if name in constraints:
            raise UsageError(f"the capability names `{name}` of `{declaration.name}` twice")
        try:
            constraints[name] = typed(item.term, argument.type)
            if argument.role in AUTHORITY_ROLES:
                _check_words(item.term)
        except ParseError as e:
            raise UsageError(f"the argument `{name}` of `{declaration.name}`: {e}") from None
    for argument in declaration.arguments:
        if argument.name in BUDGETS:
            raise UsageError(f"`{argument.name}` of `{declaration.name}` is a budget's word", hint="rename it")
        if argument.name not in constraints and argument.role == "content":
            constraints[argument.name] = c.AnyValue()
        elif argument.name not in constraints and argument.required:
            raise UsageError(
                f"the capability does not name the argument `{argument.name}` of `{declaration.name}`",
                hint=f"`{argument.name}=*` allows any value",
            )
    return Grant(
        declaration.name,
        declaration.digest,
        declaration.operation,
        declaration.resource,
        tuple(sorted(constraints.items())),
        _budget(dict(capability.budgets), declaration),
    )


def _check_words(term: tuple[Factor, ...]) -> None:
    """A literal that no call could carry is a mistake, or somebody's look-alike: say so when it is written."""
    for factor in term:
        for word, _ in factor.words:
            check_authority_text(word)
        _check_words(factor.inner)


def _budget(words: dict[str, str], declaration: ToolDeclaration) -> Budget:
    for name in ("max", "max_bytes"):
        if name in words and not words[name].isdigit():
            raise UsageError(f"`{name}` is a count, not `{words[name]}`")
    if "max_amount" in words and not declaration.with_role("amount"):
        raise UsageError(f"the tool `{declaration.name}` has no argument of role `amount` to bound")
    calls, size = words.get("max"), words.get("max_bytes")
    return Budget(int(calls) if calls else None, int(size) if size else None, words.get("max_amount"))


def typed(term: tuple[Factor, ...], spec: TypeSpec) -> c.Constraint:
    """The constraint of a term on a value of type `spec`; a scalar term on a list holds for each item."""
    parts = tuple(_typed(factor, spec) for factor in term)
    return parts[0] if len(parts) == 1 else c.All(parts)


def _typed(f: Factor, spec: TypeSpec) -> c.Constraint:
    if f.kind == "any":
        return c.AnyValue()
    if f.kind == "length":
        if spec.kind not in ("string", "array", "json"):
            raise ParseError(f"`len<=` on a value of type `{spec.kind}`", reason="constraint_type")
        return c.MaxLength(int(f.words[0][0]))
    if f.kind == "each":
        if spec.kind != "array":
            raise ParseError(f"`each` on a value of type `{spec.kind}`", reason="constraint_type")
        return c.EachItem(typed(f.inner, spec.items or TypeSpec("json")))
    if spec.kind == "array":
        return c.EachItem(_typed(f, spec.items or TypeSpec("json")))
    if f.kind == "range":
        if spec.kind not in _NUMBERS:
            raise ParseError(f"a range on a value of type `{spec.kind}`", reason="constraint_type")
        low, high = (parse_decimal(word) if word else None for word, _ in f.words)
        return c.Range(low, high)
    if f.kind == "set":
        return c.OneOf(tuple(_scalar(word, spec, quoted=quoted) for word, quoted in f.words))
    return _text_factor(f, spec)


def _text_factor(f: Factor, spec: TypeSpec) -> c.Constraint:
    text, quoted = f.words[0]
    if f.kind in ("string", "exact"):
        return c.Exact(_scalar(text, spec, quoted=quoted))
    if f.kind == "word" and (spec.kind not in ("string", "json")):
        return c.Exact(_scalar(text, spec, quoted=False))
    if spec.kind not in ("string", "json"):
        raise ParseError(f"`{f.kind}` on a value of type `{spec.kind}`", reason="constraint_type")
    if f.kind == "prefix":
        return c.Prefix(text)
    if f.kind == "under":
        return c.PathUnder(text)
    if f.kind == "cidr":
        return c.Cidr(text)
    if f.kind == "url" or spec.format == "url":
        return url_match(text)
    if text.startswith("/") and text.endswith("/**"):
        return c.PathUnder(text[:-3] or "/")
    if spec.format == "path" and "*" not in text:
        check_path(text)
    if "**" in text:
        raise ParseError("`**` in a value that is not a path", reason="constraint_type")
    before, star, after = text.partition("*")
    return c.Glob(before, after) if star else c.Exact(_scalar(text, spec, quoted=False))


def _scalar(text: str, spec: TypeSpec, *, quoted: bool) -> Any:
    kind = spec.kind
    if kind in ("string", "json"):
        if spec.enum and text not in spec.enum:
            raise ParseError(f"`{text}` is none of the argument's values", reason="constraint_type")
        return text
    if quoted and kind != "decimal":
        raise ParseError(f"a text for a value of type `{kind}`", reason="constraint_type")
    if kind == "boolean":
        if text not in ("true", "false"):
            raise ParseError(f"`{text}` is neither true nor false", reason="constraint_type")
        return text == "true"
    number = parse_decimal(text)
    if kind == "decimal":
        return text
    if number == number.to_integral_value():
        return int(number)
    if kind == "integer":
        raise ParseError(f"`{text}` is not an integer", reason="constraint_type")
    return float(number)


def url_match(text: str) -> c.UrlMatch:
    """`[scheme://]host[:port]/path`, https where no scheme is written; the path may end in `/*` or `/**`."""
    whole = text if "://" in text else f"https://{text}"
    scheme, _, rest = whole.partition("://")
    wild = rest.startswith("*.")
    star = "/**" if rest.endswith("/**") else "/*" if rest.endswith("/*") else ""
    bare = rest[2:] if wild else rest
    url = parse_url(f"{scheme}://{bare[: len(bare) - len(star)] if star else bare}")
    if url.tail:
        raise ParseError("a query in a URL pattern", reason="constraint_form")
    path = (url.path.rstrip("/") + star) if star else url.path
    return c.UrlMatch(url.scheme, f"*.{url.host}" if wild else url.host, url.port, path)


def render_constraint(limit: c.Constraint) -> str:
    """Grammar text that binds to the same constraint, for an argument of the fitting type."""
    if isinstance(limit, c.AnyValue):
        return "*"
    if isinstance(limit, c.Exact):
        return _literal(limit.value)
    if isinstance(limit, c.OneOf):
        return "{" + ", ".join(_literal(v) for v in limit.values) + "}"
    if isinstance(limit, c.Range):
        low, high = ("" if end is None else str(end) for end in (limit.low, limit.high))
        return f"{low}..{high}"
    if isinstance(limit, c.Prefix):
        return f"prefix({json.dumps(limit.text, ensure_ascii=False)})"
    if isinstance(limit, c.Glob):
        return f"{limit.before}*{limit.after}"
    if isinstance(limit, c.Cidr):
        return f"cidr({limit.network})"
    if isinstance(limit, c.UrlMatch):
        default = {"https": 443, "http": 80}.get(limit.scheme)
        host = f"[{limit.host}]" if ":" in limit.host else limit.host
        port = "" if limit.port == default else f":{limit.port}"
        return f"url({json.dumps(f'{limit.scheme}://{host}{port}{limit.path}', ensure_ascii=False)})"
    if isinstance(limit, c.PathUnder):
        return f"under({json.dumps(limit.root, ensure_ascii=False)})"
    if isinstance(limit, c.MaxLength):
        return f"len<={limit.size}"
    if isinstance(limit, c.EachItem):
        return f"each({render_constraint(limit.inner)})"
    if isinstance(limit, c.All):
        return "&".join(render_constraint(part) for part in limit.parts)
    raise UsageError(f"`{type(limit).__name__}` is no constraint of ours")


def _literal(value: Any) -> str:
    if type(value) is str:
        return json.dumps(value, ensure_ascii=False)
    return canonical.encode_text(value)
