"""Is this log whole, in order, and ours? Needs the file alone; a known head also proves that its end was not cut.

I1  Any change of one byte of a log is a fault.
I2  Every fault names its line and what is wrong with it; the checks go on after a fault.
I3  Without a known head, records cut off the end leave no trace: the report says whether a head was compared.

The hash has no key: who may write the file can forge a whole new chain. The head, kept elsewhere, is what tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from saggar.audit.canonical import decode, encode
from saggar.audit.chain import can_be_torn, names_torn
from saggar.audit.record import FIELDS, GENESIS, digest, is_digest
from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one line (from 1). kind: `gap`, `reordered`, `edited`, `truncated`, `duplicate_key`,
    `foreign_task`, `malformed`, `not_canonical`, `fields`, `unlinked`, `torn` or `too_long`."""

    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}: {self.message}"


@dataclass(slots=True)
class Report:
    """What verification found. head: hash of the last sound record, zeros where there is none."""

    task: str = ""
    records: int = 0
    head: str = GENESIS
    head_compared: bool = False
    faults: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "task": self.task,
            "records": self.records,
            "head": self.head,
            "head_compared": self.head_compared,
            "faults": [{"line": f.line, "kind": f.kind, "message": f.message} for f in self.faults],
            "notes": [{"line": f.line, "kind": f.kind, "message": f.message} for f in self.notes],
        }


class Verifier:
    """Feed lines in order, newline included, then `finish`. task: the one expected, or "" for the first record's."""

    def __init__(self, *, task: str = "", head: str = "") -> None:
        self._report = Report(task=task)
        self._known = head
        self._seen_known = not head or head == GENESIS
        self._line = 0
        self._seq = -1
        self._pending: list[bytes] = []
        self._pending_fault: Finding | None = None

    def feed(self, raw: bytes) -> dict[str, Any] | None:
        """Check one line; the record where it is sound in itself."""
        self._line += 1
        ended = raw.endswith(b"\n")
        line = raw[:-1] if ended else raw
        try:
            record = _parse(line)
        except ParseError as e:
            self._unsound(line, e, ended=ended)
            return None
        if not ended:
            self._fault("torn", "the last record has no newline")
        self._settle(record)
        self._link(record)
        return record

    def finish(self) -> Report:
        """The report, once every line was fed."""
        if self._pending_fault:
            self._report.faults.append(self._pending_fault)
        if self._known:
            self._report.head_compared = True
            if not self._seen_known:
                self._fault("truncated", f"the known head `{self._known[:16]}…` is not in this log")
        self._report.faults.sort(key=lambda f: f.line)
        return self._report

    def _fault(self, kind: str, message: str) -> None:
        self._report.faults.append(Finding(self._line, kind, message))

    def _unsound(self, line: bytes, error: ParseError, *, ended: bool) -> None:
        if not can_be_torn(line):
            self._fault(error.reason, str(error))
            return
        if self._pending_fault is None:
            self._pending_fault = Finding(
                self._line,
                "malformed" if ended else "torn",
                str(error) if ended else f"{len(line)} bytes without a newline: a writer died, or the end was cut",
            )
        self._pending.append(line)

    def _settle(self, record: dict[str, Any]) -> None:
        """Torn bytes are accounted for when the next sound record names them; else they stay a fault."""
        fault = self._pending_fault
        if fault is None:
            return
        torn = b"\n".join(self._pending)
        self._pending, self._pending_fault = [], None
        if names_torn(record, torn):
            note = f"a writer died after {len(torn)} bytes; line {self._line} names them"
            self._report.notes.append(Finding(fault.line, "torn", note))
        else:
            self._report.faults.append(fault)

    def _link(self, record: dict[str, Any]) -> None:
        report = self._report
        seq = record["seq"]
        if record["prev"] != report.head:
            expected = self._seq + 1
            if seq > expected:
                self._fault("gap", f"record {seq} follows record {self._seq}: {seq - expected} missing")
            elif seq < expected:
                self._fault("reordered", f"record {seq} comes after record {self._seq}")
            else:
                self._fault("unlinked", f"record {seq} does not continue the record before it")
        elif seq != self._seq + 1:
            self._fault("gap", f"record {seq} follows record {self._seq}")
        if not report.task:
            report.task = record["task"]
        elif record["task"] != report.task:
            self._fault("foreign_task", f"record {seq} is of task `{record['task'][:80]}`, not `{report.task[:80]}`")
        self._seq = seq
        report.head = record["hash"]
        report.records += 1
        self._seen_known = self._seen_known or report.head == self._known


def _parse(line: bytes) -> dict[str, Any]:
    record = decode(line)
    if type(record) is not dict:
        raise ParseError("not a JSON object", reason="fields")
    if tuple(sorted(record)) != FIELDS:
        odd = sorted(set(record) ^ set(FIELDS))
        raise ParseError(f"missing or unknown field `{odd[0][:80]}`", reason="fields")
    texts = ("effect", "kind", "layer", "reason", "rule", "task", "time")
    wrong = [name for name in texts if type(record[name]) is not str]
    wrong += [name for name in ("hash", "prev") if not is_digest(record[name])]
    if type(record["seq"]) is not int or record["seq"] < 0:
        wrong.append("seq")
    if type(record["detail"]) is not dict:
        wrong.append("detail")
    if wrong:
        raise ParseError(f"field `{wrong[0]}` has a wrong type or form", reason="fields")
    if encode(record) != line:
        raise ParseError("not in canonical form", reason="not_canonical")
    claimed = record["hash"]
    actual = digest(encode({k: v for k, v in record.items() if k != "hash"}))
    if claimed != actual:
        raise ParseError(f"record {record['seq']} does not match its hash", reason="edited")
    return record


def verify(lines: Iterable[bytes], *, task: str = "", head: str = "") -> Report:
    """Check a whole log, given as lines that keep their newline."""
    verifier = Verifier(task=task, head=head)
    for line in lines:
        verifier.feed(line)
    return verifier.finish()
