"""Errors as a person at a terminal reads them: one line with the way out, and an exit status."""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from typing import cast

import typer

from ...schemas.errors import ConfigError, InvalidRequest, TriptychError

#: set to anything, it adds the traceback
TRACEBACK = "TRIPTYCH_TRACEBACK"
USAGE_STATUS = 2
INTERRUPTED_STATUS = 130

#: the flags that give what the protocol calls otherwise
FLAGS = {
    "prompt": "PROMPT",
    "instance_id": "INSTANCE",
    "request_id": "REQUEST",
    "negative_prompt": "--negative",
    "num_inference_steps": "--steps",
    "guidance_scale": "--guidance",
    "num_images": "--num-images",
    "timeout_s": "--timeout",
    "seed": "--seed",
    "width": "--width",
    "height": "--height",
    "model": "--model",
    "priority": "--priority",
    "tenant": "--tenant",
}
_EXTRAS = {"torch": "serve", "safetensors": "serve", "numpy": "images", "PIL": "images"}


def guarded(body: Callable[[], object]) -> int:
    """Run `body` as a whole process; return the exit status, and say to standard error what went wrong."""
    try:
        status = body()
    except (KeyboardInterrupt, asyncio.CancelledError, typer.Abort):
        print("interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED_STATUS
    except Exception as error:  # noqa: BLE001  (the outermost line of the process)
        return report(error)
    return status if isinstance(status, int) else 0


def report(error: Exception) -> int:
    """Print what went wrong, each thing once, and return the exit status."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    leaves = _leaves(error)
    for line in dict.fromkeys(map(explain, leaves)):
        print(f"error: {line}", file=sys.stderr)  # noqa: T201
    return max(map(_status, leaves))


def explain(error: BaseException) -> str:
    """Return one line for `error`."""
    match error:
        case InvalidRequest():
            text = f"{FLAGS.get(error.field, error.field)} is {error.value}; allowed: {error.allowed}"
        case TriptychError():
            text = str(error)
        case ModuleNotFoundError() if error.name in _EXTRAS:
            text = f"{error.name} is not installed: in a checkout, pip install '.[{_EXTRAS[error.name]}]'"
        case OSError():
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case _ if (usage := usage_message(error)) is not None:
            text = usage
        case _:
            text = f"unexpected {type(error).__name__}: {error} (a bug; {TRACEBACK}=1 shows where)"
    return " ".join(text.split())


def usage_message(error: BaseException) -> str | None:
    """Return the command line parser's complaint, if `error` is one."""
    format_message = getattr(error, "format_message", None)
    return f"{str(format_message()).rstrip('.')}; see --help" if callable(format_message) else None


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [error]


def _status(error: BaseException) -> int:
    usage = isinstance(error, ConfigError | InvalidRequest) or usage_message(error) is not None
    return USAGE_STATUS if usage else 1
