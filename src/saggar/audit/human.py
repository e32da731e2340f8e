"""An audit record as one line for people.

I1  A line holds nothing that a terminal would obey: what a sandbox chose (host names, paths, arguments) is escaped.
I2  A line is one line, whatever the record holds.
"""

from __future__ import annotations

from saggar.audit.canonical import encode_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def harmless(text: str) -> str:
    """`text` with every character that does not print, and the escape of that escape, written out."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text)


def line_of(record: dict[str, Any]) -> str:
    """`10:00:00.123 L2 deny  egress.decision host_not_listed host=a.test port=443`."""
    words = [record["time"][11:23], f"{record['layer']:<8}", f"{record['effect']:<5}", record["kind"], record["reason"]]
    if record["rule"]:
        words.append(f"rule={record['rule']}")
    line = [harmless(word) for word in words]
    line += [f"{harmless(key)}={_value(value)}" for key, value in record["detail"].items()]
    return " ".join(line).rstrip()


def _value(value: Any) -> str:
    """Bare where that cannot be mistaken; else JSON, with what does not print as `\\uXXXX`."""
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "=\\'):
        return value
    text = encode_text(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else _unicode(c) for c in text)


def _unicode(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
