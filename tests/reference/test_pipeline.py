"""The shipped model: deterministic, splittable, each role with its own weights only."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triptych.schemas.sampling import SamplingParams
from triptych.services.pipelines.reference.pipeline import (
    LIMITS,
    ReferenceDecoder,
    ReferenceDenoiser,
    ReferenceEncoder,
)
from triptych.services.pipelines.stage import StageOutput

CPU = torch.device("cpu")
_opened: list[str] | None = None


def _note_open(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_note_open)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: on a busy machine two threads wait for each other far longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Collect the paths of all files this process opens during the test."""
    global _opened  # noqa: PLW0603  (an audit hook cannot be taken away again)
    _opened = []
    yield _opened
    _opened = None


@pytest.fixture(scope="module")
def encoder() -> ReferenceEncoder:
    return ReferenceEncoder.load(CPU)


@pytest.fixture(scope="module")
def denoiser() -> ReferenceDenoiser:
    return ReferenceDenoiser.load(CPU)


@pytest.fixture(scope="module")
def decoder() -> ReferenceDecoder:
    return ReferenceDecoder.load(CPU)


def _finish(denoiser: ReferenceDenoiser, params: SamplingParams, text: StageOutput) -> tuple[list[int], StageOutput]:
    progress: list[int] = []
    steps = denoiser.denoise(params, text)
    while True:
        try:
            progress.append(next(steps))
        except StopIteration as stop:
            return progress, stop.value


def _latents(denoiser: ReferenceDenoiser, params: SamplingParams, text: StageOutput) -> Tensor:
    latents = _finish(denoiser, params, text)[1].tensors["latents"]
    assert isinstance(latents, Tensor)
    return latents


@pytest.mark.parametrize(
    ("part", "file"),
    [
        (ReferenceEncoder, "text_encoder.safetensors"),
        (ReferenceDenoiser, "denoiser.safetensors"),
        (ReferenceDecoder, "vae_decoder.safetensors"),
    ],
)
def test_a_role_opens_only_its_own_weights(part: type, file: str, opened: list[str]) -> None:
    """Loading one part reads one weights file, its own."""
    part.load(CPU)

    assert [Path(path).name for path in opened if path.endswith(".safetensors")] == [file]


def test_a_picture_is_uint8_rgb(
    encoder: ReferenceEncoder, denoiser: ReferenceDenoiser, decoder: ReferenceDecoder
) -> None:
    """Two images of the default size come out as uint8 [2, 64, 64, 3], with progress for every step."""
    params = SamplingParams("a fox on blue", num_inference_steps=3, num_images=2)

    progress, latents = _finish(denoiser, params, encoder.encode(params))
    pictures = decoder.decode(params, latents)

    assert progress == [1, 2, 3]
    assert pictures.shape == (2, 64, 64, 3)
    assert pictures.dtype == torch.uint8


def test_the_background_is_the_one_asked_for(
    encoder: ReferenceEncoder, denoiser: ReferenceDenoiser, decoder: ReferenceDecoder
) -> None:
    """The corners of "a fox on blue" are blue."""
    params = SamplingParams("a fox on blue", num_inference_steps=8)

    picture = decoder.decode(params, _finish(denoiser, params, encoder.encode(params))[1])[0].float()
    red, green, blue = picture[[0, 0, -1, -1], [0, -1, 0, -1]].mean(dim=0).tolist()

    assert blue > 150 > green > red


def test_split_equals_whole(encoder: ReferenceEncoder, denoiser: ReferenceDenoiser, decoder: ReferenceDecoder) -> None:
    """Parts loaded anew, fed copies of the tensors, give bit for bit what one process gives."""
    params = SamplingParams("a small red star on white", negative_prompt="blue", seed=2**64 - 1, num_inference_steps=2)

    text = encoder.encode(params)
    whole = decoder.decode(params, _finish(denoiser, params, text)[1])
    copied = StageOutput({name: value.clone() for name, value in text.tensors.items() if isinstance(value, Tensor)})
    latents = _latents(ReferenceDenoiser.load(CPU), params, copied)
    split = ReferenceDecoder.load(CPU).decode(params, StageOutput({"latents": latents.clone()}))

    assert torch.equal(whole, split)


@pytest.mark.parametrize("guidance", [0.0, 1.0, 4.0])
def test_an_image_does_not_depend_on_its_neighbours(
    encoder: ReferenceEncoder, denoiser: ReferenceDenoiser, guidance: float
) -> None:
    """Image 1 of three is bit for bit the only image of the next seed, also where the seed wraps round."""
    seed = 2**64 - 1
    many = SamplingParams("a cat on pink", seed=seed, num_inference_steps=2, guidance_scale=guidance, num_images=3)
    alone = SamplingParams("a cat on pink", seed=0, num_inference_steps=2, guidance_scale=guidance)
    text = encoder.encode(many)

    assert torch.equal(_latents(denoiser, many, text)[1:2], _latents(denoiser, alone, text))


def test_inference_mode_changes_nothing(encoder: ReferenceEncoder, denoiser: ReferenceDenoiser) -> None:
    """The services compute in inference mode; the bits are the same."""
    params = SamplingParams("a ghost on black", num_inference_steps=2)
    plain = _latents(denoiser, params, encoder.encode(params))

    with torch.inference_mode():
        inferred = _latents(denoiser, params, encoder.encode(params))

    assert torch.equal(plain, inferred)


@pytest.mark.parametrize(("width", "height"), [(LIMITS.min_size, LIMITS.max_size), (LIMITS.max_size, LIMITS.min_size)])
def test_other_sizes_are_served(
    encoder: ReferenceEncoder, denoiser: ReferenceDenoiser, decoder: ReferenceDecoder, width: int, height: int
) -> None:
    """The extremes of LIMITS give a picture of that size."""
    params = SamplingParams("a fox on blue", width=width, height=height, num_inference_steps=1)

    latents = _finish(denoiser, params, encoder.encode(params))[1]

    assert decoder.decode(params, latents).shape == (1, height, width, 3)


def test_closing_stops_early(encoder: ReferenceEncoder, denoiser: ReferenceDenoiser) -> None:
    """A closed run has done only the steps that were asked of it."""
    params = SamplingParams("a fox", num_inference_steps=1000)
    steps = denoiser.denoise(params, encoder.encode(params))

    assert next(steps) == 1
    steps.close()
    with pytest.raises(StopIteration):
        next(steps)


def test_latents_of_another_size_are_refused(decoder: ReferenceDecoder) -> None:
    """The decoder says which shape it needs."""
    with pytest.raises(ValueError, match=r"must be \[N, 8, 8, 8\]"):
        decoder.decode(SamplingParams("a fox"), StageOutput({"latents": torch.zeros(1, 8, 4, 4)}))


def test_a_missing_tensor_is_named(decoder: ReferenceDecoder) -> None:
    """The decoder says which tensor it needs."""
    with pytest.raises(TypeError, match="'latents'"):
        decoder.decode(SamplingParams("a fox"), StageOutput({}))
