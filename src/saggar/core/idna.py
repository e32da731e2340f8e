"""Which Unicode labels name a host: IDNA 2008, without what it allows in some contexts only.

I1  Every label that passes is valid under RFC 5891 section 4.2: NFC, PVALID characters, no leading mark, no `--` in
    third place, the Bidi rule.
I2  Characters of CONTEXTJ and CONTEXTO (RFC 5892 appendix A: joiners, middle dots, Arabic-Indic digits) are refused.

The derived property is computed from `unicodedata` after RFC 5892 section 3, so it follows the interpreter's Unicode.
"""

from __future__ import annotations

import unicodedata

from saggar.core.errors import ParseError

_LETTER_DIGITS = frozenset({"Ll", "Lo", "Lm", "Mn", "Mc", "Nd"})
#: RFC 5892 section 2.6, PVALID in spite of their category or folding
_PVALID = frozenset("\u00df\u03c2\u06fd\u06fe\u0f0b\u3007")
#: section 2.6, DISALLOWED or contextual in spite of theirs
_REFUSED = frozenset(
    "\u00b7\u0375\u05f3\u05f4\u0640\u07fa\u302e\u302f\u3031\u3032\u3033\u3034\u3035\u303b\u30fb\u200c\u200d"
)
#: (first, last): Arabic-Indic digits (2.6), Default_Ignorable_Code_Point (2.3), old Hangul jamo (2.9), blocks (2.4)
_REFUSED_RANGES = (
    (0x0660, 0x0669),
    (0x06F0, 0x06F9),
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0000, 0xE0FFF),
    (0x1100, 0x11FF),
    (0xA960, 0xA97F),
    (0xD7B0, 0xD7FF),
    (0x20D0, 0x20FF),
    (0x1D100, 0x1D1FF),
    (0x1D200, 0x1D24F),
)


def check_ulabel(label: str) -> None:
    """Raise `ParseError` (reason `host_idna`) unless `label` is a U-label."""
    if not label or unicodedata.normalize("NFC", label) != label:
        raise _refusal(f"`{_show(label)}` is not in Unicode normal form C")
    if label[0] == "-" or label[-1] == "-" or label[2:4] == "--":
        raise _refusal(f"`{_show(label)}` has a hyphen where none may stand")
    if unicodedata.category(label[0])[0] == "M":
        raise _refusal(f"`{_show(label)}` starts with a combining mark")
    for char in label:
        if not _is_pvalid(char):
            raise _refusal(f"U+{ord(char):04X} may not stand in a host name")
    _check_bidi(label)


def _is_pvalid(char: str) -> bool:
    if char.isascii():
        return char in "abcdefghijklmnopqrstuvwxyz0123456789-"
    if char in _PVALID:
        return True
    code = ord(char)
    if char in _REFUSED or any(first <= code <= last for first, last in _REFUSED_RANGES):
        return False
    if unicodedata.category(char) not in _LETTER_DIGITS:
        return False
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
    return folded == char


def _check_bidi(label: str) -> None:
    """RFC 5893 section 2, applied to a label that has right-to-left characters."""
    kinds = [unicodedata.bidirectional(c) for c in label]
    if not {"R", "AL", "AN"} & set(kinds):
        return
    if kinds[0] not in {"R", "AL"}:
        raise _refusal(f"`{_show(label)}` mixes writing directions")
    if not set(kinds) <= {"R", "AL", "AN", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"}:
        raise _refusal(f"`{_show(label)}` mixes writing directions")
    last = next(k for k in reversed(kinds) if k != "NSM")
    if last not in {"R", "AL", "EN", "AN"} or {"EN", "AN"} <= set(kinds):
        raise _refusal(f"`{_show(label)}` mixes writing directions")


def _refusal(message: str) -> ParseError:
    return ParseError(message, reason="host_idna")


def _show(label: str) -> str:
    return label.encode("ascii", "backslashreplace").decode()
