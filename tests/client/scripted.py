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
    there are `limits` to tell. A PONG tells as unknown what was never submitted and what the broker was made to forget.
    """

    def __init__(self, link: RouterLink[ClientMsg, ClientReplyMsg]) -> None:
        self.link = link
        self.peer = b""
        self.answers_pings = True
        self.limits: SamplingLimits | None = None
        self.models: dict[str, SamplingLimits] = {}
        self.known = set[str]()
        self.pings: list[PingMsg] = []
        self._pinged = asyncio.Event()
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
            self._pinged.set()
            if self.answers_pings:
                self.say_pong(message)
        elif isinstance(message, HelloMsg) and self.limits is not None:
            self.say(WelcomeMsg(PROTOCOL_VERSION, "0.1.0", self.limits, self.models))
        else:
            if isinstance(message, SubmitMsg):
                self.known.add(message.request_id)
            self._taken.put_nowait(message)

    def forget(self, *request_ids: str) -> None:
        """Know these no more."""
        self.known -= set(request_ids)

    async def next_ping(self) -> PingMsg:
        """Wait for a PING that has not come yet."""
        self._pinged.clear()
        await self._pinged.wait()
        return self.pings[-1]

    def say_pong(self, ping: PingMsg) -> None:
        """Answer a PING."""
        self.say(PongMsg(tuple(name for name in ping.request_ids if name not in self.known)))

    async def rest(self, client: Client) -> list[ClientMsg]:
        """Return what was not taken, when all has come that the client has said."""
        self.limits = self.limits or LIMITS
        await client.models()
        return [self._taken.get_nowait() for _ in range(self._taken.qsize())]

    async def take(self, kind: type[M] | tuple[type[M], ...]) -> M:
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
