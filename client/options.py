"""The sampling parameters as keyword arguments, so that editors complete them and type checkers check them."""

from typing import TypedDict

from ..schemas.sampling import SamplingParams, build_sampling_params


class SamplingOptions(TypedDict, total=False):
    """What `Client.generate` and `Client.stream` take by name; `SamplingParams` says what each means by default."""

    negative_prompt: str
    #: None: a random one
    seed: int | None
    num_inference_steps: int
    guidance_scale: float
    width: int
    height: int
    num_images: int


def params_from(prompt: str, options: SamplingOptions, random_seed: int) -> SamplingParams:
    """Return the parameters, with `random_seed` where none is given. Raises `InvalidRequest` for an unknown name."""
    given: dict[str, object] = {**options}
    if given.get("seed") is None:
        given["seed"] = random_seed
    return build_sampling_params(prompt, given)
