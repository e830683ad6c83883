"""The structures and batches that ``make_option_goldens.py`` evaluates, as plain data."""

from __future__ import annotations

from typing import Any

# name: (symbols, positions, cell rows or None, pbc, dataset, charge, spin). Positions and cells
# are multiples of 1/1024, so float32 holds them exactly.
_ROCK = ((0.0, 2.125, 2.0625), (2.125, 0.125, 2.125), (2.0625, 2.125, 0.0))
_MGO = ("MgO", ((0.046875, 0.03125, 0.0), (2.1875, 2.0625, 2.28125)), _ROCK, "TTT")
_SLAB = ((2.875, 0.0, 0.0), (0.25, 2.8125, 0.0), (0.0, 0.125, 9.0))
_NH4 = (
    (0.0, 0.0, 0.0),
    (0.59375, 0.625, 0.609375),
    (-0.59375, -0.609375, 0.59375),
    (-0.609375, 0.59375, -0.5625),
    (0.59375, -0.640625, -0.59375),
)
STRUCTURES: dict[str, tuple[Any, ...]] = {
    "mgo": (*_MGO, "omat", 0, 0),
    "mgo_rattle": (*_MGO, "omat_rattle", 0, 0),
    "mgo_omol": (*_MGO, "omol", 0, 1),
    "slab_ttf": (
        "Al2SiO",
        ((0.0, 0.0, -1.75), (1.4375, 1.375, 0.0625), (0.0625, 0.0, 1.8125), (1.375, 1.5, 3.25)),
        _SLAB,
        "TTF",
        "oc20",
        0,
        0,
    ),
    "wire_tff": (
        "LiF",
        ((0.0, 0.0, 0.0), (1.75, 0.1875, 0.125)),
        ((3.625, 0.0, 0.0), (0.0, 9.0, 0.0), (0.5, 0.0, 9.0)),
        "TFF",
        "omat",
        0,
        0,
    ),
    "ch2f_minus": (
        "CH2F",
        (
            (0.0, 0.03125, 0.0),
            (0.96875, 0.5, 0.25),
            (-0.9375, 0.5625, 0.1875),
            (0.125, -0.75, 1.1875),
        ),
        None,
        "FFF",
        "omol",
        -1,
        1,
    ),
    "o2_triplet": ("O2", ((0.0, 0.0, 0.0), (0.0, 0.0, 1.21875)), None, "FFF", "omol", 0, 3),
    "h2o": (
        "OH2",
        ((0.0, 0.015625, 0.125), (0.03125, 0.75, -0.46875), (0.0, -0.765625, -0.453125)),
        None,
        "FFF",
        "omol",
        0,
        1,
    ),
    "nh4_plus": ("NH4", _NH4, None, "FFF", "omol", 1, 1),
    "lone_atom": ("O", ((0.3125, 0.125, 0.1875),), None, "FFF", "omol", 0, 3),
    "heavy": (
        "UFe",
        ((0.0, 0.0, 0.0), (1.75, 1.625, 1.5)),
        ((3.25, 0.0, 0.0), (0.0, 3.375, 0.0), (0.25, 0.0, 3.125)),
        "TTT",
        "omat",
        0,
        0,
    ),
}
BATCHES: dict[str, tuple[str, ...]] = {
    "batch4": ("mgo", "h2o", "slab_ttf", "ch2f_minus"),
    "batch2": ("ch2f_minus", "mgo"),
    "batch_alias": ("mgo_rattle", "ch2f_minus", "mgo"),
    "batch_omol": ("o2_triplet", "mgo_omol", "ch2f_minus"),
}
