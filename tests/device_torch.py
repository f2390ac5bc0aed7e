"""device_torch.py - the same steps as device_bench.c's in PyTorch with cuDNN, and its noise and sums.

Prints "torch NET BATCH PRECISION MILLISECONDS BYTES". As fast as PyTorch comes without compiling: channels last,
cudnn.benchmark, TF32 in convolutions and products, bf16 by autocast, one fused SGD, the step as a CUDA graph if it can be
captured (and one by one if not). The loss is waited for at each step.
"""
import statistics
import time

import torch
from torch import nn

import bench_torch

WARM_UP, STEPS = 5, 20
NETS = (("alexnet", bench_torch.alexnet, 256), ("vgg16", bench_torch.vgg16, 64), ("resnet18", bench_torch.resnet18, 256),
        ("resnet50", bench_torch.resnet50, 128))


def median(step):
    times = []
    for i in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if i >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def train_step(net, x, labels, precision):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss
    return step


def captured(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def time_net(name, build, batch, precision):
    exact = precision == "fp32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not exact
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    net = build().cuda().to(memory_format=torch.channels_last)
    x = torch.rand(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 1000
    step = train_step(net, x, labels, precision)
    ms = median(step)
    try:
        ms = min(ms, median(captured(step)))
    except RuntimeError:
        pass
    print("torch %s %d %s %.4g %d" % (name, batch, precision, ms, torch.cuda.max_memory_allocated()), flush=True)


def main():
    values = 64 * 3 * 224 * 224
    a, b = torch.zeros(values, device="cuda"), torch.zeros(values, device="cuda")
    print("torch noise %d fp32 %.4g 0" % (values, median(lambda: a.add_(torch.randn_like(a), alpha=0.1))), flush=True)
    print("torch add %d fp32 %.4g 0" % (values, median(lambda: a.add_(b))), flush=True)
    for precision in "tf32", "bf16":
        for name, build, batch in NETS:
            time_net(name, build, batch, precision)
    time_net(*NETS[0], "fp32")


main()
