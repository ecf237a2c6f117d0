"""The loop: the machine, and a simulated world that carries out its commands."""

from collections.abc import Callable, Mapping
from random import Random

from msgspec.structs import replace

from ..broker.machine.commands import (
    ReportIgnored,
    ReportInstance,
    ReportTransition,
    TellClient,
    TellService,
)
from ..broker.machine.events import ClientSpoke, Event, TimePassed
from ..broker.machine.server import DiffusionServer
from ..broker.machine.settings import DispatchSettings
from ..schemas.client import ErrorMsg, ResultMsg, RetryingMsg, StageFinishedMsg
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from ..schemas.states import RequestState
from .agenda import Agenda
from .clients import Call, Clients
from .cluster import Cluster
from .meter import Meter, without_collector
from .observations import Observations, outcome_of
from .plan import Plan
from .stages import stage_plans

#: a week: as long as a lease can be, and a heartbeat twice within it
_LONGEST_LEASE_S = 7 * 86_400.0
_LONGEST_HEARTBEAT_S = _LONGEST_LEASE_S / 3

#: deeds between two calls of `on_progress`, unless it is said otherwise
PROGRESS_DEEDS = 10_000


class Simulation:
    """A plan as it comes true. The same seed gives the same run, to the last bit."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.agenda = Agenda()
        self.server = DiffusionServer(broker_settings(plan), "simulated")
        self.meter = Meter(self.server)
        self.seen = Observations(plan)
        seed = plan.run.seed
        self._draw = {role: plan.pool(role).time.sampler(Random(f"{seed} {role} time")) for role in Role}
        self._stages = stage_plans(plan)
        self.cluster = Cluster(plan, self.agenda, self.seen, self.tell, self._compute_s)
        self._calls: dict[str, Call] = {}
        self._submitted = 0
        #: when the machine wants to be woken
        self._deadline: float | None = None
        self._streams = [
            Clients(self, number, traffic, f"{seed} {number}") for number, traffic in enumerate(plan.traffic)
        ]
        self._carry_out: Mapping[type, Callable[..., None]] = {
            TellService: self._tell_service,
            TellClient: self._tell_client,
            ReportTransition: self._transition,
            ReportInstance: self._instance,
            ReportIgnored: self._ignored,
        }
        #: what clients are told and act upon
        self._hear: Mapping[type, Callable[..., None]] = {
            ResultMsg: self._hear_result,
            ErrorMsg: self._hear_error,
            StageFinishedMsg: self._hear_finished,
            RetryingMsg: self._hear_retrying,
        }

    @property
    def submitted(self) -> int:
        """How many requests have come so far."""
        return self._submitted

    @property
    def live(self) -> int:
        """How many requests have not ended."""
        return len(self._calls)

    def run(self, on_progress: Callable[["Simulation"], None] = lambda _: None, each: int = PROGRESS_DEEDS) -> None:
        """Let everything happen, to the end of the last request and until nothing of it is under way any more.

        `on_progress` is called after each so many deeds.
        """
        self.cluster.begin()
        for stream in self._streams:
            stream.begin()
        deeds = 0
        with without_collector():
            while self._calls or self.agenda.passing:
                self._step()
                deeds += 1
                if deeds % each == 0:
                    on_progress(self)

    def _step(self) -> None:
        """Do what comes next: what is on the agenda, or what the machine wanted to be woken for."""
        when, deadline = self.agenda.next_time(), self._deadline
        if deadline is None or (when is not None and when <= deadline):
            self.agenda.do_next()
        else:
            self.agenda.wait_until(deadline)
            self.tell(TimePassed())

    def tell(self, event: Event) -> None:
        """Let the machine take `event` in, and do what it says."""
        for command in self.meter.handle(event, self.agenda.now):
            self._carry_out[type(command)](command)
        self._deadline = self.server.next_deadline()

    # ------------------------------------------------------------------------------- what the machine says

    def _tell_service(self, command: TellService) -> None:
        self.cluster.deliver(command.peer, command.msg)

    def _tell_client(self, command: TellClient) -> None:
        hear = self._hear.get(type(command.msg))
        if hear is not None:
            self.agenda.after(self.plan.network.latency_s, hear, command.msg)

    def _transition(self, command: ReportTransition) -> None:
        self.seen.transition(self._calls[command.request_id], command, self.agenda.now)

    def _instance(self, command: ReportInstance) -> None:
        self.seen.instances[command.change] += 1

    def _ignored(self, _command: ReportIgnored) -> None:
        self.seen.ignored += 1

    # ------------------------------------------------------------------------------- what clients hear

    def _hear_result(self, msg: ResultMsg) -> None:
        self._end(self._calls.pop(msg.request_id), RequestState.DONE.value)

    def _hear_error(self, msg: ErrorMsg) -> None:
        if msg.request_id is not None:
            self._end(self._calls.pop(msg.request_id), outcome_of(msg), msg if msg.state is None else None)

    def _hear_finished(self, msg: StageFinishedMsg) -> None:
        self.seen.stage_finished(self._calls[msg.request_id], msg)

    def _hear_retrying(self, _msg: RetryingMsg) -> None:
        self.seen.retries += 1

    def _end(self, call: Call, outcome: str, refusal: ErrorMsg | None = None) -> None:
        self.seen.ended(call, outcome, self.agenda.now)
        call.clients.ended(call, refusal)

    # ------------------------------------------------------------------------------- what clients do

    def says(self, event: ClientSpoke) -> None:
        """Send what a client says to the broker."""
        self.agenda.after(self.plan.network.latency_s, self.tell, event)

    def may_call(self) -> bool:
        """Say whether requests may still come."""
        run = self.plan.run
        return (run.requests is None or self._submitted < run.requests) and (
            run.duration_s is None or self.agenda.now < run.duration_s
        )

    def new_call(self, clients: Clients, params: SamplingParams) -> Call:
        """Return a new request. What its stages take is drawn here: it does not depend on who computes it, and when."""
        self._submitted += 1
        compute_s = {role: draw() * self._stages[role].factor(params) for role, draw in self._draw.items()}
        call = Call(clients, f"r{self._submitted}", params, self.agenda.now, compute_s)
        self._calls[call.request_id] = call
        self.seen.submitted(self.agenda.now)
        return call

    def _compute_s(self, request_id: str, role: Role) -> float:
        """Return what the stage takes; nothing where the request has ended, so that it is about to be stopped."""
        call = self._calls.get(request_id)
        return 0.0 if call is None else call.compute_s[role]


def broker_settings(plan: Plan) -> DispatchSettings:
    """Return the machine's settings: the plan's, but without heartbeats nobody is lost for being silent."""
    if plan.run.heartbeats:
        return plan.broker
    return replace(plan.broker, lease_s=_LONGEST_LEASE_S, heartbeat_s=_LONGEST_HEARTBEAT_S)
