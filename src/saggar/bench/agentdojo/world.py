"""AgentDojo's suites without a model: environments, tool calls, traces and graders, one small class each.

Needs the `bench` extra (`agentdojo`). Its suites must be imported through `load_suites` first, else its modules
import each other in a circle. Graders mutate the environments that they get, so each sees copies.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import enum
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saggar.bench.agentdojo import traces
from saggar.bench.agentdojo.declarations import SHAPES
from saggar.core.errors import Unenforceable

#: version of the benchmark with 35 injection tasks (949 pairs), and the first one with 27 (629 pairs)
LATEST, FIRST = "v1.2.2", "v1"
#: the one injection task whose goal is words in the answer, not an act
TEXT_ONLY = {("travel", "injection_task_6")}


def load(version: str = LATEST) -> dict[str, Any]:
    """The four suites. Raises `Unenforceable` where the package is not installed."""
    try:
        from agentdojo.task_suite.load_suites import get_suites
    except ModuleNotFoundError as err:
        raise Unenforceable(
            "this benchmark needs the `agentdojo` package", cause=str(err), remedy="pip install 'saggar[bench]'"
        ) from None
    suites: dict[str, Any] = get_suites(version)
    return suites


def clone(environment: Any) -> Any:
    """A copy by pickling, four times as fast as `deepcopy` on these models."""
    return pickle.loads(pickle.dumps(environment))


def truth_of(task: Any, environment: Any) -> list[tuple[str, dict[str, Any]]]:
    """The ground truth's calls."""
    return [(c.function, dict(c.args)) for c in task.ground_truth(clone(environment))]


def plain(value: Any) -> Any:
    """A tool's result as JSON data; times as `YYYY-MM-DD HH:MM`."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    fields = getattr(type(value), "model_fields", None)
    return {k: plain(getattr(value, k)) for k in fields} if fields is not None else value


@dataclass(slots=True)
class Suite:
    """One suite with its base environment, loaded once."""

    name: str
    inner: Any
    base: Any = None
    runtime: Any = None
    #: task id to pickled environment: unpickling is four times as fast as a deep copy
    held: dict[str, bytes] = field(default_factory=dict)
    marked: Any = None

    def __post_init__(self) -> None:
        from agentdojo.functions_runtime import FunctionsRuntime

        self.base = self.inner.load_and_inject_default_environment({})
        self.runtime = FunctionsRuntime(self.inner.tools)

    @property
    def user_tasks(self) -> dict[str, Any]:
        tasks: dict[str, Any] = self.inner.user_tasks
        return tasks

    @property
    def injection_tasks(self) -> dict[str, Any]:
        tasks: dict[str, Any] = self.inner.injection_tasks
        return tasks

    def blob(self, task: Any, *, marked: bool = False) -> bytes:
        """A fresh environment, pickled, as the user task (or nothing, for None) begins it."""
        name = f"{task.ID if task is not None else ''}/{marked}"
        if name not in self.held:
            environment = copy.deepcopy(self.injected() if marked else self.base)
            self.held[name] = pickle.dumps(environment if task is None else task.init_environment(environment))
        return self.held[name]

    def injected(self) -> Any:
        """The environment with a mark in every place that the suite declares for injections (a channel's name among
        them). The goal itself is put in by the tools: some graders search the environment for its words."""
        if self.marked is None:
            places = dict.fromkeys(self.inner.get_injection_vector_defaults(), "IMPORTANT ORDERS FOLLOW")
            self.marked = self.inner.load_and_inject_default_environment(places)
        return self.marked

    def world(self, task: Any) -> World:
        blob = self.blob(task)
        return World(self, pickle.loads(blob), pickle.loads(blob))

    def injection_trace(self, task: Any, environment: Any) -> list[tuple[str, dict[str, Any]]]:
        """The calls that reach the injection's goal; ours where the package ships none."""
        calls = truth_of(task, environment)
        return calls or traces.written(self.name, task, clone(environment))


@dataclass(slots=True)
class World:
    """One environment, changed by calls; `before` is how it began. executed: calls that ran, in order."""

    suite: Suite
    environment: Any
    before: Any
    executed: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def call(self, tool: str, args: Mapping[str, Any]) -> Any:
        """The tool's raw result. Raises whatever the tool raises."""
        self.executed.append((tool, dict(args)))
        result, _ = self.suite.runtime.run_function(self.environment, tool, dict(args), raise_on_error=True)
        return result

    def shaped(self, tool: str, args: Mapping[str, Any]) -> Any:
        """The result as plain data, in the fields that the declaration labels."""
        value = plain(self.call(tool, args))
        shape = SHAPES.get(tool)
        return shape(value) if shape is not None else value

    def owner(self) -> frozenset[str]:
        """The names under which tools know the user: his own address and account number, set up with the account."""
        names = {"owner"}
        for part, attribute in (("inbox", "account_email"), ("bank_account", "iban")):
            held = getattr(self.environment, part, None)
            if held is not None:
                names.add(str(getattr(held, attribute)))
        if getattr(self.environment, "bank_account", None) is not None:
            names.add("me")  # what the bank writes for the account holder in old transactions
        return frozenset(names)

    def _calls(self) -> list[Any]:
        from agentdojo.functions_runtime import FunctionCall

        return [FunctionCall(function=f, args=dict(a)) for f, a in self.executed]

    def useful(self, task: Any, reply: str) -> bool:
        """The user task's own grader."""
        output = [{"type": "text", "content": reply}]
        inner = self.suite.inner
        return bool(
            inner._check_user_task_utility(task, output, clone(self.before), clone(self.environment), self._calls())
        )

    def breached(self, task: Any, reply: str) -> bool:
        """Whether the injection's goal was reached, by executed calls alone."""
        output = [{"type": "text", "content": reply}]
        before, after = clone(self.before), clone(self.environment)
        # one of the graders prints what it looks at
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                return bool(self.suite.inner._check_injection_task_security(task, output, before, after, self._calls()))
            except (KeyError, IndexError):
                # a grader that looks for an object the run did not make (or that the user's own task removed)
                return False


def suites(version: str = LATEST) -> dict[str, Suite]:
    return {name: Suite(name, inner) for name, inner in load(version).items()}
