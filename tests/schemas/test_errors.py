"""Errors that travel."""

import msgspec
import pytest

from triptych.schemas import errors
from triptych.schemas.errors import ErrorInfo, TriptychError, error_from

ERRORS: list[TriptychError] = [
    errors.InvalidRequest("width", 65, "a multiple of 16"),
    errors.Overloaded(1024, 3.5),
    errors.RequestTimedOut(600.0, "DENOISING_RUNNING"),
    errors.RequestCancelled("client"),
    errors.RequestFailed(["denoiser-0: out of memory", "denoiser-1: lost"]),
    errors.RequestLost("r1"),
    errors.ResultGone("r1", "decoder-0 is lost"),
    errors.BrokerUnreachable("tcp://127.0.0.1:7701", 5.0),
    errors.PeerUnreachable("No route to host"),
    errors.VersionMismatch(2, 1),
    errors.RegistrationRefused("the slots overlap"),
    errors.MalformedMessage("1 frames"),
    errors.ManifestMismatch("x ends at 2048, the slot at 1024"),
    errors.PoolExhausted(1024, 512),
    errors.PayloadTooLarge(2048, 1024, "pool_bytes"),
    errors.TransferError("the segment is gone"),
    errors.ConfigError("device", "cud", "cpu"),
    errors.UnknownName("instance", "denosier-0", ["denoiser-0"]),
    errors.ProcessDied("denoiser-0", -9, "error: no weights"),
    errors.InvalidTransition("r1", "DONE", "FAILED", ["submitted"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_an_error_arrives_as_itself(error: TriptychError) -> None:
    """Its class, words and fields are the same on the other side."""
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(error.info()), type=ErrorInfo)
    arrived = error_from(travelled)
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_an_error_of_a_newer_version_arrives_with_its_words() -> None:
    """A code that is not known here gives the root of the tree."""
    arrived = error_from(ErrorInfo("invented_later", "so it goes", {"why": 1}))
    assert (type(arrived), str(arrived)) == (TriptychError, "so it goes")


def test_every_error_is_in_the_tree() -> None:
    """The module's docstring draws every class."""
    assert all(f" {kind.__name__} " in (errors.__doc__ or "") + " " for kind in errors.type_of.values())
