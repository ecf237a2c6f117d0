"""The machine among honest services and clients; whoever drives it chooses what happens next.

`World` checks, as it goes, what can be seen from outside: that clients are told what they should be, that a slot is
handed out only while nobody uses it, that what is read in place is kept, that nobody sees what came of reading
something else there, and the machine's own invariants after every event.
"""

from collections import Counter

from triptych.broker.machine.commands import Command, TellClient, TellService
from triptych.broker.machine.events import (
    ClientSpoke,
    ClientVanished,
    Event,
    ServiceSpoke,
    ServiceVanished,
    TimePassed,
)
from triptych.broker.machine.server import DiffusionServer
from triptych.broker.machine.settings import DispatchSettings, PolicyName, TenantSettings
from triptych.schemas.client import (
    CancelMsg,
    ErrorMsg,
    HelloMsg,
    PingMsg,
    PongMsg,
    QueuedMsg,
    ResultMsg,
    StageFinishedMsg,
    SubmitMsg,
)
from triptych.schemas.context import Priority
from triptych.schemas.errors import MalformedMessage, ManifestMismatch
from triptych.schemas.identifiers import routing_id
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.transfer import PROTOCOL_VERSION, TransferPushMsg, TransferReadyMsg, TransferReleaseMsg

from .service_model import PLACES, Choose, Memory, Service, owner_of

CLIENTS = (b"alice", b"bob")
LETTERS = {Role.ENCODER: "e", Role.DENOISER: "d", Role.DECODER: "v"}
POLICIES = tuple(PolicyName)
#: what the machine says of services that break the protocol
FAULTS = (ManifestMismatch("").args[0], MalformedMessage("").args[0], "bytes were written")


class World:
    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        settings = DispatchSettings(
            policy=POLICIES[choose(len(POLICIES))],
            max_queued=8,
            max_staged=1 + choose(3),
            request_timeout_s=60.0,
            alloc_timeout_s=2.0 if choose(2) else 30.0,
            push_timeout_s=3.0 if choose(2) else 30.0,
            max_attempts=1 + choose(4),
            failures_in_a_row=1 + choose(3),
            longest_back_off_s=4.0,
            abort_timeout_s=20.0,
            client_lease_s=10.0,
            stage_timeout_s={Role.DENOISER: 6.0} if choose(2) else {},
            tenants={"small": TenantSettings(max_queued=3, max_running=1), "big": TenantSettings(weight=3.0)},
            take_up_s=3.0,
        )
        self.settings = settings
        self.server = DiffusionServer(settings)
        #: what was submitted, by whom
        self.submissions: dict[str, tuple[bytes, SubmitMsg]] = {}
        #: ended before the broker restarted, which has forgotten that
        self.long_ended: set[str] = set()
        self.unknown: list[str] = []
        self.submitting_again = False
        self.now = 0.0
        self.memory = Memory()
        self.services: list[Service] = []
        #: processes that are dead or hidden behind a newer one, with messages that may still arrive
        self.ghosts: list[Service] = []
        self.submitted = 0
        self.accepted: set[str] = set()
        self.ended = Counter[str]()
        self.events = 0
        #: who said what the machine is handling, and of which attempt
        self.speaking: tuple[bytes, tuple[str, int]] = (b"", ("", 0))
        #: what was sent, by kind: shows how far a run came
        self.sent = Counter[str]()
        for role in Role:
            for number in range(2):
                self.start(role, f"{LETTERS[role]}{number}", 1)

    def start(self, role: Role, name: str, incarnation: int) -> None:
        place = PLACES[self.choose(len(PLACES))]
        self.services.append(Service(role, name, incarnation, 1 + self.choose(2), self.memory, self.choose, place))

    # ------------------------------------------------------------------------------- the machine's side

    def tell(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, ServiceSpoke):
            self.speaking = (event.peer, (getattr(event.msg, "request_id", ""), getattr(event.msg, "attempt", 0)))
        commands = self.server.handle(event, self.now)
        self.server.check()
        for command in commands:
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, TellService):
            self.to_service(command)
        elif isinstance(command, TellClient):
            self.to_client(command)

    def to_service(self, command: TellService) -> None:
        service = next((one for one in self.services if one.peer == command.peer and not one.gone), None)
        msg = command.msg
        self.sent[type(msg).__name__ + " writer lost" * getattr(msg, "writer_lost", False)] += 1
        if isinstance(msg, TransferPushMsg) and service is not None:
            self.memory.begin(self.peer_of(msg.receiver), msg.slot, service.peer, (msg.request_id, msg.attempt), "w")
        if isinstance(msg, TransferReadyMsg) and service is not None:
            self.let_read(service, msg)
        if isinstance(msg, TransferReleaseMsg) and service is not None:
            self.check_quiet(service, msg)
        if service is not None:
            service.inbox.append(msg)

    def let_read(self, service: Service, msg: TransferReadyMsg) -> None:
        key = (msg.request_id, msg.attempt)
        if msg.pool is None:
            self.memory.begin(service.peer, msg.slot, service.peer, key, "r")
            return
        self.sent["in place"] += 1
        owner = owner_of(msg.pool)
        assert msg.pool.host_id == service.place[0], "read in place on another host"
        holder = next((one for one in self.services if one.peer == owner), None)
        staged = holder and [holder.block_slot(block) for block in holder.staged.values()]
        assert holder is None or msg.slot in staged, "what is read in place is staged"
        self.memory.begin_reading(owner, msg.slot, service.peer, key)

    def check_quiet(self, sender: Service, msg: TransferReleaseMsg) -> None:
        """Check that nobody reads in place what the sender is told to drop, but those that are lost."""
        block = sender.staged.get((msg.request_id, msg.attempt))
        if block is not None:
            place = (sender.peer, sender.block_slot(block).slot_id)
            readers = {peer for peer, _ in self.memory.readers.get(place, ())} & self.registered()
            assert not readers, f"{msg} while {readers} read it"

    def registered(self) -> set[bytes]:
        instances = self.server.status().instances
        return {routing_id(one.instance_id, one.incarnation) for one in instances}

    def everybody(self) -> list[Service]:
        return [*self.services, *self.ghosts]

    def peer_of(self, instance_id: str) -> bytes:
        """Return the peer that the machine knows under this name; it may be dead by now."""
        instances = self.server.status().instances
        return next(routing_id(instance_id, one.incarnation) for one in instances if one.instance_id == instance_id)

    def to_client(self, command: TellClient) -> None:
        msg = command.msg
        request_id = getattr(msg, "request_id", None)
        self.sent[f"{type(msg).__name__} {getattr(msg, 'state', None) or ''}".strip()] += 1
        if isinstance(msg, PongMsg):
            self.unknown += msg.unknown
        if request_id is None or request_id in self.long_ended:
            return
        if isinstance(msg, QueuedMsg):
            assert not self.ended[request_id], "accepted again after its end"
            self.accepted.add(request_id)
        elif isinstance(msg, ErrorMsg) and msg.state is None:
            if self.submitting_again and msg.error.code in {"deadline_unreachable", "invalid_request"}:
                self.ended[request_id] += not self.ended[request_id]
        else:
            assert request_id in self.accepted, f"{msg} of a request that was not accepted"
            assert not self.ended[request_id], f"{msg} after the request had ended"
            if isinstance(msg, StageFinishedMsg):
                assert self.speaking not in self.memory.spoilt, f"{msg} came of reading what was overwritten"
            if isinstance(msg, ResultMsg | ErrorMsg):
                self.ended[request_id] += 1
            if isinstance(msg, ErrorMsg):
                assert not any(word in msg.error.message for word in FAULTS), f"a fault of an honest service? {msg}"

    # ------------------------------------------------------------------------------- what may happen

    def pick(self, services: list[Service]) -> Service | None:
        return services[self.choose(len(services))] if services else None

    def submit(self) -> None:
        self.submitted += 1
        self.submit_anew(
            SubmitMsg(
                f"r{self.submitted}",
                SamplingParams("a fox", num_inference_steps=1 + self.choose(50)),
                model=(*("", "one", "two") * 4, "none")[self.choose(13)],
                priority=tuple(Priority)[self.choose(3)],
                tenant=("", "small", "big")[self.choose(3)],
                cancel_on_disconnect=self.choose(3) == 0,
            )
        )

    def submit_anew(self, msg: SubmitMsg) -> None:
        client = CLIENTS[self.choose(len(CLIENTS))]
        self.submissions[msg.request_id] = (client, msg)
        self.tell(ClientSpoke(client, msg))

    def restart_broker(self) -> None:
        """Kill the broker; the one in its place knows nothing."""
        self.long_ended |= {request_id for request_id, times in self.ended.items() if times}
        self.server = DiffusionServer(self.settings)
        self.sent["restart"] += 1

    def ping(self) -> None:
        """Let the clients ask for their requests, and submit again what the broker does not know."""
        for client in CLIENTS:
            waits_for = [
                name for name in sorted(self.accepted) if not self.ended[name] and self.submissions[name][0] == client
            ]
            self.tell(ClientSpoke(client, PingMsg(tuple(waits_for))))
        unknown, self.unknown = self.unknown, []
        self.submitting_again = True
        for request_id in unknown:
            if request_id in self.accepted and not self.ended[request_id]:
                self.sent["again"] += 1
                self.tell(ClientSpoke(*self.submissions[request_id]))
        self.submitting_again = False

    def client_says(self, msg: SubmitMsg | CancelMsg | PingMsg | HelloMsg) -> None:
        self.tell(ClientSpoke(CLIENTS[self.choose(len(CLIENTS))], msg))

    def some_id(self) -> str:
        """One of the last requests, or one that never was."""
        return f"r{self.submitted + 1 - self.choose(8)}"

    def cancel(self) -> None:
        self.client_says(CancelMsg(self.some_id()))

    def client_noise(self) -> None:
        """Send a submit under a used id, a bad one, one with a short life, a ping, a hello, or go."""
        bad = SamplingParams("\ud800", width=13)
        self.submitted += 1
        noise = (
            SubmitMsg(self.some_id(), SamplingParams("a fox")),
            SubmitMsg(f"x{self.submitted}", bad),
            PingMsg((self.some_id(), "?")),
            HelloMsg(PROTOCOL_VERSION + self.choose(2), "0"),
        )
        kind = self.choose(len(noise) + 1)
        if kind == 0 and (self.long_ended or noise[0].request_id not in self.submissions):
            return  # a broker that restarted has forgotten whose it was
        if kind == len(noise) and self.choose(2):
            self.submit_anew(SubmitMsg(f"r{self.submitted}", SamplingParams("a fox"), timeout_s=1.5))
        elif kind == len(noise):
            self.tell(ClientVanished(CLIENTS[0], "gone"))
        else:
            self.client_says(noise[kind])

    def to_broker(self) -> None:
        """Deliver the oldest message of some service."""
        service = self.pick([one for one in self.everybody() if one.outbox])
        if service is not None:
            msg, attachments = service.outbox.popleft()
            self.tell(ServiceSpoke(service.peer, msg, attachments))
        self.ghosts = [ghost for ghost in self.ghosts if ghost.outbox]

    def awake(self) -> list[Service]:
        return [one for one in self.services if not one.hangs]

    def to_a_service(self) -> None:
        """Deliver the oldest message to some service."""
        service = self.pick([one for one in self.awake() if one.inbox])
        if service is not None:
            service.hear()

    def act(self) -> None:
        """Let some service get on with its work."""
        service = self.pick([one for one in self.awake() if one.chores()])
        if service is not None:
            chores = service.chores()
            chores[self.choose(len(chores))]()

    def tick(self) -> None:
        """Let a little time pass; whoever is awake sends a heartbeat."""
        for service in self.awake():
            if not service.outbox:
                service.beat()
        self.wait(0.05 * (1 + self.choose(10)))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tell(TimePassed())
        deadline = self.server.next_deadline()
        assert deadline is None or deadline > self.now, "what was due is still due"

    def jump(self) -> None:
        """Let much time pass, so that leases and timeouts run out. Or turn the clock back, which is as if it stood."""
        if self.choose(4) == 0:
            assert self.server.handle(TimePassed(), self.now - 50.0) == []
        else:
            self.wait(2.0 * (1 + self.choose(15)))

    def vanish(self) -> None:
        """Cut a service off, dead or alive."""
        service = self.pick(self.everybody())
        if service is not None:
            self.tell(ServiceVanished(service.peer, "connection lost"))

    def hang(self) -> None:
        service = self.pick(self.awake())
        if service is not None:
            service.hangs = True

    def stick(self) -> None:
        """Let a service compute no further while its loop goes on."""
        service = self.pick(self.awake())
        if service is not None:
            service.stuck = True

    def lose_writer(self) -> None:
        """Cut off a service in the middle of a push, and let it hang there: it will write again."""
        service = self.pick([one for one in self.awake() if one.writes])
        if service is not None:
            service.hangs = True
            self.tell(ServiceVanished(service.peer, "connection lost"))

    def wake(self) -> None:
        """Let a hung service go on as if nothing had happened; its messages are stale."""
        service = self.pick([one for one in self.services if one.hangs or one.stuck])
        if service is not None:
            service.hangs = service.stuck = False

    def die(self) -> None:
        """Kill a service; another process comes in its place, sooner or later than the news."""
        service = self.pick(self.services)
        if service is not None:
            service.die()
            self.replace(service)

    def replace(self, service: Service) -> None:
        self.services.remove(service)
        self.ghosts.append(service)
        self.start(service.role, service.name, service.incarnation + 1)

    def restart_in_order(self) -> None:
        """Stop a service, with or without draining; another takes its place."""
        service = self.pick(self.awake())
        if service is None:
            return
        if not service.draining and self.choose(2):
            service.drain()
        else:
            service.leave()
            self.replace(service)

    # ------------------------------------------------------------------------------- the end

    def settle(self) -> None:
        """Let everything run until it is quiet, then look for what is left over."""
        for service in self.services:
            service.hangs = service.stuck = False
            service.beat()  # so that one which was cut off hears of it
        for _ in range(1000):
            self.run_dry()
            status = self.server.status()
            if not status.requests and not status.settling and self.ended.keys() >= self.accepted:
                break
            self.wait(1.0)
            self.ping()
            for service in self.services:
                service.beat()
        self.run_dry()
        self.check_nothing_is_left()

    def run_dry(self) -> None:
        while any(one.outbox or one.inbox or one.chores() for one in self.everybody()):
            for service in self.everybody():
                while service.outbox:
                    msg, attachments = service.outbox.popleft()
                    self.tell(ServiceSpoke(service.peer, msg, attachments))
            for service in self.services:
                while service.inbox:
                    service.hear()
                for chore in service.chores():
                    chore()
        self.ghosts.clear()

    def unlike(self) -> dict[str, int]:
        """Return the requests that did not end exactly once, and how often they did."""
        names = self.accepted | self.ended.keys()
        return {name: self.ended[name] for name in names if self.ended[name] != (name in self.accepted)}

    def check_nothing_is_left(self) -> None:
        status = self.server.status()
        assert (status.requests, status.settling) == ({}, 0)
        assert +self.ended == Counter(self.accepted), ("not ended exactly once", self.unlike())
        by_peer = {service.peer: service for service in self.services}
        assert all((pool.waiting, pool.parked) == (0, 0) for pool in status.pools)
        for one in status.instances:
            assert (one.leases, one.free_leases) == ({}, one.capacity), one
            assert (one.taken_slots, one.staged, one.pushes) == (0, 0, 0), one
            service = by_peer.pop(routing_id(one.instance_id, one.incarnation))
            assert one.free_slots + one.retired_slots == service.offered
            assert (service.jobs, service.staged, service.writes) == ({}, {}, {}), service.name
            assert service.expected == {}, service.name
            assert service.survived or service.knows <= self.registered(), "the pools of the gone are forgotten"
            assert len(service.blocks) + len(service.lost_blocks) == 6, service.name
        assert not by_peer, "every service is registered"
        assert not any([*self.memory.users.values(), *self.memory.readers.values()]), "nobody uses a slot"
