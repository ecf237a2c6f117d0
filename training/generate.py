"""Pictures from the package's own pipeline, for the judge and the grids."""

import torch
from torch import Tensor

from triptych.schemas.sampling import SamplingParams
from triptych.services.pipelines.reference.pipeline import ReferenceDecoder, ReferenceDenoiser, ReferenceEncoder


class Generator:
    """All three parts in one process."""

    def __init__(self) -> None:
        device = torch.device("cpu")
        self._encoder = ReferenceEncoder.load(device)
        self._denoiser = ReferenceDenoiser.load(device)
        self._decoder = ReferenceDecoder.load(device)

    def __call__(self, params: SamplingParams) -> Tensor:
        """uint8 [N, H, W, 3]."""
        steps = self._denoiser.denoise(params, self._encoder.encode(params))
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return self._decoder.decode(params, stop.value)
