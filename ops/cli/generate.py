"""`triptych generate`: one prompt, against a running cluster."""

from pathlib import Path

from rich.console import Console

from ...client.client import Client
from ...client.options import SamplingOptions
from ...client.result import Result
from ...schemas.errors import ConfigError
from .outputs import check_output, save_images
from .progress import StageBars
from .running import run_cancellable


def generate_pictures(
    prompt: str, output: Path, endpoint: str, timeout_s: float | None, options: SamplingOptions
) -> None:
    """Draw the prompt, write the pictures, and say where they are."""
    check_output(output)
    result = run_cancellable(_draw(prompt, endpoint, timeout_s, options))
    for image, file in zip(result.images, save_images(result.images, output), strict=True):
        told = f"{file}  {image.width} × {image.height}, seed {image.seed}, {result.total_s:.2f} s"
        Console().print(told, highlight=False, markup=False, soft_wrap=True)


async def _draw(prompt: str, endpoint: str, timeout_s: float | None, options: SamplingOptions) -> Result:
    try:
        async with Client(endpoint) as client:
            with StageBars(Console(stderr=True), 1) as bars:
                return await bars.follow(client.stream(prompt, timeout_s=timeout_s, **options))
    except ConfigError as error:
        if error.key == "endpoint":
            raise ConfigError("--broker", endpoint, error.allowed) from error
        raise
