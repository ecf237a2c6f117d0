"""A broker's end of the protocol, scripted by the test, on a real ROUTER."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from triptych.client import Client
from triptych.schemas.client import (
    ClientMsg,
    ClientReplyMsg,
    HelloMsg,
    PingMsg,
    PongMsg,
    ResultMsg,
    SubmitMsg,
    WelcomeMsg,
)
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits
from triptych.schemas.timing import StageTiming, TransferTiming
from triptych.schemas.transfer import PROTOCOL_VERSION, MediaInfo
from triptych.transport.link.channels import broker_to_clients
from triptych.transport.link.router import RouterLink

LIMITS = SamplingLimits(max_inference_steps=100, max_size=128, max_images=4)
STAGES = (StageTiming(Role.ENCODER, "encoder-0", compute_s=0.25), StageTiming(Role.DENOISER, "denoiser-0"))
TRANSFERS = (TransferTiming("encoder-0", "denoiser-0", 512, 0.001),)

M = TypeVar("M")


class ScriptedBroker:
    """Takes and says one message at a time.

    Those about the link are not for the test to take: a PING is answered at once while `answers_pings`, a HELLO while
    there are `limits` to tell.
    """

    def __init__(self, link: RouterLink[ClientMsg, ClientReplyMsg]) -> None:
        self.link = link
        self.peer = b""
        self.answers_pings = True
        self.unknown: tuple[str, ...] = ()
        self.limits: SamplingLimits | None = None
        self.pings: list[PingMsg] = []
        self.pinged = asyncio.Event()
        self._taken: asyncio.Queue[ClientMsg] = asyncio.Queue()

    @property
    def endpoint(self) -> str:
        return self.link.endpoint

    async def run(self) -> None:
        while True:
            for envelope in await self.link.receive():
                self.peer = envelope.peer
                message, _ = self.link.codec.decode(envelope.frames)
                self._hear(message)

    def _hear(self, message: ClientMsg) -> None:
        if isinstance(message, PingMsg):
            self.pings.append(message)
            self.pinged.set()
            if self.answers_pings:
                self.say(PongMsg(tuple(set(message.request_ids) & set(self.unknown))))
        elif isinstance(message, HelloMsg) and self.limits is not None:
            self.say(WelcomeMsg(PROTOCOL_VERSION, "0.1.0", self.limits))
        else:
            self._taken.put_nowait(message)

    async def take(self, kind: type[M]) -> M:
        message = await self._taken.get()
        assert isinstance(message, kind), message
        return message

    def say(self, message: ClientReplyMsg, attachments: tuple[bytes, ...] = ()) -> None:
        self.link.send_nowait(self.peer, message, attachments)

    def say_done(self, submit: SubmitMsg, data: bytes = b"a picture") -> None:
        """Answer with one picture whose bytes are `data`."""
        media = (MediaInfo("image/png", 64, 64, submit.params.seed),)
        self.say(ResultMsg(submit.request_id, media, STAGES, TRANSFERS, 1.5), (data,))


@asynccontextmanager
async def scripted_broker(endpoint: str = "tcp://127.0.0.1:0") -> AsyncIterator[ScriptedBroker]:
    """Listen at `endpoint`."""
    broker = ScriptedBroker(RouterLink(broker_to_clients(), endpoint, 2**20))
    running = asyncio.create_task(broker.run())
    try:
        yield broker
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.link.aclose()


@asynccontextmanager
async def connected(broker: ScriptedBroker, ping_interval_s: float = 60.0) -> AsyncIterator[Client]:
    """Return an entered client that the broker has welcomed."""
    broker.limits = LIMITS
    async with Client(broker.endpoint, ping_interval_s=ping_interval_s) as client:
        yield client
