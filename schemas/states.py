"""The states of a request, as clients, logs, metrics and the admin command line see them."""

from enum import StrEnum


class RequestState(StrEnum):
    """Where a request stands. The last four are terminal."""

    PENDING = "PENDING"
    ENCODER_WAITING = "ENCODER_WAITING"
    ENCODER_RUNNING = "ENCODER_RUNNING"
    ENCODER_DONE = "ENCODER_DONE"
    DENOISING_WAITING = "DENOISING_WAITING"
    DENOISING_RUNNING = "DENOISING_RUNNING"
    DENOISING_DONE = "DENOISING_DONE"
    DECODER_WAITING = "DECODER_WAITING"
    DECODER_RUNNING = "DECODER_RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"


TERMINAL_STATES = frozenset({RequestState.DONE, RequestState.FAILED, RequestState.TIMED_OUT, RequestState.CANCELLED})
