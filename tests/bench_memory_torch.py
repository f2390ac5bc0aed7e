"""bench_memory_torch.py - PyTorch's side of bench_memory.c: one fresh process, the same nets, batches and optimizer.

    bench_memory_torch.py NET BATCH CHUNKS [STEPS]      CHUNKS 0: no checkpointing; else checkpoint_sequential over the
                                                        features (ResNet: stem and blocks), as PyTorch advises today

Prints "NET BATCH CHUNKS peak MB ms STEP"; peak is the largest resident set less what the process had before the net.
"""
import resource
import sys
import time

import torch
import torchvision
from torch.utils.checkpoint import checkpoint_sequential


def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


name, batch, chunks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 2
torch.manual_seed(0)
x = torch.rand(batch, 3, 224, 224) - 0.5
labels = torch.arange(batch) % 1000
torch.nn.functional.conv2d(x[:1, :, :32, :32], torch.zeros(8, 3, 3, 3))     # loads what the library loads late
before = peak()
net = getattr(torchvision.models, name)()
adam = torch.optim.Adam(net.parameters(), 1e-4)
if name.startswith("resnet"):
    blocks = [b for layer in (net.layer1, net.layer2, net.layer3, net.layer4) for b in layer]
    features = torch.nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, *blocks)
    rest = lambda h: net.fc(torch.flatten(net.avgpool(h), 1))
else:
    features = net.features
    rest = lambda h: net.classifier(torch.flatten(net.avgpool(h), 1))
best = 1e30
for _ in range(steps):
    start = time.perf_counter()
    adam.zero_grad(set_to_none=True)
    h = checkpoint_sequential(features, chunks, x, use_reentrant=False) if chunks else features(x)
    torch.nn.functional.cross_entropy(rest(h), labels).backward()
    adam.step()
    best = min(best, time.perf_counter() - start)
print(f"{name} {batch} {chunks} peak {(peak() - before) / 1e6:.1f} ms {1e3 * best:.1f}")
