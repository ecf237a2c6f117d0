"""A service as a process runs it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

import torch

from ..schemas.errors import ConfigError
from ..schemas.transfer import PROTOCOL_VERSION, Slot, TransferRegisterMsg
from ..transport.tensors.manager import DiffusionTransferManager
from .compute import ComputeThread
from .job import Parts
from .pipelines.interface import Pipeline, chained
from .pipelines.registry import load_pipeline
from .session import Ending, log, run_session
from .settings import ServiceSettings


async def run_service(settings: ServiceSettings, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Load the weights, register, call `ready` once registered, and serve until `stop` is set.

    Raises `ConfigError` for a setting that cannot be, and what the broker refused the registration with.
    """
    torch.set_num_threads(settings.compute_threads)
    pipeline = load_pipeline(settings.pipeline)
    async with open_parts(settings, pipeline) as parts:
        receive_slots: tuple[Slot, ...] = ()
        if settings.role.has_input:
            receive_slots = parts.transfers.register_prealloc_as_receive(
                settings.receive_slots, settings.receive_slot_bytes
            )
        ending = Ending.FORGOTTEN
        while ending is Ending.FORGOTTEN:
            registration = TransferRegisterMsg(
                protocol_version=PROTOCOL_VERSION,
                package_version=version("triptych"),
                instance_id=settings.instance_id,
                incarnation=time.time_ns(),
                role=settings.role,
                capacity=1 + settings.prefetch_depth,
                pool=parts.transfers.address,
                receive_slots=receive_slots,
                limits=pipeline.limits,
            )
            ending = await run_session(settings.broker, registration, parts, stop, settings.drain_s, ready)
            log.info("session ended", ending=ending.name.lower())


@asynccontextmanager
async def open_parts(settings: ServiceSettings, pipeline: Pipeline) -> AsyncGenerator[Parts]:
    """Open the device, the weights of the role, the pool and the threads, and close them in the end."""
    device = open_device(settings.device)
    stages = [spec.load(device) for spec in pipeline.stages if spec.role is settings.role]
    transfers = DiffusionTransferManager.open(
        instance_id=settings.instance_id,
        incarnation=time.time_ns(),
        pool_bytes=settings.pool_bytes,
        device=settings.device,
    )
    compute = ComputeThread(chained(stages), settings.compute_threads)
    try:
        yield Parts(settings.role, settings.instance_id, device, transfers, compute)
    finally:
        compute.close()
        await transfers.aclose()


def open_device(name: str) -> torch.device:
    """Return the torch device `name`. Raises `ConfigError` where this machine has none such."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError("device", name, f"cpu, or an accelerator that torch finds here ({reason})") from error
    return device
