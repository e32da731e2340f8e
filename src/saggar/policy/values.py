"""The small languages of single values: sizes, durations, ports, addresses, paths, variables.

I1  Each parser gives a value or raises `WrongValue`, whatever the type and content of its input.
I2  A value has one meaning: no unit is guessed, no number is rounded in silence, booleans are no integers.

Pure, and light enough for the `saggar run` path, which reads flags through it.
"""

from __future__ import annotations

from saggar.core.errors import ParseError
from saggar.core.hostname import METADATA_NAMES, canonical_host
from saggar.policy.model import OWN_DIRECTORIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE_UNITS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DIGITS = frozenset("0123456789")


class WrongValue(Exception):  # caught within the loader, which knows file and line
    """A value that does not parse. hint: how to write it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def text(value: Any) -> str:
    """A string without NUL."""
    if type(value) is not str:
        raise WrongValue(f"expected a string, not {kind_of(value)}")
    if "\0" in value:
        raise WrongValue("a string with a NUL character")
    return value


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise WrongValue(f"expected `true` or `false`, not {kind_of(value)}")
    return value


def integer(value: Any, low: int, high: int) -> int:
    """An integer within [low, high]."""
    if type(value) is not int:
        raise WrongValue(f"expected an integer, not {kind_of(value)}")
    if not low <= value <= high:
        raise WrongValue(f"`{show(value)}` is not between {low} and {high}")
    return value


def real(value: Any, low: float, high: float) -> float:
    """A finite number within [low, high]."""
    if type(value) not in {int, float}:
        raise WrongValue(f"expected a number, not {kind_of(value)}")
    if not low <= value <= high:  # false for NaN as well
        raise WrongValue(f"`{show(value)}` is not between {low:g} and {high:g}")
    return float(value)


def size(value: Any) -> int:
    """Bytes, from an integer or from a number and a unit: `512MiB`, `1.5GiB`, `500MB`."""
    hint = "write a number and one of " + ", ".join(SIZE_UNITS)
    if type(value) is int:
        count = int(value)
    elif type(value) is str:
        count = _with_unit(value, SIZE_UNITS, hint)
    else:
        raise WrongValue(f"expected a size, not {kind_of(value)}", hint)
    if not 1 <= count <= 2**50:
        raise WrongValue(f"`{show(value)}` is not between 1B and 1024TiB")
    return count


#: With 1 MiB the kernel ends the cell before its command (Linux 6.18); 2 is enough for `true`.
LEAST_MEMORY_BYTES = 4 << 20


def memory(value: Any) -> int:
    """As `size`, for a limit in which a program has to start."""
    count = size(value)
    if count < LEAST_MEMORY_BYTES:
        raise WrongValue(
            f"`{show(value)}` is less than the 4MiB that a program needs to start", "write `512MiB` or `1GiB`"
        )
    return count


def _with_unit(value: str, units: dict[str, int], hint: str) -> int:
    number, unit = _split_number(value)
    factor = units.get(unit)
    if not number or factor is None:
        raise WrongValue(f"`{show(value)}` is not a size", hint)
    whole, _, fraction = number.partition(".")
    if len(number) > 24:
        raise WrongValue(f"`{show(value)}` is not a size", hint)
    scaled = int(whole + fraction) * factor
    denominator: int = 10 ** len(fraction)
    count, rest = divmod(scaled, denominator)
    if rest:
        raise WrongValue(f"`{show(value)}` is not a whole number of bytes", hint)
    return count


def duration(value: Any) -> float:
    """Seconds, from a number or from a number and a unit: `90s`, `10m`, `1.5h`, `250ms`."""
    hint = "write a number and one of " + ", ".join(DURATION_UNITS)
    if type(value) is str:
        number, unit = _split_number(value)
        factor = DURATION_UNITS.get(unit)
        if not number or factor is None or len(number) > 24:
            raise WrongValue(f"`{show(value)}` is not a duration", hint)
        seconds = float(number) * factor
    elif type(value) in {int, float}:
        seconds = value if type(value) is float else float(min(value, 10**9))
    else:
        raise WrongValue(f"expected a duration, not {kind_of(value)}", hint)
    if not 0.001 <= seconds <= 366 * 86400:
        raise WrongValue(f"`{show(value)}` is not between 1ms and 366d")
    return seconds


def duration_or_none(value: Any) -> float | None:
    """As `duration`; `none` is no limit."""
    return None if value == "none" else duration(value)


def _split_number(value: str) -> tuple[str, str]:
    """The digits (one inner dot allowed) at the start, and the rest without a blank between."""
    at = 0
    while at < len(value) and (value[at] in _DIGITS or value[at] == "."):
        at += 1
    number = value[:at]
    whole, dot, fraction = number.partition(".")
    sound = bool(whole) and (not dot or (bool(fraction) and "." not in fraction))
    return (number if sound else ""), value[at:].removeprefix(" ")


def host(value: Any, *, allow_wildcard: bool = True) -> str:
    """A canonical host name, or `*.` and one. Public suffixes are looked at elsewhere."""
    name = text(value)
    try:
        canonical = canonical_host(name, allow_wildcard=allow_wildcard)
    except ParseError as e:
        hint = "give the host a name, and `connect_to` for its address" if e.reason == "host_ip_literal" else ""
        raise WrongValue(f"`{show(name)}` is not a host name: {e}", hint) from None
    if canonical == "localhost" or canonical.endswith(".localhost"):
        raise WrongValue(
            f"`{show(name)}` always means the inside of the sandbox",
            "choose a name of your own, with `connect_to` for the address outside",
        )
    return canonical


def is_metadata(name: str) -> bool:
    """Whether a canonical name (or wildcard) reaches a cloud's metadata service."""
    if name.startswith("*."):
        return any(m.partition(".")[2] == name[2:] for m in METADATA_NAMES)
    return name in METADATA_NAMES


def port(value: Any) -> int:
    return integer(value, 1, 65535)


def port_text(value: str) -> int:
    """A port written in a flag."""
    if not value or len(value) > 5 or not _DIGITS.issuperset(value):
        raise WrongValue(f"`{show(value)}` is not a port")
    return port(int(value))


def endpoint(value: Any) -> tuple[str, int]:
    """`ADDR:PORT`, ADDR an IPv4 literal or an IPv6 one in brackets: (address, port)."""
    hint = "write `127.0.0.1:8443` or `[::1]:8443`"
    given = text(value)
    address, _, number = given.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    if not address or (":" in address) != bracketed:
        raise WrongValue(f"`{show(given)}` is not an address and a port", hint)
    from ipaddress import IPv4Address, IPv6Address

    try:
        literal = IPv6Address(address[1:-1]) if bracketed else IPv4Address(address)
    except ValueError:
        raise WrongValue(f"`{show(given)}` is not an address literal and a port", hint) from None
    if getattr(literal, "scope_id", None):
        raise WrongValue(f"`{show(given)}` has a zone", hint)
    return str(literal), port_text(number)


def absolute_path(value: Any) -> str:
    """An absolute path without `.`, `..` or doubled slashes, no slash at the end."""
    path = text(value)
    if not path.startswith("/"):
        raise WrongValue(f"`{show(path)}` is not an absolute path")
    parts = [p for p in path.split("/") if p]
    if {".", ".."} & set(parts):
        raise WrongValue(f"`{show(path)}` has `.` or `..` in it")
    return "/" + "/".join(parts)


def readable_path(value: Any) -> str:
    """A host path that may be bound read-only: not the whole host, not what the sandbox has of its own."""
    path = absolute_path(value)
    if path == "/" or path.split("/")[1] in OWN_DIRECTORIES:
        raise WrongValue(f"`{show(path)}` cannot be shown inside", "name the directories that the command needs")
    return path


def relative_pattern(value: Any) -> str:
    """A pattern of paths below the workspace."""
    pattern = text(value)
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise WrongValue(f"`{show(pattern)}` is not a path below the workspace")
    return pattern


def variable(value: Any) -> str:
    """The name of an environment variable."""
    name = text(value)
    if not name or "=" in name:
        raise WrongValue(f"`{show(name)}` is not the name of a variable")
    return name


def identifier(value: Any) -> str:
    """A rule's own name: letters, digits, `-`, `_` and `.`, at most 64."""
    name = text(value)
    if (
        not 0 < len(name) <= 64
        or not name.isascii()
        or not name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    ):
        raise WrongValue(f"`{show(name)}` is not an id", "use letters, digits, `-`, `_` and `.`")
    return name


def key_text(name: str) -> str:
    """A key as TOML writes it: bare where it can be."""
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else quoted(name)


def quoted(given: str) -> str:
    """A TOML basic string on one line, with nothing that a terminal would obey."""
    return '"' + "".join(_character(c) for c in given) + '"'


def _character(char: str) -> str:
    if char in {'"', "\\"}:
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def kind_of(value: Any) -> str:
    """What a TOML value is, for a message."""
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", list: "an array", dict: "a table"}
    return names.get(type(value), "a date or time")


def show(value: Any) -> str:
    """Input for a message: short, printable, one line."""
    given = str(value) if type(value) is not int or abs(value) < 10**40 else "a very large number"
    given = given if len(given) <= 80 else given[:79] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in given)


def arguments(value: Any) -> str:
    """A table of a tool's arguments, as JSON text with sorted keys."""
    if type(value) is not dict:
        raise WrongValue(f"expected a table, not {kind_of(value)}", 'write `{ to = "bob@example.com" }`')
    import json

    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        raise WrongValue("a value that JSON does not have", "dates are written as texts") from None


def show_arguments(value: str) -> dict[str, Any]:
    import json

    shown: dict[str, Any] = json.loads(value)
    return shown
