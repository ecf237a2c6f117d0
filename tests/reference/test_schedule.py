"""The times of a run, and its noise."""

from itertools import pairwise

import pytest
import torch

from triptych.services.pipelines.reference.schedule import euler_step, flow_times, guided, initial_noise


@pytest.mark.parametrize("steps", [1, 2, 20, 1000])
def test_times_fall_from_noise_to_clean(steps: int) -> None:
    """There is one time more than steps; they fall strictly from 1 to 0."""
    times = flow_times(steps)

    assert times.shape == (steps + 1,)
    assert times.dtype == torch.float32
    assert times[0] == 1.0
    assert times[-1] == 0.0
    assert bool((times.diff() < 0).all())


@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps_are_refused(steps: int) -> None:
    """Fewer than one step is an error that says so."""
    with pytest.raises(ValueError, match="at least 1"):
        flow_times(steps)


@pytest.mark.parametrize("steps", [1, 7])
def test_a_straight_path_is_followed_exactly(steps: int) -> None:
    """With the true velocity, any number of steps arrives at the clean latent."""
    clean, noise = torch.full((1, 8, 2, 2), 0.25), initial_noise(3, (1, 8, 2, 2))
    latent, times = noise, flow_times(steps).tolist()

    for time, next_time in pairwise(times):
        latent = euler_step(latent, noise - clean, time, next_time)

    torch.testing.assert_close(latent, clean)


def test_guidance_goes_past_the_prompt() -> None:
    """Scale 0 is no prompt, 1 the prompt, more goes on in the same direction."""
    zero, one = torch.zeros(3), torch.ones(3)

    assert [guided(one, zero, scale).tolist() for scale in (0.0, 1.0, 4.0)] == [[0.0] * 3, [1.0] * 3, [4.0] * 3]


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_noise_belongs_to_its_seed(seed: int) -> None:
    """A seed gives the same noise every time and another seed gives other noise."""
    assert torch.equal(initial_noise(seed, (4,)), initial_noise(seed, (4,)))
    assert not torch.equal(initial_noise(seed, (4,)), initial_noise((seed + 1) % 2**64, (4,)))
