"""A worker of one role, without a session: real tensors in real shared memory, no sockets."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import torch

from tests.services.pipelines import Gate, by_prompt, counting, failing, picture
from triptych.schemas.context import RequestContext
from triptych.schemas.manifest import TensorManifest
from triptych.schemas.memory import Slot
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.transfer import (
    ServiceMsg,
    TransferAllocatedMsg,
    TransferAllocMsg,
    TransferProgressMsg,
    TransferPushMsg,
    TransferReadyMsg,
    TransferStagedMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)
from triptych.services.compute import ComputeThread
from triptych.services.job import Parts
from triptych.services.models import Models
from triptych.services.pipelines.interface import Stage
from triptych.services.results.data_link import ResultServer
from triptych.services.worker import Worker
from triptych.transport.tensors.engines.nixl_agent import nixl_installed
from triptych.transport.tensors.manager import DiffusionTransferManager

POOL_BYTES = 2**20
needs_nixl = pytest.mark.skipif(not nixl_installed(), reason="NIXL is not installed")


class Service:
    """A worker of one role, and what it says."""

    def __init__(self, parts: Parts, gate: Gate, tasks: asyncio.TaskGroup, slots: tuple[Slot, ...]) -> None:
        self.worker = Worker(parts, self.send, tasks, slots)
        self.transfers = parts.transfers
        self.slots = slots
        self.gate = gate
        self.said: asyncio.Queue[ServiceMsg] = asyncio.Queue()
        self.attachments: tuple[bytes, ...] = ()
        self.retired_bytes = 0

    def send(self, message: ServiceMsg, attachments: tuple[bytes, ...] = ()) -> None:
        self.said.put_nowait(message)
        self.attachments = attachments or self.attachments

    async def says(self, kind: type[ServiceMsg]) -> ServiceMsg:
        """Return the next message, which must be a `kind`."""
        message = await self.said.get()
        assert isinstance(message, kind), message
        return message

    async def hears(self, kind: type[ServiceMsg]) -> ServiceMsg:
        """Return the next `kind`, passing over all else."""
        while not isinstance(message := await self.said.get(), kind):
            pass
        return message

    @property
    def free_bytes(self) -> int:
        return self.transfers.statistics().pool.memory.free


@asynccontextmanager
async def open_service(
    role: Role,
    pool_bytes: int = POOL_BYTES,
    engine: str = "shm",
    extra: dict[str, Stage] | None = None,
    kind: type[DiffusionTransferManager] = DiffusionTransferManager,
    receive_slots: int = 0,
    results: ResultServer | None = None,
) -> AsyncIterator[Service]:
    """Open a service of `role` and check that it ends with nothing in its pool but its receive slots."""
    gate = Gate()
    stages = {"gate": gate, "count": counting, "fail": failing, "picture": picture, **(extra or {})}
    compute = ComputeThread(one_model(by_prompt(stages)), threads=1)
    transfers = kind.open(instance_id=f"{role}-test-{os.getpid()}", incarnation=1, pool_bytes=pool_bytes, engine=engine)
    parts = Parts(role, f"{role}-test", torch.device("cpu"), transfers, compute, results)
    slots = transfers.register_prealloc_as_receive(receive_slots, 4096)
    try:
        async with asyncio.TaskGroup() as tasks:
            service = Service(parts, gate, tasks, slots)
            yield service
            gate.open.set()
            await service.worker.aclose()
        assert service.free_bytes == pool_bytes - service.retired_bytes - 4096 * receive_slots
    finally:
        gate.open.set()
        compute.close()
        await transfers.aclose()


def one_model(stage: Stage) -> Models:
    """Return models of which there is one, called `model`."""
    return Models({"model": lambda: stage}, in_memory=1)


def context(prompt: str, left_s: float = 60.0, model: str = "model", **params: int) -> RequestContext:
    return RequestContext(b"client", SamplingParams(prompt, **params), model, 60.0, left_s)


def work(prompt: str, request_id: str = "r1", attempt: int = 1, left_s: float = 60.0, **params: int) -> TransferWorkMsg:
    return TransferWorkMsg(request_id, attempt, context(prompt, left_s, **params))


async def staged(service: Service, request_id: str = "r1", seed: int = 1000) -> TransferStagedMsg:
    """Have an encoder compute `seed` numbers and return what it says of them."""
    service.worker.take(work("count", request_id, seed=seed))
    await service.says(TransferStartedMsg)
    await service.says(TransferProgressMsg)
    message = await service.says(TransferStagedMsg)
    assert isinstance(message, TransferStagedMsg)
    return message


def push(message: TransferStagedMsg, receiver: Service, slot: Slot, attempt: int = 1) -> TransferPushMsg:
    """Return what has the bytes that `message` tells of written for the `attempt`."""
    nbytes, address = message.manifest.data_size, receiver.transfers.address
    return TransferPushMsg(message.request_id, attempt, "receiver", address, slot, nbytes, message.attempt)


def ready(slot: Slot, manifest: TensorManifest, prompt: str, request_id: str = "r1", **params: int) -> TransferReadyMsg:
    return TransferReadyMsg(request_id, 1, slot, manifest, context(prompt, **params))


def ready_in_place(sender: Service, message: TransferStagedMsg, prompt: str, **params: int) -> TransferReadyMsg:
    pool = sender.transfers.address
    plain = ready(message.slot, message.manifest, prompt, message.request_id, **params)
    return msgspec.structs.replace(plain, pool=pool, scalar_fields=message.scalar_fields)


def allocated(service: Service, request_id: str = "r1", size: int = 512) -> Slot:
    """Return a slot that READY may name, as ALLOC gave it."""
    service.worker.take(TransferAllocMsg(request_id, 1, size))
    message = service.said.get_nowait()
    assert isinstance(message, TransferAllocatedMsg)
    return message.slot
