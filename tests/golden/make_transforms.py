#!/usr/bin/env python3
"""Records what Pillow and torchvision make of small pictures, for tests/test_pictures.c.

    python3 tests/golden/make_transforms.py > tests/golden/transforms.txt

Needs Pillow and torchvision only to record anew. Pictures are bytes of a generator that the test has too (Numerical
Recipes' state = 1664525 state + 1013904223, the state's top byte), in the order of rows, pixels, channels.

A line a case:  KIND CHANNELS HEIGHT WIDTH SEED parameters : HEIGHT WIDTH bytes of the result in hexadecimal
    resize H W         Image.resize((W, H), BILINEAR)
    shorter S          torchvision's resize(S): the size, then as above
    center H W         torchvision's center_crop
    gray               convert("L")
    affine DEGREES X Y SCALE SHEAR     torchvision's affine, BILINEAR
    brightness F, contrast F, saturation F     torchvision's adjust_...
"""
import PIL
import torchvision
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F


def picture(channels, height, width, seed):
    state, out = seed, bytearray()
    for _ in range(height * width * channels):
        state = (1664525 * state + 1013904223) & 0xFFFFFFFF
        out.append(state >> 24)
    return Image.frombytes("RGB" if channels == 3 else "L", (width, height), bytes(out))


def record(kind, channels, height, width, seed, *parameters):
    m = picture(channels, height, width, seed)
    if kind == "resize":
        y = m.resize((parameters[1], parameters[0]), Image.BILINEAR)
    elif kind == "shorter":
        y = F.resize(m, parameters[0], InterpolationMode.BILINEAR)
    elif kind == "center":
        y = F.center_crop(m, list(parameters))
    elif kind == "gray":
        y = m.convert("L")
    elif kind == "affine":
        degrees, x, dy, scale, shear = parameters
        y = F.affine(m, degrees, [x, dy], scale, [shear, 0.0], InterpolationMode.BILINEAR, fill=0)
    else:
        y = getattr(F, "adjust_" + kind)(m, parameters[0])
    words = [kind, channels, height, width, seed, *parameters, ":", y.height, y.width, y.tobytes().hex()]
    print(*words)


print("# Recorded by make_transforms.py with Pillow %s and torchvision %s." % (PIL.__version__, torchvision.__version__))
seed = 1
for height, width, h, w in (
        (5, 7, 5, 7), (5, 7, 10, 14), (10, 14, 5, 7), (12, 9, 5, 8), (3, 2, 9, 11), (1, 1, 4, 3), (40, 1, 2, 2), (17, 23, 16, 22),
        (9, 31, 20, 6), (31, 33, 3, 40), (64, 64, 1, 1), (2, 50, 2, 49), (16, 16, 7, 7)):
    for channels in 1, 3:
        record("resize", channels, height, width, seed, h, w)
        seed += 1
for height, width, size in (10, 15, 7), (15, 10, 7), (8, 8, 5), (3, 20, 6), (9, 10, 9), (13, 7, 11):
    record("shorter", 3, height, width, seed, size)
    seed += 1
for height, width, h, w in (9, 12, 4, 7), (9, 12, 5, 5), (9, 12, 9, 12), (4, 5, 7, 4), (5, 4, 4, 9), (3, 3, 6, 6):
    record("center", 3, height, width, seed, h, w)
    seed += 1
record("gray", 3, 8, 8, seed)
for parameters in (0.0, 0, 0, 1.0, 0.0), (30.0, 0, 0, 1.0, 0.0), (-17.5, 2, -1, 1.0, 0.0), (90.0, 0, 0, 1.0, 0.0), (10.0, 1, 3, 0.8, 0.0), \
        (5.0, -3, 0, 1.3, 12.0), (180.0, 0, 0, 2.0, -20.0):
    seed += 1
    record("affine", 3, 11, 14, seed, *parameters)
for kind in "brightness", "contrast", "saturation":
    for factor in 0.0, 0.35, 1.0, 1.6, 3.0:
        seed += 1
        record(kind, 3, 6, 7, seed, factor)
