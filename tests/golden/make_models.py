"""Records the logits of torchvision's AlexNet, VGG-16, ResNet-18 and ResNet-50, for tests/test_models.c.

    python3 tests/golden/make_models.py > tests/golden/models.txt
    python3 tests/golden/make_models.py --save FOLDER      writes NAME.safetensors as torchvision names it and NAME.npy with
                                                           the logits: what the test loads when it finds torchvision

Weights and pictures come from a formula that the test has too, so that no large file is needed: value i of tensor NAME
is made of mix(fnv1a(NAME) + i), see value(). The logits are computed in float64 and written with 9 digits.
"""
import sys

import numpy as np
import torch
import torchvision

SIZE, SAMPLES = 64, 2


def unit(name, count):
    """count numbers in [-1, 1): the finalizer of MurmurHash3 on 32 bits, of the name's FNV-1a hash plus the index."""
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 & 0xFFFFFFFF
    x = (np.arange(count, dtype=np.uint64) * 2654435761 + h).astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return ((x >> np.uint32(8)).astype(np.float32) / np.float32(8388608)) - np.float32(1)


def value(name, shape):
    """float32; weights spread as He et al. have it, so that values stay of one size through the net."""
    count = int(np.prod(shape))
    u = unit(name, count)
    if len(shape) > 1:
        u = u * np.float32(np.sqrt(6.0 / np.prod(shape[1:])))
    elif name.endswith("running_var"):
        u = np.float32(1) + np.float32(0.5) * u
    elif name.endswith("weight"):
        u = np.float32(0.75) + np.float32(0.25) * u
    else:
        u = np.float32(0.125) * u
    return torch.from_numpy(u.reshape(shape).astype(np.float32))


def main():
    print("# Recorded by make_models.py with PyTorch %s, torchvision %s." % (torch.__version__.split("+")[0], torchvision.__version__.split("+")[0])
          ) if len(sys.argv) < 2 else None
    torch.set_num_threads(1)
    x = value("input", (SAMPLES, 3, SIZE, SIZE))
    for name in ("alexnet", "vgg16", "resnet18", "resnet50"):
        model = getattr(torchvision.models, name)(weights=None).eval()
        state = {k: value(k, tuple(v.shape)) if v.dtype == torch.float32 else v for k, v in model.state_dict().items()}
        model.load_state_dict(state)
        with torch.no_grad():
            exact = model.double()(x.double())
            rough = model.float()(x)
        if len(sys.argv) > 2 and sys.argv[1] == "--save":
            from safetensors.torch import save_file
            save_file(state, "%s/%s.safetensors" % (sys.argv[2], name), metadata={"made by": "torchvision"})
            np.save("%s/%s.npy" % (sys.argv[2], name), exact.float().numpy())
            continue
        count = sum(p.numel() for p in model.parameters())
        print("# PyTorch's own float32: %.1e of the largest logit" % ((rough.double() - exact).abs().max() / exact.abs().max()))
        print("model %s %d" % (name, count))
        for row in exact:
            print(" ".join("%.9g" % v for v in row.tolist()[:100]))      # the first 100 of 1000 classes


main()
