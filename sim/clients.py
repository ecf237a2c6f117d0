"""Simulated clients: they submit, wait, perhaps lose their patience, and perhaps come again."""

from collections.abc import Callable
from math import pi, sin
from random import Random
from typing import Protocol

from ..broker.machine.events import ClientSpoke
from ..schemas.client import CancelMsg, ClientMsg, ErrorMsg, SubmitMsg
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from .agenda import Agenda
from .distributions import Draw, weighted
from .plan import Burst, Closed, Diurnal, Poisson, Traffic

#: a client that is refused asks again after this at the earliest, in seconds
SHORTEST_PAUSE_S = 0.1


class Call:
    """One request, as its client sees it."""

    __slots__ = ("clients", "compute_s", "params", "request_id", "submitted")

    def __init__(
        self,
        clients: "Clients",
        request_id: str,
        params: SamplingParams,
        submitted: float,
        compute_s: dict[Role, float],
    ) -> None:
        self.clients = clients
        self.request_id = request_id
        self.params = params
        self.submitted = submitted
        #: of each stage, at speed 1
        self.compute_s = compute_s


class Exchange(Protocol):
    """What clients need of the world around them."""

    agenda: Agenda

    def says(self, event: ClientSpoke) -> None:
        """Send a message to the broker."""
        ...

    def may_call(self) -> bool:
        """Say whether requests may still come."""
        ...

    def new_call(self, clients: "Clients", params: SamplingParams) -> Call:
        """Return a new request with the times of its stages."""
        ...


class Clients:
    """Those who make the traffic of one stream."""

    def __init__(self, exchange: Exchange, number: int, traffic: Traffic, seed: str) -> None:
        self.traffic = traffic
        self._exchange = exchange
        self._peer = f"clients-{number}".encode()
        chance = Random(f"{seed} arrivals")
        self._chance = chance
        kinds = traffic.kinds
        weights = tuple(kind.weight for kind in kinds)
        self._draw_params = weighted(tuple(kind.params() for kind in kinds), weights, Random(f"{seed} mix"))
        self._patience = None if traffic.patience is None else traffic.patience.sampler(Random(f"{seed} patience"))
        self._think: Draw | None = None

    def begin(self) -> None:
        """Enter the first arrivals into the agenda."""
        after = self._exchange.agenda.after
        match self.traffic.arrivals:
            case Poisson(rate):
                self._repeat(lambda: self._chance.expovariate(rate))
            case Diurnal() as day:
                self._begin_day(day)
            case Burst(size, first_s, _):
                after(first_s, self._burst, size)
            case Closed(clients, think):
                self._think = think.sampler(self._chance)
                for _ in range(clients):
                    after(self._think(), self._submit, None)

    def ended(self, call: Call, refusal: ErrorMsg | None = None) -> None:
        """Note that a request has ended, or was not accepted."""
        del call
        if self._think is not None and self._exchange.may_call():
            pause_s = self._think()
            if refusal is not None:
                told = refusal.error.details.get("retry_after_s")
                pause_s = max(pause_s, SHORTEST_PAUSE_S, told if isinstance(told, float) else 0.0)
            self._exchange.agenda.after(pause_s, self._submit, None)

    def lose_patience(self, call: Call) -> None:
        """Cancel the request at the end of the client's patience; whether it still lives is for the broker to say."""
        self._say(CancelMsg(call.request_id))

    def _submit(self, _: None) -> None:
        if not self._exchange.may_call():
            return
        call = self._exchange.new_call(self, self._draw_params())
        traffic = self.traffic
        self._say(SubmitMsg(call.request_id, call.params, traffic.timeout_s, "", traffic.priority, traffic.tenant))
        if self._patience is not None:
            self._exchange.agenda.standing(self._patience(), self.lose_patience, call)

    def _say(self, msg: ClientMsg) -> None:
        self._exchange.says(ClientSpoke(self._peer, msg))

    def _repeat(self, gap: Callable[[], float], keep: Callable[[], bool] = lambda: True) -> None:
        """Submit again and again, `gap` apart; those that `keep` is not true of are left out."""

        def arrive(_: None) -> None:
            if keep():
                self._submit(None)
            if self._exchange.may_call():
                self._exchange.agenda.after(gap(), arrive, None)

        self._exchange.agenda.after(gap(), arrive, None)

    def _begin_day(self, day: Diurnal) -> None:
        """Arrive at the highest rate there is, and leave some out (Lewis and Shedler's thinning)."""
        agenda, chance = self._exchange.agenda, self._chance

        def keep() -> bool:
            now = 1 - day.swing * sin(2 * pi * agenda.now / day.period_s + pi / 2)
            return chance.random() * (1 + day.swing) < now

        peak = day.mean_rate_per_s * (1 + day.swing)
        self._repeat(lambda: chance.expovariate(peak), keep)

    def _burst(self, size: int) -> None:
        for _ in range(size):
            self._submit(None)
        match self.traffic.arrivals:
            case Burst(_, _, every_s) if every_s is not None and self._exchange.may_call():
                self._exchange.agenda.after(every_s, self._burst, size)
            case _:
                pass
