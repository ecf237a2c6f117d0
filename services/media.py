"""What the last stage gave, as the files that a person gets."""

import io

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


def encode_media(output: StageOutput, params: SamplingParams) -> tuple[tuple[MediaInfo, ...], tuple[Frame, ...]]:
    """Return what is known of each medium, and its bytes: those of `media` as they are, or `images` as PNG files."""
    ready = output.tensors.get("media")
    if ready is None:
        images = output.tensors["images"]
        if not isinstance(images, Tensor):
            raise TypeError("the last stage's images are no tensor")
        return encode_images(images, params.seed)
    media_type = str(output.scalar_fields.get("media_type", RAW))
    files = tuple(map(_bytes_of, [ready] if isinstance(ready, Tensor) else ready))
    infos = [
        MediaInfo(media_type, params.width, params.height, (params.seed + index) % MAX_SEED)
        for index in range(len(files))
    ]
    return tuple(infos), files


def _bytes_of(medium: Tensor | None) -> Frame:
    """Return the bytes of an encoded medium, copied once, since the pipeline may use its tensor again."""
    if medium is None or medium.dtype is not torch.uint8 or medium.dim() != 1:
        raise TypeError("the last stage's media are not all uint8 tensors of one dimension")
    return medium.detach().to("cpu", copy=True).contiguous().numpy().data


def encode_images(images: Tensor, seed: int) -> tuple[tuple[MediaInfo, ...], tuple[bytes, ...]]:
    """Return what is known of each picture of `images`, uint8 [N, H, W, 3], and its PNG bytes."""
    infos: list[MediaInfo] = []
    files: list[bytes] = []
    for index, image in enumerate(images):
        height, width, _ = image.shape
        file = io.BytesIO()
        Image.fromarray(image.numpy(force=True)).save(file, "PNG")
        infos.append(MediaInfo("image/png", width, height, (seed + index) % MAX_SEED))
        files.append(file.getvalue())
    return tuple(infos), tuple(files)
