"""How much work a request is at each stage, in units that only compare with each other.

The denoiser runs its steps over every pixel of every image; the decoder sees each pixel once; the encoder reads the
prompt, whatever is drawn.
"""

from ...schemas.roles import Role
from ...schemas.sampling import SamplingParams


def cost_of(params: SamplingParams, role: Role) -> float:
    """Return the work of `role`, more than 0."""
    match role:
        case Role.ENCODER:
            return 1.0
        case Role.DENOISER:
            return float(params.num_inference_steps * _pixels(params))
        case Role.DECODER:
            return float(_pixels(params))


def _pixels(params: SamplingParams) -> int:
    return params.width * params.height * params.num_images
