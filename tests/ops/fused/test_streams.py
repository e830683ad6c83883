"""Work side by side: what waits for what, and the same on a CPU and in the order of asking."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from edgewise.ops.fused.streams import Branch, at_once, one_after_the_other, recording_stream

ON_CPU = torch.device("cpu")


def test_a_cpu_does_what_it_is_asked_at_once() -> None:
    done: list[str] = []
    branch = Branch(ON_CPU)
    assert branch.begin(lambda: done.append("begun") or 7) == 7
    at_once([lambda name=name: done.append(name) for name in "abcd"], ON_CPU)
    branch.join()
    assert done == ["begun", *"abcd"]


def slow(out: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    """Return work that copies after a while, so that what does not wait for it comes too early."""

    def work() -> None:
        torch.cuda._sleep(20_000_000)
        out.copy_(source)

    return work


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("n_works", [1, 2, 3, 5])
def test_what_comes_later_waits(recorded: bool, serial: bool, n_works: int) -> None:
    device = torch.device("cuda")
    source, parts = torch.zeros(8, device=device), torch.full((n_works, 8), torch.nan, device=device)
    begun, out = torch.full((8,), torch.nan, device=device), torch.full((8,), torch.nan, device=device)

    def step() -> None:
        source.add_(1)
        branch = Branch(device)
        branch.begin(slow(begun, source))
        at_once([slow(part, source) for part in parts], device)
        total = parts.sum(0)
        branch.join()
        out.copy_(total + begun)

    def done() -> None:
        if serial:
            with one_after_the_other():
                step()
        else:
            step()

    done()
    torch.cuda.synchronize()
    assert torch.equal(out, torch.full_like(out, n_works + 1.0))
    if recorded:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=recording_stream(device)):
            done()
        for number in (2, 3):
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, torch.full_like(out, number * (n_works + 1.0)))


@pytest.mark.gpu
def test_works_run_side_by_side() -> None:
    device, parts = torch.device("cuda"), torch.zeros(3, 8, device="cuda")
    works = [slow(part, part) for part in parts]

    def milliseconds() -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        at_once(works, device)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    milliseconds()
    together = milliseconds()
    with one_after_the_other():
        alone = milliseconds()
    assert together < 0.6 * alone
