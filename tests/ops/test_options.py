"""Settings as flags and back."""

import io
from collections.abc import Callable

import pytest
import typer
from msgspec import Struct
from rich.console import Console

from triptych.broker.machine.settings import DispatchSettings, PolicyName
from triptych.broker.shell.settings import BrokerSettings
from triptych.client import Finished, Image, Queued, Result, StageFinished, StageStarted, StepDone
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


@pytest.mark.parametrize("settings", [BROKER, BrokerSettings()])
def test_a_brokers_command_line_gives_its_settings(settings: BrokerSettings) -> None:
    """What the launcher writes, the process reads."""
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
