"""The table of a step's parts: made-up profiles, counts of known shapes, and the whole on two atoms by the clock of the host."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

EVENTS = [
    ("Memcpy HtoD (Pageable -> Device)", 0.002),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", 0.001),
    ("write_edges", 0.010),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", 0.001),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", 0.001),
    ("sm90_xmma_gemm_f16", 0.100),
    ("sm90_xmma_gemm_f16", 0.120),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", 0.001),
    ("Memcpy DtoH (Device -> Pageable)", 0.003),
]


def test_kernels_belong_to_the_part_whose_mark_is_in_front() -> None:
    from step_marks import ELSE, FIRST, NEIGHBOURS, attributed

    pieces = attributed(EVENTS, [NEIGHBOURS, ELSE, FIRST, ELSE])
    assert [item.part for item in pieces] == [ELSE, NEIGHBOURS, FIRST, FIRST, ELSE]
    assert sum(item.milliseconds for item in pieces) == pytest.approx(0.235)


@pytest.mark.parametrize("n_switches", [3, 5])
def test_a_profile_with_other_marks_is_refused(n_switches: int) -> None:
    from step_marks import FIRST, UnfitProfileError, attributed

    with pytest.raises(UnfitProfileError, match="4 marks are in the profile"):
        attributed(EVENTS, [FIRST] * n_switches)


class Replayed:
    """A recording as a GPU would play it: nothing of the host is done again."""

    def replay(self) -> None:
        pass


def test_marks_of_a_recording_are_played_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from step_counts import Count
    from step_marks import ELSE, Marks

    from edgewise.engine.fused.recorded import Recorded

    def record(own: Any) -> None:
        own.latest = own._work()
        own._graph = Replayed()

    monkeypatch.setattr(Recorded, "_record", record)
    marks, worked = Marks(torch.device("cpu")), []

    def work() -> int:
        for part in ("outer", "outer"):
            marks.during(part, lambda: marks.during("inner", worked.append, count, 0), count)
        return 1

    def count(*given: object, result: object) -> Count:
        return Count(len(given))

    recorded = marks.recorded(work, torch.device("cuda"))
    # Done as it is, then recorded and played, then played.
    for n_worked in (2, 4, 4):
        marks.played.clear()
        assert recorded() == 1
        assert len(worked) == n_worked
        assert [item.part for item in marks.played] == 2 * ["outer", "inner", "outer", ELSE]
        assert [item.of for item in marks.played if item.count] == 2 * ["inner", "outer"]


def test_events_of_a_trace_are_put_in_order() -> None:
    from timing import in_order

    trace: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "name": "second", "ts": 20.0, "dur": 5.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 50.0},
        {"ph": "X", "cat": "gpu_memset", "name": "first", "ts": 10.0, "dur": 1.0},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "range", "ts": 10.0, "dur": 15.0},
        {"ph": "i", "cat": "kernel", "name": "instant", "ts": 11.0},
    ]
    assert in_order(trace) == [("first", 0.001), ("second", 0.005)]


def test_shares_are_of_the_nearer_ceiling() -> None:
    from ceilings import Ceilings
    from stage_table import Profile, parts
    from step_counts import Count
    from step_marks import ELSE, FIRST, NEIGHBOURS, attributed

    profile = Profile(attributed(EVENTS, [NEIGHBOURS, ELSE, FIRST, ELSE]), 1)
    counts = {NEIGHBOURS: Count(20_000_000), FIRST: Count(110_000_000, 110_000_000_000)}
    rows = {row["part"]: row for row in parts(profile, counts, Ceilings(4e12, 1e15, "made up"))}
    assert list(rows) == [NEIGHBOURS, FIRST, ELSE]
    # 20 MB in 10 us are 2 TB/s; 110 GFLOP in 220 us are 500 TFLOP/s, and 110 MB an eighth of the memory's.
    assert (rows[NEIGHBOURS]["ceiling"], rows[NEIGHBOURS]["share"]) == ("memory", 0.5)
    assert (rows[FIRST]["ceiling"], rows[FIRST]["share"]) == ("products", 0.5)
    assert (rows[FIRST]["ms"], rows[FIRST]["launches"], rows[FIRST]["TB_per_s"]) == (0.22, 2, 0.5)
    assert "bytes" not in rows[ELSE]
    slower = {NEIGHBOURS: Count(1), FIRST: Count(110_000_000, 110_000_000_000, float16=False)}
    rows = {row["part"]: row for row in parts(profile, slower, Ceilings(4e12, 1e15, "made up"))}
    assert rows[FIRST]["ceiling"] == "memory", "no ceiling was measured for other products"


def test_a_part_that_has_no_place_is_refused() -> None:
    from checks import CheckFailedError
    from stage_table import Profile, parts
    from step_marks import Piece

    with pytest.raises(CheckFailedError, match="unheard of"):
        list(parts(Profile([Piece("unheard of", "kernel", 1.0)], 1), {}, None))


def test_other_kernels_are_named() -> None:
    from stage_table import other_kernels

    assert other_kernels(["a", "b", "b"], [("b", 1.0), ("a", 1.0), ("b", 2.0)]) == ()
    assert other_kernels(["a", "b"], [("b", 1.0), ("c", 1.0), ("b", 2.0)]) == ("a", "b", "c")


def test_every_part_has_its_place() -> None:
    from step_marks import ELSE, FIRST, LAST, LAST_ADJOINT, ORDER, PLACES, SECOND

    named = {part for *_, part, _ in PLACES if isinstance(part, str)}
    told = {FIRST, SECOND, f"{FIRST}, adjoint", f"{SECOND}, adjoint", LAST, LAST_ADJOINT, ELSE}
    assert named | told == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


class TestCounts:
    """Bytes and operations of the case that ceilings were measured on: 78,848 edges, 1000 atoms, 128 channels, float16."""

    E, N, C = 78_848, 1000, 128

    def rows(self, coefficients: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.empty(self.E, coefficients * self.C, dtype=dtype, device="meta")

    @property
    def nodes(self) -> torch.Tensor:
        return torch.empty(self.N, 9, self.C, device="meta")

    @property
    def edges(self) -> Any:
        from edgewise.ops import MessageShape
        from edgewise.ops.fused.layout import geometry_width

        def numbers(*shape: int) -> torch.Tensor:
            return torch.empty(*shape, dtype=torch.int32, device="meta")

        tables = SimpleNamespace(
            capacity=self.E,
            geometry=torch.empty(self.E, geometry_width(2, 2), device="meta"),
            ends=numbers(2, self.E),
            by_source=numbers(self.E),
        )
        return SimpleNamespace(tables=tables, shape=MessageShape(2, 2, self.C, self.C))

    def test_node_to_edge(self) -> None:
        import step_counts as counts

        radial = self.rows(12)
        count = counts.gather_rotate(self.edges, self.nodes, radial, result=self.rows(18))
        # 242 MB of factors, 363 MB of rows, 11 MB of geometry, 5 MB of nodes, 0.6 MB of ends.
        assert count.bytes == pytest.approx(622e6, rel=0.01)
        # 1 + 3 * 7 + 5 * 11 operations for each channel of both ends.
        assert count.flops == 2 * self.E * self.C * 77
        adjoint = counts.gather_rotate_adjoint(self.edges, self.rows(18), self.nodes, radial, radial, result=self.nodes)
        # Two kernels of 437 MB, of which 11 MB of geometry are in both, and what both store for the nodes.
        assert adjoint.bytes == pytest.approx(898e6, rel=0.02)
        assert adjoint.flops == 4 * self.E * self.C * 77

    def test_products(self) -> None:
        import step_counts as counts

        from edgewise.ops import EdgeSegment, SO2Weights
        from edgewise.ops.fused.row_format import FLOAT16, SPLIT, TF32
        from edgewise.ops.fused.so2_linear import so2_map

        blocks = tuple(torch.zeros(n_out, n_in) for n_out, n_in in ((640, 768), (512, 1024), (256, 512)))
        segments = [EdgeSegment(0, self.E, 0)]
        found = {}
        for row_format in (FLOAT16, SPLIT, TF32):
            given = so2_map(SO2Weights(blocks, torch.zeros(640)), row_format)
            rows, out = self.rows(18 * row_format.parts, row_format.operands), self.rows(11, row_format.results)
            found[row_format] = counts.products(rows, [given], segments, result=out)
        assert found[FLOAT16].flops == pytest.approx(77.5e9 + 82.7e9 + 20.7e9, rel=1e-3)
        assert found[FLOAT16].bytes == pytest.approx(585e6 + 2.3e6, rel=0.01)
        assert found[SPLIT].flops == 3 * found[FLOAT16].flops
        assert found[SPLIT].float16
        assert found[TF32].bytes == 2 * found[FLOAT16].bytes
        assert not found[TF32].float16

    def test_gate(self) -> None:
        import step_counts as counts

        before, after = self.rows(11), self.rows(9)
        assert counts.gate(None, before, before, result=after).bytes == pytest.approx(404e6, rel=0.01)
        assert counts.gate_adjoint(None, after, before, before, result=before).bytes == pytest.approx(626e6, rel=0.01)

    def test_edge_to_node(self) -> None:
        import step_counts as counts

        features = self.rows(9)
        count = counts.rotate_sum(self.edges, features, features, result=self.nodes)
        assert count.bytes == pytest.approx(202e6, rel=0.03)
        adjoint = counts.rotate_sum_adjoint(self.edges, self.nodes, features, features, result=features)
        assert adjoint.bytes == pytest.approx(376e6, rel=0.03)
        # Of the degree embedding three coefficients, each with 2 l + 1 of its degree.
        assert counts.embed_edges(self.edges, self.rows(3), result=self.nodes).flops == self.E * self.C * (1 + 7 + 11)

    def test_last_layer_has_a_part_for_what_rounding_leaves(self) -> None:
        import step_counts as counts

        weights = SimpleNamespace(last=torch.empty(1536, 256, dtype=torch.float16, device="meta"))
        value = counts.last_layer(None, self.rows(2), [weights], None, bias=True, result=self.rows(12))
        slope = counts.last_layer(None, self.rows(1), [weights], None, bias=False, result=self.rows(12))
        assert value.flops == 2 * self.E * 256 * 1536
        assert slope.flops == value.flops // 2
        assert value.bytes - slope.bytes == 2 * self.E * self.C


@pytest.mark.kernels
def test_a_step_of_two_atoms_is_all_accounted_for() -> None:
    from report_stages import as_table
    from stage_table import Options, rows
    from step_marks import GATE_AND_SECOND, ORDER

    found = list(rows(Options("cpu"), "fast"))
    json.dumps(found)
    # Gate and second products are two steps here.
    assert [row["part"] for row in found] == [*(part for part in ORDER if part != GATE_AND_SECOND), "whole"]
    assert all(row["bytes"] > 0 for row in found if row["part"] != "everything else")
    launches = {row["part"]: row["launches"] for row in found}
    # Two blocks, each with one of both maps; the embedding has none. Radial networks: that of the embedding, and one a block; on
    # the way back values and slopes of each, but for the values that the last block has left.
    assert launches["first products"] == launches["second products, adjoint"] == 2
    assert launches["radial networks, last layers"] == 3
    assert launches["radial networks, last layers, for the adjoint"] == 5
    assert sum(row["ms"] for row in found[:-1]) == pytest.approx(found[-1]["ms"], rel=1e-3)
    table = as_table(found)
    assert len(table.splitlines()) == len(found) + 2
    assert table.splitlines()[-1].startswith("| whole |")


def test_the_report_has_the_table_where_there_are_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import report_stages

    monkeypatch.setattr(report_stages, "GPU", tmp_path)
    assert report_stages.section() == ""
    shared = {"commit": "abc", "gpu": "G", "torch": "2", "command": "python benchmarks/run.py stages fast"}
    errors = {"energy_meV_per_atom": 0.02, "forces_relative": 0.001, "stress_relative": 0.002}
    rows = [
        {"part": "gate", "ms": 1.0, "launches": 4.0, "bytes": 4e9, "flops": 0, "TB_per_s": 4.0, "TFLOP_per_s": 0.0}
        | {"ceiling": "memory", "share": 0.94},
        {"part": "whole", "ms": 2.0, "launches": 9.0, "bytes": 5e9, "flops": 1e9, "busy_without_marks_ms": 1.99}
        | {"case": "1000 Cu", "edges": 78_848, "error_against_float64": errors}
        | {"ceilings": {"bytes_per_second": 4.24e12, "flops_per_second": 7.12e14, "source": "measured"}},
    ]
    file = tmp_path / "stage_table_fast.jsonl"
    file.write_text("".join(json.dumps(row | shared) + "\n" for row in rows))
    text = report_stages.section()
    assert "| gate | 1.000 | 50.0 % | 4 | 4000.0 |  | 4.00 |  | 94 % (memory) |" in text
    assert "4.24 TB/s, 712 TFLOP/s (measured)" in text
    assert "forces 0.001" in text
    file.write_text(json.dumps(rows[0] | shared) + "\n")
    with pytest.raises(ValueError, match="last row"):
        report_stages.section()
