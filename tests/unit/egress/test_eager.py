import asyncio

import pytest

from saggar.egress import eager
from saggar.egress.shares_host import Shares


def share_of(clock=lambda: 0):
    return Shares(asyncio.get_running_loop(), clock=clock).join()


def test_what_never_waits_needs_no_task():
    done = []

    async def work():
        done.append(1)

    async def main():
        assert eager.start(asyncio.get_running_loop(), work(), share_of()) is None

    asyncio.run(main())
    assert done == [1]


def test_what_waits_goes_on_in_a_task():
    steps = []

    async def work(future):
        steps.append("first")
        steps.append(await future)
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        steps.append("last")

    async def main():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        task = eager.start(loop, work(future), share_of())
        assert steps == ["first"]
        future.set_result("value")
        await task
        assert steps == ["first", "value", "last"]

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_an_error_is_raised_where_the_wait_is(error):
    seen = []

    async def work(future):
        try:
            await future
        except error:
            seen.append(error)
            raise

    async def main():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        task = eager.start(loop, work(future), share_of())
        await asyncio.sleep(0)
        if error is asyncio.CancelledError:
            task.cancel()
        else:
            future.set_exception(error())
        with pytest.raises(error):
            await task

    asyncio.run(main())
    assert seen == [error]


def test_each_step_is_measured():
    now = [10**12]

    async def work():
        now[0] += 300_000
        await asyncio.sleep(0)
        now[0] += 500_000
        return "done"

    async def main():
        share = share_of(lambda: now[0])
        task = asyncio.ensure_future(eager.metered(work(), share))
        await asyncio.sleep(0)
        assert share.work == 300_000
        assert await task == "done"
        assert share.work == 800_000

    asyncio.run(main())


def test_a_step_that_fails_is_measured_too():
    now = [10**12]

    async def work():
        now[0] += 300_000
        raise ValueError

    async def main():
        share = share_of(lambda: now[0])
        with pytest.raises(ValueError):
            await eager.metered(work(), share)
        assert share.work == 300_000

    asyncio.run(main())
