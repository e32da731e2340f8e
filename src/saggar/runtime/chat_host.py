"""`saggar chat`: requests at a terminal, the plan shown before it runs, each step with where its value came from.

Cards appear inline, through the session's own terminal channel. Everything printed that a tool or model wrote is freed
of control characters first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from saggar.core.errors import SaggarError
from saggar.core.why import why
from saggar.plan.check import Report
from saggar.plan.provenance import Event, sources
from saggar.plan.step import Call, Plan, all_steps
from saggar.plan.worker import clean
from saggar.runtime.session_host import Answer, Session

HELP = (
    "type a request; /plan shows the last plan, /trace what it did, /resume goes on with one that waits, /quit ends\n"
)
#: how often a person may name none of a question's options
TRIES = 2


@dataclass(slots=True)
class Chat:
    """One conversation. read: gives the next line, or None at the end. assume: start plans without asking."""

    out: TextIO
    read: Callable[[str], str | None]
    assume: bool = False
    last: Answer | None = None
    #: a question of the plan's own found nobody
    unanswered: bool = False

    def loop(self, session: Session, *, resumed: bool = False) -> int:
        """Runs until the end of input, or two Ctrl-C in a row at the prompt. resumed: begin with the request that an
        earlier chat left waiting. Exit code 0."""
        self.say(HELP)
        if resumed:
            self.done(session, session.resume_sync)
        while (line := self.prompt()) is not None:
            request = line.strip()
            if request in ("/quit", "/exit"):
                break
            if request == "/resume":
                self.resume(session)
            elif request.startswith("/"):
                self.command(request)
            elif request:
                self.done(session, lambda request=request: session.ask_sync(request))  # type: ignore[misc]
        return 0

    def prompt(self) -> str | None:
        """The next line; None at the end."""
        for hint in ("\n(Ctrl-C once more, or /quit, ends)\n", "\n"):
            try:
                return self.read("> ")
            except KeyboardInterrupt:
                self.say(hint)
        return None

    def resume(self, session: Session) -> None:
        """Go on with the last request, where it waits for somebody."""
        last = self.last
        if last is None or last.status != "parked":
            self.say("nothing waits\n")
        else:
            self.done(session, lambda: session.resume_sync(last.number))

    def done(self, session: Session, ask: Callable[[], Answer]) -> None:
        """One request from its plan to what is said of it."""
        self.unanswered = False
        try:
            self.last = ask()
        except SaggarError as err:
            self.say(f"not done: {err}\n")
            return
        except KeyboardInterrupt:
            # a call that was cut off is on record as begun, and is not tried again; the session goes on
            self.say("\nstopped; what was done stays done, `saggar plan trace` shows it\n")
            return
        self.answer(self.last, session.id)

    def answer(self, answer: Answer, run: str) -> None:
        chip = sources(answer.result.label)
        if answer.text:
            self.say(f"\n{answer.text}\n  ({chip})\n")
        if answer.status == "parked":
            where = f"at step {answer.result.waiting}"
            again = f"/resume, or `saggar chat --resume {run}` later,"
            if self.unanswered:
                self.say(f"it waits for your answer {where}: {again} asks again\n")
            else:
                self.say(f"it waits for you {where}: `saggar approvals list`; {again} goes on\n")
        elif answer.status != "done":
            self.say(f"it ended early: {answer.result.reason}\n")

    def command(self, word: str) -> None:
        from saggar.plan.provenance import as_text

        if self.last is None or word not in ("/plan", "/trace"):
            self.say(HELP if word not in ("/plan", "/trace") else "nothing was asked yet\n")
        elif word == "/plan":
            self.say(plan_lines(self.last.plan, self.last.report))
        else:
            self.say(as_text(self.last.result.events))

    def show_plan(self, plan: Plan, report: Report) -> bool:
        """For `on_plan`: the plan, and whether to start it."""
        self.say(plan_lines(plan, report))
        if self.assume:
            return True
        word = self.read("start? [Y/n] ")
        return word is not None and word.strip().casefold() in ("", "y", "yes")

    def show_step(self, event: Event) -> None:
        """For `on_step`: one line a step."""
        mark = {"allow": "+", "ask": "?", "deny": "-", "skip": "."}.get(event.effect, " ")
        if event.effect == "ask" and event.approved:
            mark = "+"
        refused = "" if event.effect in ("allow", "") else f" [{event.reason}]"
        self.say(f" {mark} {event.kind} {event.name}{refused}  ({sources(event.label)})\n")

    def person(self, key: str, question: str, options: tuple[str, ...], suggest: str) -> str | None:  # noqa: ARG002
        self.say(f"\nthe plan asks: {question}\n")
        if suggest:
            self.say(f"  (read from data: {suggest})\n")
        if options:
            self.say(f"  one of: {', '.join(options)}\n")
        found: str | None = None
        for left in reversed(range(TRIES)):
            found = self.read("your answer: ")
            if found is None or not options or found.strip() in options:
                break
            if left:
                self.say("that is none of them\n")
        self.unanswered = found is None
        return found.strip() if found is not None and options else found

    def say(self, text: str) -> None:
        self.out.write(clean(text))
        self.out.flush()


@dataclass(slots=True)
class ChatPerson:
    """Implements `plan.execute.Person` with a chat's terminal."""

    chat: Chat

    def answer(self, key: str, question: str, options: tuple[str, ...], suggest: str) -> str | None:
        return self.chat.person(key, question, options, suggest)


def plan_lines(plan: Plan, report: Report) -> str:
    """The plan as a person reads it: its calls in order, its tools, and what it may ask."""
    lines = ["plan:"]
    for step in all_steps(plan):
        what = f"call {step.tool}({', '.join(n for n, _ in step.args)})" if isinstance(step, Call) else _kind(step)
        name = getattr(step, "out", "")
        lines.append(f"  {step.id:<5} {name + ' = ' if name else ''}{what}")
    tools = ", ".join(f"{n} (at most {c})" for n, c in sorted(report.tools.items()))
    lines.append(f"tools: {tools or 'none'}; worker: up to {report.worker_calls} answers")
    lines += [
        f"{'will' if q.certain else 'may'} ask you about {q.tool}: {why(q.reason)}"
        if q.tool
        else f"{'will' if q.certain else 'may'} ask you something of its own"
        for q in report.questions
    ]
    return "\n".join(lines) + "\n"


def _kind(step: object) -> str:
    words = {"ForEach": "for each", "AskUser": "ask you"}
    name = type(step).__name__
    return words.get(name, name.lower())
