"""Restricted Python to plan: a planner's (or a person's) source text, read with `ast`, never executed.

I1  The result is a plan or a `UsageError` with the line and a remedy; no other exception, bounded by the text's size.
I2  Nothing of the source runs: names are looked up in closed tables, and every construct not named here is refused.
I3  A literal is labelled `user` only where its exact words stand in the request, and keeps their span.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from saggar.core.errors import ParseError, UsageError
from saggar.core.tool import TypeSpec
from saggar.plan import operation, parse
from saggar.plan import step as steps
from saggar.plan.expression import MAX_LITERAL, Each, Expr, Get, ListOf, Lit, ObjectOf, Op, Ref, Text, is_name
from saggar.plan.forms import FORM_BUILDERS
from saggar.plan.step import Call, ForEach, Fragment, If, Plan, Reply, Select, Step
from saggar.plan.words import BINARY, COMPARE, FORMS, FUNCTIONS, METHODS, REMEDIES, SCHEMA_WORDS

MAX_SOURCE = 128 * 1024


def compile_source(source: str, request: str, tools: Collection[str], *, file: str = "") -> Plan:
    """The plan that `source` says for the user's `request`. Raises `UsageError` (I1)."""
    if len(source) > MAX_SOURCE or len(request) > parse.MAX_REQUEST:
        raise UsageError("the source or the request is too long", file=file, hint=f"at most {MAX_SOURCE} characters")
    try:
        tree = ast.parse(source)
    except SyntaxError as err:
        raise UsageError(f"not Python: {err.msg}", file=file, line=err.lineno or 0) from None
    except (ValueError, RecursionError, MemoryError) as err:
        raise UsageError(f"not Python: {type(err).__name__}", file=file) from None
    compiler = Compiler(request, frozenset(tools), file)
    try:
        plan = compiler.plan(tree)
        # the JSON reader's limits hold for every plan, whichever way it came
        parse.check_names(plan)
        parse.from_json(parse.dump(plan))
    except parse.UnsetName as err:
        raise UsageError(str(err), file=file, line=err.line, hint="assign it on a line above") from None
    except ParseError as err:
        raise UsageError(str(err), file=file, line=compiler.line, hint="see docs/PLANS.md") from None
    except RecursionError:
        raise UsageError("nested too deeply", file=file, line=compiler.line, hint="use more statements") from None
    return plan


class Compiler:
    __slots__ = ("count", "file", "inside", "line", "out", "pure", "request", "temporaries", "tools")

    def __init__(self, request: str, tools: frozenset[str], file: str) -> None:
        self.request = request
        self.tools = tools
        self.file = file
        self.line = 0
        self.count = 0
        self.temporaries = 0
        self.inside = False  # in a fragment
        self.out: list[Step] = []
        self.pure = 0  # above 0: inside a lambda, a branch or a comprehension, where a step cannot be taken

    def refuse(self, node: ast.AST, message: str, hint: str = "") -> NoReturn:
        line = getattr(node, "lineno", self.line)
        raise UsageError(message, file=self.file, line=line, hint=hint)

    def unknown(self, node: ast.AST) -> NoReturn:
        name = type(node).__name__
        self.refuse(node, f"`{name}` is not part of a plan", REMEDIES.get(name, "see docs/PLANS.md for what is"))

    def next_id(self) -> str:
        self.count += 1
        return f"s{self.count}"

    def plan(self, tree: ast.Module) -> Plan:
        fragments = []
        body: list[ast.stmt] = []
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                fragments.append(node)
            else:
                body.append(node)
        main = self.block(body)
        return Plan(self.request, main, tuple(map(self.fragment, fragments)))

    def fragment(self, node: ast.FunctionDef) -> Fragment:
        a = node.args
        if a.args or a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs or node.decorator_list:
            self.refuse(node, "a fragment takes no arguments and no decorators", "names of the plan are visible in it")
        when = ast.get_docstring(node)
        if not when:
            self.refuse(node, "a fragment opens with a docstring", "say in it when the fragment is meant")
        self.inside = True
        return Fragment(node.name, when, self.block(node.body[1:]))

    def block(self, body: list[ast.stmt]) -> tuple[Step, ...]:
        outer, self.out = self.out, []
        try:
            for node in body:
                self.line = node.lineno
                self.statement(node)
            return tuple(self.out)
        finally:
            self.out = outer

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
                self.refuse(node, "an assignment has one plain name on its left", "write `name = value`")
            self.assign(self.own_name(node.targets[0]), node.value)
        elif isinstance(node, ast.AugAssign):
            if not isinstance(node.target, ast.Name) or type(node.op) not in BINARY:
                self.refuse(node, "this assignment is not part of a plan", "write `name = name + value`")
            name = self.own_name(node.target)
            value = Op(BINARY[type(node.op)], (Ref(name), self.expr(node.value)))
            self.emit(Select(self.next_id(), value, name, pure=True, line=node.lineno))
        elif isinstance(node, ast.Expr):
            self.bare(node.value)
        elif isinstance(node, ast.If):
            test = self.expr(node.test)
            step_id = self.next_id()
            self.emit(If(step_id, test, self.block(node.body), self.block(node.orelse), node.lineno))
        elif isinstance(node, ast.For):
            self.loop(node)
        elif not isinstance(node, ast.Pass):
            self.unknown(node)

    def own_name(self, node: ast.Name) -> str:
        if not is_name(node.id) or node.id in self.tools | FUNCTIONS | FORMS or node.id.startswith("_"):
            self.refuse(node, f"`{node.id}` cannot be a name of the plan", "take a name that no tool or function has")
        return node.id

    def emit(self, step: Step) -> None:
        self.out.append(step)

    def bare(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return  # a docstring
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            self.refuse(node, "a line that does nothing", "assign the value, or call a tool")
        if node.func.id == "reply":
            self.reply(node)
        elif node.func.id in ("ask_user", "choose") or node.func.id in self.tools:
            self.step_of(node, "")
        else:
            self.refuse(node, f"`{node.func.id}` is no tool, and its value is dropped", "assign it to a name")

    def assign(self, name: str, node: ast.expr) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            word = node.func.id
            if word in self.tools or word in FORMS:
                self.step_of(node, name)
                return
        if isinstance(node, ast.ListComp) and self.has_step(node):
            self.gather(node, name)
            return
        value = self.expr(node)
        self.emit(Select(self.next_id(), value, name, pure=True, line=node.lineno))

    def has_step(self, node: ast.AST) -> bool:
        words = (self.tools | FORMS) - {"one_of"}
        return any(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in words for n in ast.walk(node)
        )

    def reply(self, node: ast.Call) -> None:
        if node.keywords or not node.args:
            self.refuse(node, "`reply` takes a text", 'write `reply(f"... {value}")`')
        text = self.expr(node.args[0])
        if len(node.args) > 1:
            text = Text(tuple(x for a in node.args for x in (self.expr(a), Lit(" ")))[:-1])
        self.emit(Reply(self.next_id(), text, node.lineno))

    def loop(self, node: ast.For) -> None:
        if node.orelse or not isinstance(node.target, ast.Name):
            self.refuse(node, "a loop has one plain name and no `else`", "write `for x in list:`")
        source, bound = self.iterable(node.iter)
        var = self.own_name(node.target)
        step_id = self.next_id()
        self.emit(ForEach(step_id, var, source, self.block(node.body), bound, line=node.lineno))

    def iterable(self, node: ast.expr) -> tuple[Expr, int]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bounded":
            if len(node.args) != 2 or node.keywords:
                self.refuse(node, "`bounded` takes a list and a number", "write `bounded(list, 10)`")
            bound = self.constant(node.args[1], int)
            if not 1 <= bound <= steps.MAX_BOUND:
                self.refuse(node, f"a bound is an integer from 1 to {steps.MAX_BOUND}", "narrow the list first")
            return self.expr(node.args[0]), bound
        return self.expr(node), steps.DEFAULT_BOUND

    def constant(self, node: ast.expr, kind: type) -> Any:
        if not isinstance(node, ast.Constant) or type(node.value) is not kind:
            self.refuse(node, f"a literal {kind.__name__} stands here", "write the value itself, not a name")
        return node.value

    def gather(self, node: ast.ListComp, name: str) -> None:
        """`[tool(x) for x in list if test]` to a loop that collects."""
        if len(node.generators) != 1 or not isinstance(node.generators[0].target, ast.Name):
            self.refuse(node, "a list is made by one `for` with one plain name", "nest a second assignment")
        gen = node.generators[0]
        var = self.own_name(node.generators[0].target)
        source, bound = self.iterable(gen.iter)
        step_id = self.next_id()
        outer, self.out = self.out, []
        try:
            self.pure += 1  # the test comes before the round's calls, so it may not contain any
            try:
                keep = self.conjunction(gen.ifs)
            finally:
                self.pure -= 1
            value = self.expr(node.elt)
            body = tuple(self.out)
        finally:
            self.out = outer
        self.emit(ForEach(step_id, var, source, body, bound, value, keep, name, node.lineno))

    def conjunction(self, tests: list[ast.expr]) -> Expr | None:
        if not tests:
            return None
        parts = tuple(self.expr(t) for t in tests)
        return parts[0] if len(parts) == 1 else Op("and", parts)

    def temporary(self, node: ast.expr) -> Expr:
        """A call inside an expression becomes a step before it."""
        if self.pure:
            self.refuse(node, "a call cannot stand in a condition, a branch or a lambda", "assign it on the line above")
        self.temporaries += 1
        name = f"_t{self.temporaries}"
        if isinstance(node, ast.ListComp):
            self.gather(node, name)
        elif isinstance(node, ast.Call):
            self.step_of(node, name)
        return Ref(name)

    def step_of(self, node: ast.Call, out: str) -> None:
        word = node.func.id if isinstance(node.func, ast.Name) else ""
        build = FORM_BUILDERS.get(word)
        if build is not None:
            self.emit(build(self, node, out))
            return
        if word not in self.tools:
            self.refuse(node, f"`{word}` cannot stand here", "see docs/PLANS.md")
        if node.args:
            self.refuse(node, f"arguments of `{word}` are named", f"write `{word}(name=value)`")
        args = tuple((self.keyword(k), self.expr(k.value)) for k in node.keywords)
        self.emit(Call(self.next_id(), word, args, out, node.lineno))

    def keyword(self, node: ast.keyword) -> str:
        if node.arg is None:
            self.refuse(node, "arguments cannot be unpacked", "name each argument")
        return node.arg

    def arguments(self, node: ast.Call, positional: tuple[str, ...], named: tuple[str, ...]) -> dict[str, ast.expr]:
        if len(node.args) > len(positional):
            self.refuse(node, "too many arguments", f"it takes {', '.join(positional + named)}")
        given = dict(zip(positional, node.args, strict=False))
        for k in node.keywords:
            word = self.keyword(k)
            if word not in positional + named or word in given:
                self.refuse(node, f"no argument `{word}`", f"it takes {', '.join(positional + named)}")
            given[word] = k.value
        return given

    def need(self, node: ast.Call, given: dict[str, ast.expr], *words: str) -> None:
        for word in words:
            if word not in given:
                self.refuse(node, f"`{word}` is missing", "see docs/PLANS.md")

    def schema(self, node: ast.expr) -> TypeSpec:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in SCHEMA_WORDS:
            return SCHEMA_WORDS[node.value]
        if isinstance(node, ast.List) and len(node.elts) == 1:
            return TypeSpec("array", items=self.schema(node.elts[0]))
        if isinstance(node, ast.Dict) and node.keys:
            fields = tuple(
                (self.constant(k, str) if k else "", self.schema(v))
                for k, v in zip(node.keys, node.values, strict=True)
            )
            return TypeSpec("object", fields=fields, required=tuple(k for k, _ in fields))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "one_of":
            return TypeSpec("string", enum=tuple(self.constant(a, str) for a in node.args))
        hint = f"a word of {', '.join(SCHEMA_WORDS)}; [T]; {{'name': T}}; one_of('a', 'b')"
        return self.refuse(node, "not a schema", hint)

    def lambda_of(self, node: ast.expr) -> tuple[str, Expr]:
        if not isinstance(node, ast.Lambda) or len(node.args.args) != 1 or node.args.vararg or node.args.kwonlyargs:
            self.refuse(node, "a lambda with one argument stands here", "write `lambda x: x.field == value`")
        var = node.args.args[0].arg
        if not is_name(var):
            self.refuse(node, f"`{var}` cannot be a name of the plan")
        return var, self.inner(node.body)

    def inner(self, node: ast.expr) -> Expr:
        self.pure += 1
        try:
            return self.expr(node)
        finally:
            self.pure -= 1

    def expr(self, node: ast.expr) -> Expr:
        build = _EXPRESSIONS.get(type(node))
        if build is None:
            self.unknown(node)
        return build(self, node)

    def literal(self, node: ast.Constant) -> Expr:
        value = node.value
        fits = value is None or isinstance(value, str | int | float | bool)
        if not fits or (isinstance(value, str) and len(value) > MAX_LITERAL) or operation.bounded(value) is not value:
            self.refuse(node, "a literal is a bounded text, number, boolean or None", "shorten it")
        return Lit(value, find_span(self.request, value))

    def call(self, node: ast.Call) -> Expr:
        if isinstance(node.func, ast.Attribute):
            return self.method(node, node.func)
        if not isinstance(node.func, ast.Name):
            self.refuse(node, "only a tool, a function or a method is called", "see docs/PLANS.md")
        word = node.func.id
        if word in self.tools or word in FORM_BUILDERS:
            return self.temporary(node)
        if word not in FUNCTIONS:
            self.refuse(node, f"no tool and no function `{word}`", f"functions: {', '.join(sorted(FUNCTIONS))}")
        if node.keywords:
            self.refuse(node, f"`{word}` takes no named arguments", "write the values in order")
        return self.operation(node, word, tuple(map(self.expr, node.args)))

    def operation(self, node: ast.AST, word: str, args: tuple[Expr, ...]) -> Expr:
        low, high = operation.ARITY[word]
        if not low <= len(args) <= high:
            self.refuse(node, f"`{word}` takes {low} to {high} arguments", "see docs/PLANS.md")
        return Op(word, args)

    def method(self, node: ast.Call, func: ast.Attribute) -> Expr:
        if func.attr not in METHODS or node.keywords:
            self.refuse(node, f"no method `{func.attr}`", f"methods: {', '.join(sorted(METHODS))}")
        args = (self.expr(func.value), *map(self.expr, node.args))
        return self.operation(node, func.attr, args)

    def compare(self, node: ast.Compare) -> Expr:
        if len(node.ops) != 1:
            self.refuse(node, "comparisons are not chained", "write `a < b and b < c`")
        kind = type(node.ops[0])
        left, right = self.expr(node.left), self.expr(node.comparators[0])
        if kind is ast.NotIn:
            return Op("not", (Op("in", (left, right)),))
        if kind not in COMPARE:
            self.unknown(node.ops[0])
        return Op(COMPARE[kind], (left, right))

    def binary(self, node: ast.BinOp) -> Expr:
        if type(node.op) not in BINARY:
            self.unknown(node.op)
        return Op(BINARY[type(node.op)], (self.expr(node.left), self.expr(node.right)))

    def unary(self, node: ast.UnaryOp) -> Expr:
        if isinstance(node.op, ast.USub):
            return Op("neg", (self.expr(node.operand),))
        if isinstance(node.op, ast.Not):
            return Op("not", (self.expr(node.operand),))
        return self.unknown(node.op)

    def boolean(self, node: ast.BoolOp) -> Expr:
        word = "and" if isinstance(node.op, ast.And) else "or"
        first = self.expr(node.values[0])
        return Op(word, (first, *map(self.inner, node.values[1:])))

    def ternary(self, node: ast.IfExp) -> Expr:
        return Op("if", (self.expr(node.test), self.inner(node.body), self.inner(node.orelse)))

    def attribute(self, node: ast.Attribute) -> Expr:
        if node.attr.startswith("__"):
            self.refuse(node, f"no field `{node.attr}`", "fields are those that the tool declares")
        return Get(self.expr(node.value), Lit(node.attr))

    def subscript(self, node: ast.Subscript) -> Expr:
        if isinstance(node.slice, ast.Slice):
            self.unknown(node.slice)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str | int):
            return Get(self.expr(node.value), Lit(node.slice.value))
        return Get(self.expr(node.value), self.expr(node.slice))

    def formatted(self, node: ast.JoinedStr) -> Expr:
        parts: list[Expr] = []
        for piece in node.values:
            if isinstance(piece, ast.FormattedValue):
                if piece.format_spec is not None or piece.conversion not in (-1, None):
                    self.unknown(piece)
                parts.append(self.expr(piece.value))
            else:
                parts.append(self.expr(piece))
        return Text(tuple(parts))

    def comprehension(self, node: ast.ListComp) -> Expr:
        if self.has_step(node):
            return self.temporary(node)
        if len(node.generators) != 1 or not isinstance(node.generators[0].target, ast.Name):
            self.refuse(node, "a list is made by one `for` with one plain name", "use `flatten([...])`")
        gen = node.generators[0]
        var = node.generators[0].target
        source = self.expr(gen.iter)
        self.pure += 1
        try:
            return Each(self.own_name(var), source, self.expr(node.elt), self.conjunction(gen.ifs))
        finally:
            self.pure -= 1

    def mapping(self, node: ast.Dict) -> Expr:
        if any(k is None for k in node.keys):
            self.refuse(node, "dicts cannot be unpacked", "name each field")
        pairs = zip(node.keys, node.values, strict=True)
        return ObjectOf(tuple((self.constant(k, str), self.expr(v)) for k, v in pairs if k is not None))


def find_span(request: str, value: object) -> tuple[int, int]:
    """Where the request has exactly these words, on word boundaries; (-1, -1) where it has not (I3)."""
    if isinstance(value, bool) or value is None or value == "":
        return (-1, -1)
    needle = str(value)
    at = request.find(needle)
    while at >= 0:
        end = at + len(needle)
        before = at == 0 or not (request[at - 1].isalnum() and needle[0].isalnum())
        after = end == len(request) or not (request[end].isalnum() and needle[-1].isalnum())
        if before and after:
            return (at, end)
        at = request.find(needle, at + 1)
    return (-1, -1)


_EXPRESSIONS: dict[type[ast.expr], Callable[[Compiler, Any], Expr]] = {
    ast.Constant: Compiler.literal,
    ast.Name: lambda _, node: Ref(node.id),
    ast.Attribute: Compiler.attribute,
    ast.Subscript: Compiler.subscript,
    ast.Call: Compiler.call,
    ast.Compare: Compiler.compare,
    ast.BinOp: Compiler.binary,
    ast.UnaryOp: Compiler.unary,
    ast.BoolOp: Compiler.boolean,
    ast.IfExp: Compiler.ternary,
    ast.JoinedStr: Compiler.formatted,
    ast.ListComp: Compiler.comprehension,
    ast.List: lambda c, node: ListOf(tuple(map(c.expr, node.elts))),
    ast.Dict: Compiler.mapping,
}
