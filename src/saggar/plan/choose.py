"""The `select` step: filter, sort and take, with what was looked at in the label of the result, and for one element
which choice it came out of (`audience`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saggar.core.label import NEUTRAL, Label, join
from saggar.plan.expression import Meter, evaluate
from saggar.plan.node import Node, Pick, Picked, missing, raw, whole
from saggar.plan.step import Select


def choose(step: Select, source: Node, scope: Mapping[str, Node], meter: Meter) -> Node:
    """Filter, sort, take. The label of every test and sort key goes into the list's own, and so into each element."""
    if not isinstance(source.data, tuple):
        return missing(whole(source))
    shape = source.label
    rows: list[tuple[Any, Node]] = []
    asked: list[tuple[Node, Label]] = []
    for item in source.items():
        inner = {**scope, step.var: item}
        tested = key = NEUTRAL
        if step.where is not None:
            test = evaluate(step.where, inner, meter)
            tested = whole(test)
            shape = join(shape, tested)
            if test.data is not True:
                asked.append((item, tested))
                continue
        order: Any = 0
        if step.sort is not None:
            sort_key = evaluate(step.sort, inner, meter)
            key = whole(sort_key)
            shape = join(shape, key)
            order = raw(sort_key)
        asked.append((item, join(tested, key)))
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
    return _marked(rows[0][1], shape, Pick(tuple(asked)))


def _marked(item: Node, shape: Label, pick: Pick) -> Node:
    """The element under the choice's label, with the mark of the choice; one that another choice marked gets none."""
    mark = Picked(pick, item.label) if item.picked is None else None
    out = item.under(shape)
    return Node(out.data, out.label, out.writer, out.names, out.settled, mark, out.drift)
