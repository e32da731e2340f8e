"""The `select` step: filter, sort and take, with what was looked at in the label of the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saggar.core.label import join
from saggar.plan.expression import Meter, evaluate
from saggar.plan.node import Node, missing, raw, whole
from saggar.plan.step import Select


def choose(step: Select, source: Node, scope: Mapping[str, Node], meter: Meter) -> Node:
    """Filter, sort, take. The label of every test and sort key goes into the list's own, and so into each element."""
    if not isinstance(source.data, tuple):
        return missing(whole(source))
    shape = source.label
    rows: list[tuple[Any, Node]] = []
    for item in source.items():
        inner = {**scope, step.var: item}
        if step.where is not None:
            test = evaluate(step.where, inner, meter)
            shape = join(shape, whole(test))
            if test.data is not True:
                continue
        order: Any = 0
        if step.sort is not None:
            sort_key = evaluate(step.sort, inner, meter)
            shape = join(shape, whole(sort_key))
            order = raw(sort_key)
        rows.append((order, item))
    if step.sort is not None:
        numbers = all(isinstance(o, int | float) and not isinstance(o, bool) for o, _ in rows)
        if not (numbers or all(isinstance(o, str) for o, _ in rows)):
            return missing(shape)
        rows.sort(key=lambda row: row[0], reverse=step.descending)
    if step.take == "all":
        return Node(tuple(item for _, item in rows), shape)
    if not rows or (step.take == "one" and len(rows) != 1):
        return missing(shape)
    return rows[0][1].under(shape)
