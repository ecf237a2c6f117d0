"""The machine's reports as log events."""

import logging
from collections.abc import Callable

import structlog
from msgspec import Struct

from ...schemas.states import TERMINAL_STATES, RequestState
from ..machine.commands import ReportIgnored, ReportInstance, ReportTransition

log: structlog.stdlib.BoundLogger = structlog.get_logger("triptych.broker")


def transition_reporter() -> Callable[[ReportTransition], None]:
    """Return what logs state changes, as logging is set up now: those that nobody will read cost nothing."""
    return report_transition if log.is_enabled_for(logging.DEBUG) else report_end


def report_end(report: ReportTransition) -> None:
    """Log the end of a request, and no other change of its state."""
    if report.finish in TERMINAL_STATES:
        report_transition(report)


def report_transition(report: ReportTransition) -> None:
    """Log one state change; the end of a request at info level, or as a warning where it is not DONE."""
    emit = log.debug
    if report.finish in TERMINAL_STATES:
        emit = log.info if report.finish is RequestState.DONE else log.warning
    emit(
        "request moved",
        request_id=report.request_id,
        attempt=report.attempt,
        start=report.start.value,
        finish=report.finish.value,
        cause=report.cause,
        instance_id=report.instance_id,
    )


def report_instance(report: ReportInstance) -> None:
    """Log that an instance came, went or was refused."""
    log.info(
        "instance changed",
        instance_id=report.instance_id,
        role=report.role.value,
        change=report.change,
        reason=report.reason,
    )


def report_ignored(report: ReportIgnored) -> None:
    """Log a message that changed nothing."""
    log.debug("message ignored", peer=printable(report.peer), msg_type=report.msg_type, reason=report.reason)


def report_bug(subject: Struct, error: Exception) -> None:
    """Log a bug that `subject` met, with its traceback."""
    peer = getattr(subject, "peer", b"")
    log.error("message met a bug", kind=type(subject).__name__, peer=printable(peer), exc_info=error)


def report_malformed(peer: bytes, reason: str) -> None:
    """Log frames that were no message."""
    log.warning("message dropped", peer=printable(peer), reason=reason)


def printable(peer: bytes) -> str:
    """Return a routing id as text: as it is where it is plain ASCII, in hexadecimal otherwise."""
    text = peer.decode("ascii", "replace")
    return text if text.isprintable() and text.isascii() else peer.hex()
