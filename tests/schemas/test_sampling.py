"""What may be asked for."""

import msgspec
import pytest

from triptych.schemas.errors import InvalidRequest
from triptych.schemas.sampling import SamplingLimits, SamplingParams, build_sampling_params, check_sampling_params

LIMITS = SamplingLimits(max_prompt_bytes=100, size_multiple=16, min_size=32, max_size=128, max_images=8)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("prompt", "", "some text"),
        ("prompt", " \n", "some text"),
        ("prompt", "x" * 100_000, "at most 100 bytes of UTF-8; this has 100000"),
        ("prompt", "\ud800", "text without lone surrogates"),
        ("prompt", 7, "a string"),
        ("negative_prompt", "é" * 51, "at most 100 bytes of UTF-8; this has 102"),
        ("width", 65, "a multiple of 16 from 32 to 128"),
        ("height", 16, "a whole number from 32 to 128"),
        ("num_inference_steps", 0, "a whole number from 1 to 1000"),
        ("num_inference_steps", -1, "a whole number from 1 to 1000"),
        ("num_inference_steps", 10**9, "a whole number from 1 to 1000"),
        ("num_inference_steps", 20.0, "a whole number from 1 to 1000"),
        ("guidance_scale", float("nan"), "a number from 0 to 100"),
        ("guidance_scale", float("inf"), "a number from 0 to 100"),
        ("guidance_scale", "7", "a number from 0 to 100"),
        ("seed", -1, "a whole number from 0 to 18446744073709551615"),
        ("seed", 2**64, "a whole number from 0 to 18446744073709551615"),
        ("seed", True, "a whole number from 0 to 18446744073709551615"),
        ("num_images", 0, "a whole number from 1 to 8"),
        ("num_images", 10**6, "a whole number from 1 to 8"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object, allowed: str) -> None:
    """The error names the field, the value and what is allowed."""
    params = msgspec.structs.replace(SamplingParams("a fox"), **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        check_sampling_params(params, LIMITS)
    assert (caught.value.field, caught.value.allowed) == (field, allowed)
    assert ascii(value)[1:5] in caught.value.value


@pytest.mark.parametrize("prompt", ["a fox 🦊", "ثعلب على خلفية زرقاء", "qwrtzp 狐", "\x00"])
def test_any_text_is_a_prompt(prompt: str) -> None:
    """Emoji, right-to-left text, words of no language and control characters are served."""
    check_sampling_params(SamplingParams(prompt), LIMITS)


def test_an_unknown_parameter_is_refused_with_the_nearest() -> None:
    """A typing error is answered with the name that was meant."""
    with pytest.raises(InvalidRequest, match="did you mean width") as caught:
        build_sampling_params("a fox", {"widht": 64})
    assert (caught.value.field, caught.value.value) == ("widht", "64")


def test_parameters_travel_without_their_defaults() -> None:
    """Only what differs from the default is in the bytes."""
    encoded = msgspec.msgpack.encode(SamplingParams("a fox", num_inference_steps=20, seed=3))
    assert msgspec.msgpack.decode(encoded) == {"prompt": "a fox", "seed": 3}
