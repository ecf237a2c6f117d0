"""One run before the first request: it warms the device up and shows how large the payloads are."""

from collections.abc import Mapping

import structlog
import torch
from msgspec import Struct

from ..schemas.roles import Role
from ..transport.tensors.manifests import plan
from .compute import ComputeThread
from .pipelines.interface import Pipeline
from .pipelines.stage import StageOutput, TensorValue

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.service")


class WarmUp(Struct, frozen=True):
    """What the run showed; bytes as they lie in a pool, alignment counted in."""

    input_bytes: int
    output_bytes: int
    duration_s: float


async def warm_up(
    pipelines: Mapping[str, Pipeline], role: Role, device: torch.device, compute: ComputeThread
) -> WarmUp:
    """Compute the role's part of the typical request of the first model, from the example that its first stage gives.

    The inputs are as large as the largest typical one of all models; that needs no weights.
    """
    model, pipeline = next(iter(pipelines.items()))
    example = on_device(_example(pipeline, role), device)
    computed = await compute.run(model, pipeline.warm_up, example, lambda: None, lambda _: None)
    shown = WarmUp(
        max(plan(_example(each, role).tensors).data_size for each in pipelines.values()),
        plan(computed.output.tensors).data_size,
        computed.finished - computed.started,
    )
    log.info(
        "warmed up",
        role=role.value,
        input_bytes=shown.input_bytes,
        output_bytes=shown.output_bytes,
        seconds=round(shown.duration_s, 3),
    )
    return shown


def _example(pipeline: Pipeline, role: Role) -> StageOutput:
    first = next(spec for spec in pipeline.stages if spec.role is role)
    return first.example(pipeline.warm_up)


def on_device(output: StageOutput, device: torch.device) -> StageOutput:
    """Return `output` with its tensors on `device`."""
    tensors = {name: _moved(value, device) for name, value in output.tensors.items()}
    return StageOutput(tensors, output.scalar_fields)


def _moved(value: TensorValue, device: torch.device) -> TensorValue:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [None if tensor is None else tensor.to(device) for tensor in value]
