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
    #: `triptych admin` connects here; auto: a socket of this user's, where it is found; empty: nowhere
    admin_endpoint: str = "auto"
    #: the largest message of a service, with the result in it, in bytes; larger results never come here as one
    max_result_bytes: Annotated[int, Meta(ge=2**20, le=2**40)] = 16 * 2**20
    dispatch: DispatchSettings = DispatchSettings()
