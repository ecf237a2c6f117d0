"""What an operator can set of the broker."""

from typing import Annotated

from msgspec import Meta, Struct

from ..machine.settings import DispatchSettings


class BrokerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the broker listens, and how it dispatches."""

    #: services connect here
    service_endpoint: str = "tcp://127.0.0.1:7700"
    #: clients connect here
    client_endpoint: str = "tcp://127.0.0.1:7701"
    #: the largest result a service may send in one message, in bytes
    max_result_bytes: Annotated[int, Meta(ge=1)] = 256 * 2**20
    dispatch: DispatchSettings = DispatchSettings()
