"""What a request takes by name."""

import asyncio
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from triptych.client import Client, Priority
from triptych.client.options import SamplingOptions
from triptych.schemas.client import SubmitMsg
from triptych.schemas.errors import ConfigError, InvalidRequest
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams

from .scripted import LIMITS, ScriptedBroker, connected


def test_the_options_are_the_parameters() -> None:
    """Every sampling parameter can be given by name, and only those."""
    assert set(SamplingOptions.__annotations__) == set(SamplingParams.__struct_fields__) - {"prompt"}


async def submitted(broker: ScriptedBroker, client: Client, **options: Any) -> SubmitMsg:
    """Return what the broker is asked with these options."""
    asking = asyncio.create_task(client.generate("a fox", **options))
    submit = await broker.take(SubmitMsg)
    broker.say_done(submit)
    await asking
    return submit


async def test_what_is_not_given_is_left_to_the_broker(broker: ScriptedBroker) -> None:
    """But the id and the seed, which the client makes."""
    async with connected(broker) as client:
        submit = await submitted(broker, client)
    assert submit == SubmitMsg(submit.request_id, SamplingParams("a fox", seed=submit.params.seed))


async def test_every_option_reaches_the_broker(broker: ScriptedBroker) -> None:
    """Roles and classes by their names."""
    async with connected(broker) as client:
        submit = await submitted(
            *(broker, client),
            request_id="mine",
            seed=1,
            model="sdxl/turbo@2",
            priority="high",
            tenant="team-a",
            timeout_s=30,
            stage_timeout_s={"denoiser": 60, Role.DECODER: 0.5},
            cancel_on_disconnect=True,
            wait_for_room=True,
        )
    limits = {Role.DENOISER: 60.0, Role.DECODER: 0.5}
    params = SamplingParams("a fox", seed=1)
    assert submit == SubmitMsg(
        "mine", params, 30, "sdxl/turbo@2", Priority.HIGH, "team-a", limits, cancel_on_disconnect=True
    )


async def test_a_client_goes_on_the_account_of_its_tenant(broker: ScriptedBroker) -> None:
    """Each request may name another, or none."""
    broker.limits = LIMITS
    async with Client(broker.endpoint, tenant="team-a") as client:
        tenants = [
            (await submitted(broker, client, **options)).tenant
            for options in ({}, {"tenant": "team-b"}, {"tenant": ""})
        ]
    assert tenants == ["team-a", "team-b", ""]


@pytest.mark.parametrize("tenant", ["team a", "é", "x" * 129, None, 7])
def test_a_tenant_that_cannot_be_is_refused(tenant: Any) -> None:
    """When the client is made, already."""
    with pytest.raises(ConfigError, match=r"tenant is .*; allowed: at most 128 characters out of A-Z a-z 0-9"):
        Client(tenant=tenant)


async def test_numbers_of_numpy_are_numbers(broker: ScriptedBroker) -> None:
    """Seeds and sizes come out of arrays: they travel as Python's own."""
    async with connected(broker) as client:
        submit = await submitted(
            *(broker, client),
            seed=np.uint64(2**64 - 1),
            num_inference_steps=np.int32(8),
            guidance_scale=np.float32(2.5),
            width=np.arange(64, 128, 32)[1],
            num_images=np.array(2),
            timeout_s=np.float64(2.5),
            stage_timeout_s={"encoder": np.int8(2)},
        )
    params = SamplingParams("a fox", "", 2**64 - 1, 8, 2.5, width=96, num_images=2)
    assert (submit.params, submit.stage_timeout_s) == (params, {Role.ENCODER: 2.0})


BAD_OPTIONS = [
    ({"num_inference_steps": 0}, "num_inference_steps is 0; allowed: a whole number from 1 to 100"),
    ({"num_inference_steps": 2.0}, "num_inference_steps is 2.0; allowed: a whole number"),
    ({"num_inference_steps": np.float64(2)}, "num_inference_steps is 2.0; allowed: a whole number"),
    ({"num_inference_steps": True}, "num_inference_steps is True; allowed: a whole number"),
    ({"num_inference_steps": np.True_}, "num_inference_steps is .*True.*; allowed: a whole number"),
    ({"guidance_scale": float("nan")}, "guidance_scale is nan; allowed: a number from 0 to 100"),
    ({"guidance_scale": "4"}, "guidance_scale is '4'; allowed: a number from 0 to 100"),
    ({"guidance_scale": Fraction(10**400)}, "guidance_scale is .*; allowed: a number from 0 to 100"),
    ({"seed": 2**64}, "seed is 18446744073709551616; allowed: a whole number from 0 to 18446744073709551615"),
    ({"seed": np.array([1, 2])}, r"seed is array\(\[1, 2\]\); allowed: a whole number"),
    ({"num_images": 10**6}, "num_images is 1000000; allowed: a whole number from 1 to 4"),
    ({"timeout_s": 0}, "timeout_s is 0; allowed: a number of seconds above 0, at most 604800"),
    ({"timeout_s": "soon"}, "timeout_s is 'soon'; allowed: a number of seconds above 0"),
    ({"timeout_s": float("inf")}, "timeout_s is inf; allowed: a number of seconds above 0"),
    ({"request_id": ""}, "request_id is ''; allowed: 1 to 64 printable ASCII characters"),
    ({"model": "a b"}, r"model is 'a b'; allowed: at most 128 characters .* Client.models\(\) says what is served"),
    ({"model": None}, "model is None; allowed: "),
    ({"model": "x" * 129}, "model is 'xxx"),
    ({"priority": "urgent"}, "priority is 'urgent'; allowed: high, normal, low"),
    ({"priority": 1}, "priority is 1; allowed: high, normal, low"),
    ({"priority": []}, r"priority is \[\]; allowed: high, normal, low"),
    ({"tenant": "team a"}, "tenant is 'team a'; allowed: at most 128 characters out of"),
    ({"tenant": None}, "tenant is None; allowed: "),
    ({"stage_timeout_s": 60}, r"stage_timeout_s is 60; allowed: seconds by role \(encoder, denoiser, decoder\)"),
    (
        {"stage_timeout_s": {"denoise": 60}},
        "stage_timeout_s is {'denoise': 60}; allowed: the roles encoder, denoiser, decoder; did you mean denoiser?",
    ),
    ({"stage_timeout_s": {7: 60}}, "stage_timeout_s is {7: 60}; allowed: the roles"),
    ({"stage_timeout_s": {"encoder": 0}}, r"stage_timeout_s\[encoder\] is 0; allowed: a number of seconds above 0"),
    ({"stage_timeout_s": {"encoder": True}}, r"stage_timeout_s\[encoder\] is True; allowed: "),
    ({"cancel_on_disconnect": 1}, "cancel_on_disconnect is 1; allowed: True or False"),
    ({"wait_for_room": "yes"}, "wait_for_room is 'yes'; allowed: True or False"),
]


@pytest.mark.parametrize(("options", "complaint"), BAD_OPTIONS)
async def test_a_bad_option_is_refused_before_it_is_sent(
    broker: ScriptedBroker, options: dict[str, Any], complaint: str
) -> None:
    """The error names the field, the value and what is allowed; the next request is not disturbed."""
    async with connected(broker) as client:
        with pytest.raises(InvalidRequest, match=complaint):
            await client.generate("a fox", **options)
        assert (await submitted(broker, client, request_id="next")).request_id == "next"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("steps", "num_inference_steps"),
        ("inference_steps", "num_inference_steps"),
        ("guidance", "guidance_scale"),
        ("negative", "negative_prompt"),
        ("images", "num_images"),
        ("num_images_per_prompt", "num_images"),
        ("widht", "width"),
        ("timeout", "timeout_s"),
        ("id", "request_id"),
    ],
)
async def test_a_name_that_does_not_exist_is_answered_with_the_one_that_was_meant(
    broker: ScriptedBroker, name: str, meant: str
) -> None:
    """The command line's names and those of other libraries among them."""
    options: dict[str, Any] = {name: 8}
    async with connected(broker) as client:
        with pytest.raises(
            InvalidRequest, match=f"{name} is 8; allowed: the parameters prompt, .*; did you mean {meant}?"
        ):
            await client.generate("a fox", **options)
        assert await broker.rest(client) == []


async def test_a_name_like_no_other_is_answered_with_all_there_are(broker: ScriptedBroker) -> None:
    """Nothing is guessed."""
    options: dict[str, Any] = {"zzz": 8}
    async with connected(broker) as client:
        with pytest.raises(InvalidRequest, match=r"the parameters prompt, .*wait_for_room, request_id$"):
            await client.generate("a fox", **options)
