"""The client: pictures for prompts."""

import secrets
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from ..schemas.errors import ConfigError, InvalidRequest, LinkError
from ..schemas.sampling import SamplingLimits, SamplingParams, check_sampling_params
from .events import Event, Finished
from .fetch import FetchSettings
from .keepalive import PING_INTERVAL_S
from .options import SamplingOptions, params_from
from .result import Result
from .session import Session

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7701"
MAX_TIMEOUT_S = 7 * 86_400
MAX_RESULT_BYTES = 2**40


class Client:
    """A connection to a broker, as an async context manager. Any number of requests may be in flight on it.

    It reconnects by itself, and a request survives the reconnect. `connect_timeout_s` is how long entering waits for
    the broker, `max_result_bytes` the most that one result may weigh, `fetch_settings` how large ones
    are fetched. Raises `ConfigError` for what cannot be one of these.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        connect_timeout_s: float = 5.0,
        max_result_bytes: int = 256 * 2**20,
        ping_interval_s: float = PING_INTERVAL_S,
        fetch_settings: FetchSettings | None = None,
    ) -> None:
        _check_settings(endpoint, max_result_bytes, fetch_settings)
        _check_seconds("connect_timeout_s", connect_timeout_s)
        _check_seconds("ping_interval_s", ping_interval_s)
        self.endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._max_result_bytes = max_result_bytes
        self._ping_interval_s = ping_interval_s
        self._fetch_settings = fetch_settings or FetchSettings()
        self._session: Session | None = None
        #: what the running pipeline allows, as far as the broker knew when it was asked
        self._limits = SamplingLimits()

    async def __aenter__(self) -> Self:
        """Connect. Raises `BrokerUnreachable` or `VersionMismatch`."""
        if self._session is not None:
            raise RuntimeError("this Client is entered already")
        self._session = Session(self.endpoint, self._max_result_bytes, self._ping_interval_s, self._fetch_settings)
        try:
            await self._ask_limits()
        except BaseException:
            await self._aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is in flight, and disconnect."""
        await self._aclose()

    async def generate(
        self,
        prompt: str,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Result:
        """Draw `prompt` and return the pictures. Cancelling the call cancels the request.

        The broker ends the request `timeout_s` seconds after it accepted it; None takes the broker's default. Without
        a seed a random one is drawn; the result tells it. `request_id` must be unique for ever; None makes one.
        """
        stream = self.stream(prompt, timeout_s=timeout_s, request_id=request_id, **options)
        async with aclosing(stream) as events:
            return [event.result async for event in events if isinstance(event, Finished)][-1]

    async def stream(
        self,
        prompt: str,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AsyncGenerator[Event, None]:
        """Draw `prompt` and yield what happens, `Finished` last. Leaving the loop early cancels the request."""
        session = self._entered()
        params = await self._checked(params_from(prompt, options, secrets.randbits(64)))
        _check_timeout(timeout_s)
        inbox = session.submit(_checked_id(session, request_id), params, timeout_s)
        try:
            while True:
                event = await inbox.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            session.leave(inbox)

    def cancel(self, request_id: str) -> None:
        """Ask the broker to end the request; whoever waits for it gets `RequestCancelled`."""
        session = self._entered()
        _check_id(request_id)
        session.cancel(request_id)

    async def _checked(self, params: SamplingParams) -> SamplingParams:
        """Return `params` where they are allowed, and otherwise raise `InvalidRequest`.

        The limits may be of a pipeline that has been replaced since, so a refusal is only final by fresh ones.
        """
        try:
            check_sampling_params(params, self._limits)
        except InvalidRequest as refusal:
            try:
                await self._ask_limits()
            except LinkError:
                raise refusal from None
            check_sampling_params(params, self._limits)
        return params

    async def _ask_limits(self) -> None:
        welcome = await self._entered().hello(self._connect_timeout_s)
        self._limits = welcome.limits or SamplingLimits()

    async def _aclose(self) -> None:
        session, self._session = self._entered(), None
        await session.aclose()

    def _entered(self) -> Session:
        if self._session is None:
            raise RuntimeError('a Client is used inside its context: async with Client("tcp://…") as client')
        return self._session


def _check_timeout(timeout_s: object) -> None:
    if timeout_s is not None and not _is_number(timeout_s, MAX_TIMEOUT_S):
        raise InvalidRequest("timeout_s", timeout_s, f"a number of seconds above 0, at most {MAX_TIMEOUT_S}")


def _check_settings(endpoint: object, max_result_bytes: object, fetch_settings: object) -> None:
    if not isinstance(endpoint, str):
        raise ConfigError("endpoint", endpoint, f"a string such as {DEFAULT_ENDPOINT}")
    if not isinstance(max_result_bytes, int) or not _is_number(max_result_bytes, MAX_RESULT_BYTES):
        allowed = f"a whole number of bytes from 1 to {MAX_RESULT_BYTES}"
        raise ConfigError("max_result_bytes", max_result_bytes, allowed)
    if not isinstance(fetch_settings, FetchSettings | None):
        raise ConfigError("fetch_settings", fetch_settings, "a FetchSettings, or None")


def _check_seconds(name: str, value: object) -> None:
    if not _is_number(value, MAX_TIMEOUT_S):
        raise ConfigError(name, value, f"a number of seconds above 0, at most {MAX_TIMEOUT_S}")


def _is_number(value: object, most: int) -> bool:
    """Say whether `value` is a number above 0 and at most `most`; NaN and truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def _check_id(request_id: object) -> None:
    if not isinstance(request_id, str) or not (
        request_id.isascii() and request_id.isprintable() and 1 <= len(request_id) <= 64
    ):
        raise InvalidRequest("request_id", request_id, "1 to 64 printable ASCII characters")


def _checked_id(session: Session, request_id: str | None) -> str:
    if request_id is None:
        return uuid.uuid4().hex
    _check_id(request_id)
    if session.in_flight(request_id):
        raise InvalidRequest("request_id", request_id, "one that is not in flight")
    return request_id
