"""Plans from files: what is in them arrives, and a mistake is told with its key, its value, and what would be right."""

from pathlib import Path

import pytest

from triptych.broker.machine.settings import PolicyName
from triptych.ops.plans import load_plan, parse_instances, parse_override
from triptych.schemas.context import Priority
from triptych.schemas.errors import ConfigError
from triptych.sim.distributions import Constant, Empirical, Exponential, Lognormal
from triptych.sim.plan import Burst, Closed, Diurnal, Failures, MixEntry, Others, Poisson, Shape

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan.toml"

SMALL = """
[run]
requests = 10

[[traffic]]
arrivals = { kind = "poisson", rate_per_s = 2 }

[encoder]
time = { kind = "constant", value_s = 0.1 }

[denoiser]
time = { kind = "exponential", mean_s = 1 }

[decoder]
time = { kind = "empirical", file = "measured/decode.txt" }
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return the smallest plan there is, with a file of measured values."""
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "decode.txt").write_text("0.1, 0.2\n0.3\n")
    path = tmp_path / "plan.toml"
    path.write_text(SMALL)
    return path


def test_a_small_plan_is_complete(small: Path) -> None:
    """Whatever is left out has a default; a file of measured values lies where the plan says, beside it."""
    plan = load_plan(small)
    assert [plan.pool(role).time for role in ("encoder", "denoiser", "decoder")] == [
        Constant(0.1),
        Exponential(1.0),
        Empirical((0.1, 0.2, 0.3)),
    ]
    assert [plan.pool(role).size for role in ("encoder", "denoiser", "decoder")] == [1, 1, 1]
    assert plan.traffic[0].arrivals == Poisson(2.0)
    assert (plan.run.requests, plan.broker.max_queued) == (10, 1024)


def test_everything_can_be_said(small: Path) -> None:
    """Groups of instances, mixes, tenants, patience, failures, the network and the broker."""
    small.write_text(
        SMALL
        + """
time_of = { steps = 30, width = 1024, height = 1024 }
failures = { mean_between_s = 3600, restart_s = 60, attempts = 0.01, graceful = true }
[[decoder.others]]
instances = 3
speed = 0.5
[[traffic]]
tenant = "studio"
priority = "high"
timeout_s = 60
arrivals = { kind = "closed", clients = 5, think = { kind = "lognormal", mean_s = 2, sigma = 1 } }
patience = { kind = "exponential", mean_s = 30 }
mix = [{ weight = 3, steps = 50 }, { width = 512, height = 512, num_images = 4 }]
[[traffic]]
arrivals = { kind = "diurnal", mean_rate_per_s = 1, swing = 0.5 }
[[traffic]]
arrivals = { kind = "burst", size = 100, first_s = 10 }
[network]
hosts = 2
[broker]
policy = "round_robin"
[broker.tenants.studio]
weight = 2
"""
    )
    plan = load_plan(small)
    _, studio, day, burst = plan.traffic
    assert (studio.priority, studio.arrivals, studio.mix) == (
        Priority.HIGH,
        Closed(5, Lognormal(2.0, sigma=1.0)),
        (MixEntry(steps=50, weight=3.0), MixEntry(width=512, height=512, num_images=4)),
    )
    assert (day.arrivals, burst.arrivals) == (Diurnal(1.0, 0.5), Burst(100, 10.0))
    assert plan.decoder.others == (Others(3, 0.5),)
    assert plan.decoder.failures == Failures(3600, 60, attempts=0.01, graceful=True)
    assert plan.decoder.time_of == Shape(30, 1024, 1024)
    assert (plan.broker.policy, plan.broker.tenant("studio").weight) == (PolicyName.ROUND_ROBIN, 2.0)
    assert plan.network.hosts == 2


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("[run]", "[runn]", "runn is {'requests': 10}; allowed: the settings at the top level: .*; did you mean run?"),
        ("requests = 10", "", "run is {}; allowed: requests or duration_s, so that it ends"),
        ("requests = 10", "requests = 0", "run.requests is 0; allowed: expected int >= 1"),
        ("requests", "request", "run.request is 10; allowed: the settings of .run.: .*; did you mean requests?"),
        (
            "requests = 10",
            "duration_s = 10\nwarm_up_s = 10",
            "run is .*; allowed: warm_up_s less than duration_s, 10",
        ),
        ("[[traffic]]", "[traffic]", r"traffic is .*; allowed: a list of tables: \[\[traffic\]\]"),
        (
            "arrivals =",
            "arival =",
            r"traffic.0.arrivals is None; allowed: a value; \[traffic.0\] has no default for it",
        ),
        (
            '"poisson"',
            '"poison"',
            "traffic.0.arrivals.kind is 'poison'; allowed: one of poisson, diurnal, closed, burst",
        ),
        ("rate_per_s = 2", "rate_per_s = -2", "traffic.0.arrivals.rate_per_s is -2; allowed: expected float > 0"),
        (
            "rate_per_s",
            "rate_per_h",
            "traffic.0.arrivals.rate_per_h is 2; allowed: the settings of .*; did you mean rate_per_s?",
        ),
        ('kind = "constant",', "", "encoder.time.kind is None; allowed: one of constant, exponential, lognormal, emp"),
        ("value_s = 0.1", 'value_s = "0.1"', "encoder.time.value_s is '0.1'; allowed: expected float, got str"),
        ("[denoiser]", "[denoiser]\nspeed = 0", "denoiser.speed is 0; allowed: expected float > 0"),
        ("[denoiser]", "[denoisr]", "denoisr is .*; did you mean denoiser?"),
        ("measured/decode.txt", "decode.txt", "decoder.time.file is '.*decode.txt'; allowed: a file that can be read"),
        ("[encoder]\n", "[encoder]\ntime_of = { step = 3 }\n", "encoder.time_of.step is 3; .* did you mean steps?"),
        ("[encoder]\n", "[encoder]\nothers = [{ speed = 2 }]\n", "encoder.others.0.*instances"),
        ("[run]", "[run", "PLAN is '.*plan.toml'; allowed: a TOML file"),
    ],
)
def test_a_mistake_is_told_by_its_key(small: Path, before: str, after: str, complaint: str) -> None:
    """One line that a person can act upon."""
    assert before in SMALL
    small.write_text(SMALL.replace(before, after, 1))
    with pytest.raises(ConfigError, match=complaint):
        load_plan(small)


def test_a_measured_value_that_is_no_number_is_told_by_its_place(small: Path) -> None:
    """The third value of the file."""
    (small.parent / "measured" / "decode.txt").write_text("0.1\n0.2 fast\n")
    with pytest.raises(ConfigError, match=r"decoder.time.file is 'fast'; allowed: seconds; this is value 3 of "):
        load_plan(small)


def test_a_plan_is_changed_from_outside(small: Path) -> None:
    """More denoisers, another policy, twice as many requests: what would happen is a question of flags."""
    changes = dict(
        [
            parse_instances("denoiser=20"),
            parse_override("broker.policy=max_free_slots"),
            parse_override("traffic.0.arrivals.rate_per_s=4"),
            parse_override('encoder.time={ kind = "constant", value_s = 0.5 }'),
        ]
    )
    plan = load_plan(small, changes)
    assert plan.denoiser.instances == 20
    assert plan.broker.policy is PolicyName.MAX_FREE_SLOTS
    assert plan.traffic[0].arrivals == Poisson(4.0)
    assert plan.encoder.time == Constant(0.5)


@pytest.mark.parametrize("text", ["painter=3", "denoiser", "denoiser=many", "denoiser=-1"])
def test_instances_are_a_role_and_a_number(text: str) -> None:
    """Anything else is refused with what would be right."""
    with pytest.raises(ConfigError, match=r"--instances is '.*'; allowed: ROLE=NUMBER, as in denoiser=20"):
        parse_instances(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed", "--set is 'seed'; allowed: KEY=VALUE"),
        ("traffic.7.tenant=x", "traffic.7.tenant is '7'; allowed: a number from 0 to 0: the list has 1 items"),
        ("run.requests.many=1", "run.requests.many is 1; allowed: a key inside a section of the plan"),
        ("traffic=[]", r"traffic is \[\]; allowed: one \[\[traffic\]\] at least"),
        ("runs.seed=1", "runs is {'seed': 1}; allowed: .*; did you mean run?"),
    ],
)
def test_a_change_that_leads_nowhere_is_refused(small: Path, text: str, complaint: str) -> None:
    """As a mistake in the file would be."""
    with pytest.raises(ConfigError, match=complaint):
        load_plan(small, dict([parse_override(text)]))


def test_the_example_is_a_plan() -> None:
    """It ships, so it must work."""
    plan = load_plan(EXAMPLE)
    assert {traffic.tenant for traffic in plan.traffic} == {"studio", "public"}
    assert plan.denoiser.size == 10
