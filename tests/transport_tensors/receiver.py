"""A process that receives: prints its pool and slots, then the digests of what arrived for each line it reads."""

import asyncio
import os
import sys
from hashlib import sha256

import msgspec
import torch

from triptych.schemas.manifest import TensorManifest
from triptych.schemas.transfer import Slot
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.values import each_tensor


def digest(tensor):
    return sha256(bytes(tensor.flatten().view(torch.uint8).tolist())).hexdigest()


def answer(message):
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def receive():
    manager = DiffusionTransferManager.open(instance_id="receiver", incarnation=os.getpid(), pool_bytes=8 << 20)
    answer({"address": manager.address, "slots": manager.register_prealloc_as_receive(2, 2 << 20)})
    for line in sys.stdin.buffer:
        slot, manifest = msgspec.json.decode(line, type=tuple[Slot, TensorManifest])
        loaded = await manager.load_tensors_async(slot, manifest, "cpu")
        manager.release(slot.slot_id)
        tensors = each_tensor(loaded.tensors)
        answer({name: digest(tensor) for name, _, tensor in tensors})
    await manager.aclose()


asyncio.run(receive())
