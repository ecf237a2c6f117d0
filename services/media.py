"""Pixels to picture files."""

import io

from PIL import Image
from torch import Tensor

from ..schemas.transfer import MediaInfo

MAX_SEED = 2**64


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
