"""What the last stage gave, as the files that a person gets."""

import io
from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor

from ..schemas.sampling import SamplingParams
from ..schemas.transfer import MediaInfo
from ..transport.link.codec import Frame
from .pipelines.stage import StageOutput

MAX_SEED = 2**64
#: the type of media that a pipeline does not name
RAW = "application/octet-stream"

#: what is known of one, and its bytes
Medium = tuple[MediaInfo, Frame]


def each_medium(output: StageOutput, params: SamplingParams) -> Iterator[Medium]:
    """Encode one medium after the other: those of `media` are taken as they are, `images` become PNG files."""
    ready = output.tensors.get("media")
    if ready is None:
        images = output.tensors["images"]
        if not isinstance(images, Tensor):
            raise TypeError("the last stage's images are no tensor")
        yield from _each_image(images, params.seed)
        return
    media_type = str(output.scalar_fields.get("media_type", RAW))
    for index, medium in enumerate([ready] if isinstance(ready, Tensor) else ready):
        info = MediaInfo(media_type, params.width, params.height, (params.seed + index) % MAX_SEED)
        yield info, _bytes_of(medium)


def encode_images(images: Tensor, seed: int) -> tuple[tuple[MediaInfo, ...], tuple[Frame, ...]]:
    """Return what is known of each picture of `images`, uint8 [N, H, W, 3], and its PNG bytes."""
    media = list(_each_image(images, seed))
    return tuple(info for info, _ in media), tuple(file for _, file in media)


def _bytes_of(medium: Tensor | None) -> Frame:
    """Return the bytes of an encoded medium, copied once, since the pipeline may use its tensor again."""
    if medium is None or medium.dtype is not torch.uint8 or medium.dim() != 1:
        raise TypeError("the last stage's media are not all uint8 tensors of one dimension")
    return medium.detach().to("cpu", copy=True).contiguous().numpy().data


def _each_image(images: Tensor, seed: int) -> Iterator[Medium]:
    for index, image in enumerate(images):
        height, width, _ = image.shape
        file = io.BytesIO()
        Image.fromarray(image.numpy(force=True)).save(file, "PNG")
        yield MediaInfo("image/png", width, height, (seed + index) % MAX_SEED), file.getvalue()
