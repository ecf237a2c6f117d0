"""The client: pictures for prompts."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from ..schemas.client import WelcomeMsg
from ..schemas.errors import ConfigError, InvalidRequest, LinkError
from ..schemas.sampling import SamplingLimits, check_sampling_params
from ..schemas.transfer import PROTOCOL_VERSION
from .checks import ALLOWED_SECONDS, ALLOWED_TENANT, MAX_TIMEOUT_S, checked_request_id, is_number, is_tenant
from .events import Event, Finished
from .fetch import FetchSettings
from .keepalive import PING_INTERVAL_S
from .options import RequestOptions, Submission, submission_from
from .result import Result
from .session import Session

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7701"
CONNECT_TIMEOUT_S = 5.0
MAX_RESULT_BYTES = 2**40


class Client:
    """A connection to a broker, as an async context manager. Any number of requests may be in flight on it.

    It reconnects by itself, and a request survives the reconnect and a restart of the broker. Only a broker that says
    nothing for five times `ping_interval_s` is given up, with all that is in flight.

    `tenant` is on whose account requests go that name no other, `connect_timeout_s` how long entering waits for the
    broker, `max_result_bytes` the most that one result may weigh, `fetch_settings` how large ones are fetched. Raises
    `ConfigError` for what cannot be one of these.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        tenant: str = "",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        max_result_bytes: int = 256 * 2**20,
        ping_interval_s: float = PING_INTERVAL_S,
        fetch_settings: FetchSettings | None = None,
    ) -> None:
        _check_settings(endpoint, tenant, max_result_bytes, fetch_settings)
        _check_seconds("connect_timeout_s", connect_timeout_s)
        _check_seconds("ping_interval_s", ping_interval_s)
        self.endpoint = endpoint
        self.tenant = tenant
        self._connect_timeout_s = connect_timeout_s
        self._max_result_bytes = max_result_bytes
        self._ping_interval_s = ping_interval_s
        self._fetch_settings = fetch_settings or FetchSettings()
        self._session: Session | None = None
        #: what the models allow, as far as the broker knew when it was asked
        self._welcome = WelcomeMsg(PROTOCOL_VERSION, "")

    async def __aenter__(self) -> Self:
        """Connect. Raises `BrokerUnreachable` or `VersionMismatch`."""
        if self._session is not None:
            raise RuntimeError("this Client is entered already")
        self._session = Session(self.endpoint, self._max_result_bytes, self._ping_interval_s, self._fetch_settings)
        try:
            await self._ask()
        except BaseException:
            await self._aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is in flight, and disconnect."""
        await self._aclose()

    async def generate(self, prompt: str, **options: Unpack[RequestOptions]) -> Result:
        """Draw `prompt` and return the pictures. Cancelling the call cancels the request.

        `RequestOptions` has what can be given by name. Without a seed a random one is drawn; the result tells it. The
        broker ends the request `timeout_s` seconds after it accepted it. Raises `InvalidRequest`, `Overloaded` and the
        other errors of `triptych.schemas.errors`.
        """
        async with aclosing(self.stream(prompt, **options)) as events:
            return [event.result async for event in events if isinstance(event, Finished)][-1]

    async def stream(self, prompt: str, **options: Unpack[RequestOptions]) -> AsyncGenerator[Event, None]:
        """Draw `prompt` and yield what happens: events, and `Finished` last, or an error raised, never both.

        Leaving the loop early cancels the request. Options and errors are those of `generate`.
        """
        session = self._entered()
        submission = submission_from(prompt, options, self.tenant)
        await self._check(submission)
        inbox = session.submit(submission)
        try:
            while True:
                event = await inbox.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            session.leave(inbox)

    def cancel(self, request_id: str) -> None:
        """Ask the broker to end the request, and return at once.

        Whoever waits for it gets `RequestCancelled` when it is so, or the result if that came first. The broker is
        asked again until it answers, also when it restarts meanwhile. A request that is not in flight here is left
        alone.
        """
        self._entered().cancel(checked_request_id(request_id))

    async def models(self) -> dict[str, SamplingLimits]:
        """Ask the broker which models are served now, and return what each allows, by name."""
        return dict((await self._ask()).models)

    async def _check(self, submission: Submission) -> None:
        """Raise `InvalidRequest` for parameters that the model does not allow.

        The limits may be of a pipeline that has been replaced since, so a refusal is only final by fresh ones.
        """
        submit = submission.submit
        try:
            check_sampling_params(submit.params, self._limits_of(submit.model))
        except InvalidRequest as refusal:
            try:
                await self._ask()
            except LinkError:
                raise refusal from None
            check_sampling_params(submit.params, self._limits_of(submit.model))

    def _limits_of(self, model: str) -> SamplingLimits:
        """Return what the model allows; one that is not served yet is the broker's to judge."""
        return (self._welcome.models.get(model) if model else self._welcome.limits) or SamplingLimits()

    async def _ask(self) -> WelcomeMsg:
        self._welcome = await self._entered().hello(self._connect_timeout_s)
        return self._welcome

    async def _aclose(self) -> None:
        session, self._session = self._entered(), None
        await session.aclose()

    def _entered(self) -> Session:
        if self._session is None:
            raise RuntimeError('a Client is used inside its context: async with Client("tcp://…") as client')
        return self._session


def _check_settings(endpoint: object, tenant: object, max_result_bytes: object, fetch_settings: object) -> None:
    if not isinstance(endpoint, str):
        raise ConfigError("endpoint", endpoint, f"a string such as {DEFAULT_ENDPOINT}")
    if not is_tenant(tenant):
        raise ConfigError("tenant", tenant, ALLOWED_TENANT)
    if not isinstance(max_result_bytes, int) or not is_number(max_result_bytes, MAX_RESULT_BYTES):
        allowed = f"a whole number of bytes from 1 to {MAX_RESULT_BYTES}"
        raise ConfigError("max_result_bytes", max_result_bytes, allowed)
    if not isinstance(fetch_settings, FetchSettings | None):
        raise ConfigError("fetch_settings", fetch_settings, "a FetchSettings, or None")


def _check_seconds(name: str, value: object) -> None:
    if not is_number(value, MAX_TIMEOUT_S):
        raise ConfigError(name, value, ALLOWED_SECONDS)
