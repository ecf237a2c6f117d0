"""How long a stage takes, as far as it was seen."""

from ...schemas.roles import Role
from ...schemas.sampling import SamplingParams
from .costs import cost_of

#: the weight of the newest observation
WEIGHT = 0.2
#: of a stage of which nothing was seen, in seconds
UNKNOWN_S = 1.0


class Estimates:
    """A moving average, per role of one model, of the seconds that a unit of cost takes."""

    __slots__ = ("_per_cost",)

    def __init__(self) -> None:
        self._per_cost: dict[Role, float] = {}

    def observe(self, params: SamplingParams, role: Role, took_s: float) -> None:
        """Note that the stage took `took_s`."""
        seen = took_s / cost_of(params, role)
        known = self._per_cost.get(role, seen)
        self._per_cost[role] = known + WEIGHT * (seen - known)

    def stage_s(self, params: SamplingParams, role: Role) -> float:
        """Return what the stage takes, in seconds."""
        per_cost = self._per_cost.get(role)
        return UNKNOWN_S if per_cost is None else per_cost * cost_of(params, role)

    def at_least_s(self, params: SamplingParams, roles: tuple[Role, ...]) -> float:
        """Return what these stages take without any waiting, in seconds; those of which nothing was seen count as 0."""
        return sum(self.stage_s(params, role) for role in roles if role in self._per_cost)

    def per_cost(self) -> dict[Role, float]:
        """Return the seconds for a unit of cost, of the roles of which something was seen."""
        return dict(self._per_cost)
