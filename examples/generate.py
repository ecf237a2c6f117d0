"""Asks a running cluster (`triptych up`) for two pictures at once: python examples/generate.py [ENDPOINT]."""
# ruff: noqa: D103, T201  (an example, as a person would write it)

import asyncio
import sys

from triptych import Client, Finished, StepDone


async def draw(client: Client, prompt: str, file: str) -> None:
    async for event in client.stream(prompt, seed=7, num_inference_steps=20):
        match event:
            case StepDone(role="denoiser"):
                print(f"{prompt}: step {event.step} of {event.steps}")
            case Finished():
                event.result.images[0].save(file)
                print(f"{prompt}: {file}, {event.result.total_s:.2f} s")
            case _:
                pass


async def main() -> None:
    endpoint = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:7701"
    async with Client(endpoint) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(draw(client, "a fox on a blue background", "fox.png"))
        tasks.create_task(draw(client, "a whale on a pink background", "whale.png"))


asyncio.run(main())
