"""What a request gives: pictures, the seed that drew them, and where the time went."""

import io
import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ..schemas.client import ResultMsg
from ..schemas.errors import MalformedMessage
from ..schemas.timing import StageTiming, TransferTiming

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as PILImage

_MISSING = "{call} needs {library}: install Triptych with its extra images, in a checkout: pip install '.[images]'"


class Image(Struct, frozen=True):
    """One picture, encoded as `media_type` says. Asking for `seed` again, alone, draws it again."""

    data: bytes
    media_type: str
    #: pixels
    width: int
    #: pixels
    height: int
    seed: int

    def __repr__(self) -> str:
        """Say what it is, without the bytes."""
        return f"Image({self.width} × {self.height} {self.media_type}, {len(self.data)} bytes, seed {self.seed})"

    def to_pil(self) -> "PILImage.Image":
        """Return the picture as a `PIL.Image.Image`."""
        try:
            from PIL import Image as PILImage  # noqa: PLC0415  (an extra)
        except ModuleNotFoundError as error:
            missing = _MISSING.format(call="this format", library="Pillow")
            raise ModuleNotFoundError(missing, name="PIL") from error
        return PILImage.open(io.BytesIO(self.data))

    def to_numpy(self) -> "NDArray[np.uint8]":
        """Return the picture as an array of shape (height, width, 3)."""
        try:
            import numpy as np  # noqa: PLC0415  (an extra)
        except ModuleNotFoundError as error:
            missing = _MISSING.format(call="an array", library="NumPy")
            raise ModuleNotFoundError(missing, name="numpy") from error
        return np.asarray(self.to_pil().convert("RGB"))

    def save(self, path: str | Path) -> None:
        """Write the bytes to `path` as they came; where its name asks for another format, Pillow converts them."""
        wanted, _ = mimetypes.guess_type(path)
        if wanted is None or wanted == self.media_type:
            Path(path).write_bytes(self.data)
        else:
            self.to_pil().save(path)


class Result(Struct, frozen=True):
    """A finished request. Image `i` was drawn with the seed `(seed + i) % 2**64`."""

    request_id: str
    images: tuple[Image, ...]
    seed: int
    stages: tuple[StageTiming, ...]
    transfers: tuple[TransferTiming, ...]
    #: from acceptance to the result, in seconds, by the broker's clock
    total_s: float


def result_from(message: ResultMsg, attachments: tuple[bytes, ...], seed: int) -> Result:
    """Return `message` and its attachments as the result a caller sees. Raises `MalformedMessage`."""
    if len(message.media) != len(attachments):
        raise MalformedMessage(f"a result names {len(message.media)} media and carries {len(attachments)}")
    images = tuple(
        Image(data, media.media_type, media.width, media.height, media.seed)
        for media, data in zip(message.media, attachments, strict=True)
    )
    return Result(message.request_id, images, seed, message.stages, message.transfers, message.total_s)
