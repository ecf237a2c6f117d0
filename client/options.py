"""What a request takes by name, as keyword arguments that editors complete and type checkers check."""

import secrets
import uuid
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Literal, TypedDict

from msgspec import Struct

from ..schemas.client import SubmitMsg
from ..schemas.context import Priority
from ..schemas.errors import InvalidRequest
from ..schemas.sampling import SamplingParams, build_sampling_params
from .checks import (
    checked_flag,
    checked_model,
    checked_priority,
    checked_request_id,
    checked_stage_timeouts,
    checked_tenant,
    checked_timeout,
    plain,
)


class SamplingOptions(TypedDict, total=False):
    """The sampling parameters; `SamplingParams` says what each means by default. NumPy's numbers will do."""

    negative_prompt: str
    #: None: a random one
    seed: int | None
    num_inference_steps: int
    guidance_scale: float
    width: int
    height: int
    num_images: int


class RequestOptions(SamplingOptions, total=False):
    """What `Client.generate` and `Client.stream` take by name."""

    #: which model draws; empty: the broker's default. `Client.models` says what is served
    model: str
    #: before whom the request is served; normal by default
    priority: Priority | Literal["high", "normal", "low"]
    #: on whose account it goes; the client's own by default
    tenant: str
    #: how long it may take in all; None: as long as the broker allows
    timeout_s: float | None
    #: how long one attempt at the stage of a role may take, where that is less than the broker allows
    stage_timeout_s: Mapping[str, float]
    #: end it when the broker hears nothing of this client any more; otherwise it is drawn to its end
    cancel_on_disconnect: bool
    #: where the queue is full, ask again until there is room or `timeout_s` is over, rather than raise
    wait_for_room: bool
    #: unique for ever; None: a new one
    request_id: str | None


class Submission(Struct, frozen=True):
    """A request as its caller wants it."""

    submit: SubmitMsg
    wait_for_room: bool


def submission_from(prompt: str, options: RequestOptions, tenant: str) -> Submission:
    """Return the request, with a random seed and id where none is given and `tenant` where none is named.

    Raises `InvalidRequest` for a name that does not exist and for all that no model could allow.
    """
    given: dict[str, object] = {**options}
    _check_names(given)
    params = _params_from(prompt, given)
    request_id = given.get("request_id")
    submit = SubmitMsg(
        uuid.uuid4().hex if request_id is None else checked_request_id(request_id),
        params,
        checked_timeout(given.get("timeout_s")),
        checked_model(given.get("model", "")),
        checked_priority(given.get("priority", Priority.NORMAL)),
        checked_tenant(given.get("tenant", tenant)),
        checked_stage_timeouts(given.get("stage_timeout_s", {})),
        checked_flag("cancel_on_disconnect", given.get("cancel_on_disconnect", False)),
    )
    return Submission(submit, checked_flag("wait_for_room", given.get("wait_for_room", False)))


def _params_from(prompt: str, given: Mapping[str, object]) -> SamplingParams:
    sampling = {name: plain(given[name]) for name in SamplingOptions.__annotations__ if name in given}
    if sampling.get("seed") is None:
        sampling["seed"] = secrets.randbits(64)
    return build_sampling_params(prompt, sampling)


def _check_names(given: Mapping[str, object]) -> None:
    known = RequestOptions.__annotations__
    for name, value in given.items():
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near}?" if near else ""
            raise InvalidRequest(name, value, f"the parameters prompt, {', '.join(known)}{hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return which of `known` was meant by `name`: one that has it as a word (steps), or is spelt alike (widht)."""
    worded = sorted((each for each in known if set(name.split("_")) < set(each.split("_"))), key=len)
    return next(iter([*worded, *get_close_matches(name, known, n=1)]), None)
