"""The text form of a capability: `operation:resource[selector]`.

I1  Every text gives one `Selector` list or `ParseError`, in time linear in its length.
I2  The text says nothing about types: `capability.grant` binds it to a tool's declaration.
I3  `parse(render(c)) == c` for every parsed capability.

    capability = operation ":" resource [ "[" item *( "," item ) "]" ]
    item       = [ name "=" ] term
    term       = factor *( "&" factor )
    factor     = "*" / set / range / length / call / word / string
    set        = "{" literal *( "," literal ) "}"
    range      = [ number ] ".." [ number ]          ; at least one end
    length     = "len<=" digits
    call       = ( "prefix" / "under" / "cidr" / "url" / "each" / "exact" ) "(" … ")"
    string     = JSON string
    word       = 1*( any printable but , & = [ ] { } ( ) " blank ), at most one star; a URL may begin with
                                                     ; "*." and end in "/*" or "/**", a path may end in "/**"

`max`, `max_bytes` and `max_amount` are budgets. docs/CAPABILITIES.md is the specification, docs/vectors its vectors.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from saggar.core.errors import ParseError

MAX_TEXT = 4096
MAX_ITEMS = 64
MAX_NESTING = 8
BUDGETS = frozenset({"max", "max_bytes", "max_amount"})
CALLS = frozenset({"prefix", "under", "cidr", "url", "each", "exact"})

_WORD = re.compile(r"[a-z][a-z0-9_-]{0,127}", re.ASCII)
_RESOURCE = re.compile(r"[a-z][a-z0-9_.-]{0,127}", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}", re.ASCII)
_BARE_STOP = frozenset(',&=[]{}()" \t')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,27})(?:\.[0-9]{1,12})?", re.ASCII)

FactorKind = Literal[
    "any", "word", "string", "set", "range", "length", "prefix", "under", "cidr", "url", "each", "exact"
]


@dataclass(frozen=True, slots=True)
class Factor:
    """One test, untyped. words: the literals in it, each with whether it was quoted; inner: the term of `each`."""

    kind: FactorKind
    words: tuple[tuple[str, bool], ...] = ()
    inner: tuple[Factor, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """name: an argument, or "" for the tool's primary one."""

    name: str
    term: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Capability:
    """A parsed text: what it names, what it demands, and its budgets as written."""

    operation: str
    resource: str
    items: tuple[Item, ...] = ()
    budgets: tuple[tuple[str, str], ...] = ()


def parse(text: str) -> Capability:
    """Raises `ParseError`."""
    if len(text) > MAX_TEXT:
        raise ParseError(f"longer than {MAX_TEXT} characters", reason="too_long")
    if not text.isprintable():
        raise ParseError("a character that does not print", reason="malformed")
    return _Reader(text).capability()


def parse_term(text: str) -> tuple[Factor, ...]:
    """The part of an item after `=`, alone; for rules. Raises `ParseError`."""
    if len(text) > MAX_TEXT or not text.isprintable():
        raise ParseError(f"longer than {MAX_TEXT} characters, or not printable", reason="malformed")
    return _Reader(text).whole_term()


class _Reader:
    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def capability(self) -> Capability:
        operation = self._match(_WORD, "an operation")
        self._expect(":")
        resource = self._match(_RESOURCE, "a resource")
        if self.at == len(self.text):
            return Capability(operation, resource)
        self._expect("[")
        items: list[Item] = []
        budgets: list[tuple[str, str]] = []
        while True:
            self._blank()
            self._item(items, budgets)
            self._blank()
            if self._take("]"):
                break
            self._expect(",")
            if len(items) + len(budgets) >= MAX_ITEMS:
                raise self._error(f"more than {MAX_ITEMS} items")
        if self.at != len(self.text):
            raise self._error("text after the closing bracket")
        names = [i.name for i in items] + [n for n, _ in budgets]
        if len(set(names)) != len(names):
            raise self._error("one argument named twice")
        return Capability(operation, resource, tuple(items), tuple(budgets))

    def whole_term(self) -> tuple[Factor, ...]:
        term = self._term(0)
        if self.at != len(self.text):
            raise self._error("text after the value")
        return term

    def _item(self, items: list[Item], budgets: list[tuple[str, str]]) -> None:
        start = self.at
        found = _NAME.match(self.text, self.at)
        name = ""
        if found and self.text.startswith("=", found.end()):
            name = found.group()
            self.at = found.end() + 1
        if name in BUDGETS:
            budgets.append((name, self._match(_NUMBER, "a number")))
            return
        if not name and items and any(not i.name for i in items):
            self.at = start
            raise self._error("a second selector without a name")
        items.append(Item(name, self._term(0)))

    def _term(self, depth: int) -> tuple[Factor, ...]:
        factors = [self._factor(depth)]
        while self._take("&"):
            if len(factors) >= 16:
                raise self._error("more than 16 factors")
            factors.append(self._factor(depth))
        return tuple(factors)

    def _factor(self, depth: int) -> Factor:
        if depth > MAX_NESTING:
            raise self._error(f"nested deeper than {MAX_NESTING}")
        if self.text.startswith("len<=", self.at):
            self.at += 5
            return Factor("length", ((self._match(re.compile(r"[0-9]{1,12}", re.ASCII), "a length"), False),))
        if self._peek() == "{":
            return self._set()
        if self._peek() == '"':
            return Factor("string", ((self._string(), True),))
        word = self._bare()
        if self._peek() == "(" and word in CALLS:
            return self._call(word, depth)
        if word == "*":
            return Factor("any")
        if ".." in word:
            low, _, high = word.partition("..")
            ends = (low, high)
            if (low or high) and all(not e or _NUMBER.fullmatch(e) for e in ends):
                return Factor("range", ((low, False), (high, False)))
        # `*.example.com/a/**`: a URL's host and path each have a star of their own
        inner = word.removeprefix("*.").removesuffix("/**").removesuffix("/*") if "/" in word else word
        if inner.count("*") > 1 or (inner != word and "*" in inner):
            raise self._error("a word with more than one star")
        return Factor("word", ((word, False),))

    def _call(self, name: str, depth: int) -> Factor:
        self._expect("(")
        if name == "each":
            inner = self._term(depth + 1)
            self._expect(")")
            return Factor("each", inner=inner)
        literal = self._literal()
        self._expect(")")
        if name == "prefix":
            return Factor("prefix", (literal,))
        if name == "under":
            return Factor("under", (literal,))
        if name == "cidr":
            return Factor("cidr", (literal,))
        return Factor("url", (literal,)) if name == "url" else Factor("exact", (literal,))

    def _set(self) -> Factor:
        self._expect("{")
        words = []
        while True:
            self._blank()
            words.append(self._literal())
            self._blank()
            if self._take("}"):
                return Factor("set", tuple(words))
            self._expect(",")
            if len(words) >= 1024:
                raise self._error("more than 1024 values in a set")

    def _literal(self) -> tuple[str, bool]:
        return (self._string(), True) if self._peek() == '"' else (self._bare(), False)

    def _bare(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _BARE_STOP:
            self.at += 1
        if start == self.at:
            raise self._error("a value is missing")
        return self.text[start : self.at]

    def _string(self) -> str:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != '"':
            end += 2 if self.text[end] == "\\" else 1
        try:
            value = json.loads(self.text[self.at : end + 1])
        except ValueError:
            raise self._error("a string that JSON does not read") from None
        if type(value) is not str:
            raise self._error("a string that JSON does not read")
        self.at = end + 1
        return value

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            raise self._error(f"{what} is missing")
        self.at = found.end()
        return found.group()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, mark: str) -> bool:
        if self._peek() != mark:
            return False
        self.at += 1
        return True

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._error(f"`{mark}` was expected")

    def _blank(self) -> None:
        while self._peek() == " ":
            self.at += 1

    def _error(self, what: str) -> ParseError:
        return ParseError(f"{what}, at character {self.at + 1} of `{self.text[:80]}`", reason="malformed")


def render(capability: Capability) -> str:
    """The text of a parsed capability (I3)."""
    head = f"{capability.operation}:{capability.resource}"
    parts = [f"{i.name}={_term_text(i.term)}" if i.name else _term_text(i.term) for i in capability.items]
    parts += [f"{name}={value}" for name, value in capability.budgets]
    return f"{head}[{', '.join(parts)}]" if parts else head


def _term_text(term: tuple[Factor, ...]) -> str:
    return "&".join(_factor_text(f) for f in term)


def _factor_text(f: Factor) -> str:
    if f.kind == "any":
        return "*"
    if f.kind == "range":
        return f"{f.words[0][0]}..{f.words[1][0]}"
    if f.kind == "length":
        return f"len<={f.words[0][0]}"
    if f.kind == "each":
        return f"each({_term_text(f.inner)})"
    words = ", ".join(json.dumps(w, ensure_ascii=False) if quoted else w for w, quoted in f.words)
    if f.kind == "set":
        return "{" + words + "}"
    return words if f.kind in ("word", "string") else f"{f.kind}({words})"
