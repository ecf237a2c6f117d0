"""The codecs of the four channels, for each end."""

from msgspec.msgpack import Decoder

from ...schemas.admin import AdminMsg, AdminReplyMsg
from ...schemas.client import ClientMsg, ClientReplyMsg
from ...schemas.fetch import HolderMsg, ReaderMsg
from ...schemas.transfer import MAX_PIECE_BYTES, BrokerMsg, ServiceMsg
from .codec import ADMIN_CHANNEL, CLIENT_CHANNEL, RESULT_CHANNEL, TRANSFER_CHANNEL, MessageCodec, MessageLimits

#: a prompt and a negative prompt at their longest, with room
MAX_CLIENT_MESSAGE_BYTES = 256 * 2**10
#: what a reader says is short
MAX_READER_MESSAGE_BYTES = 4 * 2**10
#: what an operator says is short; the status of 10,000 instances is not
MAX_ADMIN_MESSAGE_BYTES = 4 * 2**10
MAX_ADMIN_REPLY_BYTES = 256 * 2**20
#: media of one result
MAX_ATTACHMENTS = 1024


def broker_to_services(max_result_bytes: int) -> MessageCodec[ServiceMsg, BrokerMsg]:
    """Return the broker's codec for services."""
    limits = MessageLimits(max_attachments=MAX_ATTACHMENTS, max_attachment_bytes=max_result_bytes)
    return MessageCodec(TRANSFER_CHANNEL, Decoder(ServiceMsg), limits)


def service_to_broker() -> MessageCodec[BrokerMsg, ServiceMsg]:
    """Return a service's codec."""
    return MessageCodec(TRANSFER_CHANNEL, Decoder(BrokerMsg), MessageLimits())


def broker_to_clients() -> MessageCodec[ClientMsg, ClientReplyMsg]:
    """Return the broker's codec for clients."""
    limits = MessageLimits(max_message_bytes=MAX_CLIENT_MESSAGE_BYTES)
    return MessageCodec(CLIENT_CHANNEL, Decoder(ClientMsg), limits)


def client_to_broker(max_result_bytes: int) -> MessageCodec[ClientReplyMsg, ClientMsg]:
    """Return a client's codec."""
    limits = MessageLimits(max_attachments=MAX_ATTACHMENTS, max_attachment_bytes=max_result_bytes)
    return MessageCodec(CLIENT_CHANNEL, Decoder(ClientReplyMsg), limits)


def holder_to_readers() -> MessageCodec[ReaderMsg, HolderMsg]:
    """Return the codec of a service's data link."""
    return MessageCodec(RESULT_CHANNEL, Decoder(ReaderMsg), MessageLimits(max_message_bytes=MAX_READER_MESSAGE_BYTES))


def reader_to_holder() -> MessageCodec[HolderMsg, ReaderMsg]:
    """Return the codec of a client on a service's data link."""
    limits = MessageLimits(max_attachments=1, max_attachment_bytes=MAX_PIECE_BYTES)
    return MessageCodec(RESULT_CHANNEL, Decoder(HolderMsg), limits)


def broker_to_operators() -> MessageCodec[AdminMsg, AdminReplyMsg]:
    """Return the broker's codec for operators."""
    return MessageCodec(ADMIN_CHANNEL, Decoder(AdminMsg), MessageLimits(max_message_bytes=MAX_ADMIN_MESSAGE_BYTES))


def operator_to_broker() -> MessageCodec[AdminReplyMsg, AdminMsg]:
    """Return an operator's codec."""
    return MessageCodec(ADMIN_CHANNEL, Decoder(AdminReplyMsg), MessageLimits(max_message_bytes=MAX_ADMIN_REPLY_BYTES))
