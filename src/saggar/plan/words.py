"""The closed tables of restricted Python: what it has, and for what it has not, what to write in its place."""

from __future__ import annotations

import ast

from saggar.core.tool import TypeSpec

BINARY: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.In: "in",
}
FUNCTIONS = frozenset(
    {
        *("len", "sum", "min", "max", "abs", "round", "str", "int", "float", "keys", "values", "matches"),
        *("number_in", "add_minutes", "minutes_between", "day_of", "time_of", "weekday_of", "hours_minutes"),
        *("known", "flatten", "unique", "tally", "near"),
    }
)
METHODS = frozenset({"lower", "upper", "strip", "startswith", "endswith", "replace", "split", "join"})
FORMS = frozenset(
    {"extract", "summarise", "select", "one", "first", "ask_user", "choose", "reply", "bounded", "one_of"}
)

SCHEMA_WORDS: dict[str, TypeSpec] = {
    **{word: TypeSpec(word) for word in ("string", "integer", "number", "boolean")},
    **{word: TypeSpec("string", format=word) for word in ("url", "email", "date")},
}

#: what is refused, and what to write in its place
REMEDIES: dict[str, str] = {
    "While": "use `for x in bounded(list, n)`: every loop of a plan has a bound",
    "Import": "a plan has its tools and the built-in functions only",
    "ImportFrom": "a plan has its tools and the built-in functions only",
    "Try": "a failed call gives `not enough information`; test it with `known(x)`",
    "TryStar": "a failed call gives `not enough information`; test it with `known(x)`",
    "Raise": "use `reply(...)` to tell the user",
    "With": "call the tool and assign its result",
    "ClassDef": "use a dict",
    "AsyncFunctionDef": "use `def name():` for a fragment",
    "AsyncFor": "use `for`",
    "AsyncWith": "call the tool and assign its result",
    "Return": "use `reply(...)`; a fragment gives nothing back",
    "Delete": "names need no deleting",
    "Global": "names of a plan are visible everywhere below",
    "Nonlocal": "names of a plan are visible everywhere below",
    "Assert": "use `if`",
    "Break": "filter the list with `select(list, where=lambda x: ...)` first",
    "Continue": "filter the list with `select(list, where=lambda x: ...)` first",
    "Match": "use `if` and `else`",
    "AnnAssign": "write `name = value`",
    "TypeAlias": "write `name = value`",
    "NamedExpr": "assign on a line of its own",
    "Lambda": "a lambda stands only in `where=` and `sort=` of select, one and first",
    "SetComp": "use a list, and `unique(list)`",
    "DictComp": "use a list of dicts",
    "GeneratorExp": "use a list: `[... for x in list]`",
    "Set": "use a list, and `unique(list)`",
    "Tuple": "use a list",
    "Await": "calls need no await",
    "Yield": "use a list comprehension",
    "YieldFrom": "use a list comprehension",
    "Starred": "name each argument",
    "Slice": "use `first(list)` or `select(list, where=...)`",
    "FormattedValue": "use `round(x, 2)` or `str(x)` inside the braces, without a format",
    "MatMult": "use + - * /",
    "Mod": "use + - * /",
    "Pow": "use + - * /",
    "FloorDiv": "use + - * /, and `int(x)`",
    "Is": "use ==",
    "IsNot": "use !=",
}
