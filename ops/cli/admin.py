"""`triptych admin`: watch and steer a running broker."""

import asyncio

import msgspec
from rich.console import Console

from ...schemas.admin import AdminCancelMsg, AdminDrainMsg, AdminResumeMsg, AdminStatusReplyMsg
from ...schemas.errors import InvalidRequest, UnknownName
from ..admin_link import AdminLink, admin_link
from .admin_tables import status_page
from .running import run_cancellable

#: between two looks at an instance that drains, in seconds
LOOK_S = 0.2


def show_status(endpoint: str, *, as_json: bool, every_s: float | None) -> None:
    """Print the status once, or `every_s` seconds until Ctrl-C."""
    console = Console()

    async def show() -> None:
        async with admin_link(endpoint) as broker:
            while True:
                _print_status(console, await broker.status(), as_json=as_json, again=every_s is not None)
                if every_s is None:
                    return
                await asyncio.sleep(every_s)

    run_cancellable(show())


def drain(endpoint: str, instance_id: str, *, wait: bool) -> None:
    """Give an instance no more work, and with `wait` return when nothing would be lost with it."""

    async def order() -> None:
        async with admin_link(endpoint) as broker:
            incarnation = (await broker.instance(instance_id)).incarnation
            _say(await broker.order(AdminDrainMsg(instance_id)))
            if wait:
                _say(await _wait_drained(broker, instance_id, incarnation))

    run_cancellable(order())


def give_order(endpoint: str, msg: AdminResumeMsg | AdminCancelMsg) -> None:
    """Have something done, and say what."""

    async def order() -> None:
        async with admin_link(endpoint) as broker:
            _say(await broker.order(msg))

    run_cancellable(order())


def show_story(endpoint: str, request_id: str) -> None:
    """Print the life of a request. Times are the broker's, in seconds."""

    async def show() -> None:
        async with admin_link(endpoint) as broker:
            story = await broker.story(request_id)
            for line in (*story.lines, f"{story.now:.3f} now"):
                _say(line)

    run_cancellable(show())


async def _wait_drained(broker: AdminLink, instance_id: str, incarnation: int) -> str:
    """Wait until the instance holds nothing, and say so. Raises `InvalidRequest` where it is given work again."""
    while True:
        try:
            instance = await broker.instance(instance_id)
        except UnknownName:
            return f"{instance_id} is gone"
        if instance.incarnation != incarnation:
            return f"{instance_id} is gone; a new incarnation of it has come, which gets work"
        if not instance.draining:
            raise InvalidRequest("instance_id", instance_id, "one that stays drained; this one was resumed meanwhile")
        if not instance.holds:
            return f"{instance_id} holds nothing any more; it may be stopped"
        await asyncio.sleep(LOOK_S)


def _print_status(console: Console, reply: AdminStatusReplyMsg, *, as_json: bool, again: bool) -> None:
    if as_json:
        _say(msgspec.json.encode(reply).decode())
        return
    if again and console.is_terminal:
        console.clear()
    console.print(*status_page(reply), sep="\n")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  (whole, however narrow the terminal is)
