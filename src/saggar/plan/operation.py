"""The closed set of functions that a plan may compute with: total, bounded, free of I/O.

I1  Each gives a value or `NOT_ENOUGH`; none raises, whatever it is fed.
I2  On plain values each agrees with CPython where CPython has the same function (differential test).
I3  No result is larger than MAX_TEXT characters or outside what JSON keeps exact, no text has a
    lone surrogate, and no list more than MAX_ITEMS elements that the data did not have.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any

from saggar.plan.node import NOT_ENOUGH

MAX_TEXT = 1 << 20
#: what every JSON reader keeps exact, and what a capability can be minted for
MAX_INT = (1 << 53) - 1
MAX_ITEMS = 10_000


def number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def bounded(x: Any) -> Any:
    """I3."""
    if isinstance(x, str) and len(x) > MAX_TEXT:
        return NOT_ENOUGH
    if isinstance(x, str) and not x.isascii() and any("\ud800" <= c <= "\udfff" for c in x):
        return NOT_ENOUGH
    if isinstance(x, int) and not -MAX_INT <= x <= MAX_INT:
        return NOT_ENOUGH
    return NOT_ENOUGH if isinstance(x, float) and not isfinite(x) else x


def _arithmetic(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def apply(a: Any, b: Any) -> Any:
        return f(a, b) if number(a) and number(b) else NOT_ENOUGH

    return apply


def _ordered(f: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def apply(a: Any, b: Any) -> Any:
        fits = (number(a) and number(b)) or (isinstance(a, str) and isinstance(b, str))
        return f(a, b) if fits else NOT_ENOUGH

    return apply


def _text(f: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        return f(*args) if all(isinstance(a, str) for a in args) else NOT_ENOUGH

    return apply


def _add(a: Any, b: Any) -> Any:
    if (number(a) and number(b)) or (isinstance(a, str) and isinstance(b, str)):
        return a + b
    return NOT_ENOUGH


def _contains(needle: Any, hay: Any) -> Any:
    if isinstance(hay, str):
        return needle in hay if isinstance(needle, str) else NOT_ENOUGH
    if isinstance(hay, list | Mapping):
        return needle in hay if isinstance(needle, str | int | float | bool) or needle is None else NOT_ENOUGH
    return NOT_ENOUGH


def _extreme(f: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        items = args[0] if len(args) == 1 else list(args)
        if not isinstance(items, list) or not items:
            return NOT_ENOUGH
        same = all(map(number, items)) or all(isinstance(x, str) for x in items)
        return f(items) if same else NOT_ENOUGH

    return apply


def _sum(items: Any) -> Any:
    return sum(items) if isinstance(items, list) and all(map(number, items)) else NOT_ENOUGH


def _len(x: Any) -> Any:
    return len(x) if isinstance(x, str | list | Mapping) else NOT_ENOUGH


def _round(x: Any, digits: Any = None) -> Any:
    if not number(x) or not (digits is None or (type(digits) is int and 0 <= digits <= 12)):
        return NOT_ENOUGH
    return round(x) if digits is None else round(x, digits)


def shown(x: Any) -> str:
    """How a value reads in text, the same as Python's `str` for scalars."""
    return str(x)


def _str(x: Any) -> Any:
    return str(x) if isinstance(x, str | int | float | bool) or x is None else NOT_ENOUGH


def _float(x: Any) -> Any:
    if number(x):
        return float(x)
    if not isinstance(x, str) or len(x) > 64:
        return NOT_ENOUGH
    try:
        return float(x)
    except ValueError:
        return NOT_ENOUGH


def _int(x: Any) -> Any:
    if number(x):
        return int(x) if isfinite(x) else NOT_ENOUGH
    if not isinstance(x, str) or len(x) > 64:
        return NOT_ENOUGH
    try:
        return int(x)
    except ValueError:
        return NOT_ENOUGH


def _split(text: Any, sep: Any = None) -> Any:
    if not isinstance(text, str) or not (sep is None or (isinstance(sep, str) and sep)):
        return NOT_ENOUGH
    found = text.split(sep, MAX_ITEMS)
    return found if len(found) <= MAX_ITEMS else NOT_ENOUGH


def _join(sep: Any, items: Any) -> Any:
    fits = isinstance(sep, str) and isinstance(items, list) and all(isinstance(x, str) for x in items)
    if not fits or sum(map(len, items)) + len(sep) * len(items) > MAX_TEXT:
        return NOT_ENOUGH
    return sep.join(items)


def _replace(text: str, old: str, new: str) -> Any:
    if len(text) + text.count(old) * len(new) > MAX_TEXT:
        return NOT_ENOUGH
    return text.replace(old, new)


@lru_cache(maxsize=1 << 14)
def folded(text: str) -> str:
    """Case, spacing and punctuation aside: `grocery-list.docx` is what a person calls the grocery list."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if c.isalnum() else " " for c in text).split())


def has_words(text: str, words: str) -> bool:
    """Whether `text` contains `words` whole, case and punctuation aside."""
    return bool(folded(words)) and f" {folded(words)} " in f" {folded(text)} "


def matches(text: Any, name: Any) -> Any:
    """Whether `text` is, or contains as whole words, the name that somebody used for it."""
    if not isinstance(text, str) or not isinstance(name, str) or not folded(name):
        return NOT_ENOUGH
    return has_words(text, name)


def _number_in(text: Any, which: Any = 0) -> Any:
    """The n-th decimal number that stands in a text."""
    if not isinstance(text, str) or type(which) is not int or len(text) > MAX_TEXT:
        return NOT_ENOUGH
    found: list[float] = []
    word = ""
    for c in text + " ":
        if c in "0123456789" or (c == "." and word and "." not in word):
            word += c
            continue
        if word:
            found.append(float(word.rstrip(".")) if len(word) < 40 else 0.0)
        word = ""
    return found[which] if -len(found) <= which < len(found) else NOT_ENOUGH


def _moment(text: Any) -> datetime | None:
    if not isinstance(text, str) or len(text) > 40:
        return None
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=None)
    except ValueError:
        return None


def _add_minutes(text: Any, minutes: Any) -> Any:
    """`YYYY-MM-DD HH:MM` so many minutes later (or earlier)."""
    at = _moment(text)
    if at is None or not number(minutes) or abs(minutes) > 1e7:
        return NOT_ENOUGH
    try:
        return (at + timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:%M")
    except OverflowError:
        return NOT_ENOUGH


def _minutes_between(start: Any, end: Any) -> Any:
    a, b = _moment(start), _moment(end)
    return NOT_ENOUGH if a is None or b is None else int((b - a).total_seconds() // 60)


def _part(form: str) -> Callable[..., Any]:
    def apply(text: Any) -> Any:
        at = _moment(text)
        return NOT_ENOUGH if at is None else at.strftime(form)

    return apply


def _hours_minutes(minutes: Any) -> Any:
    """`HH:MM` of a number of minutes."""
    if not number(minutes) or minutes < 0 or minutes >= 6000:
        return NOT_ENOUGH
    return f"{int(minutes) // 60:02d}:{int(minutes) % 60:02d}"


def _near(value: Any, reference: Any, percent: Any) -> Any:
    """The value as it is; `expression` marks it where it is `near` the reference."""
    return value if number(value) and number(reference) and number(percent) else NOT_ENOUGH


def near(value: Any, reference: Any, percent: Any) -> bool:
    """Whether a number lies within so many per cent of a positive reference, either way. Compared as they are, so that
    no rounding moves the bound: 1100 and 10 per cent allow 1210 and no more."""
    fits = number(value) and number(reference) and number(percent) and reference > 0 and 0 <= percent <= 100
    return fits and abs(value - reference) * 100 <= reference * percent


def _keys(x: Any) -> Any:
    return sorted(x) if isinstance(x, Mapping) else NOT_ENOUGH


def _divide(a: Any, b: Any) -> Any:
    return NOT_ENOUGH if b == 0 else a / b


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


#: name -> (fewest arguments, most arguments, function on plain values)
TABLE: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "add": (2, 2, _add),
    "sub": (2, 2, _arithmetic(lambda a, b: a - b)),
    "mul": (2, 2, _arithmetic(lambda a, b: a * b)),
    "div": (2, 2, _arithmetic(_divide)),
    "neg": (1, 1, lambda a: -a if number(a) else NOT_ENOUGH),
    "eq": (2, 2, _equal),
    "ne": (2, 2, lambda a, b: not _equal(a, b)),
    "lt": (2, 2, _ordered(lambda a, b: a < b)),
    "le": (2, 2, _ordered(lambda a, b: a <= b)),
    "gt": (2, 2, _ordered(lambda a, b: a > b)),
    "ge": (2, 2, _ordered(lambda a, b: a >= b)),
    "not": (1, 1, lambda a: not a if isinstance(a, bool) else NOT_ENOUGH),
    "in": (2, 2, _contains),
    "len": (1, 1, _len),
    "sum": (1, 1, _sum),
    "min": (1, 8, _extreme(min)),
    "max": (1, 8, _extreme(max)),
    "abs": (1, 1, lambda a: abs(a) if number(a) else NOT_ENOUGH),
    "round": (1, 2, _round),
    "str": (1, 1, _str),
    "int": (1, 1, _int),
    "float": (1, 1, _float),
    "lower": (1, 1, _text(str.lower)),
    "upper": (1, 1, _text(str.upper)),
    "strip": (1, 1, _text(str.strip)),
    "startswith": (2, 2, _text(str.startswith)),
    "endswith": (2, 2, _text(str.endswith)),
    "replace": (3, 3, _text(_replace)),
    "split": (1, 2, _split),
    "join": (2, 2, _join),
    "keys": (1, 1, _keys),
    "matches": (2, 2, matches),
    "number_in": (1, 2, _number_in),
    "add_minutes": (2, 2, _add_minutes),
    "minutes_between": (2, 2, _minutes_between),
    "day_of": (1, 1, _part("%Y-%m-%d")),
    "time_of": (1, 1, _part("%H:%M")),
    "weekday_of": (1, 1, _part("%A")),
    "hours_minutes": (1, 1, _hours_minutes),
    "near": (3, 3, _near),
}

#: operations that keep the labels of elements apart; `expression` evaluates them on nodes
STRUCTURAL: dict[str, tuple[int, int]] = {
    "and": (2, 16),
    "or": (2, 16),
    "if": (3, 3),
    "known": (1, 1),
    "flatten": (1, 1),
    "unique": (1, 1),
    "tally": (1, 1),
    "concat": (2, 2),
    "values": (1, 1),
}

ARITY: dict[str, tuple[int, int]] = {name: (low, high) for name, (low, high, _) in TABLE.items()} | STRUCTURAL


def apply(name: str, args: list[Any]) -> Any:
    """I1: the value or `NOT_ENOUGH`."""
    if any(a is NOT_ENOUGH for a in args):
        return NOT_ENOUGH
    try:
        return bounded(TABLE[name][2](*args))
    except (ArithmeticError, ValueError, TypeError, RecursionError):
        # a hostile number or text found an edge of the standard library; to the plan it is one more unknown
        return NOT_ENOUGH
