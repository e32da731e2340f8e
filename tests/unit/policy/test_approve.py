import pytest

from saggar.core.errors import UsageError
from saggar.policy.approve import proposal

TABLE = """# mine
[[egress.allow]]
host = "other.test"
http = { rules = [{ effect = "ask" }] }

[[egress.allow]]
host = "a.test"
[egress.allow.http]
rules = [   # who may
    { effect = "ask", methods = ["DELETE"], paths = ["/v1/**"] },
]
"""
INLINE = '[[egress.allow]]\nhost = "a.test"\nhttp = { rules = [{ effect = "ask" }] }'
RULE = '{ effect = "approve", methods = ["DELETE"], paths = ["/v1/7"] }'


def added(text, **more):
    options = {"method": "DELETE", "paths": ["/v1/7"], "exact": True, "conditions": {}, **more}
    grant = options.pop("grant", "egress.allow[1]" if text.startswith("# mine") else "egress.allow[0]")
    lines = proposal(text, "/etc/saggar.toml", "a.test", 443, grant=grant, **options).splitlines()
    assert lines[:2] == ["--- a/saggar.toml", "+++ b/saggar.toml"]
    return [line for line in lines[2:] if line[0] in "+-\\"]


def test_the_rule_goes_first_into_its_hosts_list():
    # a comment behind the bracket goes along
    assert added(TABLE) == [
        "-rules = [   # who may",
        "+rules = [",
        f"+    {RULE},   # who may",
    ]
    assert added(INLINE) == [
        '-http = { rules = [{ effect = "ask" }] }',
        "\\ No newline at end of file",
        f'+http = {{ rules = [{RULE}, {{ effect = "ask" }}] }}',
        "\\ No newline at end of file",
    ]


@pytest.mark.parametrize(
    "text",
    [
        INLINE.replace("a.test", "b.test"),
        INLINE.replace('host = "a.test"', 'host = "a.test"\nports = [80]'),
        '[[egress.allow]]\nhost = "a.test"\n"http"."rules" = [{ effect = "ask" }]',
        '[[egress.allow]]\nhost = "a.test"\nhttp = { profile = "openai" }',
    ],
)
def test_what_cannot_be_edited_safely_is_said(text):
    with pytest.raises(UsageError) as e:
        added(text)
    assert RULE in e.value.hint


def test_a_path_that_a_pattern_cannot_say():
    with pytest.raises(UsageError, match=r"\*"):
        added(INLINE, paths=["/v1/*"])
    assert '"/v1/*"' in added(INLINE, paths=["/v1/*"], exact=False)[2]


def test_a_path_cannot_leave_its_string():
    (line,) = [x for x in added(INLINE + "\n", paths=['/a"] }, { paths = ["/b'], exact=False) if x.startswith("+")]
    assert '\\"' in line


def test_the_conditions_of_the_rule_that_asked_go_along():
    conditions = {"query": {"dry_run": "true"}, "headers": {"x-a": "b*"}, "content_types": ["a/b"], "max_body": 100}
    (line,) = [x for x in added(INLINE + "\n", conditions=conditions) if x.startswith("+")]
    assert (
        'paths = ["/v1/7"], query = { dry_run = "true" }, headers = { x-a = "b*" }, content_types = ["a/b"], '
        "max_body = 100 }," in line
    )


def test_the_entry_is_the_one_that_asked():
    assert added(INLINE, grant="egress.allow[0]")
    with pytest.raises(UsageError):
        added(INLINE, grant="egress.allow[1]")
