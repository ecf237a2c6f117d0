"""Sampling parameters: what a person asks for, what is allowed, and the one check of it.

They travel without the fields that equal their default; msgspec's `omit_defaults` decides that for all. An unknown
field is refused, not ignored: leaving out a parameter that somebody set would give another picture without a word.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated

from msgspec import Meta, Struct

from .errors import InvalidRequest

MAX_SEED = 2**64 - 1
Bound = Annotated[int, Meta(ge=1, le=2**20)]


class SamplingParams(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What to draw and how.

    Image `i` of a request is drawn with the seed `(seed + i) % 2**64`, so each can be drawn again alone.
    """

    prompt: str
    negative_prompt: str = ""
    seed: int = 0
    num_inference_steps: int = 20
    guidance_scale: float = 4.0
    #: pixels
    width: int = 64
    #: pixels
    height: int = 64
    num_images: int = 1


class SamplingLimits(Struct, frozen=True, omit_defaults=True):
    """What a pipeline allows; an encoder brings its own at registration."""

    #: of the prompt and of the negative prompt, in UTF-8
    max_prompt_bytes: Annotated[int, Meta(ge=1, le=2**16)] = 16_384
    max_inference_steps: Bound = 1_000
    max_guidance_scale: Annotated[float, Meta(ge=0, le=1e6)] = 100.0
    #: width and height are multiples of this, in pixels
    size_multiple: Bound = 8
    min_size: Bound = 8
    max_size: Bound = 8_192
    max_images: Annotated[int, Meta(ge=1, le=1024)] = 64


def check_sampling_params(params: SamplingParams, limits: SamplingLimits) -> None:
    """Raise `InvalidRequest` for the first field whose value `limits` does not allow."""
    _check_text("prompt", params.prompt, limits.max_prompt_bytes)
    if not params.prompt.strip():
        raise InvalidRequest("prompt", params.prompt, "some text")
    _check_text("negative_prompt", params.negative_prompt, limits.max_prompt_bytes)
    _check_int("seed", params.seed, 0, MAX_SEED)
    _check_int("num_inference_steps", params.num_inference_steps, 1, limits.max_inference_steps)
    _check_int("num_images", params.num_images, 1, limits.max_images)
    for field, value in (("width", params.width), ("height", params.height)):
        _check_int(field, value, limits.min_size, limits.max_size)
        if value % limits.size_multiple:
            allowed = f"a multiple of {limits.size_multiple} from {limits.min_size} to {limits.max_size}"
            raise InvalidRequest(field, value, allowed)
    _check_guidance(params.guidance_scale, limits.max_guidance_scale)


def build_sampling_params(prompt: str, given: Mapping[str, object]) -> SamplingParams:
    """Return the parameters `given` by name, raising `InvalidRequest` for a name that does not exist."""
    known = SamplingParams.__struct_fields__
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(name, value, f"the parameters {', '.join(known)}{hint}")
    return SamplingParams(prompt, **given)  # pyright: ignore[reportArgumentType]  (the check below looks at every type)


def _check_text(field: str, value: object, max_bytes: int) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(field, value, "a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, value, "text without lone surrogates") from error
    if size > max_bytes:
        raise InvalidRequest(field, value, f"at most {max_bytes} bytes of UTF-8; this has {size}")


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest(field, value, f"a whole number from {low} to {high}")


def _check_guidance(value: object, high: float) -> None:
    allowed = f"a number from 0 to {high:g}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest("guidance_scale", value, allowed)
    if not 0 <= value <= high:
        raise InvalidRequest("guidance_scale", value, allowed)
