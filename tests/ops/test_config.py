"""Cluster files."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from triptych.broker.shell.settings import BrokerSettings
from triptych.ops.config import broker_settings_from, cluster_settings, load_document, service_settings
from triptych.ops.settings_docs import field_docs
from triptych.schemas.errors import ConfigError
from triptych.schemas.roles import Role
from triptych.services.settings import ServiceSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.toml"


def test_the_example_shows_every_setting_with_its_default() -> None:
    """Someone who copies it changes nothing by that."""
    document: dict[str, Any] = load_document(EXAMPLE)
    assert broker_settings_from(document, {}) == BrokerSettings()
    assert set(document["broker"]) == set(BrokerSettings.__struct_fields__)
    assert set(document["broker"]["dispatch"]) == set(type(BrokerSettings().dispatch).__struct_fields__)
    given = {"instance_id": "encoder-0"}
    assert service_settings(document, Role.ENCODER, given) == ServiceSettings(role=Role.ENCODER, **given)
    per_instance = {"role", "instance_id", "broker"}
    assert set(document["encoder"]) == {"instances", *ServiceSettings.__struct_fields__} - per_instance


def test_the_example_says_of_every_setting_what_its_struct_says() -> None:
    """The comments are the same words, so that they cannot drift apart."""
    text = EXAMPLE.read_text()
    docs = field_docs(BrokerSettings) | field_docs(type(BrokerSettings().dispatch)) | field_docs(ServiceSettings)
    missing = {name: doc for name, doc in docs.items() if name != "instance_id" and doc not in text}
    assert missing == {}


def test_the_example_is_a_cluster() -> None:
    """Each role has as many services as its section says."""
    cluster = cluster_settings(load_document(EXAMPLE), {}, {})
    assert [service.instance_id for service in cluster.services] == [
        "encoder-0",
        "denoiser-0",
        "decoder-0",
    ]


def test_nothing_given_is_one_of_each() -> None:
    """The cluster without a file."""
    cluster = cluster_settings({}, {}, {})
    assert cluster.broker == BrokerSettings()
    assert [service.role for service in cluster.services] == list(Role)


def test_what_is_given_by_name_overrides_the_file() -> None:
    """Counts, the broker's endpoints, settings of its dispatch, and a service's own."""
    document = tomllib.loads(
        """
        [broker]
        service_endpoint = "tcp://0.0.0.0:7000"
        dispatch.max_queued = 8
        dispatch.lease_s = 3
        [decoder]
        instances = 5
        device = "cuda"
        """
    )
    assert len(cluster_settings(document, {Role.DECODER: 0}, {}).services) == 2
    broker = broker_settings_from(document, {"client_endpoint": "tcp://127.0.0.1:0", "max_queued": 9})
    dispatch = replace(BrokerSettings().dispatch, max_queued=9, lease_s=3.0)
    assert broker == BrokerSettings("tcp://0.0.0.0:7000", "tcp://127.0.0.1:0", dispatch=dispatch)
    service = service_settings(document, Role.DECODER, {"instance_id": "d", "device": "cuda:1"})
    assert service == ServiceSettings(
        role=Role.DECODER, instance_id="d", broker="tcp://127.0.0.1:7000", device="cuda:1"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[brokr]", "brokr is {}; allowed: the settings at the top level: broker, .*; did you mean broker?"),
        ("[broker]\nclient_endpont = 1", "broker.client_endpont is 1; allowed: .*; did you mean client_endpoint?"),
        ("[broker.dispatch]\npolcy = 1", "broker.dispatch.polcy is 1; allowed: .*; did you mean policy?"),
        ("[encoder]\ninstance = 2", "encoder.instance is 2; allowed: .*; did you mean instances?"),
        ("[encoder]\nrole = 'decoder'", "encoder.role is 'decoder'; allowed: "),
        ("[encoder]\ninstances = -1", "encoder.instances is -1; allowed: expected int >= 0"),
        ("[encoder]\npool_bytes = 'big'", "encoder.pool_bytes is 'big'; allowed: expected int, got str"),
        ("[broker.dispatch]\npolicy = 'best'", "broker.dispatch.policy is 'best'; allowed: invalid enum value 'best'"),
        ("[broker.dispatch]\nlease_s = 0", "broker.dispatch.lease_s is 0; allowed: expected float >= 0.001"),
        ("[broker.dispatch.tenants.a]\nwieght = 2", "broker.dispatch.tenants.a.wieght is 2; .*; did you mean weight?"),
        (
            "[broker.dispatch.tenants.a]\nweight = 0",
            "broker.dispatch.tenants.a.weight is 0; allowed: expected float >=",
        ),
        ("[broker.dispatch.tenants]\na = 3", "broker.dispatch.tenants.a is 3; allowed: expected object, got int"),
        (
            "[broker.dispatch]\nstage_timeout_s.decodr = 1",
            "stage_timeout_s.decodr is 1; allowed: invalid enum value 'decodr'$",
        ),
        ("[broker]\ndispatch = 3", "broker.dispatch is 3; allowed: a section"),
        ("broker = 3", "broker is 3; allowed: a section"),
        ("[broker", "--config is .*; allowed: a TOML file"),
        ("\x00", "--config is .*; allowed: a TOML file"),
        ("x = " + "1" * 5000, "--config is .*; allowed: a TOML file"),
        ("x = " + "[" * 100_000, "--config is .*; allowed: a TOML file .this one is nested too deeply"),
        (
            ".".join("x" * 5000) + " = 1",
            "x is a dict that is too large to show; allowed: the settings at the top level",
        ),
        ("x = [0x" + "f" * 5000 + "]", "x is a list that is too large to show; allowed: "),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """The key, the value, what is allowed, and the nearest known name."""
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        cluster_settings(load_document(file), {}, {})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or a directory."""
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match=r"allowed: a file that can be read \("):
            load_document(path)
