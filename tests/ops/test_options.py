"""Settings as flags and back."""

import io
from collections.abc import Callable

import pytest
import typer
from msgspec import Struct
from rich.console import Console

from triptych.broker.machine.settings import DispatchSettings, PolicyName, TenantSettings
from triptych.broker.shell.settings import BrokerSettings
from triptych.client import Event, Finished, Image, Queued, Result, Retrying, StageFinished, StageStarted, StepDone
from triptych.ops.cli.outputs import numbered
from triptych.ops.cli.progress import StageBars
from triptych.ops.cli.settings_options import those_given, with_settings
from triptych.ops.cli.tables import stage_table, transfer_table
from triptych.ops.cli.up import check_free, parse_shape
from triptych.ops.config import broker_settings_from, service_settings
from triptych.ops.launcher.argv import TRIPTYCH, broker_argv, service_argv
from triptych.schemas.errors import ConfigError
from triptych.schemas.roles import Role
from triptych.schemas.timing import StageTiming, TransferTiming
from triptych.services.settings import ServiceSettings

BROKER = BrokerSettings("tcp://127.0.0.1:1", dispatch=DispatchSettings(PolicyName.ROUND_ROBIN, lease_s=9.5))
WITH_TABLES = BrokerSettings(
    admin_endpoint="",
    dispatch=DispatchSettings(
        tenants={"studio": TenantSettings(3.0, max_queued=7)},
        other_tenants=TenantSettings(max_running=1),
        stage_timeout_s={Role.DENOISER: 30.0},
    ),
)
SERVICE = ServiceSettings(role=Role.DECODER, instance_id="decoder-7", device="cuda:1", receive_slots=0, drain_s=1.5)


def parsed(kind: type[Struct], arguments: list[str]) -> dict[str, object]:
    """Return what a command with the options of `kind` is given."""
    caught: dict[str, object] = {}

    @with_settings(kind, without="role")
    def command(**given: object) -> None:
        caught.update(those_given(given))

    app = typer.Typer()
    app.command()(command)
    app(arguments, standalone_mode=False)
    return caught


@pytest.mark.parametrize("settings", [BROKER, BrokerSettings(), WITH_TABLES], ids=["some", "none", "tables"])
def test_a_brokers_command_line_gives_its_settings(settings: BrokerSettings) -> None:
    """What the launcher writes, the process reads; tables go as JSON."""
    arguments = broker_argv(settings)[len(TRIPTYCH) + 1 :]
    assert broker_settings_from({}, parsed(BrokerSettings, arguments)) == settings


def test_a_services_command_line_gives_its_settings() -> None:
    """And the role is the command itself."""
    argv = service_argv(SERVICE)
    assert argv[len(TRIPTYCH)] == "decoder"
    assert service_settings({}, Role.DECODER, parsed(ServiceSettings, argv[len(TRIPTYCH) + 1 :])) == SERVICE


def test_shape() -> None:
    """Encoders, denoisers, decoders."""
    assert parse_shape("1:20:0") == {Role.ENCODER: 1, Role.DENOISER: 20, Role.DECODER: 0}


@pytest.mark.parametrize("shape", ["", "1", "1:2:3:4", "a:b:c", "1:-2:3", "1: 2:3", "1:²:3", "1:99999:1"])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    """With an example of one."""
    with pytest.raises(ConfigError, match="three numbers such as 1:2:1"):
        parse_shape(shape)


def test_a_taken_port_is_named_before_anything_starts() -> None:
    """And how to get a free one."""
    import socket  # noqa: PLC0415

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"Address already in use.*tcp://127.0.0.1:0 picks a free port"):
            check_free("--client-endpoint", endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "ipc:///tmp/x", "tcp://*:7700", "nonsense"])
def test_other_endpoints_are_left_to_the_broker(endpoint: str) -> None:
    """It says by itself what it cannot bind."""
    check_free("--client-endpoint", endpoint)


def test_several_pictures_are_numbered() -> None:
    """One keeps its name."""
    from pathlib import Path  # noqa: PLC0415

    assert numbered(Path("a/fox.png"), 1) == [Path("a/fox.png")]
    assert numbered(Path("a/fox.png"), 2) == [Path("a/fox-0.png"), Path("a/fox-1.png")]


def shown(print_to: Callable[[Console], object]) -> str:
    """Return what `print_to` prints on a terminal."""
    text = io.StringIO()
    print_to(Console(file=text, width=100, force_terminal=True, color_system=None, legacy_windows=False))
    return text.getvalue()


ENCODED = StageTiming(Role.ENCODER, "e", compute_s=0.25, queue_s=0.5)
RESULT = Result("r", (Image(b"", "image/png", 1, 1, 0),), 0, (ENCODED,), (TransferTiming("e", "x", 1000, 0.001),), 1.0)


def test_the_tables_say_where_the_time_went() -> None:
    """Per stage in milliseconds, per transfer with its rate; an unknown end keeps its name."""
    stages = shown(lambda console: console.print(stage_table([RESULT, RESULT])))
    assert [cell.strip() for cell in stages.splitlines()[4].strip("│").split("│")] == [
        *("encoder", "2", "500.0", "0.0", "0.0", "250.0", "0.0")
    ]
    transfers = shown(lambda console: console.print(transfer_table([RESULT])))
    assert [cell.strip() for cell in transfers.splitlines()[4].strip("│").split("│")] == [
        *("encoder → x", "1", "0", "1,000", "1.00", "1")
    ]


def test_what_was_read_in_place_shows_as_such() -> None:
    """It counts as a transfer that moved nothing, and does not change the means of those that did."""
    read = Result("r", (), 0, (ENCODED,), (TransferTiming("e", "x", 0, 0.0, in_place=True),), 1.0)
    alone, both = (
        shown(lambda console, results=results: console.print(transfer_table(results))).splitlines()[4]
        for results in ([read], [read, RESULT])
    )
    assert [cell.strip() for cell in alone.strip("│").split("│")] == ["encoder → x", "1", "1", "-", "-", "-"]
    assert [cell.strip() for cell in both.strip("│").split("│")] == ["encoder → x", "2", "1", "1,000", "1.00", "1"]


def test_the_bars_follow_a_request() -> None:
    """Steps, times, and what it waits for."""

    def follow(console: Console) -> None:
        with StageBars(console, 1) as bars:
            bars.show(Queued("r", 2, (Role.DECODER,)))
            bars.show(StageStarted("r", Role.DENOISER, "d"))
            bars.show(StepDone("r", Role.DENOISER, 5, 20))
            bars.show(StageFinished("r", ENCODED))
            bars.show(Finished("r", RESULT))

    text = shown(follow)
    assert "no decoder is running" in text
    assert "step 5/20" in text
    assert "250 ms" in text


def test_the_bars_count_requests_where_there_are_several() -> None:
    """One bar per stage for all of them."""

    def follow(console: Console) -> None:
        with StageBars(console, 6) as bars:
            bars.show(StageFinished("r", ENCODED))

    assert "1/6 requests" in shown(follow)


def completed(*events: Event) -> list[float]:
    """Return how full the bars of the three roles are after these events."""
    with StageBars(Console(file=io.StringIO(), force_terminal=True), 1) as bars:
        for event in events:
            bars.show(event)
        return [task.completed for task in bars._progress.tasks]


ENCODED_AND_MORE = (
    StageFinished("r", ENCODED),
    StageStarted("r", Role.DENOISER, "d"),
    StepDone("r", Role.DENOISER, 5, 20),
)


def test_the_bars_go_back_when_a_stage_is_tried_again() -> None:
    """What is done stays done, and the reason is told above the bars."""
    retrying = Retrying("r", 2, Role.DENOISER, "denoiser-0 was lost [gone]")
    assert completed(*ENCODED_AND_MORE) == [1.0, 0.25, 0]
    assert completed(*ENCODED_AND_MORE, retrying) == [1.0, 0, 0]

    def follow(console: Console) -> None:
        with StageBars(console, 1) as bars:
            bars.show(retrying)

    text = shown(follow)
    assert "attempt 2, from the denoiser on: denoiser-0 was lost [gone]" in text
    assert [line.split()[-2:] for line in text.splitlines() if "━" in line and "attempt" in line][-1] == [
        "2",
        "-:--:--",
    ]


@pytest.mark.parametrize("again", [StageStarted("r", Role.ENCODER, "e"), Retrying("r", 2, Role.ENCODER, "lost")])
def test_the_bars_go_back_to_the_beginning_when_all_is_done_again(again: Event) -> None:
    """After a restart of the broker, say; being queued anew is not being undone yet."""
    queued = Queued("r", 0, ())
    assert completed(*ENCODED_AND_MORE, queued) == [1.0, 0.25, 0]
    assert completed(*ENCODED_AND_MORE, queued, again) == [0, 0, 0]


def test_one_of_several_requests_goes_back_alone() -> None:
    """The others keep what they have."""
    with StageBars(Console(file=io.StringIO(), force_terminal=True), 2) as bars:
        for name in ("r", "s"):
            bars.show(StageFinished(name, ENCODED))
        bars.show(Retrying("r", 2, Role.ENCODER, "lost"))
        assert [task.completed for task in bars._progress.tasks] == [1.0, 0, 0]


def test_without_a_terminal_the_bars_say_nothing() -> None:
    """Not even why a stage is tried again."""
    text = io.StringIO()
    with StageBars(Console(file=text), 1) as bars:
        bars.show(Retrying("r", 2, Role.DENOISER, "lost"))
    assert text.getvalue() == ""
