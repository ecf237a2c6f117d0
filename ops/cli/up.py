"""`triptych up`: a whole cluster in the foreground."""

import asyncio
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ...broker.shell.admin_endpoint import AUTO
from ...schemas.errors import ConfigError
from ...schemas.roles import Role
from ..config import ClusterSettings, cluster_settings, load_document, reachable
from ..launcher.cluster import LocalCluster, local_cluster
from .logs import LogPrinter
from .running import run_cancellable


def bring_up(config: Path | None, counts: Mapping[Role, int], broker: Mapping[str, object]) -> None:
    """Run the cluster until Ctrl-C. Raises `ProcessDied` where the broker ends by itself."""
    settings = cluster_settings(load_document(config), counts, broker)
    for name, endpoint in (
        ("--service-endpoint", settings.broker.service_endpoint),
        ("--client-endpoint", settings.broker.client_endpoint),
    ):
        check_free(name, endpoint)
    console = Console(stderr=True)
    try:
        run_cancellable(_run(settings, console))
    except asyncio.CancelledError:
        console.print("everything is stopped", highlight=False)


def parse_shape(shape: str) -> dict[Role, int]:
    """Return how many encoders, denoisers and decoders "N:M:K" asks for. Raises `ConfigError`."""
    parts = shape.split(":")
    if len(parts) != len(Role) or not all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts):
        raise ConfigError("--shape", shape, "three numbers such as 1:2:1, of encoders, denoisers and decoders")
    return dict(zip(Role, map(int, parts), strict=True))


def check_free(flag: str, endpoint: str) -> None:
    """Raise `ConfigError` where somebody listens at a TCP endpoint already; other endpoints are left to the broker."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdecimal() or host == "*":
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            allowed = f"an address that is free ({reason}); tcp://{host}:0 picks a free port"
            raise ConfigError(flag, endpoint, allowed) from error


async def _run(settings: ClusterSettings, console: Console) -> None:
    printer = LogPrinter(console)
    async with local_cluster(settings, printer.show, colours=printer.colours, drain=True) as cluster:
        _announce(cluster, settings.broker.admin_endpoint, console)
        try:
            while (death := await cluster.wait_death()).name != "broker":
                console.print(f"[bold red]{escape(str(death))}[/]", soft_wrap=True, highlight=False)
            raise death
        except asyncio.CancelledError:
            console.print("stopping; what runs may finish; Ctrl-C again kills it", highlight=False)
            raise


def _announce(cluster: LocalCluster, admin_endpoint: str, console: Console) -> None:
    endpoint = reachable(cluster.endpoints.client_endpoint)
    example = ["triptych", "generate", "a fox on a blue background", "-o", "fox.png", "--broker", endpoint]
    console.print(f"\n[bold green]ready[/]: clients connect to [bold]{escape(endpoint)}[/]; Ctrl-C stops it")
    console.print(f"try: {escape(shlex.join(example))}", highlight=False, soft_wrap=True)
    if admin_endpoint:
        named = [] if admin_endpoint == AUTO else ["--endpoint", reachable(cluster.endpoints.admin_endpoint)]
        watch = ["triptych", "admin", "status", "--watch", "2", *named]
        console.print(f"watch it: {escape(shlex.join(watch))}", highlight=False, soft_wrap=True)
    console.print()
