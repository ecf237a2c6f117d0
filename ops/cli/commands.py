"""Which commands there are and what they take."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ...broker.shell.settings import BrokerSettings
from ...client.options import RequestOptions
from ...schemas.context import Priority
from ...schemas.roles import Role
from ...schemas.sampling import SamplingParams
from ...services.settings import ServiceSettings
from ..logging import LogFormat, LogLevel
from .admin_commands import admin
from .settings_options import with_settings

Config = Annotated[Path | None, typer.Option(help="A cluster file in TOML, such as examples/cluster.toml.")]
Format = Annotated[LogFormat | None, typer.Option(help="How logs are written; console on a terminal, otherwise json.")]
Level = Annotated[LogLevel, typer.Option(help="The least level that is logged.")]
Endpoint = Annotated[str, typer.Option(help="The broker's client endpoint.")]

app = typer.Typer(
    help="Serve diffusion models as separate pools of encoders, denoisers and decoders.",
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
)


app.add_typer(admin, name="admin")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"triptych {version('triptych')}")
        raise typer.Exit


@app.callback()
def top(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve diffusion models as separate pools of encoders, denoisers and decoders."""


@app.command()
def up(
    *,
    config: Config = None,
    shape: Annotated[str | None, typer.Option(help="Encoders, denoisers and decoders at once: 1:2:1.")] = None,
    encoders: Annotated[int | None, typer.Option(min=0, help="How many encoders.")] = None,
    denoisers: Annotated[int | None, typer.Option(min=0, help="How many denoisers.")] = None,
    decoders: Annotated[int | None, typer.Option(min=0, help="How many decoders.")] = None,
    client_endpoint: Annotated[str | None, typer.Option(help="Where clients connect.")] = None,
    service_endpoint: Annotated[str | None, typer.Option(help="Where services connect.")] = None,
) -> None:
    """Run a whole cluster on this host, in the foreground, until Ctrl-C."""
    from .up import bring_up, parse_shape  # noqa: PLC0415

    counts = {} if shape is None else parse_shape(shape)
    given = {Role.ENCODER: encoders, Role.DENOISER: denoisers, Role.DECODER: decoders}
    counts |= {role: count for role, count in given.items() if count is not None}
    endpoints = {"client_endpoint": client_endpoint, "service_endpoint": service_endpoint}
    bring_up(config, counts, {name: value for name, value in endpoints.items() if value is not None})


_DEFAULTS = SamplingParams("")


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write; several pictures become FILE-0, FILE-1, …")
    ],
    negative: Annotated[str, typer.Option(help="What not to draw.")] = _DEFAULTS.negative_prompt,
    seed: Annotated[int | None, typer.Option(help="Draws the same picture again; random without it.")] = None,
    steps: Annotated[int, typer.Option(help="Denoising steps.")] = _DEFAULTS.num_inference_steps,
    guidance: Annotated[float, typer.Option(help="How closely to follow the prompt.")] = _DEFAULTS.guidance_scale,
    width: Annotated[int, typer.Option(help="In pixels.")] = _DEFAULTS.width,
    height: Annotated[int, typer.Option(help="In pixels.")] = _DEFAULTS.height,
    num_images: Annotated[int, typer.Option(help="How many pictures.")] = _DEFAULTS.num_images,
    model: Annotated[str, typer.Option(help="Which model draws; the broker's default without it.")] = "",
    priority: Annotated[Priority, typer.Option(help="How urgent it is.")] = Priority.NORMAL,
    tenant: Annotated[str, typer.Option(help="On whose account it goes.")] = "",
    broker: Endpoint = "tcp://127.0.0.1:7701",
    timeout: Annotated[float | None, typer.Option(help="Give up after so many seconds, connecting included.")] = None,
) -> None:
    """Ask a running cluster for pictures of PROMPT."""
    from .generate import generate_pictures  # noqa: PLC0415

    options = RequestOptions(
        negative_prompt=negative,
        seed=seed,
        num_inference_steps=steps,
        guidance_scale=guidance,
        width=width,
        height=height,
        num_images=num_images,
        model=model,
        priority=priority,
        tenant=tenant,
        timeout_s=timeout,
    )
    generate_pictures(prompt, output, broker, options)


@app.command()
def demo(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write.")] = Path("demo.png"),
    verbose: Annotated[bool, typer.Option(help="Show what the processes log.")] = False,
) -> None:
    """Start a private cluster, draw a handful of prompts, stop it again, and say where the time went."""
    from .demo import run_demo  # noqa: PLC0415

    run_demo(output, verbose=verbose)


@app.command()
def sim(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan in TOML, such as examples/plan.toml.")],
    *,
    instances: Annotated[list[str] | None, typer.Option(help="What if: ROLE=NUMBER, as in denoiser=20.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="What if: KEY=VALUE, as in broker.policy=round_robin.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Other chances than the plan's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all there is.")] = False,
) -> None:
    """Simulate the cluster and the load of PLAN with the broker's own machine, and say what it would do."""
    from .sim import simulate_plan  # noqa: PLC0415

    simulate_plan(plan, instances or [], change or [], seed, as_json=as_json)


@app.command()
@with_settings(BrokerSettings)
def broker(
    *, config: Config = None, log_format: Format = None, log_level: Level = LogLevel.INFO, **given: object
) -> None:
    """Run a broker."""
    from .serve import serve_broker  # noqa: PLC0415

    serve_broker(config, given, log_format, log_level)


def _add_service(role: Role) -> None:
    @with_settings(ServiceSettings, without="role")
    def serve(
        *, config: Config = None, log_format: Format = None, log_level: Level = LogLevel.INFO, **given: object
    ) -> None:
        from .serve import serve_role  # noqa: PLC0415

        serve_role(role, config, given, log_format, log_level)

    article = "an" if role is Role.ENCODER else "a"
    app.command(role.value, help=f"Run {article} {role}.")(serve)


for _role in Role:
    _add_service(_role)
