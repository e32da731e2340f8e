from __future__ import annotations

import json
import zipfile

import pytest

from saggar.bench.tau2 import data_host, replay
from saggar.core.errors import UsageError

USERS = {
    "ann_lee_1234": {"name": {"first_name": "Ann", "last_name": "Lee"}, "email": "ann@x.test", "orders": ["#W1234567"]}
}
ORDERS = {"#W1234567": {"order_id": "#W1234567", "user_id": "ann_lee_1234", "items": [{"item_id": "9876543210"}]}}


def task(*actions, words="I am Ann Lee. Cancel my order."):
    return {"id": "1", "user_scenario": {"instructions": words}, "evaluation_criteria": {"actions": list(actions)}}


def action(name, **arguments):
    return {"name": name, "arguments": arguments}


def domain(*tasks):
    return data_host.Domain("retail", list(tasks), {"users": USERS, "orders": ORDERS}, None)


@pytest.mark.parametrize(
    ("made", "effect"),
    [
        (action("get_order_details", order_id="#W1234567"), "allow"),
        (action("cancel_order", order_id="#W1234567"), "ask"),  # a record that the customer did not name himself
        (action("cancel_order", order_id="#W7654321"), "deny"),  # out of nowhere
        (action("return_items", order_id="#W1234567", item_ids=["9876543210"]), "ask"),
        (action("note", text="anything"), "allow"),
        (action("call_discoverable_agent_tool", agent_tool_name="cancel_order", arguments='{"order_id": "#W7654321"}'), "deny"),
    ],
)  # fmt: skip
def test_verdicts(made, effect):
    assert replay.replay(domain(task(made)))[effect] == 1


def test_what_the_customer_names_is_his():
    assert (
        replay.replay(domain(task(action("cancel_order", order_id="#W1234567"), words="cancel #W1234567")))["allow"]
        == 1
    )


def test_from_a_wheel_and_what_is_wrong_with_one(tmp_path):
    wheel = str(tmp_path / "x.whl")
    root = "inspect_evals/tau2/data/domains"
    with zipfile.ZipFile(wheel, "w") as z:
        for name in data_host.DOMAINS:
            z.writestr(f"{root}/{name}/tasks.json", json.dumps([task(action("get_x", a="b"))]))
            z.writestr(f"{root}/{name}/db.json", json.dumps({"users": USERS}))
        z.writestr(f"{root}/banking_knowledge/documents.json", "{}")
    assert set(data_host.load(wheel)) == set(data_host.DOMAINS)
    with pytest.raises(UsageError):
        data_host.load(str(tmp_path / "gone"))
    with zipfile.ZipFile(str(tmp_path / "y.whl"), "w") as z:
        z.writestr(f"{root}/airline/tasks.json", "{")
    with pytest.raises(UsageError):
        data_host.load(str(tmp_path / "y.whl"))
