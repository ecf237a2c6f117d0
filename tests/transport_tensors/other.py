"""The other process of a test: does what each line of JSON says, and answers with one.

First it says its address and slots. Then `{"load": [slot, manifest]}` and `{"read": [slot, manifest, pool]}` are
answered with the digest of each tensor, `{"stage": value}` with slot and manifest, and
`{"push": [slot, size, pool, target]}` with an error or null. `{"expect": pool}` is not answered.
"""

import asyncio
import os
import sys
from hashlib import sha256

import msgspec
import torch

from triptych.schemas.errors import TriptychError
from triptych.schemas.manifest import TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.transport.tensors.manager import DiffusionTransferManager
from triptych.transport.tensors.values import each_tensor

POOL_BYTES = int(sys.argv[2]) if len(sys.argv) > 2 else 8 << 20


def digests(tensors):
    return {
        f"{name}{index}": sha256(bytes(tensor.flatten().view(torch.uint8).tolist())).hexdigest()
        for name, index, tensor in each_tensor(tensors)
    }


class Request(msgspec.Struct):
    load: tuple[Slot, TensorManifest] | None = None
    read: tuple[Slot, TensorManifest, PoolAddress] | None = None
    stage: float | None = None
    push: tuple[Slot, int, PoolAddress, Slot] | None = None
    expect: PoolAddress | None = None


def answer(message):
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def do(manager, request):
    if request.expect:
        manager.expect("test", request.expect)
    elif request.load:
        loaded = await manager.load_tensors_async(*request.load, "cpu")
        manager.expected_over("test")
        answer(digests(loaded.tensors))
    elif request.read:
        read = await manager.read_in_place_async(*request.read, "cpu")
        answer(digests(read.tensors))
        read.close()
    elif request.stage is not None:
        staged = await manager.stage_tensors_async({"x": torch.full((1 << 18,), request.stage)})
        answer((staged.slot, staged.manifest))
    elif request.push:
        try:
            await manager.push(*request.push)
        except TriptychError as error:
            answer(str(error))
        else:
            answer(None)


async def main():
    manager = DiffusionTransferManager.open(
        instance_id="other", incarnation=os.getpid(), pool_bytes=POOL_BYTES, engine=sys.argv[1]
    )
    answer({"address": manager.address, "slots": manager.register_prealloc_as_receive(2, POOL_BYTES // 4)})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        await do(manager, msgspec.json.decode(line, type=Request))
    await manager.aclose()


asyncio.run(main())
