"""docs/POLICY.md lists the keys that the loader knows, with their defaults. Mended with `python THIS_FILE`."""

from __future__ import annotations

import os
import re
import tomllib

from saggar.policy.load import check, default_policy
from saggar.policy.show import literal
from saggar.policy.table import ROOT, Table, Tables, Variables

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "POLICY.md")
START, END = "test_docs.py keeps them so -->\n", "<!-- end of keys -->"


def section(table, title, value, about=""):
    rows, nested = [], []
    for key in table.keys.values():
        inner = getattr(value, key.attribute, None) if value is not None else None
        if isinstance(key.kind, (Table, Tables)):
            nested.append((key, inner))
            continue
        shown = None if value is None or key.required else key.kind.show(inner)
        default = "required" if key.required else "" if shown is None else f"`{literal(shown)}`"
        if isinstance(key.kind, Variables):
            default = "a table, empty"
        rows.append(f"| `{key.name}` | {default} | {key.about} |")
    if title and rows:
        yield f"\n### `{title}`: {about}\n\n| key | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    for key, inner in nested:
        path = f"{title.strip('[]')}.{key.name}" if title else key.name
        if isinstance(key.kind, Tables):
            yield from section(key.kind.item, f"[[{path}]]", example(key.kind.item), key.about)
        else:
            yield from section(key.kind, f"[{path}]", inner, key.about)


def example(table):
    """An element with its defaults, made from required keys only."""
    return table.make(**{key.attribute: "a.test" for key in table.keys.values() if key.required})


def generated():
    return "".join(section(ROOT, "", default_policy())) + "\n"


def read():
    with open(PAGE) as f:
        return f.read()


def test_keys_are_current():
    assert read().partition(START)[2].partition(END)[0] == generated(), f"run `python {os.path.relpath(__file__)}`"


def test_example_loads():
    (example_text,) = re.findall(r"```toml\n(.*?)```", read(), re.DOTALL)
    assert tomllib.loads(example_text)
    assert check(example_text, "docs/POLICY.md") == []


if __name__ == "__main__":
    text = read()
    before, _, rest = text.partition(START)
    with open(PAGE, "w") as f:
        f.write(before + START + generated() + END + rest.partition(END)[2])
