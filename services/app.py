"""A service as a process runs it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from importlib.metadata import version

import torch

from ..schemas.errors import ConfigError, ResourceError
from ..schemas.memory import Slot
from ..schemas.roles import Role
from ..schemas.transfer import PROTOCOL_VERSION, TransferRegisterMsg
from ..transport.link.network import network_id
from ..transport.link.sockets import check_endpoint
from ..transport.tensors.manager import DiffusionTransferManager
from ..transport.tensors.shared_memory import sweep_dead_segments
from .compute import ComputeThread
from .incarnations import Forgotten, run_incarnations
from .job import Parts
from .models import models_of
from .pipelines.interface import Pipeline
from .pipelines.registry import load_pipeline, model_name
from .results.data_link import ResultServer, ResultSettings, open_results
from .session import log, run_session
from .settings import ServiceSettings
from .warm_up import WarmUp, warm_up


async def run_service(settings: ServiceSettings, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Load the weights, warm up, register, call `ready` once registered, and serve until `stop` is set.

    Each incarnation has a pool of its own: what somebody may still write or read of an older one is never used again.
    Raises `ConfigError` for a setting that cannot be, and what the broker refused the registration with.
    """
    _check_broker(settings.broker)
    torch.set_num_threads(settings.compute_threads)
    pipelines = load_pipelines(settings)
    device = open_device(settings.device)
    async with AsyncExitStack() as stack:
        models = models_of(pipelines, settings.role, device, settings.models_in_memory)
        compute = stack.enter_context(closing(ComputeThread(models, settings.compute_threads)))
        typical = await warm_up(pipelines, settings.role, device, compute)
        results = None
        if settings.role is Role.DECODER:
            results = await stack.enter_async_context(_open_results(settings))

        async def run_incarnation(incarnation: int) -> Forgotten | None:
            async with open_transfers(settings, incarnation) as transfers:
                parts = Parts(settings.role, settings.instance_id, device, transfers, compute, results)
                slots = set_slots_aside(settings, transfers, typical)
                registration = registration_of(settings, pipelines, incarnation, parts, slots)
                return await run_session(settings.broker, registration, parts, stop, settings.drain_s, ready)

        await run_incarnations(run_incarnation, stop)


def _check_broker(endpoint: str) -> None:
    """Raise `ConfigError` for what is no endpoint, before anything takes time."""
    try:
        check_endpoint(endpoint)
    except ConfigError as error:
        raise ConfigError("broker", endpoint, error.allowed) from error


def load_pipelines(settings: ServiceSettings) -> dict[str, Pipeline]:
    """Return the pipelines by the name of the model that each serves, without any weights yet."""
    named = settings.models or {model_name(settings.pipeline): settings.pipeline}
    return {model: load_pipeline(pipeline) for model, pipeline in named.items()}


@asynccontextmanager
async def open_transfers(settings: ServiceSettings, incarnation: int) -> AsyncGenerator[DiffusionTransferManager]:
    """Open the pool of one incarnation, once dead services' pools have made room, and close it in the end."""
    swept = sweep_dead_segments()
    if swept:
        log.info("dead segments swept", segments=swept)
    transfers = DiffusionTransferManager.open(
        instance_id=settings.instance_id,
        incarnation=incarnation,
        pool_bytes=settings.pool_bytes,
        device=settings.device,
        engine=settings.engine.value,
    )
    try:
        yield transfers
    finally:
        await transfers.aclose()


def set_slots_aside(
    settings: ServiceSettings, transfers: DiffusionTransferManager, typical: WarmUp
) -> tuple[Slot, ...]:
    """Set receive slots aside, each large enough for a typical input.

    Raises `ConfigError` where they do not fit, or leave no room for a typical output.
    """
    if not settings.role.has_input:
        return ()
    nbytes = max(typical.input_bytes, settings.receive_slot_bytes)
    staged_bytes = 0 if settings.role is Role.DECODER else typical.output_bytes
    try:
        slots = transfers.register_prealloc_as_receive(settings.receive_slots, nbytes)
        transfers.release(transfers.allocate_receive(staged_bytes).slot_id)
    except ResourceError as error:
        needed = f"room for {settings.receive_slots} receive slots of {nbytes} bytes and {staged_bytes} bytes of output"
        raise ConfigError("pool_bytes", settings.pool_bytes, f"{needed}, or fewer receive_slots ({error})") from error
    return slots


def registration_of(
    settings: ServiceSettings,
    pipelines: Mapping[str, Pipeline],
    incarnation: int,
    parts: Parts,
    receive_slots: tuple[Slot, ...],
) -> TransferRegisterMsg:
    """Return what an incarnation says of itself."""
    return TransferRegisterMsg(
        protocol_version=PROTOCOL_VERSION,
        package_version=version("triptych"),
        instance_id=settings.instance_id,
        incarnation=incarnation,
        role=settings.role,
        capacity=1 + settings.prefetch_depth,
        pool=parts.transfers.address,
        receive_slots=receive_slots,
        models=tuple(pipelines),
        limits=next(iter(pipelines.values())).limits,
        network_id=network_id(),
        data_endpoint="" if parts.results is None else parts.results.endpoint,
    )


def _open_results(settings: ServiceSettings) -> AbstractAsyncContextManager[ResultServer]:
    bounds = ResultSettings(settings.inline_result_bytes, settings.outbox_bytes, settings.result_ttl_s)
    return open_results(settings.instance_id, settings.broker, settings.data_host, settings.data_port, bounds)


def open_device(name: str) -> torch.device:
    """Return the torch device `name`. Raises `ConfigError` where this machine has none such."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError("device", name, f"cpu, or an accelerator that torch finds here ({reason})") from error
    return device
