"""`triptych generate`: one prompt, against a running cluster."""

import time
from pathlib import Path

from rich.console import Console

from ...client.client import CONNECT_TIMEOUT_S, Client
from ...client.options import RequestOptions, submission_from
from ...client.result import Result
from ...schemas.errors import ConfigError, RequestTimedOut
from .outputs import check_output, save_images
from .progress import StageBars
from .running import run_cancellable


def generate_pictures(prompt: str, output: Path, endpoint: str, options: RequestOptions) -> None:
    """Draw the prompt, write the pictures, and say where they are. `timeout_s` includes the time to connect."""
    check_output(output)
    timeout_s = submission_from(prompt, options, "").submit.timeout_s  # what is wrong is said before anybody is asked
    result = run_cancellable(_draw(prompt, endpoint, timeout_s, options))
    for image, file in zip(result.images, save_images(result.images, output), strict=True):
        told = f"{file}  {image.width} × {image.height}, seed {image.seed}, {result.total_s:.2f} s"
        Console().print(told, highlight=False, markup=False, soft_wrap=True)


async def _draw(prompt: str, endpoint: str, timeout_s: float | None, options: RequestOptions) -> Result:
    try:
        return await _draw_within(prompt, endpoint, timeout_s, options)
    except ConfigError as error:
        if error.key == "endpoint":
            raise ConfigError("--broker", endpoint, error.allowed) from error
        raise
    except RequestTimedOut as error:
        raise RequestTimedOut(timeout_s or error.timeout_s, error.state) from error


async def _draw_within(prompt: str, endpoint: str, timeout_s: float | None, options: RequestOptions) -> Result:
    started = time.monotonic()
    connect_timeout_s = CONNECT_TIMEOUT_S if timeout_s is None else min(CONNECT_TIMEOUT_S, timeout_s)
    async with Client(endpoint, connect_timeout_s=connect_timeout_s) as client:
        if timeout_s is not None:
            left_s = timeout_s - (time.monotonic() - started)
            options = options.copy()
            options["timeout_s"] = max(left_s, 1e-3)
        with StageBars(Console(stderr=True), 1) as bars:
            return await bars.follow(client.stream(prompt, **options))
