"""bench_torch.py - the same training steps as bench.c in PyTorch, one turn.

Prints "torch WHAT THREADS VALUE" for PyTorch as it comes and "torch_best WHAT THREADS VALUE" for the faster of that and
a tuned form (channels-last, fused Adam): the median of milliseconds a step.
"""
import statistics
import time

import torch
from torch import nn

BATCH = 64


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def step_ms(make, steps, tuned):
    torch.manual_seed(1)
    net = make()
    x = torch.rand(BATCH, 1, 28, 28)
    labels = torch.arange(BATCH) % 10
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    if tuned:
        net = net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
        try:
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
        except (RuntimeError, TypeError):       # older versions have none on the CPU
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=True)
    times = []
    for i in range(-(steps // 5 + 2), steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
        if i >= 0:
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


for threads in 1, 2:
    torch.set_num_threads(threads)
    for what, make, steps in ("mlp", mlp, 300), ("cnn", cnn, 30):
        plain = step_ms(make, steps, False)
        print("torch", what, threads, "%.4f" % plain)
        print("torch_best", what, threads, "%.4f" % min(plain, step_ms(make, steps, True)))
a = torch.rand(1024, 1024)
b = torch.rand(1024, 1024)
for threads in 1, 2:
    torch.set_num_threads(threads)
    times = []
    for i in range(12):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    print("torch gemm", threads, "%.2f" % (2 * 1024**3 / statistics.median(times) / 1e9))
