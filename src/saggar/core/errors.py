"""Exceptions, split by what the caller does next. Exit codes and HTTP statuses stand beside each class.

Messages are lower case, without a full stop, with backticks round input.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from saggar.core.decision import Decision


class SaggarError(Exception):
    """Base of everything that Saggar raises on purpose."""

    exit_code = 70
    http_status = 500


class UsageError(SaggarError):
    """The caller's input or policy file is wrong. Carries where, and how to mend it."""

    exit_code = 2
    http_status = 400

    def __init__(self, message: str, *, file: str = "", line: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"


class ParseError(SaggarError):
    """Bytes or text from outside that do not parse. Every parser gives a value or this, never anything else."""

    exit_code = 5
    http_status = 400

    def __init__(self, message: str, *, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class Denied(SaggarError):
    """A rule said no (or a human did). `decision.public` is all that the subject may see."""

    exit_code = 3
    http_status = 403

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.public or decision.reason)
        self.decision = decision


class Unenforceable(SaggarError):
    """This host cannot enforce what was asked. Nothing was started."""

    exit_code = 4
    http_status = 503

    def __init__(self, message: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        cause = f"\n  cause:  {self.cause}" if self.cause else ""
        remedy = f"\n  remedy: {self.remedy}" if self.remedy else ""
        return f"{self.message}{cause}{remedy}"


class PeerError(SaggarError):
    """A model, tool or upstream broke its protocol."""

    exit_code = 5
    http_status = 502


class LimitExceeded(SaggarError):
    """A budget ran out. Says which, how much, and how to raise it."""

    exit_code = 6
    http_status = 429

    def __init__(self, message: str, *, limit: str = "", value: float = 0, hint: str = "") -> None:
        super().__init__(message)
        self.limit = limit
        self.value = value
        self.hint = hint


class InvariantBroken(SaggarError):
    """Our bug. The sandbox is killed; the report says what to send us."""

    exit_code = 70
    http_status = 500
