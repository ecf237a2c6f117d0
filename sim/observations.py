"""What is seen of a run: counted as it happens, in memory that does not grow with it."""

from collections import Counter
from math import inf

from ..broker.machine.commands import ReportTransition
from ..broker.machine.stages import STAGES, WAITING_FOR
from ..schemas.client import ErrorMsg, StageFinishedMsg
from ..schemas.roles import Role
from ..schemas.states import RequestState
from .clients import Call
from .histogram import Histogram, Level
from .plan import Plan

_RUNNING_ON = {stage.running: role for role, stage in STAGES.items()}


class StageSeen:
    """One stage, of all requests that arrived after the warm-up."""

    def __init__(self) -> None:
        #: in the broker's queue, for a place on an instance
        self.queue = Histogram()
        #: on the instance, with the input at hand, for its compute thread
        self.wait = Histogram()
        self.compute = Histogram()
        #: requests that wait for the stage, from the beginning on
        self.waiting = Level()
        #: seconds that instances have computed in the window
        self.busy_s = 0.0


class TenantSeen:
    """One tenant, of its requests that arrived after the warm-up."""

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.latency = Histogram()
        self.outcomes = Counter[str]()
        #: at speed 1, of its results in the window
        self.work_s = 0.0
        #: its requests that wait for any stage
        self.waiting = 0
        #: at speed 1, of the stages it was given while every tenant had requests waiting
        self.contended_s = 0.0


class Observations:
    """Everything a report is made of."""

    def __init__(self, plan: Plan) -> None:
        self._from = plan.run.warm_up_s
        self._until = inf if plan.run.duration_s is None else plan.run.duration_s
        names = sorted({traffic.tenant for traffic in plan.traffic})
        self.tenants = [TenantSeen(name, plan.broker.tenant(name).weight) for name in names]
        self._by_name = {tenant.name: tenant for tenant in self.tenants}
        #: how many tenants have no request waiting
        self._idle_tenants = len(names)
        self.stages = {role: StageSeen() for role in Role}
        self.latency = Histogram()
        #: from submit to the end, of all requests
        self.live = Level()
        #: of all requests, by state or, where they were not accepted, by the code of the error
        self.outcomes = Counter[str]()
        #: the same seconds that `live` counts, added up request by request
        self.sojourn_s = 0.0
        #: results in the window
        self.results = 0
        self.retries = 0
        #: messages that changed nothing
        self.ignored = 0
        #: instances that came and went, by change
        self.instances = Counter[str]()
        self.last_end = 0.0

    @property
    def window_s(self) -> float:
        """How long the counted part of the run is."""
        return max(0.0, (self.last_end if self._until == inf else self._until) - self._from)

    def submitted(self, when: float) -> None:
        """Note a new request."""
        self.live.change(1, when)

    def ended(self, call: Call, outcome: str, when: float) -> None:
        """Note that a client was told of the end of its request."""
        self.live.change(-1, when)
        self.outcomes[outcome] += 1
        latency_s = when - call.submitted
        self.sojourn_s += latency_s
        self.last_end = when
        tenant = self._by_name[call.clients.traffic.tenant]
        if outcome == RequestState.DONE and self._from <= when <= self._until:
            self.results += 1
            tenant.work_s += sum(call.compute_s.values())
        if call.submitted >= self._from:
            tenant.outcomes[outcome] += 1
            if outcome == RequestState.DONE:
                self.latency.add(latency_s)
                tenant.latency.add(latency_s)

    def stage_finished(self, call: Call, msg: StageFinishedMsg) -> None:
        """Note where the time of a stage went."""
        if call.submitted >= self._from:
            timing = msg.timing
            stage = self.stages[timing.role]
            stage.queue.add(timing.queue_s)
            stage.wait.add(timing.wait_s)
            stage.compute.add(timing.compute_s)

    def computed(self, role: Role, begun: float, ended: float) -> None:
        """Note that an instance has computed."""
        self.stages[role].busy_s += max(0.0, min(ended, self._until) - max(begun, self._from))

    def transition(self, call: Call, command: ReportTransition, when: float) -> None:
        """Note who waits for what."""
        left, entered = WAITING_FOR.get(command.start), WAITING_FOR.get(command.finish)
        if left is None and entered is None:
            return
        tenant = self._by_name[call.clients.traffic.tenant]
        if left is not None:
            if not self._idle_tenants and command.finish in _RUNNING_ON and when >= self._from:
                tenant.contended_s += call.compute_s[left]
            self._wait(left, tenant, -1, when)
        if entered is not None:
            self._wait(entered, tenant, 1, when)

    def _wait(self, role: Role, tenant: TenantSeen, change: int, when: float) -> None:
        self.stages[role].waiting.change(change, when)
        was_idle = not tenant.waiting
        tenant.waiting += change
        self._idle_tenants += (not tenant.waiting) - was_idle


def outcome_of(error: ErrorMsg) -> str:
    """Return what became of a request: its last state, or why it was not accepted."""
    return error.error.code if error.state is None else error.state.value
