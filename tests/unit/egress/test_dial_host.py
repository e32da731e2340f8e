"""Whose check an answer that is kept has passed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from saggar.egress.authorize import AuthorizedRequest, authorize
from saggar.egress.destination import Destination
from saggar.egress.dial_host import Dialer, DialError
from saggar.egress.match import RuleSet
from saggar.policy.model import EgressRule

METADATA = "169.254.169.254"


def request(*, metadata):
    rule = EgressRule(id="r", host="meta.test", ports=(80,), allow_metadata=metadata)
    made = authorize(RuleSet([rule]), Destination("meta.test", 80, "http"))
    assert isinstance(made, AuthorizedRequest)
    return made


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as made:
        yield made


def test_an_answer_for_a_rule_with_metadata_is_none_for_one_without(pool):
    async def run():
        asked = []
        dialer = Dialer(pool, lambda host: asked.append(host) or [METADATA])
        assert await dialer.resolve(request(metadata=True)) == (METADATA,)
        assert await dialer.resolve(request(metadata=True)) == (METADATA,)
        assert len(asked) == 1
        with pytest.raises(DialError, match="address_refused"):
            await dialer.resolve(request(metadata=False))
        both = await asyncio.gather(
            *(Dialer.resolve(dialer, request(metadata=m)) for m in (True, False)), return_exceptions=True
        )
        assert (both[0], str(both[1])) == ((METADATA,), "address_refused")

    asyncio.run(run())


def test_changed_rules_ask_anew(pool):
    async def run():
        answers = [METADATA, "10.0.0.9", METADATA]
        dialer = Dialer(pool, lambda _: [answers.pop(0)])
        assert await dialer.resolve(request(metadata=True)) == (METADATA,)
        dialer.forget()
        with pytest.raises(DialError, match="address_refused"):
            await dialer.resolve(request(metadata=True))
        under_way = asyncio.ensure_future(dialer.resolve(request(metadata=True)))
        for _ in range(3):
            await asyncio.sleep(0)
        dialer.forget()  # an answer asked for before it is not kept
        assert await under_way == (METADATA,)
        assert (dialer._answers, dialer._pending) == ({}, {})

    asyncio.run(run())
