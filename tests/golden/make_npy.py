"""Writes npy.txt: arrays as numpy saves them, and their values as numpy converts them to float32.

Each line: name, result, rank, sizes, the file in hexadecimal, the values' bits in C's order ("-" when it is refused).
Run: python3 tests/golden/make_npy.py > tests/golden/npy.txt      (made with numpy 2.4.6)
"""
import io

import numpy as np


def saved(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version, allow_pickle=False)
    return out.getvalue()


def line(name, array, version=None, refused=False):
    data = saved(array, version)
    values = np.ascontiguousarray(array).astype(np.float32) if not refused else None
    bits = "-" if refused else "".join("%08x" % v for v in values.reshape(-1).view(np.uint32))
    sizes = "x".join(str(s) for s in array.shape) or "-"
    print(name, "refused" if refused else "ok", array.ndim, sizes, data.hex(), bits)


rng = np.random.default_rng(7)
base = rng.normal(size=(2, 3, 2)).astype(np.float32)
line("f4", base)
line("f4_version_2", base, version=(2, 0))
line("f4_version_3", base, version=(3, 0))
line("f4_fortran", np.asfortranarray(base))
line("f4_big_endian", base.astype(">f4"))
line("f8", np.array([0.1, -1e300, 1e-46, 2.0**-149 * 1.5, 1 + 2.0**-24], dtype="<f8"))
line("f8_big_endian_fortran", np.asfortranarray(rng.normal(size=(3, 4)).astype(">f8")))
line("f2", np.array([1.5, -65504, 6e-8, np.inf], dtype="<f2"))
line("u1", np.arange(250, 256, dtype=np.uint8).reshape(2, 3))
line("i1", np.array([-128, -1, 0, 127], dtype=np.int8))
line("u2", np.array([0, 65535], dtype="<u2"))
line("i2_big_endian", np.array([-32768, 513], dtype=">i2"))
line("u4", np.array([4294967295, 16777217], dtype="<u4"))
line("i4", np.array([-2147483648, 16777219], dtype="<i4"))
line("i8", np.array([-(2**63), 2**62 + 2**38 + 1, -1], dtype="<i8"))
line("u8", np.array([2**64 - 1, 2**63 + 2**39 + 1], dtype="<u8"))
line("bool", np.array([[True, False], [False, True]]))
line("scalar", np.array(2.5, dtype=np.float32))
line("four", rng.normal(size=(1, 2, 1, 3)).astype(np.float32))
line("four_fortran", np.asfortranarray(rng.normal(size=(2, 3, 2, 2)).astype(np.float32)))
line("five", np.zeros((1, 1, 1, 1, 2), dtype=np.float32), refused=True)
line("empty", np.zeros((0, 3), dtype=np.float32), refused=True)
line("complex", np.zeros(2, dtype=np.complex64), refused=True)
line("text", np.array(["ab", "c"]), refused=True)
line("records", np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]), refused=True)
line("dates", np.array(["2020-01-01"], dtype="datetime64[D]"), refused=True)
