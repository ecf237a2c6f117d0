"""Which commands `triptych admin` has and what they take."""

from typing import Annotated

import typer

from ...broker.shell.admin_endpoint import AUTO
from ...schemas.admin import AdminCancelMsg, AdminResumeMsg

Endpoint = Annotated[
    str, typer.Option(help="The broker's admin endpoint; auto: the broker that you run on this host, if it is one.")
]
Instance = Annotated[str, typer.Argument(help="The instance's name, as the status shows it.", metavar="INSTANCE")]
Request = Annotated[str, typer.Argument(help="The request's id.", metavar="REQUEST")]

admin = typer.Typer(help="Watch and steer a running broker.", no_args_is_help=False)


@admin.command()
def status(
    *,
    json: Annotated[bool, typer.Option("--json", help="One line of JSON, for programs.")] = False,
    watch: Annotated[float | None, typer.Option(min=0.1, help="Again every so many seconds, until Ctrl-C.")] = None,
    endpoint: Endpoint = AUTO,
) -> None:
    """Show instances, pools, tenants and requests."""
    from .admin import show_status  # noqa: PLC0415

    show_status(endpoint, as_json=json, every_s=watch)


@admin.command()
def drain(
    instance: Instance,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing would be lost with it.")] = False,
    endpoint: Endpoint = AUTO,
) -> None:
    """Give INSTANCE no more work; what it has goes on. It lasts until it is resumed, or registers anew."""
    from .admin import drain  # noqa: PLC0415

    drain(endpoint, instance, wait=wait)


@admin.command()
def resume(instance: Instance, *, endpoint: Endpoint = AUTO) -> None:
    """Give INSTANCE work again."""
    from .admin import give_order  # noqa: PLC0415

    give_order(endpoint, AdminResumeMsg(instance))


@admin.command()
def cancel(request: Request, *, endpoint: Endpoint = AUTO) -> None:
    """End REQUEST; whoever asked for it is told that an admin did it."""
    from .admin import give_order  # noqa: PLC0415

    give_order(endpoint, AdminCancelMsg(request))


@admin.command()
def story(request: Request, *, endpoint: Endpoint = AUTO) -> None:
    """Tell what happened to REQUEST, line by line; for a while after its end too."""
    from .admin import show_story  # noqa: PLC0415

    show_story(endpoint, request)
