"""Frames to messages and back."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.schemas.client import PingMsg, PongMsg
from triptych.schemas.errors import MalformedMessage
from triptych.transport.link.channels import broker_to_clients, client_to_broker
from triptych.transport.link.codec import CLIENT_CHANNEL

BROKER = broker_to_clients()
CLIENT = client_to_broker(max_result_bytes=1000)


def test_a_message_and_its_attachments_come_back() -> None:
    """What one end encodes the other decodes, attachments in order."""
    frames = BROKER.encode(PongMsg(("r1",)), (b"one", b"two"))
    assert CLIENT.decode(frames) == (PongMsg(("r1",)), (b"one", b"two"))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "0 frames"),
        ([CLIENT_CHANNEL], "1 frames"),
        ([b"__transfer__", b"\x80"], "the channel is"),
        ([CLIENT_CHANNEL, b"\xc1"], "malformed"),
        ([CLIENT_CHANNEL, b"\x81\xa8msg_type\xa4pi"], "truncated"),
        ([CLIENT_CHANNEL, msgspec.msgpack.encode({"msg_type": "pickle"})], "Invalid value 'pickle'"),
        ([CLIENT_CHANNEL, msgspec.msgpack.encode([1, 2])], "Expected `object`"),
        ([CLIENT_CHANNEL, msgspec.msgpack.encode({"msg_type": "cancel"})], "missing required field `request_id`"),
        ([CLIENT_CHANNEL, msgspec.msgpack.encode({"msg_type": "ping"}), b"extra"], "1 attachments; at most 0"),
        ([CLIENT_CHANNEL, b"\x00" * 300_000], "300000 bytes; at most 262144"),
        ([CLIENT_CHANNEL, b"\x82\xa8msg_type\xa4ping\xa1x" + b"\x91" * 250_000], "nested too deeply"),
        ([CLIENT_CHANNEL, b"\x82\xa8msg_type\xa6cancel\xaarequest_id\xa2\xed\xa0"], "UTF-8"),
        ([CLIENT_CHANNEL, msgspec.msgpack.encode({"msg_type": "cancel", "request_id": "x" * 65})], "length <= 64"),
    ],
)
def test_frames_that_are_no_message_are_refused_with_the_reason(frames: list[bytes], reason: str) -> None:
    """Too few, another channel's, garbage, truncated, unknown, too large, too deep, not UTF-8: each says so."""
    with pytest.raises(MalformedMessage, match=reason):
        BROKER.decode(frames)


def test_attachments_are_bounded_together() -> None:
    """The sum of their sizes counts, not each."""
    frames = BROKER.encode(PongMsg(), (b"x" * 600, b"y" * 401))
    with pytest.raises(MalformedMessage, match="1001 attached bytes; at most 1000"):
        CLIENT.decode(frames)


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_garbage_is_malformed_and_nothing_else(frames: list[bytes]) -> None:
    """Arbitrary frames never raise anything but `MalformedMessage`."""
    for channel in ([], [CLIENT_CHANNEL]):
        try:
            BROKER.decode(channel + frames)
        except MalformedMessage:
            continue


@given(st.data())
def test_a_damaged_message_is_malformed_or_another_message(data: st.DataObject) -> None:
    """One flipped byte never raises anything but `MalformedMessage`."""
    channel, payload = CLIENT.encode(PingMsg(("r1", "r2")))
    at = data.draw(st.integers(0, len(payload) - 1))
    damaged = payload[:at] + bytes([data.draw(st.integers(0, 255))]) + payload[at + 1 :]
    try:
        message, attachments = BROKER.decode([channel, damaged])
    except MalformedMessage:
        return
    assert (type(message) is not None, attachments) == (True, ())


def test_the_request_id_of_a_refused_message_is_found() -> None:
    """An answer to a message with one bad field can still be addressed."""
    bad = msgspec.msgpack.encode({"msg_type": "submit", "request_id": "r1", "params": {"prompt": 1}})
    assert BROKER.request_id_of([CLIENT_CHANNEL, bad]) == "r1"
    assert BROKER.request_id_of([CLIENT_CHANNEL, b"\xc1"]) is None
