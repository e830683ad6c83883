"""The kernels of `neighbor_list`."""

# Triton functions are typed by what they are called with.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl

ROOM_TOO_SMALL, PLAN_TOO_SMALL = 1, 2
"""Bits of `neighbor_list.Summary.overflow`."""

_DROPPED = tl.constexpr(2**63 - 1)
_FARTHEST_BIN = tl.constexpr(float(2**20))
"""Where atoms are farther away than this many bins, rounding could put them into the wrong one."""
_REACH = tl.constexpr(1 + 1e-6)
_WIDTH = tl.constexpr(1 + 1e-4)
_ROOM_TOO_SMALL, _PLAN_TOO_SMALL = tl.constexpr(ROOM_TOO_SMALL), tl.constexpr(PLAN_TOO_SMALL)


@triton.jit
def _divided(place, n):
    """Return the quotient, rounded down, and the rest."""
    # Integers are divided towards zero.
    quotient = tl.where(place >= 0, place, place - n + 1) // n
    return quotient, place - quotient * n


@triton.jit
def _bin_of_axis(along, determinant, size, plan, axis, periodic, inside, CUTOFF: tl.constexpr):
    """Return turns and bin along one axis, and whether bins or atom are out of reach.

    `along` is the position along the axis times the determinant, `size` the length of the reciprocal vector likewise.
    """
    n = tl.load(plan + axis, mask=inside, other=1)
    images = (tl.load(plan + 3 + axis, mask=inside, other=1) - 1) // 2
    spacing = tl.abs(determinant) / size
    per_cell = tl.where(periodic, n.to(tl.float64), spacing / CUTOFF / _WIDTH)
    place = along / determinant * per_cell
    near = tl.abs(place) < _FARTHEST_BIN
    turns, place = _divided(tl.floor(tl.where(near, place, 0.0)).to(tl.int32), n)
    reaches = spacing * images.to(tl.float64) >= n.to(tl.float64) * CUTOFF * _REACH
    return tl.where(periodic, turns, 0), place, ~near | (periodic & ~reaches)


@triton.jit
def _cell_vector(cells, row):
    """Load one lattice vector of each atom's system."""
    return tl.load(cells + row * 3), tl.load(cells + row * 3 + 1), tl.load(cells + row * 3 + 2)


@triton.jit
def _cross(ax, ay, az, bx, by, bz):
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


@triton.jit
def put_into_bins(
    positions, cells, system_idx, plan, turns, places, bins, flags, n_atoms, CUTOFF: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Find the bins of a tile of atoms."""
    atom = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = atom < n_atoms
    system = tl.load(system_idx + atom, mask=inside, other=0)
    plan += system * 8
    cells += system * 9
    ax, ay, az = _cell_vector(cells, 0)
    bx, by, bz = _cell_vector(cells, 1)
    cx, cy, cz = _cell_vector(cells, 2)
    x = tl.load(positions + atom * 3, mask=inside, other=0.0)
    y = tl.load(positions + atom * 3 + 1, mask=inside, other=0.0)
    z = tl.load(positions + atom * 3 + 2, mask=inside, other=0.0)
    periodic = tl.load(plan + 7, mask=inside, other=0)
    ux, uy, uz = _cross(bx, by, bz, cx, cy, cz)
    vx, vy, vz = _cross(cx, cy, cz, ax, ay, az)
    wx, wy, wz = _cross(ax, ay, az, bx, by, bz)
    determinant = ax * ux + ay * uy + az * uz
    turn_0, place_0, bad_0 = _bin_of_axis(
        x * ux + y * uy + z * uz, determinant, tl.sqrt(ux * ux + uy * uy + uz * uz), plan, 0,
        (periodic & 1) != 0, inside, CUTOFF,
    )  # fmt: skip
    turn_1, place_1, bad_1 = _bin_of_axis(
        x * vx + y * vy + z * vz, determinant, tl.sqrt(vx * vx + vy * vy + vz * vz), plan, 1,
        (periodic & 2) != 0, inside, CUTOFF,
    )  # fmt: skip
    turn_2, place_2, bad_2 = _bin_of_axis(
        x * wx + y * wy + z * wz, determinant, tl.sqrt(wx * wx + wy * wy + wz * wz), plan, 2,
        (periodic & 4) != 0, inside, CUTOFF,
    )  # fmt: skip
    n_1, n_2 = tl.load(plan + 1, mask=inside, other=1), tl.load(plan + 2, mask=inside, other=1)
    number = tl.load(plan + 6, mask=inside, other=0) + (place_0 * n_1 + place_1) * n_2 + place_2
    tl.store(turns + atom, turn_0, mask=inside)
    tl.store(turns + n_atoms + atom, turn_1, mask=inside)
    tl.store(turns + 2 * n_atoms + atom, turn_2, mask=inside)
    tl.store(places + atom, place_0, mask=inside)
    tl.store(places + n_atoms + atom, place_1, mask=inside)
    tl.store(places + 2 * n_atoms + atom, place_2, mask=inside)
    tl.store(bins + atom, number, mask=inside)
    tl.store(flags + atom, (bad_0 | bad_1 | bad_2).to(tl.int32), mask=inside)


@triton.jit
def _turns_of(turns, atom, n_atoms, inside):
    one = tl.load(turns + atom, mask=inside, other=0)
    two = tl.load(turns + n_atoms + atom, mask=inside, other=0)
    return one, two, tl.load(turns + 2 * n_atoms + atom, mask=inside, other=0)


@triton.jit
def _vector(positions, cell, turns, target, source, image_0, image_1, image_2, n_atoms, inside):
    """Return shifts and vectors of edges. `images` count from the cell that the target is in.

    The order of operations, free of fused ones, is that of the list on the CPU: both decide alike at the cutoff.
    """
    here_0, here_1, here_2 = _turns_of(turns, target, n_atoms, True)
    there_0, there_1, there_2 = _turns_of(turns, source, n_atoms, inside)
    shift_0, shift_1, shift_2 = image_0 + here_0 - there_0, image_1 + here_1 - there_1, image_2 + here_2 - there_2
    a, b, c = shift_0.to(tl.float64), shift_1.to(tl.float64), shift_2.to(tl.float64)
    x = tl.load(positions + source * 3, mask=inside, other=0.0) - tl.load(positions + target * 3)
    y = tl.load(positions + source * 3 + 1, mask=inside, other=0.0) - tl.load(positions + target * 3 + 1)
    z = tl.load(positions + source * 3 + 2, mask=inside, other=0.0) - tl.load(positions + target * 3 + 2)
    x += (a * tl.load(cell) + b * tl.load(cell + 3)) + c * tl.load(cell + 6)
    y += (a * tl.load(cell + 1) + b * tl.load(cell + 4)) + c * tl.load(cell + 7)
    z += (a * tl.load(cell + 2) + b * tl.load(cell + 5)) + c * tl.load(cell + 8)
    return shift_0, shift_1, shift_2, x, y, z


@triton.jit
def _vector_of_key(positions, cell, turns, target, key, n_atoms, inside):
    """Return source, shifts and vectors of edges from their keys."""
    source = (key >> 33).to(tl.int32)
    image_0 = ((key >> 22) & 2047).to(tl.int32) - 1024
    image_1 = ((key >> 11) & 2047).to(tl.int32) - 1024
    image_2 = (key & 2047).to(tl.int32) - 1024
    shift_0, shift_1, shift_2, x, y, z = _vector(
        positions, cell, turns, target, source, image_0, image_1, image_2, n_atoms, inside
    )
    return source, shift_0, shift_1, shift_2, x, y, z


@triton.jit
def look_around(
    positions, cells, system_idx, plan, turns, places, order, starts, keys, found, nearest, n_atoms,
    CUTOFF: tl.constexpr, ROOM: tl.constexpr, VISITS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Write down and count the neighbours of one atom."""
    atom = tl.program_id(0)
    system = tl.load(system_idx + atom)
    plan += system * 8
    cell = cells + system * 9
    n_0, n_1, n_2 = tl.load(plan), tl.load(plan + 1), tl.load(plan + 2)
    visited_0, visited_1, visited_2 = tl.load(plan + 3), tl.load(plan + 4), tl.load(plan + 5)
    first_bin, periodic = tl.load(plan + 6), tl.load(plan + 7)
    place_0, place_1, place_2 = _turns_of(places, atom, n_atoms, True)
    out = keys + atom.to(tl.int64) * ROOM
    count = tl.zeros([], dtype=tl.int32)
    smallest = tl.full([], float("inf"), dtype=tl.float64)
    # Comparisons round constants to float32.
    farthest = tl.full([], CUTOFF * CUTOFF, dtype=tl.float64)
    n_visited = visited_0 * visited_1 * visited_2
    for first in range(0, n_visited, VISITS):
        visit = first + tl.arange(0, VISITS)
        real = visit < n_visited
        image_0, bin_0 = _divided(place_0 + visit // (visited_1 * visited_2) - (visited_0 - 1) // 2, n_0)
        image_1, bin_1 = _divided(place_1 + visit // visited_2 % visited_1 - (visited_1 - 1) // 2, n_1)
        image_2, bin_2 = _divided(place_2 + visit % visited_2 - (visited_2 - 1) // 2, n_2)
        image_0 = tl.where((periodic & 1) != 0, image_0, 0)[:, None]
        image_1 = tl.where((periodic & 2) != 0, image_1, 0)[:, None]
        image_2 = tl.where((periodic & 4) != 0, image_2, 0)[:, None]
        number = first_bin + (bin_0 * n_1 + bin_1) * n_2 + bin_2
        start = tl.load(starts + number, mask=real, other=0)
        stop = tl.load(starts + number + 1, mask=real, other=0)
        for offset in range(0, tl.max(stop - start, axis=0), CANDIDATES):
            place = (start + offset)[:, None] + tl.arange(0, CANDIDATES)[None, :]
            inside = place < stop[:, None]
            source = tl.load(order + place, mask=inside, other=0).to(tl.int32)
            shift_0, shift_1, shift_2, x, y, z = _vector(
                positions, cell, turns, atom, source, image_0, image_1, image_2, n_atoms, inside
            )
            squared = (x * x + y * y) + z * z
            itself = (source == atom) & (shift_0 == 0) & (shift_1 == 0) & (shift_2 == 0)
            near = inside & (squared < farthest) & ~itself
            smallest = tl.minimum(smallest, tl.min(tl.min(tl.where(near, squared, float("inf")), axis=1), axis=0))
            images = ((image_0 + 1024).to(tl.int64) << 22) | ((image_1 + 1024).to(tl.int64) << 11)
            key = (source.to(tl.int64) << 33) | images | (image_2 + 1024).to(tl.int64)
            kept = tl.reshape(near.to(tl.int32), [VISITS * CANDIDATES])
            to = count + tl.cumsum(kept, axis=0) - kept
            tl.store(out + to, tl.reshape(key, [VISITS * CANDIDATES]), mask=(kept > 0) & (to < ROOM))
            count += tl.sum(kept, axis=0)
    tl.store(found + atom, count)
    tl.store(nearest + atom, smallest)


@triton.jit
def _squared_distances(positions, cell, turns, atom, keys, first, count, n_atoms, ROWS: tl.constexpr):
    """Return which of a run of neighbours there are and their squared distances, infinite where there is none."""
    row = first + tl.arange(0, ROWS)
    inside = row < count
    key = tl.load(keys + row, mask=inside, other=0)
    _, _, _, _, x, y, z = _vector_of_key(positions, cell, turns, atom, key, n_atoms, inside)
    distance = tl.sqrt((x * x + y * y) + z * z)
    return inside, tl.where(inside, distance * distance, float("inf"))


@triton.jit
def apply_cap(
    positions, cells, system_idx, turns, keys, found, kept, n_atoms,
    CAP: tl.constexpr, MARGIN: tl.constexpr, ROOM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Drop the neighbours of one atom that the cap leaves out: those beyond the first one past it, and a margin."""
    atom = tl.program_id(0)
    cell = cells + tl.load(system_idx + atom) * 9
    keys += atom.to(tl.int64) * ROOM
    count = tl.minimum(tl.load(found + atom), ROOM)
    n_kept = count
    if count > CAP:
        limit = tl.full([], float("inf"), dtype=tl.float64)
        for first in range(0, count, ROWS):
            inside, own = _squared_distances(positions, cell, turns, atom, keys, first, count, n_atoms, ROWS)
            n_within = tl.zeros([ROWS], dtype=tl.int32)
            for start in range(0, count, ROWS):
                others_inside, other = _squared_distances(
                    positions, cell, turns, atom, keys, start, count, n_atoms, ROWS
                )
                n_within += tl.sum(((other[None, :] <= own[:, None]) & others_inside[None, :]).to(tl.int32), axis=1)
            limit = tl.minimum(limit, tl.min(tl.where(inside & (n_within > CAP), own, float("inf")), axis=0))
        limit += MARGIN
        n_kept = tl.zeros([], dtype=tl.int32)
        for first in range(0, count, ROWS):
            inside, own = _squared_distances(positions, cell, turns, atom, keys, first, count, n_atoms, ROWS)
            row = first + tl.arange(0, ROWS)
            # A row may be loaded by several threads, and has to be before it is overwritten.
            tl.debug_barrier()
            tl.store(keys + row, tl.full([ROWS], _DROPPED, dtype=tl.int64), mask=inside & (own > limit))
            n_kept += tl.sum((inside & (own <= limit)).to(tl.int32), axis=0)
    tl.store(kept + atom, n_kept)


@triton.jit
def add_up(found, kept, nearest, flags, target_starts, summary, n_atoms, ROOM: tl.constexpr, ROWS: tl.constexpr):
    """Add the counts of all atoms, in one program."""
    row = tl.arange(0, ROWS)
    total = tl.zeros([], dtype=tl.int32)
    capped = tl.zeros([ROWS], dtype=tl.int32)
    most, flagged = capped, capped
    smallest = tl.full([ROWS], float("inf"), dtype=tl.float64)
    tl.store(target_starts, total)
    for first in range(0, n_atoms, ROWS):
        atom = first + row
        inside = atom < n_atoms
        n_found = tl.load(found + atom, mask=inside, other=0)
        n_kept = tl.load(kept + atom, mask=inside, other=0)
        tl.store(target_starts + 1 + atom, total + tl.cumsum(n_kept, axis=0), mask=inside)
        total += tl.sum(n_kept, axis=0)
        capped += (n_kept < n_found).to(tl.int32)
        most = tl.maximum(most, n_found)
        flagged |= tl.load(flags + atom, mask=inside, other=0)
        smallest = tl.minimum(smallest, tl.load(nearest + atom, mask=inside, other=float("inf")))
    most_of_all = tl.max(most, axis=0)
    overflow = tl.where(most_of_all > ROOM, _ROOM_TOO_SMALL, 0) + tl.max(flagged, axis=0) * _PLAN_TOO_SMALL
    tl.store(summary, total.to(tl.float64))
    tl.store(summary + 1, tl.min(smallest, axis=0))
    tl.store(summary + 2, tl.sum(capped, axis=0).to(tl.float64))
    tl.store(summary + 3, most_of_all.to(tl.float64))
    tl.store(summary + 4, overflow.to(tl.float64))


@triton.jit
def write_edges(
    positions, cells, system_idx, turns, keys, found, target_starts, summary, ends, vectors, shifts, n_live,
    starts, n_atoms, capacity,
    ROOM: tl.constexpr, ROWS: tl.constexpr, SHIFTS: tl.constexpr,
):  # fmt: skip
    """Write the edges into one atom, each at the place that the number of smaller keys tells.

    A search that has not found everything has no edges: what follows may be under way before the host knows of it.
    """
    atom = tl.program_id(0)
    capacity_used = tl.where(tl.load(summary + 4) == 0.0, capacity, 0)
    cell = cells + tl.load(system_idx + atom) * 9
    keys += atom.to(tl.int64) * ROOM
    count = tl.minimum(tl.load(found + atom), ROOM)
    begin = tl.load(target_starts + atom)
    row = tl.arange(0, ROWS)
    for first in range(0, count, ROWS):
        key = tl.load(keys + first + row, mask=first + row < count, other=_DROPPED)
        rank = tl.zeros([ROWS], dtype=tl.int32)
        for start in range(0, count, ROWS):
            other = tl.load(keys + start + row, mask=start + row < count, other=_DROPPED)
            rank += tl.sum((other[None, :] < key[:, None]).to(tl.int32), axis=1)
        place = (begin + rank).to(tl.int64)
        live = (key != _DROPPED) & (place < capacity_used)
        source, shift_0, shift_1, shift_2, x, y, z = _vector_of_key(
            positions, cell, turns, atom, tl.where(live, key, 0), n_atoms, live
        )
        tl.store(ends + place, source, mask=live)
        tl.store(ends + capacity + place, tl.zeros([ROWS], dtype=tl.int32) + atom, mask=live)
        tl.store(vectors + place * 3, x, mask=live)
        tl.store(vectors + place * 3 + 1, y, mask=live)
        tl.store(vectors + place * 3 + 2, z, mask=live)
        if SHIFTS:
            tl.store(shifts + place * 3, shift_0, mask=live)
            tl.store(shifts + place * 3 + 1, shift_1, mask=live)
            tl.store(shifts + place * 3 + 2, shift_2, mask=live)
    tl.store(starts + atom, tl.minimum(begin, capacity_used))
    if atom == 0:
        n_within = tl.minimum(tl.load(target_starts + n_atoms), capacity_used)
        tl.store(n_live, n_within)
        tl.store(starts + n_atoms, n_within)
