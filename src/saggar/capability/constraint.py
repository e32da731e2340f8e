"""The closed constraint language: what one argument of one call may be.

I1  Closed: the ten classes below and no other. No regular expressions, no negation, no callables.
I2  `allows` is total: every JSON value gives True or False, never an exception, in time linear in the value.
I3  `allows` never coerces: `True` is not 1, `"1"` is not 1, a list is not its only element.
I4  `from_json(to_json(c)) == c`; every other JSON gives `ParseError`.

"Narrower than" is in `capability.narrower`. Shape: the constraint vocabulary of the IETF draft on attenuating agent
tokens, objects with a `type`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from saggar.audit import canonical
from saggar.capability.values import (
    Url,
    check_authority_text,
    check_host,
    check_path,
    parse_decimal,
    parse_ip,
    parse_network,
    parse_url,
)
from saggar.core.errors import ParseError

MAX_ONE_OF = 1024
MAX_ALL = 16
MAX_NESTING = 8
MAX_TEXT = 4096

#: What a star never matches: a star stands for one word, not for a list of addresses or a further path segment.
STAR_STOPS = frozenset("@,;:<>\"'`()[]{}|\\/?#&=% \t")


class Constraint:
    """Base of the ten. Subclassing outside this module makes a constraint that no parser can produce and `narrower`
    refuses."""

    __slots__ = ()

    def allows(self, value: Any) -> bool:
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError


def star_fits(text: str) -> bool:
    """May a star stand for `text`?"""
    return text.isprintable() and STAR_STOPS.isdisjoint(text)


def canonical_text(value: Any) -> str | None:
    try:
        return canonical.encode_text(value)
    except ParseError:
        return None


@dataclass(frozen=True, slots=True)
class AnyValue(Constraint):
    """Any value of the declared type. Written out, because an argument that nothing names is refused."""

    def allows(self, value: Any) -> bool:  # noqa: ARG002  # the name is the protocol
        return True

    def to_json(self) -> dict[str, Any]:
        return {"type": "any"}


@dataclass(frozen=True, slots=True)
class Exact(Constraint):
    """Equal as JSON (RFC 8785): 1 and 1.0 are one number, 1 and true and "1" are three values."""

    value: Any
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", canonical.encode_text(self.value))

    def __hash__(self) -> int:
        return hash(self.text)

    def allows(self, value: Any) -> bool:
        if type(value) is str:
            return type(self.value) is str and value == self.value
        return canonical_text(value) == self.text

    def to_json(self) -> dict[str, Any]:
        return {"type": "exact", "value": self.value}


@dataclass(frozen=True, slots=True)
class OneOf(Constraint):
    """One of at most 1024 JSON scalars."""

    values: tuple[Any, ...] = field(compare=False)
    texts: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.values) <= MAX_ONE_OF:
            raise ParseError(f"`one_of` takes 1 to {MAX_ONE_OF} values", reason="constraint_form")
        pairs = sorted({canonical.encode_text(v): v for v in self.values}.items())
        object.__setattr__(self, "values", tuple(v for _, v in pairs))
        object.__setattr__(self, "texts", frozenset(t for t, _ in pairs))

    def allows(self, value: Any) -> bool:
        return canonical_text(value) in self.texts

    def to_json(self) -> dict[str, Any]:
        return {"type": "one_of", "values": list(self.values)}


def as_decimal(value: Any) -> Decimal | None:
    """A number, or a decimal written as text; `None` for anything else."""
    kind = type(value)
    if kind is int:
        return Decimal(value)
    if kind is float:
        return Decimal(repr(value)) if value - value == 0 else None
    if kind is str:
        try:
            return parse_decimal(value)
        except ParseError:
            return None
    return None


@dataclass(frozen=True, slots=True)
class Range(Constraint):
    """Both ends included; `None` is open. For integers, numbers and decimals (as text)."""

    low: Decimal | None
    high: Decimal | None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ParseError("a range needs an end", reason="constraint_form")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ParseError("a range whose ends are swapped", reason="constraint_form")

    def allows(self, value: Any) -> bool:
        number = as_decimal(value)
        if number is None:
            return False
        return (self.low is None or number >= self.low) and (self.high is None or number <= self.high)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "range"}
        if self.low is not None:
            out["min"] = str(self.low)
        if self.high is not None:
            out["max"] = str(self.high)
        return out


@dataclass(frozen=True, slots=True)
class Prefix(Constraint):
    """Text that starts with `text`. For identifiers of one flat name space; paths and URLs have their own."""

    text: str

    def __post_init__(self) -> None:
        _literal(self.text, "prefix")

    def allows(self, value: Any) -> bool:
        return type(value) is str and value.startswith(self.text)

    def to_json(self) -> dict[str, Any]:
        return {"type": "prefix", "value": self.text}


@dataclass(frozen=True, slots=True)
class Glob(Constraint):
    """One star. It matches a run, maybe empty, of printable characters outside `STAR_STOPS`: so `*@acme.com` is one
    address at one domain, never `a@evil.example,b@acme.com`."""

    before: str
    after: str

    def __post_init__(self) -> None:
        if "*" in self.before or "*" in self.after:
            raise ParseError("a glob has one star", reason="constraint_form")
        _literal(self.before + self.after, "glob")

    def allows(self, value: Any) -> bool:
        if type(value) is not str or len(value) < len(self.before) + len(self.after):
            return False
        if not (value.startswith(self.before) and value.endswith(self.after)):
            return False
        return star_fits(value[len(self.before) : len(value) - len(self.after)])

    def to_json(self) -> dict[str, Any]:
        return {"type": "glob", "value": f"{self.before}*{self.after}"}


@dataclass(frozen=True, slots=True)
class Cidr(Constraint):
    """A canonical address literal within a network."""

    network: str

    def __post_init__(self) -> None:
        parse_network(self.network)

    def allows(self, value: Any) -> bool:
        if type(value) is not str:
            return False
        try:
            address = parse_ip(value)
        except ParseError:
            return False
        network = parse_network(self.network)
        return address.version == network.version and address in network

    def to_json(self) -> dict[str, Any]:
        return {"type": "cidr", "value": self.network}


@dataclass(frozen=True, slots=True)
class UrlMatch(Constraint):
    """A URL by parts. host: a name, or `*.` and a name for exactly one more label. path: `/a` is that path without
    query, `/a/*` one segment below it, `/a/**` itself and everything below; the latter two take any query."""

    scheme: str
    host: str
    port: int
    path: str

    def __post_init__(self) -> None:
        host = self.host.removeprefix("*.")
        base, _ = self.split()
        colon = ":" in host
        parsed = parse_url(f"{self.scheme}://{f'[{host}]' if colon else host}{base}")
        if parsed.tail or check_host(host) != host or not 0 < self.port < 65536 or (colon and host != self.host):
            raise ParseError("not a URL pattern", reason="constraint_form")
        if "*" in base:
            raise ParseError("a star within a URL path", reason="constraint_form")

    def split(self) -> tuple[str, str]:
        """The path without its star, and `exact`, `child` or `under`."""
        if self.path.endswith("/**"):
            return self.path[:-3] or "/", "under"
        if self.path.endswith("/*"):
            return self.path[:-2] or "/", "child"
        return self.path, "exact"

    def allows(self, value: Any) -> bool:
        if type(value) is not str:
            return False
        try:
            url = parse_url(value)
        except ParseError:
            return False
        return url.scheme == self.scheme and url.port == self.port and self._host(url.host) and self._path(url)

    def _host(self, host: str) -> bool:
        if not self.host.startswith("*."):
            return host == self.host
        label, dot, rest = host.partition(".")
        return bool(label and dot) and rest == self.host[2:]

    def _path(self, url: Url) -> bool:
        base, mode = self.split()
        if mode == "exact":
            return url.path == base and not url.tail
        stem = base if base.endswith("/") else base + "/"
        if mode == "under":
            return url.path == base or url.path.startswith(stem)
        rest = url.path.removeprefix(stem)
        return url.path.startswith(stem) and bool(rest) and "/" not in rest

    def to_json(self) -> dict[str, Any]:
        return {"type": "url", "scheme": self.scheme, "host": self.host, "port": self.port, "path": self.path}


@dataclass(frozen=True, slots=True)
class PathUnder(Constraint):
    """A canonical absolute path that is `root` or below. Says nothing about symbolic links: a tool that opens the path
    does it with `openat2` and `RESOLVE_BENEATH`."""

    root: str

    def __post_init__(self) -> None:
        check_path(self.root)

    def allows(self, value: Any) -> bool:
        if type(value) is not str:
            return False
        try:
            check_path(value)
        except ParseError:
            return False
        return self.root in ("/", value) or value.startswith(self.root + "/")

    def to_json(self) -> dict[str, Any]:
        return {"type": "path_under", "value": self.root}


@dataclass(frozen=True, slots=True)
class MaxLength(Constraint):
    """At most `size` bytes of UTF-8, or elements of a list."""

    size: int

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 0 <= self.size <= 2**40:
            raise ParseError("not a length", reason="constraint_form")

    def allows(self, value: Any) -> bool:
        if type(value) is str:
            return len(value) <= self.size and len(value.encode("utf-8", "surrogatepass")) <= self.size
        return type(value) in (list, tuple) and len(value) <= self.size

    def to_json(self) -> dict[str, Any]:
        return {"type": "max_length", "value": self.size}


@dataclass(frozen=True, slots=True)
class EachItem(Constraint):
    """A list whose every element `inner` allows; the empty list is one."""

    inner: Constraint

    def allows(self, value: Any) -> bool:
        return type(value) in (list, tuple) and all(self.inner.allows(item) for item in value)

    def to_json(self) -> dict[str, Any]:
        return {"type": "each", "constraint": self.inner.to_json()}


@dataclass(frozen=True, slots=True)
class All(Constraint):
    """Every part allows the value."""

    parts: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.parts) <= MAX_ALL:
            raise ParseError(f"`all` takes 2 to {MAX_ALL} constraints", reason="constraint_form")

    def allows(self, value: Any) -> bool:
        return all(part.allows(value) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {"type": "all", "constraints": [part.to_json() for part in self.parts]}


def _literal(text: str, what: str) -> None:
    if not 0 < len(text) <= MAX_TEXT:
        raise ParseError(f"`{what}` takes 1 to {MAX_TEXT} characters", reason="constraint_form")
    check_authority_text(text)


_FIELDS: dict[str, frozenset[str]] = {
    "any": frozenset(),
    "exact": frozenset({"value"}),
    "one_of": frozenset({"values"}),
    "range": frozenset({"min", "max"}),
    "prefix": frozenset({"value"}),
    "glob": frozenset({"value"}),
    "cidr": frozenset({"value"}),
    "url": frozenset({"scheme", "host", "port", "path"}),
    "path_under": frozenset({"value"}),
    "max_length": frozenset({"value"}),
    "each": frozenset({"constraint"}),
    "all": frozenset({"constraints"}),
}


def from_json(data: Any, depth: int = 0) -> Constraint:
    """The one way from JSON to a constraint. Raises `ParseError`."""
    if type(data) is not dict:
        raise ParseError("a constraint is an object", reason="constraint_form")
    kind = data.get("type")
    if type(kind) is not str or kind not in _FIELDS:
        raise ParseError(f"unknown constraint `{str(kind)[:40]}`", reason="constraint_unknown")
    fields = data.keys() - {"type"}
    optional = {"min", "max"} if kind == "range" else set()
    if not fields <= _FIELDS[kind] or not _FIELDS[kind] - optional <= fields:
        raise ParseError(f"`{kind}` has a field too many or too few", reason="constraint_form")
    if depth > MAX_NESTING:
        raise ParseError(f"constraints nested deeper than {MAX_NESTING}", reason="depth")
    return _build(kind, data, depth)


def _build(kind: str, data: dict[str, Any], depth: int) -> Constraint:
    if kind == "any":
        return AnyValue()
    if kind == "exact":
        return Exact(data["value"])
    if kind == "one_of":
        return OneOf(tuple(_list(data["values"])))
    if kind == "range":
        return Range(*(parse_decimal(_text(data[end])) if end in data else None for end in ("min", "max")))
    if kind == "max_length":
        return MaxLength(data["value"])
    if kind == "each":
        return EachItem(from_json(data["constraint"], depth + 1))
    if kind == "all":
        return All(tuple(from_json(part, depth + 1) for part in _list(data["constraints"])))
    if kind == "url":
        if type(data["port"]) is not int:
            raise ParseError("`port` is an integer", reason="constraint_form")
        return UrlMatch(_text(data["scheme"]), _text(data["host"]), data["port"], _text(data["path"]))
    text = _text(data["value"])
    if kind == "prefix":
        return Prefix(text)
    if kind == "glob":
        before, star, after = text.partition("*")
        if not star:
            raise ParseError("a glob has one star", reason="constraint_form")
        return Glob(before, after)
    return Cidr(text) if kind == "cidr" else PathUnder(text)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ParseError("a text was expected in a constraint", reason="constraint_form")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list or len(value) > MAX_ONE_OF:
        raise ParseError(f"a list of at most {MAX_ONE_OF} was expected in a constraint", reason="constraint_form")
    return value
