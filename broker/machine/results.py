"""Results on their way out: pieces that pass through for clients which cannot reach the service that keeps them.

Only so many are under way at once, whoever asks; the others wait, in order, a few for each client. A piece is worth
less than any other message, so the shell carries `PassPiece` out last.
"""

from ...schemas.client import RelayedChunkMsg, RelayEndMsg, RelayFailedMsg, RelayFetchMsg
from ...schemas.errors import ErrorInfo, InvalidRequest, MalformedMessage, Overloaded, ResultGone, TriptychError
from ...schemas.transfer import (
    MAX_RELAYED_PIECE_BYTES,
    TransferChunkMsg,
    TransferFetchEndMsg,
    TransferFetchFailedMsg,
    TransferFetchMsg,
)
from .commands import PassPiece
from .records import Instance
from .relays import Asked, Relay
from .tables import Tables

#: pieces that one client may wait for
MAX_RELAYS_PER_CLIENT = 4
#: pieces that all clients together may wait for
MAX_RELAYS = 4096
#: when to ask again for a piece that was refused, in seconds
RETRY_AFTER_S = 0.5


def relay_fetch(t: Tables, peer: bytes, msg: RelayFetchMsg) -> None:
    """Get the client a piece of its result, when its turn has come."""
    try:
        _check_relay(t, peer, msg)
    except TriptychError as error:
        t.tell_client(peer, RelayFailedMsg(msg.claim.request_id, msg.piece, error.info()))
        return
    t.relays.add(Relay(peer, msg))
    _ask(t)


def relay_end(t: Tables, peer: bytes, msg: RelayEndMsg) -> None:
    """Pass on that the client wants no more."""
    holder = t.by_id.get(msg.holder)
    if holder is None:
        t.ignore(peer, msg, f"{msg.holder} is not registered")
    else:
        t.tell_service(holder.peer, TransferFetchEndMsg(msg.claim))


def chunk(t: Tables, instance: Instance, msg: TransferChunkMsg) -> None:
    """Pass a piece on."""
    relay = _answered(t, instance, msg)
    if relay is None:
        return
    wanted = relay.msg.piece
    if len(t.attachments) == 1 and len(t.attachments[0]) == wanted.length:
        t.out.append(PassPiece(relay.client, RelayedChunkMsg(relay.msg.claim.request_id, wanted), t.attachments))
    else:
        sizes = [len(attachment) for attachment in t.attachments]
        _fail(t, relay, MalformedMessage(f"a piece of {wanted.length} bytes came as {sizes}").info())
    _ask(t)


def fetch_failed(t: Tables, instance: Instance, msg: TransferFetchFailedMsg) -> None:
    """Pass the holder's reason on."""
    relay = _answered(t, instance, msg)
    if relay is not None:
        _fail(t, relay, msg.error)
        _ask(t)


def lose_relays(t: Tables, instance: Instance, why: str) -> None:
    """Give up the pieces that a lost instance was asked for; those that wait find out in their turn."""
    for relay_id in [relay_id for relay_id, asked in t.relays.asked.items() if asked.holder == instance.peer]:
        _give_up(t, relay_id, why)
    _ask(t)


def expire_relays(t: Tables) -> None:
    """Give up the pieces that did not come in time."""
    while (when := t.relays.earliest()) is not None and when <= t.now:
        _give_up(t, next(iter(t.relays.asked)), f"the service did not answer for {t.settings.relay_timeout_s:g} s")
    _ask(t)


def _check_relay(t: Tables, peer: bytes, msg: RelayFetchMsg) -> None:
    """Raise the reason not to get the piece."""
    if msg.piece.length > MAX_RELAYED_PIECE_BYTES:
        raise InvalidRequest("length", msg.piece.length, f"at most {MAX_RELAYED_PIECE_BYTES} bytes through the broker")
    if t.relays.per_client[peer] >= MAX_RELAYS_PER_CLIENT or len(t.relays) >= MAX_RELAYS:
        raise Overloaded(len(t.relays), RETRY_AFTER_S)


def _ask(t: Tables) -> None:
    """Ask for the next pieces, as many as may be under way."""
    relays = t.relays
    while relays.waiting and len(relays.asked) < t.settings.relays_in_flight:
        relay = relays.waiting.popleft()
        holder = t.by_id.get(relay.msg.holder)
        if holder is None:
            relays.note_over(relay)
            gone = ResultGone(relay.msg.claim.request_id, f"{relay.msg.holder} is not there any more")
            _fail(t, relay, gone.info())
            continue
        relays.last_id += 1
        relays.asked[relays.last_id] = Asked(relay, holder.peer, t.now + t.settings.relay_timeout_s)
        t.tell_service(holder.peer, TransferFetchMsg(relays.last_id, relay.msg.claim, relay.msg.piece))


def _answered(t: Tables, instance: Instance, msg: TransferChunkMsg | TransferFetchFailedMsg) -> Relay | None:
    """Return the relay that `msg` answers, which is under way no more."""
    asked = t.relays.asked.get(msg.relay_id)
    if asked is None or asked.holder != instance.peer:
        t.ignore(instance.peer, msg, f"it was not asked for relay {msg.relay_id}")
        return None
    del t.relays.asked[msg.relay_id]
    t.relays.note_over(asked.relay)
    return asked.relay


def _give_up(t: Tables, relay_id: int, why: str) -> None:
    relay = t.relays.asked.pop(relay_id).relay
    t.relays.note_over(relay)
    _fail(t, relay, ResultGone(relay.msg.claim.request_id, why).info())


def _fail(t: Tables, relay: Relay, error: ErrorInfo) -> None:
    t.tell_client(relay.client, RelayFailedMsg(relay.msg.claim.request_id, relay.msg.piece, error))
