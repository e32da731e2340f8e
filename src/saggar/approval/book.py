"""The questions of one task and what was answered: a fold over events, so that a file of events is the whole state.

I1  An answer names the argument hash of its question; any other hash is refused.
I2  A use is spent before the call that it allows; an approval of n uses allows n calls, never n + 1.
I3  Time-out is not denial: the question stays, can be answered later, and then allows the same call once. So does a
    question whose asker went away.
I4  A question for people is answered by people: an answer of the automatic class is refused, whatever it says.
I5  `apply` is total over events that `to_json` wrote, and order alone decides the state.

Times are wall seconds since 1970, because a parked run may be resumed by another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from saggar.core.approval import DEFAULT_LIFE_S, SCOPES, Answer, AnswerKind, CardLine, Question, ReviewerClass, Scope
from saggar.core.errors import ParseError, UsageError

MAX_USES = 100
MAX_LIFE_S = 86400.0
#: how long an answer that says once, and not for how long, waits for a parked run to come back
PARKED_LIFE_S = 86400.0

State = Literal["waiting", "parked", "approved", "denied"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One question and where it stands. asked, answered: wall seconds; answered is 0.0 until then."""

    question: Question
    asked: float
    state: State = "waiting"
    answered: float = 0.0
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """An approval with uses left. key: argument hash, template hash, or `task:` and the tool's name. reasons: those that
    were on the card; a later call that asks for another reason was not approved."""

    question: str
    key: str
    scope: Scope
    uses: int
    expires: float
    reviewer: str
    reviewer_class: ReviewerClass
    reasons: frozenset[str]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. kind: asked, answered, parked or spent."""

    kind: Literal["asked", "answered", "parked", "spent"]
    time: float
    id: str
    question: Question | None = None
    answer: Answer | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind, "time": self.time, "id": self.id}
        if self.question is not None:
            out["question"] = self.question.to_json()
        if self.answer is not None:
            out["answer"] = answer_to_json(self.answer)
        return out


@dataclass(slots=True)
class Book:
    """The state after some events. Pure: nothing here waits, reads a clock or writes."""

    entries: dict[str, Entry] = field(default_factory=dict)
    standing: list[Standing] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        """Take one event that has happened."""
        if event.kind == "asked" and event.question is not None:
            self.entries[event.id] = Entry(event.question, event.time)
        elif event.kind == "parked" and event.id in self.entries:
            self.entries[event.id] = replace(self.entries[event.id], state="parked")
        elif event.kind == "answered" and event.answer is not None and event.id in self.entries:
            self._answered(self.entries[event.id], event.answer, event.time)
        elif event.kind == "spent":
            self._spend(event.id)

    def check_answer(self, ident: str, answer: Answer) -> Question:
        """The question that this answer is for. Raises `UsageError` where the answer does not count (I1, I4)."""
        entry = self.entries.get(ident)
        if entry is None:
            raise UsageError(f"there is no question `{ident}`", hint="saggar approvals list")
        question = entry.question
        if entry.state in ("approved", "denied"):
            raise UsageError(f"the question `{ident}` was answered: {entry.state}")
        if answer.args_hash != question.args_hash:
            raise UsageError(f"this answer is for another call than `{ident}`")
        if answer.kind not in ("approved", "denied"):
            raise UsageError("an answer is approved or denied")
        if question.human_only and answer.kind == "approved" and answer.reviewer_class != "human":
            raise UsageError(f"the question `{ident}` is for a person", hint="answer it at a terminal")
        if answer.scope not in SCOPES or not 1 <= answer.uses <= MAX_USES:
            raise UsageError(f"an approval is once, {MAX_USES} times at most, for a template or for the task")
        if answer.scope == "template" and not question.template_axis:
            raise UsageError(f"the question `{ident}` has no argument that a template could leave open")
        if not 0 < answer.expires_s <= MAX_LIFE_S:
            raise UsageError("an approval lives at most a day")
        return question

    def find(self, question: Question, now: float) -> Standing | None:
        """An approval that covers this question and has a use left."""
        keys = {question.args_hash, f"task:{question.tool}"}
        if question.template_hash:
            keys.add(question.template_hash)
        for standing in self.standing:
            if standing.key in keys and standing.uses > 0 and now < standing.expires:
                if question.human_only and standing.reviewer_class != "human":
                    continue
                if standing.reasons.issuperset(question.reasons):
                    return standing
        return None

    def waiting(self) -> Iterator[Entry]:
        """What a reviewer can answer, oldest first."""
        return (e for e in self.entries.values() if e.state in ("waiting", "parked"))

    def batch(self, ident: str) -> list[Entry]:
        """The open questions of the same tool and template as `ident`, itself first."""
        first = self.entries.get(ident)
        if first is None:
            raise UsageError(f"there is no question `{ident}`", hint="saggar approvals list")
        q = first.question
        same = [
            e
            for e in self.waiting()
            if e.question.id != ident
            and (e.question.tool, e.question.template_hash) == (q.tool, q.template_hash)
            and q.template_hash
        ]
        return [first, *same]

    def _answered(self, entry: Entry, answer: Answer, now: float) -> None:
        question = entry.question
        was_parked = entry.state == "parked"
        state: State = "approved" if answer.kind == "approved" else "denied"
        self.entries[question.id] = replace(entry, state=state, answered=now, answer=answer)
        if answer.kind != "approved":
            return
        # the asking call takes the first use itself, unless it was parked and has gone away
        uses = answer.uses if answer.scope == "times" else 1 if answer.scope == "once" else MAX_USES
        # a span that the reviewer chose is kept; only the default one of a single call would be over before the run is back
        unsaid = answer.scope == "once" and answer.expires_s == DEFAULT_LIFE_S
        life = PARKED_LIFE_S if was_parked and unsaid else answer.expires_s
        left = uses if was_parked else uses - 1
        if left > 0:
            key = {"template": question.template_hash, "task": f"task:{question.tool}"}.get(
                answer.scope, question.args_hash
            )
            self.standing.append(
                Standing(
                    question.id,
                    key,
                    answer.scope,
                    left,
                    now + life,
                    answer.reviewer,
                    answer.reviewer_class,
                    frozenset(question.reasons),
                )
            )

    def _spend(self, ident: str) -> None:
        for i, standing in enumerate(self.standing):
            if standing.question == ident and standing.uses > 0:
                self.standing[i] = replace(standing, uses=standing.uses - 1)
                return


def answer_to_json(answer: Answer) -> dict[str, Any]:
    return {
        "kind": answer.kind,
        "args_hash": answer.args_hash,
        "scope": answer.scope,
        "uses": answer.uses,
        "reviewer": answer.reviewer,
        "reviewer_class": answer.reviewer_class,
        "expires_s": answer.expires_s,
    }


def answer_from_json(data: Any) -> Answer:
    """Raises `ParseError`."""
    fields = {"kind", "args_hash", "scope", "uses", "reviewer", "reviewer_class", "expires_s"}
    if type(data) is not dict or data.keys() != fields:
        raise ParseError("not an answer", reason="answer_form")
    kinds: dict[str, AnswerKind] = {"approved": "approved", "denied": "denied", "timeout": "timeout"}
    scopes: dict[str, Scope] = {s: s for s in SCOPES}
    classes: dict[str, ReviewerClass] = {"human": "human", "automatic": "automatic"}
    kind, scope, who = (data[k] for k in ("kind", "scope", "reviewer_class"))
    words = (kind, scope, who, data["args_hash"], data["reviewer"])
    numbers = type(data["uses"]) is int and type(data["expires_s"]) in (int, float)
    if any(type(w) is not str or len(w) > 256 for w in words) or not numbers:
        raise ParseError("not an answer", reason="answer_form")
    if kind not in kinds or scope not in scopes or who not in classes:
        raise ParseError("not an answer", reason="answer_form")
    return Answer(
        kinds[kind],
        data["args_hash"],
        scopes[scope],
        data["uses"],
        data["reviewer"],
        classes[who],
        float(data["expires_s"]),
    )


def question_from_json(data: Any) -> Question:
    """Raises `ParseError`."""
    try:
        lines = tuple(CardLine(**line) for line in data["lines"])
        rest = {k: v for k, v in data.items() if k not in ("lines", "reasons")}
        return Question(lines=lines, reasons=tuple(data["reasons"]), **rest)
    except (TypeError, KeyError, AttributeError):
        raise ParseError("not a question", reason="question_form") from None


def event_from_json(data: Any) -> Event:
    """Raises `ParseError`."""
    if type(data) is not dict or type(data.get("id")) is not str or type(data.get("time")) not in (int, float):
        raise ParseError("not an event", reason="event_form")
    kind = data.get("kind")
    question = question_from_json(data["question"]) if "question" in data else None
    answer = answer_from_json(data["answer"]) if "answer" in data else None
    for known in ("asked", "answered", "parked", "spent"):
        if kind == known:
            return Event(known, float(data["time"]), data["id"], question, answer)
    raise ParseError("not an event", reason="event_form")
