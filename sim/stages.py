"""What each stage takes for each request, as the plan says."""

from ..broker.machine.costs import cost_of
from ..broker.machine.manifests import padded
from ..schemas.manifest import EMPTY_MANIFEST, TensorEntry, TensorManifest
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from .plan import Plan, PoolPlan


class StagePlan:
    """What the stage of one role takes, by the sampling parameters of the request."""

    __slots__ = ("_manifests", "_of", "_plan", "_role")

    def __init__(self, plan: PoolPlan, role: Role) -> None:
        self._plan = plan
        self._role = role
        self._of = None if plan.time_of is None else plan.time_of.params()
        self._manifests: dict[float, TensorManifest] = {}

    def factor(self, params: SamplingParams) -> float:
        """Return how much longer the stage takes for this request than what the plan's `time` says."""
        return 1.0 if self._of is None else cost_of(params, self._role) / cost_of(self._of, self._role)

    def output(self, params: SamplingParams) -> TensorManifest:
        """Return the manifest of the output: that of the encoder is the same for all, others grow with the pixels."""
        if self._of is None or self._role is Role.ENCODER:
            return self._manifest(1.0)
        return self._manifest(cost_of(params, Role.DECODER) / cost_of(self._of, Role.DECODER))

    def _manifest(self, factor: float) -> TensorManifest:
        known = self._manifests.get(factor)
        if known is None:
            nbytes = int(self._plan.output_bytes * factor)
            entry = TensorEntry("x", None, "uint8", (nbytes,), 0, nbytes)
            known = TensorManifest(padded(nbytes), (entry,)) if nbytes else EMPTY_MANIFEST
            self._manifests[factor] = known
        return known


def stage_plans(plan: Plan) -> dict[Role, StagePlan]:
    """Return what the stage of each role takes."""
    return {role: StagePlan(plan.pool(role), role) for role in Role}


def input_bytes(plan: Plan, stages: dict[Role, StagePlan], role: Role) -> int:
    """Return the bytes of the largest input that an instance of `role` gets."""
    roles = list(Role)
    if role is roles[0]:
        return 0
    sender = stages[roles[roles.index(role) - 1]]
    return max(sender.output(kind.params()).data_size for traffic in plan.traffic for kind in traffic.kinds)
