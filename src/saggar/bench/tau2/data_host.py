"""tau2's tasks and databases, from the `inspect-evals` wheel (or the installed package): read as files, never imported."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from saggar.core.errors import Unenforceable, UsageError

DOMAINS = ("airline", "retail", "banking_knowledge")
_ROOT = "inspect_evals/tau2/data/domains"
MAX_FILE = 64 * 1024 * 1024

Read = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Domain:
    """tasks, as published. database: what the domain's tools read and write. texts: the agents' documents."""

    name: str
    tasks: list[dict[str, Any]]
    database: Any
    texts: Any


def load(place: str = "") -> dict[str, Domain]:
    """The three domains. place: a wheel or an unpacked one; "" looks for the installed package.

    Raises `Unenforceable` where there is no data, `UsageError` for a place that holds none.
    """
    read = _reader(place)
    return {name: _domain(name, read) for name in DOMAINS}


def _reader(place: str) -> Read:
    if not place:
        spec = find_spec("inspect_evals")
        if spec is None or not spec.submodule_search_locations:
            raise Unenforceable(
                "this benchmark reads the data of the `inspect-evals` wheel",
                cause="it is not installed",
                remedy="pip download --no-deps inspect-evals, then `saggar bench tau2 --data FILE.whl`",
            )
        place = os.path.dirname(next(iter(spec.submodule_search_locations)))
    if os.path.isdir(place):
        return lambda name: _file(os.path.join(place, _ROOT, name))
    if not zipfile.is_zipfile(place):
        raise UsageError(f"`{place}` is no wheel and no directory")
    archive = zipfile.ZipFile(place)

    def read(name: str) -> bytes:
        info = archive.getinfo(f"{_ROOT}/{name}")
        if info.file_size > MAX_FILE:
            raise UsageError(f"`{name}` in `{place}` is too large")
        return archive.read(info)

    return read


def _file(path: str) -> bytes:
    with open(path, "rb") as f:
        data = f.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise UsageError(f"`{path}` is too large")
    return data


def _domain(name: str, read: Read) -> Domain:
    tasks = _json(read, f"{name}/tasks.json")
    if not isinstance(tasks, list):
        raise UsageError(f"the tasks of `{name}` are no list")
    texts = _json(read, f"{name}/documents.json") if name == "banking_knowledge" else None
    return Domain(name, tasks, _json(read, f"{name}/db.json"), texts)


def _json(read: Read, name: str) -> Any:
    for file, unpack in ((name, bytes), (f"{name}.gz", gzip.decompress)):
        try:
            return json.loads(unpack(read(file)))
        except (KeyError, FileNotFoundError):
            continue
        except (ValueError, OSError, EOFError) as err:
            raise UsageError(f"`{file}` does not parse: {type(err).__name__}") from None
    raise UsageError(f"there is no `{name}`", hint="the data is in inspect_evals/tau2/data of the wheel")
