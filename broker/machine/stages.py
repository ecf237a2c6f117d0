"""The three stages of a request: their states and their order."""

from collections.abc import Mapping

from msgspec import Struct

from ...schemas.roles import Role
from ...schemas.states import RequestState as S


class Stage(Struct, frozen=True):
    """The states of one stage. The stage after it takes the output; the last one's output is the result."""

    waiting: S
    running: S
    done: S
    follower: Role | None


STAGES: Mapping[Role, Stage] = {
    Role.ENCODER: Stage(S.ENCODER_WAITING, S.ENCODER_RUNNING, S.ENCODER_DONE, Role.DENOISER),
    Role.DENOISER: Stage(S.DENOISING_WAITING, S.DENOISING_RUNNING, S.DENOISING_DONE, Role.DECODER),
    Role.DECODER: Stage(S.DECODER_WAITING, S.DECODER_RUNNING, S.DONE, None),
}

#: the role that a request in this state waits for
WAITING_FOR: Mapping[S, Role] = {stage.waiting: role for role, stage in STAGES.items()}
