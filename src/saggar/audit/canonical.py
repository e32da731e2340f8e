"""RFC 8785 canonical JSON: one value, one sequence of bytes.

I1  `decode(encode(v)) == v` for every value that `encode` takes.
I2  `encode` is injective up to JSON equality: bytes differ when values differ, and two parties agree on them.
I3  Every other input is a `ParseError`: NaN, infinities, integers beyond 2^53 - 1, lone surrogates, keys that are no
    strings, types that JSON does not have, nesting deeper than 64.

Strings are not normalised (RFC 8785 section 3.2.5 forbids it). Keys sort by UTF-16 code unit (section 3.2.3). Numbers
print as ECMAScript does (section 3.2.2.3). The encoder is our own because `json` pulls in `re` and `enum`, 8 ms of the
`saggar run` path; only the C string escaper behind it is used, whose output is section 3.2.2.2's to the byte.
"""

from __future__ import annotations

from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    quote: Callable[[str], str]

try:
    from _json import encode_basestring as quote
except ImportError:  # an interpreter without the accelerator
    from json.encoder import py_encode_basestring as quote
#: `quote(text)`: a string as JSON, lone surrogates left for UTF-8 to refuse
MAX_INTEGER = 2**53 - 1
MAX_DEPTH = 64


def encode(value: Any) -> bytes:
    """The canonical UTF-8 bytes of `value`. Raises `ParseError` (I3)."""
    try:
        return encode_text(value).encode()
    except UnicodeEncodeError:
        raise ParseError("a string holds a lone surrogate", reason="surrogate") from None


def encode_text(value: Any) -> str:
    """As `encode`, before UTF-8; lone surrogates are not looked for."""
    if type(value) is dict and value:
        flat = _flat(value)
        if flat:
            return flat
    out: list[str] = []
    _write(value, out.append, 0)
    return "".join(out)


def _flat(value: dict[Any, Any]) -> str:
    """An object of nothing but strings and small integers under ASCII keys, a third of the time that `_write` takes: most
    records are such. "" where it is another."""
    parts: list[str] = []
    try:
        for key in sorted(value):
            if not key.isascii():
                return ""
            item = value[key]
            if type(item) is str:
                parts.append(f"{quote(key)}:{quote(item)}")
            elif type(item) is int and -MAX_INTEGER <= item <= MAX_INTEGER:
                parts.append(f"{quote(key)}:{item}")
            else:
                return ""
    except (TypeError, AttributeError):  # keys that are no strings
        return ""
    return f"{{{','.join(parts)}}}"


def _write(value: Any, out: Callable[[str], None], depth: int) -> None:
    kind = type(value)
    if kind is str:
        out(quote(value))
    elif kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ParseError("an integer is beyond 2^53 - 1", reason="integer_range")
        out(str(value))
    elif value is True:
        out("true")
    elif value is False:
        out("false")
    elif value is None:
        out("null")
    elif kind is dict:
        _write_object(value, out, depth + 1)
    elif kind is list or kind is tuple:
        _write_array(value, out, depth + 1)
    elif kind is float:
        out(number(value))
    else:
        raise ParseError(f"`{kind.__name__}` is not a JSON type", reason="type")


def _write_object(value: dict[Any, Any], out: Callable[[str], None], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ParseError(f"nested deeper than {MAX_DEPTH}", reason="depth")
    if not value:
        out("{}")
        return
    mark = "{"
    for key in _sorted_keys(value):
        out(mark)
        out(quote(key))
        out(":")
        _write(value[key], out, depth)
        mark = ","
    out("}")


def _write_array(value: list[Any] | tuple[Any, ...], out: Callable[[str], None], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ParseError(f"nested deeper than {MAX_DEPTH}", reason="depth")
    if not value:
        out("[]")
        return
    mark = "["
    for item in value:
        out(mark)
        _write(item, out, depth)
        mark = ","
    out("]")


def _sorted_keys(value: dict[Any, Any]) -> list[str]:
    plain = True
    for key in value:
        if type(key) is not str:
            raise ParseError("an object's key is not a string", reason="key_type")
        plain = plain and key.isascii()
    if plain:
        return sorted(value)
    # UTF-16BE bytes order as UTF-16 code units do; code points do not (U+FF61 sorts after U+1F600 here)
    return sorted(value, key=lambda k: k.encode("utf-16-be", "surrogatepass"))


def number(value: float) -> str:
    """ECMAScript's Number::toString (ECMA-262 section 6.1.6.1.20) of a finite float."""
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124  # NaN, without importing math
        raise ParseError("a number is not finite", reason="not_finite")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    # value = 0.DIGITS * 10^point; `point` is ECMA-262's n
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return sign + _layout(digits, point)


def _layout(digits: str, point: int) -> str:
    size = len(digits)
    if size <= point <= 21:
        return digits + "0" * (point - size)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    tail = f".{digits[1:]}" if size > 1 else ""
    return f"{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def decode(data: bytes) -> Any:
    """Parse JSON strictly: UTF-8, no duplicate key, no NaN, no integer that a double cannot hold. Raises `ParseError`.

    Canonical form is not asked for here; compare with `encode` where it matters.
    """
    import json

    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_int, parse_float=_float
        )
    except UnicodeDecodeError as e:
        raise ParseError(f"not UTF-8 at byte {e.start}", reason="utf8") from None
    except json.JSONDecodeError as e:
        raise ParseError(f"not JSON at character {e.pos}: {e.msg[:1].lower()}{e.msg[1:]}", reason="malformed") from None
    except RecursionError:
        raise ParseError("nested too deeply", reason="depth") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ParseError(f"duplicate key `{key[:80]}`", reason="duplicate_key")
            seen.add(key)
    return value


def _no_constant(name: str) -> Any:
    raise ParseError(f"`{name}` is not JSON", reason="not_finite")


def _int(text: str) -> int | float:
    if len(text) <= 17 and -MAX_INTEGER <= (value := int(text)) <= MAX_INTEGER:
        return value
    wide = _float(text)
    if number(wide) != text:
        raise ParseError("an integer is beyond 2^53 - 1 and no double prints like it", reason="integer_range")
    return wide


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ParseError("a number is not finite", reason="not_finite")
    return value
