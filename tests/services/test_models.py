"""Several models in one service."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
import torch

from tests.services.kit import context, open_service, staged
from tests.services.pipelines import Gate, counting
from triptych.schemas.errors import ConfigError, InvalidRequest
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits, SamplingParams
from triptych.schemas.transfer import TransferFailedMsg, TransferWorkMsg
from triptych.services.app import load_pipelines
from triptych.services.compute import ComputeThread
from triptych.services.models import Models, models_of
from triptych.services.pipelines.interface import NO_INPUT, Pipeline, Stage, StageSpec
from triptych.services.pipelines.registry import model_name
from triptych.services.pipelines.stage import StageOutput
from triptych.services.settings import ServiceSettings
from triptych.services.warm_up import warm_up

CPU = torch.device("cpu")
PARAMS = SamplingParams("a fox", seed=3)


class Loads:
    """Loaders that note which weights were loaded, and on which thread."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.threads: set[str] = set()

    def of(self, name: str, stage: Stage = counting) -> Callable[[], Stage]:
        def load() -> Stage:
            self.loaded.append(name)
            self.threads.add(threading.current_thread().name)
            return stage

        return load

    def models(self, *names: str, in_memory: int) -> Models:
        return Models({name: self.of(name) for name in names}, in_memory)


def compute_with(models: Models):
    return closing(ComputeThread(models, threads=1))


async def compute(thread: ComputeThread, model: str) -> None:
    await thread.run(model, PARAMS, NO_INPUT, lambda: None, lambda _: None)


async def test_weights_are_loaded_when_they_are_first_asked_for() -> None:
    """Once, and on the compute thread, so that the loop is free and nothing computes meanwhile."""
    loads = Loads()
    with compute_with(loads.models("a", "b", in_memory=2)) as thread:
        assert (thread.models.names, thread.models.loaded) == (("a", "b"), ())
        for model in "aba":
            await compute(thread, model)
        assert (loads.loaded, thread.models.loaded) == (["a", "b"], ("b", "a"))
    assert {name.rpartition("_")[0] for name in loads.threads} == {"compute"}


async def test_the_least_recently_used_gives_way() -> None:
    """Before the next one is loaded: there need not be room for one more."""
    loads = Loads()
    with compute_with(loads.models("a", "b", "c", in_memory=2)) as thread:
        for model in "abac":
            await compute(thread, model)
        assert thread.models.loaded == ("a", "c")
        await compute(thread, "b")
        assert (loads.loaded, thread.models.loaded) == (["a", "b", "c", "b"], ("c", "b"))


async def test_weights_that_cannot_be_loaded_fail_their_request_alone() -> None:
    """They are tried again when they are asked for again."""
    loads = Loads()

    def broken() -> Stage:
        raise FileNotFoundError("weights.safetensors")

    with compute_with(Models({"a": loads.of("a"), "broken": broken}, in_memory=1)) as thread:
        await compute(thread, "a")
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="weights"):
                await compute(thread, "broken")
        assert thread.models.loaded == ()
        await compute(thread, "a")
        assert loads.loaded == ["a", "a"]


async def test_weights_are_not_loaded_for_what_is_cancelled_before() -> None:
    """A request that waits for the thread, and is aborted, changes nothing."""
    loads, gate = Loads(), Gate()
    with compute_with(Models({"a": lambda: gate, "b": loads.of("b")}, in_memory=1)) as thread:
        first = asyncio.create_task(compute(thread, "a"))
        second = asyncio.create_task(compute(thread, "b"))
        await asyncio.to_thread(gate.started.wait)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.open.set()
        await first
        assert loads.loaded == []


async def test_a_model_that_is_not_here_fails_the_request_with_those_that_are() -> None:
    """Before anything is read or computed."""
    async with open_service(Role.ENCODER) as encoder:
        encoder.worker.take(TransferWorkMsg("r1", 1, context("count", model="flux")))
        failed = await encoder.says(TransferFailedMsg)
        assert failed.error == InvalidRequest("model", "flux", "what this service has: model").info()
        await staged(encoder, "r2")


def numbers(count: int) -> Callable[[SamplingParams], StageOutput]:
    return lambda _: StageOutput({"numbers": torch.zeros(count)})


async def test_receive_slots_fit_the_typical_input_of_every_model() -> None:
    """The first model is warmed up; the inputs of the others need no weights to be known."""
    loads = Loads()
    pipelines = {
        name: Pipeline(
            name,
            SamplingLimits(),
            (StageSpec(name, Role.DENOISER, lambda _, name=name: loads.of(name)(), numbers(count)),),
        )
        for name, count in (("small", 1000), ("large", 5000))
    }
    models = models_of(pipelines, Role.DENOISER, CPU, in_memory=1)
    with compute_with(models) as thread:
        shown = await warm_up(pipelines, Role.DENOISER, CPU, thread)
    assert (shown.input_bytes, loads.loaded) == (20_480 - 20_480 % 512, ["small"])


def test_a_pipeline_without_the_role_is_an_error_of_the_setting() -> None:
    """It is named before anything takes time."""
    only = Pipeline("only", SamplingLimits(), (StageSpec("s", Role.ENCODER, lambda _: counting),))
    with pytest.raises(ConfigError, match="pipeline is 'only'; allowed: one that has a stage for the role decoder"):
        models_of({"only": only}, Role.DECODER, CPU, in_memory=1)


@pytest.mark.parametrize(
    ("pipeline", "name"), [("reference", "reference"), ("a.b:FLUX", "flux"), ("a.b:Sd_XL", "sd_xl")]
)
def test_a_model_is_named_after_its_pipeline(pipeline: str, name: str) -> None:
    """As the registry has it; one of your own after its attribute."""
    assert model_name(pipeline) == name


REFERENCE = "triptych.services.pipelines.reference.stages:REFERENCE"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["reference"]),
        ({"pipeline": REFERENCE}, ["reference"]),
        ({"models": {"fast": "reference", "org/slow": REFERENCE}}, ["fast", "org/slow"]),
    ],
)
def test_the_settings_name_the_models(fields: dict[str, object], names: list[str]) -> None:
    """Those of `models`, in that order; otherwise the one of `pipeline`."""
    pipelines = load_pipelines(ServiceSettings(role=Role.ENCODER, instance_id="encoder-0", **fields))
    assert list(pipelines) == names
