"""Instances come: who is taken in, who is refused, who must come again."""

import pytest

from triptych.broker.machine.commands import ReportIgnored, ReportInstance, TellService
from triptych.broker.machine.server import DiffusionServer
from triptych.schemas.errors import RegistrationRefused, VersionMismatch
from triptych.schemas.memory import EngineName, PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    TransferDrainedMsg,
    TransferDrainMsg,
    TransferFailedMsg,
    TransferHeartbeatAckMsg,
    TransferHeartbeatMsg,
    TransferLeaveMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterRefusedMsg,
)

from .kit import BROKEN, POOL_BYTES, Bench, names, peer_of, pool_of, registration, told

ACK = TransferRegisterAckMsg(PROTOCOL_VERSION, 1.0, 5.0)


def test_a_service_is_taken_in() -> None:
    """REGISTER is acknowledged with the heartbeat interval and the lease."""
    assert Bench().register("d1") == [
        ReportInstance("d1", Role.DENOISER, "registered"),
        TellService(peer_of("d1"), ACK),
    ]


def test_a_repeated_registration_is_acknowledged_again() -> None:
    """The same REGISTER from the same peer changes nothing and is acknowledged, whatever the instance holds."""
    bench = Bench("e1")
    bench.submit()
    assert bench.register("e1") == [TellService(peer_of("e1"), ACK)]
    assert bench.instance("e1") == {"running": 1}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"receive_slots": (Slot(1, POOL_BYTES, 1),)},
            f"receive slots: slot 1 is {POOL_BYTES}+1 bytes of a pool of {POOL_BYTES}",
        ),
        ({"receive_slots": (Slot(1, 0, 10), Slot(2, 9, 10))}, "receive slots: slots 1 and 2 overlap"),
        ({"receive_slots": (Slot(1, 0, 10), Slot(1, 10, 10))}, "receive slots: slot 1 is named twice"),
    ],
)
def test_receive_slots_are_checked(fields: dict[str, object], problem: str) -> None:
    """Receive slots outside the pool, overlapping or with the same id: the service is refused, with the reason."""
    error = RegistrationRefused(problem)
    assert Bench().register("d1", **fields) == [
        TellService(peer_of("d1"), TransferRegisterRefusedMsg(error.info())),
        ReportInstance("d1", Role.DENOISER, "refused", str(error)),
    ]


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        (PoolAddress("host", "/d1", POOL_BYTES, ()), "it has no engine; it must have one of shm, nixl"),
        (
            PoolAddress("host", "/d1", POOL_BYTES, (EngineName.SHM, EngineName.NIXL)),
            "it has the engine nixl and does not say how its NIXL agent is reached",
        ),
    ],
)
def test_engines_are_checked(pool: PoolAddress, problem: str) -> None:
    """A pool that nobody could reach, or not in the way it says, is refused, with the reason."""
    refused = Bench().register("d1", pool=pool)
    assert told(refused) == [("d1", TransferRegisterRefusedMsg(RegistrationRefused(problem).info()))]


def test_an_agent_s_name_is_unique() -> None:
    """A NIXL agent's name that another live incarnation has is refused; with that one lost it may come again."""
    bench = Bench("d1")
    refused = [bench.register("d2", pool=pool_of("d1")), bench.register("d1", incarnation=2, pool=pool_of("d1"))]
    problem = "the NIXL agent d1-1 is that of denoiser d1, incarnation 1; each has its own"
    for commands in refused:
        assert told(commands)[0][1].error == RegistrationRefused(problem).info()
    bench.lose("d1")
    assert names(bench.register("d2", pool=pool_of("d1"))) == [("d2", "register_ack")]


@pytest.mark.parametrize(
    ("network_id", "endpoint", "taken"),
    [
        ("net", "tcp://127.0.0.1:7000", True),
        ("other", "", True),
        ("other", "tcp://10.0.0.2:7000", True),
        ("other", "tcp://localhost.example.org:7000", True),
        ("other", "tcp://[fe80::1]:7000", True),
        ("other", "tcp://127.0.0.1:7000", False),
        ("other", "tcp://127.8.8.8:7000", False),
        ("other", "tcp://LOCALHOST:7000", False),
        ("other", "tcp://[::1]:7000", False),
        ("other", "tcp://[::ffff:127.0.0.1]:7000", False),
        ("", "tcp://127.0.0.1:7000", False),
    ],
)
def test_a_data_endpoint_can_be_reached(network_id: str, endpoint: str, taken: bool) -> None:
    """Loopback is refused where the broker is not in the same network, naming the address and the setting."""
    bench = Bench()
    bench.server = DiffusionServer(network_id="net")
    said = told(bench.register("d1", network_id=network_id, data_endpoint=endpoint))[0][1]
    if taken:
        assert said == ACK
    else:
        assert said.error.message.endswith(
            f"its data endpoint {endpoint} is reached from its own host alone, and the broker is on another; "
            "set data_host to an address of its host"
        )


def test_another_protocol_version_is_refused_with_both() -> None:
    """The refusal of another version names both versions."""
    error = VersionMismatch(PROTOCOL_VERSION, 99)
    refused = Bench().register("d1", protocol_version=99)
    assert refused[0] == TellService(peer_of("d1"), TransferRegisterRefusedMsg(error.info()))


def test_a_service_speaks_from_its_own_address() -> None:
    """A routing id that is not that of instance and incarnation is refused."""
    refused = Bench().say("d2", registration("d1"))
    assert names(refused) == [("d2", "register_refused")]


def test_a_newer_incarnation_replaces_the_older() -> None:
    """The old one is told and lost, its request fails naming why, and the new one takes work at once."""
    bench = Bench("e1")
    bench.submit("r1")
    bench.submit("r2")
    replaced = bench.register("e1", incarnation=2)
    assert isinstance(replaced[0], TellService)
    assert isinstance(replaced[0].msg, TransferRegisterRefusedMsg)
    assert "two services must not share an instance_id" in replaced[0].msg.error.message
    assert replaced[1] == ReportInstance("e1", Role.ENCODER, "replaced", "it was replaced by incarnation 2")
    assert names(replaced) == [
        ("e1", "register_refused"),
        ("client", "error"),
        ("e1", "register_ack"),
        ("e1", "work"),
    ]
    reasons = told(replaced)[1][1].error.details
    assert reasons == {"reasons": ["encoder e1 is lost: it was replaced by incarnation 2"]}


@pytest.mark.parametrize("fields", [{"incarnation": 4}, {"incarnation": 5, "capacity": 2}])
def test_an_older_or_changed_incarnation_is_refused(fields: dict[str, object]) -> None:
    """An older incarnation, and the same one with other values, are refused; the registered one is not disturbed."""
    bench = Bench()
    bench.register("d1", incarnation=5)
    before = bench.server.status()
    assert names(bench.register("d1", **fields)) == [("d1", "register_refused")]
    assert bench.server.status() == before


def test_a_lost_incarnation_never_comes_back() -> None:
    """One that was lost is told to come as a newer incarnation: somebody may still write into its old slots."""
    bench = Bench("d1")
    bench.lose("d1")
    assert bench.register("d1") == [
        TellService(peer_of("d1"), TransferRegisterAgainMsg(exceed=1)),
        ReportIgnored(peer_of("d1"), "transfer_register", "incarnation 1 is gone"),
    ]
    assert names(bench.register("d1", incarnation=2)) == [("d1", "register_ack")]


def test_a_stranger_is_told_to_register() -> None:
    """Whatever a peer says that is not registered: it is ignored, and the peer told to register."""
    assert Bench().say("d1", TransferHeartbeatMsg()) == [
        TellService(peer_of("d1"), TransferRegisterAgainMsg()),
        ReportIgnored(peer_of("d1"), "transfer_heartbeat", "not registered"),
    ]


def test_a_heartbeat_is_answered() -> None:
    """HEARTBEAT gets its ack, so that the service knows the broker lives."""
    bench = Bench("d1")
    assert bench.say("d1", TransferHeartbeatMsg()) == [TellService(peer_of("d1"), TransferHeartbeatAckMsg())]


def test_any_message_renews_the_lease() -> None:
    """An instance is lost `lease_s` after its last message, not before."""
    bench = Bench("d1", lease_s=5.0)
    bench.after(4.0, "d1")
    assert bench.after(4.0) == []
    assert bench.after(1.0) == [
        ReportInstance("d1", Role.DENOISER, "lost", "nothing was heard of it for 5 s"),
    ]


def test_what_arrived_in_time_counts_even_if_it_is_handled_late() -> None:
    """A broker that was held up handles what arrived before it looks at the clock: nobody is evicted for its delay."""
    bench = Bench("d1", lease_s=5.0)
    bench.now += 60.0
    assert names(bench.say("d1", TransferHeartbeatMsg())) == [("d1", "heartbeat_ack")]
    assert bench.after(0.0) == []


def test_a_leaving_instance_is_gone_at_once() -> None:
    """LEAVE drops the instance and what it holds."""
    bench = Bench("e1")
    bench.submit()
    left = bench.say("e1", TransferLeaveMsg("stopped"))
    assert left[0] == ReportInstance("e1", Role.ENCODER, "left", "it left: stopped")
    assert told(left)[0][1].error.details == {"reasons": ["encoder e1 is lost: it left: stopped"]}


def test_a_draining_instance_finishes_what_it_has() -> None:
    """After DRAIN an instance is given no more work, but what it has goes on."""
    bench = Bench("e1", "d1")
    bench.submit("r1")
    drained = [bench.say("e1", TransferDrainMsg()) for _ in range(2)]
    assert drained == [[ReportInstance("e1", Role.ENCODER, "draining")], []]
    bench.submit("r2")
    assert names(bench.staged("e1", "r1")) == [("client", "stage_finished"), ("d1", "expect"), ("e1", "push")]
    assert bench.states() == {"DENOISING_WAITING": 1, "ENCODER_WAITING": 1}


def test_a_draining_instance_is_dismissed_when_nothing_of_it_is_needed() -> None:
    """It may leave once its lease is over, its output released and its push answered: at once where it has nothing."""
    bench = Bench("e1", "e2", "d1")
    bench.submit("r1")
    assert ("e2", TransferDrainedMsg()) in told(bench.say("e2", TransferDrainMsg()))
    bench.say("e1", TransferDrainMsg())
    commands = [*bench.staged("e1", "r1"), *bench.pushed("e1", "r1")]
    assert ("e1", TransferDrainedMsg()) not in told(commands)
    assert told(bench.staged("d1", "r1"))[-1] == ("e1", TransferDrainedMsg())


def test_an_instance_that_drains_while_its_work_is_on_its_way_is_not_dismissed() -> None:
    """The work counts from the moment it is sent."""
    bench = Bench("e1")
    bench.submit("r1")
    assert told(bench.say("e1", TransferDrainMsg())) == []
    assert ("e1", TransferDrainedMsg()) in told(bench.say("e1", TransferFailedMsg("r1", 1, BROKEN)))


def test_losing_a_stranger_is_nothing() -> None:
    """A lost connection of a peer that is not registered changes nothing."""
    assert Bench().lose("d1") == []
