"""The published schema is the loader's table, and never stricter than the loader."""

from __future__ import annotations

import importlib.util
import json
import os
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from saggar.policy.load import check, default_policy, parse
from saggar.policy.schema import document
from saggar.policy.show import to_json

HERE = os.path.dirname(__file__)


def corpus():
    spec = importlib.util.spec_from_file_location("corpus", f"{HERE}/test_load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [module.FULL, *(r[0] for r in module.REFUSED), *(a[0] for a in module.ACCEPTED)]


def trees():
    for text in corpus():
        try:
            yield text, tomllib.loads(text)
        except (ValueError, RecursionError):
            continue


SCHEMA = Draft202012Validator(document())


def test_published_schema_is_current():
    published = os.path.join(HERE, "..", "..", "..", "docs", "saggar.schema.json")
    with open(published) as f:
        assert json.load(f) == document(), "run `saggar policy schema > docs/saggar.schema.json`"
    Draft202012Validator.check_schema(document())


@pytest.mark.parametrize("text", [t for t, _ in trees()])
def test_schema_refuses_only_what_the_loader_refuses(text):
    tree = tomllib.loads(text)
    if not check(text, "f"):
        assert SCHEMA.is_valid(tree), list(SCHEMA.iter_errors(tree))


def test_schema_finds_most_of_what_the_loader_finds():
    refused = [(text, tree) for text, tree in trees() if check(text, "f")]
    found = [text for text, tree in refused if not SCHEMA.is_valid(tree)]
    assert len(found) > len(refused) / 2


@pytest.mark.parametrize("text", ["memory = 1", "[limits]\nmemroy = 1", "[limits]\ntasks = true", '[limits]\nmemory = "1gib"',
                                  "[[egress.allow]]\nports = [1]", '[[egress.allow]]\nhost = "a*b.test"', '[isolation]\ntier = "x"'])  # fmt: skip
def test_both_refuse(text):
    assert check(text, "f")
    assert not SCHEMA.is_valid(tomllib.loads(text))


def test_shown_policy_is_valid():
    assert SCHEMA.is_valid(to_json(default_policy())["policy"])
    assert SCHEMA.is_valid(to_json(parse(corpus()[0], "f"))["policy"])


@given(st.text(max_size=20))
def test_hosts_that_load_are_valid(host):
    text = f"[[egress.allow]]\nhost = {json.dumps(host)}"
    try:
        tree = tomllib.loads(text)
    except ValueError:
        return
    if not check(text, "f"):
        assert SCHEMA.is_valid(tree)
