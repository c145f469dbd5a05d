"""Kernels are compiled for a GPU that need not be there: the interpreter accepts code that the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# Compiled in a process of its own, because kernels are interpreted in this one.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sparsum.kernels import active_steps, any_alpha, any_alpha_groups, any_alpha_math, arborescence, assignment, flows
from sparsum.kernels import counts, simplex_groups, simplex_tile, viterbi

# Launched without fusion: see `FUSION` in `sparsum.kernels.launch`.
UNFUSED = (flows.minimise, active_steps.step)

def compile(kernel, num_warps=4, **constants):
    def type_of(name):
        return TYPES.get(name, "*fp32" if name in POINTERS else "i32")
    signature = {name: "constexpr" if name in constants else type_of(name) for name in kernel.arg_names}
    options = {"num_warps": num_warps, "enable_fp_fusion": kernel not in UNFUSED}
    done = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options=options)
    assert kernel not in UNFUSED or "fma." not in done.asm["ptx"], "threads could disagree on when a loop ends"

TYPES = {"alphas": "*fp64", "rate": "i64", "ids": "*i32", "scores": "*fp64", "row_duals": "*fp64", "column_duals": "*fp64"}
TYPES |= {name: "*i64" for name in ("lengths", "columns", "heads", "found", "atoms")}
TYPES |= {name: "*i32" for name in ("is_found", "is_active", "counts")}
TYPES |= {"vectors": "*i8", "found_vectors": "*fp32", "edges": "*fp64"}
TYPES |= {name: "*fp64" for name in ("linear", "weight", "limit", "origin", "mean", "target", "asked", "inverse", "lines")}
POINTERS = {"x", "mask", "y", "probs", "grad", "out", "alpha_out", "peaks"}
row = dict(HAS_MASK=True, IS_HALF=False, TOLERANCE=1e-6, IS_DOUBLE=False)
for kind in (any_alpha_math.ANY.value, any_alpha_math.BETWEEN.value):
    alphas = dict(KIND=kind, EPS=1e-7)
    compile(any_alpha.any_tile_forward, LANES=128, WIDTH=4, ROWS=1, BLOCK=1024, **alphas, **row)
    compile(any_alpha_groups.any_groups_forward, SLACK=1e-5, GROUP=32, CHUNK=32, BATCH=16, GROUPS=128, **alphas, **row)
backward = dict(HAS_ALPHAS=True, WITH_ALPHA=True, IS_DOUBLE=False)
compile(any_alpha.any_tile_backward, ROWS=1, BLOCK=1024, **backward)
compile(any_alpha_groups.any_groups_backward, GROUP=32, CHUNK=32, BATCH=16, **backward)
compile(simplex_tile.tile_forward, EXPONENT=3, LANES=128, WIDTH=4, ROWS=1, BLOCK=1024, **row)
compile(simplex_tile.tile_backward, EXPONENT=3, ROWS=1, BLOCK=1024, IS_DOUBLE=False)
groups = dict(IN_REGISTERS=False, GROUP=32, CHUNK=32, BATCH=16, GROUPS=128)
compile(simplex_groups.groups_forward, EXPONENT=3, SLACK=1e-6, **groups, **row)
compile(assignment.match, BLOCK=128)
compile(arborescence.span, SINGLE_ROOT=True, BLOCK=16)
compile(arborescence.span, SINGLE_ROOT=False, BLOCK=256)
TYPES["probs"] = "*fp64"
TYPES |= {name: "*fp64" for name in ("values", "change", "errors", "gains")} | {"steps": "*i64"}
TYPES |= {"unary": "*fp64", "transition": "*fp64", "before": "*i32", "path": "*i64"}
compile(viterbi.follow, TAGS=16)
compile(flows.minimise, TAGS=16, BLOCK=512)
compile(active_steps.step, PARTS=128, SLOTS=64, PLACES=16, TALL_PARTS=16, TALL_SLOTS=32)
compile(active_steps.step, PARTS=4096, SLOTS=256, PLACES=32, TALL_PARTS=1, TALL_SLOTS=8)
TYPES |= {name: "*fp64" for name in ("pivots", "odds", "prefixes", "totals", "means")}
for exactly, counts_zeros in ((True, True), (True, False), (False, False)):
    bits = dict(EXACTLY=exactly, COUNTS_ZEROS=counts_zeros, WITH_MEANS=True)
    compile(counts.sum_up, BLOCK=1024, WIDTH=64, num_warps=1, **bits)
    compile(counts.sum_up, BLOCK=4096, WIDTH=512, num_warps=8, **bits)
"""


def test_kernels_compile() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
