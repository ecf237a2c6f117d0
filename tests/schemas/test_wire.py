"""Every message on the wire."""

import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.strategies import structs
from triptych.schemas.admin import AdminMsg, AdminReplyMsg
from triptych.schemas.client import ClientMsg, ClientReplyMsg
from triptych.schemas.fetch import HolderMsg, ReaderMsg
from triptych.schemas.transfer import BrokerMsg, ServiceMsg

UNIONS = {
    "service": ServiceMsg,
    "broker": BrokerMsg,
    "client": ClientMsg,
    "client_reply": ClientReplyMsg,
    "reader": ReaderMsg,
    "holder": HolderMsg,
    "admin": AdminMsg,
    "admin_reply": AdminReplyMsg,
}
MESSAGES = [(union, message) for union in UNIONS.values() for message in get_args(union)]
CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())


@pytest.mark.parametrize(("union", "message"), MESSAGES, ids=lambda value: getattr(value, "__name__", ""))
@settings(max_examples=25)
@given(data=st.data())
def test_a_message_comes_back_as_it_went(union: object, message: type, data: st.DataObject) -> None:
    """Whatever a Struct may hold is equal after MessagePack, decoded as a member of its union."""
    value = data.draw(structs(message))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=union) == value


@pytest.mark.parametrize(("union", "message"), MESSAGES, ids=lambda value: getattr(value, "__name__", ""))
@settings(max_examples=25)
@given(data=st.data())
def test_an_unknown_field_is_ignored(union: object, message: type, data: st.DataObject) -> None:
    """A field that a newer peer added changes nothing for an older one."""
    value = data.draw(structs(message))
    fields = msgspec.to_builtins(value, builtin_types=(bytes,))
    fields["added_later"] = [1, {"a": None}]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=union) == value


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS)
def test_an_unknown_tag_is_refused(union: object) -> None:
    """A message type that is none of the union's does not decode."""
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'transfer_pickle'"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"msg_type": "transfer_pickle"}), type=union)


@pytest.mark.parametrize("name", CORPUS)
def test_bytes_of_the_first_version_still_decode(name: str) -> None:
    """One message of each kind, as protocol version 1 wrote it, decodes to the same values."""
    entry = CORPUS[name]
    decoded = msgspec.msgpack.decode(bytes.fromhex(entry["bytes"]), type=UNIONS[entry["union"]])
    assert json.loads(msgspec.json.encode(decoded)) == entry["fields"]


def test_the_corpus_has_every_message() -> None:
    """No message is missing in the corpus."""
    assert set(CORPUS) == {message.__name__ for _, message in MESSAGES}


def test_a_message_has_one_tag_and_a_tag_one_message() -> None:
    """Tags are unique over all directions."""
    tags = [message.__struct_config__.tag for _, message in MESSAGES]
    assert len(set(tags)) == len(tags)
