"""bench_torch.py - the same steps as bench.c's in PyTorch.

    bench_torch.py NAME THREADS plain    for each line of the standard input one turn with PyTorch as it comes
    bench_torch.py NAME THREADS best     first tries settings, then the same with the fastest of them
    bench_torch.py start                 one step of the CNN, then ends: how long a program takes to that

A turn prints "torch NAME THREADS MILLISECONDS" or "torch_best NAME THREADS MILLISECONDS SETTINGS". build.sh gives the
second kind a malloc that keeps its pages, on huge pages. Settings tried: channels-last, fused and foreach Adam (training),
inference_mode, torch.compile. What came out best is kept beside the results (BENCH_CHOICES), since trying takes minutes.
"""
import json
import os
import statistics
import sys
import time

import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def convolutions(channels, *filters):
    """3x3 convolutions with relu; 0 stands for a pooling."""
    layers = []
    for f in filters:
        if f:
            layers += [nn.Conv2d(channels, f, 3, 1, 1), nn.ReLU(inplace=True)]
            channels = f
        else:
            layers += [nn.MaxPool2d(2)]
    return layers


def cnn():
    return nn.Sequential(*convolutions(1, 32, 0, 64, 0), nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def vgg_like():
    return nn.Sequential(*convolutions(3, 64, 64, 0, 128, 128, 0, 256, 256, 0), nn.Flatten(), nn.Linear(256 * 4 * 4, 10))


def alexnet():
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        *convolutions(192, 384, 256, 256), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000))


def vgg16():
    return nn.Sequential(
        *convolutions(3, 64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
        nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


def conv_bn(channels, filters, kernel, stride):
    return [nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(filters)]


class Block(nn.Module):
    def __init__(self, channels, filters, stride, bottleneck):
        super().__init__()
        out = 4 * filters if bottleneck else filters
        if bottleneck:
            self.body = nn.Sequential(
                *conv_bn(channels, filters, 1, 1), nn.ReLU(inplace=True), *conv_bn(filters, filters, 3, stride),
                nn.ReLU(inplace=True), *conv_bn(filters, out, 1, 1))
        else:
            self.body = nn.Sequential(*conv_bn(channels, filters, 3, stride), nn.ReLU(inplace=True), *conv_bn(filters, out, 3, 1))
        self.shortcut = nn.Sequential(*(conv_bn(channels, out, 1, stride) if stride != 1 or channels != out else []))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def resnet(blocks, bottleneck):
    layers = [*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for layer, count in enumerate(blocks):
        for i in range(count):
            filters = 64 << layer
            layers.append(Block(channels, filters, 2 if layer and i == 0 else 1, bottleneck))
            channels = 4 * filters if bottleneck else filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet18():
    return resnet((2, 2, 2, 2), False)


def resnet50():
    return resnet((3, 4, 6, 3), True)


# net, batch, shape of a sample, classes
LOADS = {
    "mlp": (mlp, 64, (1, 28, 28), 10), "cnn": (cnn, 64, (1, 28, 28), 10), "vgg_like": (vgg_like, 64, (3, 32, 32), 10),
    "alexnet_32": (alexnet, 32, (3, 224, 224), 1000), "alexnet_64": (alexnet, 64, (3, 224, 224), 1000),
    "vgg16_8": (vgg16, 8, (3, 224, 224), 1000), "resnet18_8": (resnet18, 8, (3, 224, 224), 1000),
    "resnet50_16": (resnet50, 16, (3, 224, 224), 1000), "predict_alexnet": (alexnet, 1, (3, 224, 224), 1000),
    "predict_vgg16": (vgg16, 1, (3, 224, 224), 1000), "predict_resnet18": (resnet18, 1, (3, 224, 224), 1000),
    "predict_resnet50": (resnet50, 1, (3, 224, 224), 1000)}


def make(name, settings):
    """A function that does one step, or one prediction."""
    build, batch, shape, classes = LOADS[name]
    torch.manual_seed(1)
    net = build()
    x = torch.rand(batch, *shape)
    labels = torch.arange(batch) % classes
    if "channels_last" in settings:
        net = net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    if name.startswith("predict"):
        net.eval()
        run = torch.compile(net) if "compile" in settings else net

        def predict():
            with torch.inference_mode():
                run(x)
        return predict
    run = torch.compile(net) if "compile" in settings else net
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, **{key: True for key in ("fused", "foreach") if key in settings})

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(run(x), labels).backward()
        optimizer.step()
    return step


def timed(step, seconds=1.0, least=2):
    """Median of milliseconds after one step that warms up, for as long as clock_more in bench.c says."""
    step()
    times = []
    began = time.perf_counter()
    while len(times) < least or (len(times) < 400 and time.perf_counter() - began < seconds):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def candidates(name):
    adams = ("",) if name.startswith("predict") else ("fused", "foreach")
    for layout in "", "channels_last":
        for adam in adams:
            yield [s for s in (layout, adam) if s]


def choose(name, threads):
    """The fastest settings; torch.compile is tried on top of the fastest without it."""
    path = os.environ.get("BENCH_CHOICES", "")
    key = "%s %s %d" % (torch.__version__, name, threads)
    known = {}
    if path and os.path.exists(path):
        with open(path) as f:
            known = json.load(f)
    if key not in known:
        best = None
        for settings in candidates(name):
            ms = timed(make(name, settings), 0.5, 1)
            if best is None or ms < best[0]:
                best = ms, settings
        try:
            compiled = best[1] + ["compile"]
            ms = timed(make(name, compiled), 0.5, 1)
            if ms < best[0]:
                best = ms, compiled
        except Exception as error:      # no C++ compiler, or an operation that it can't do
            print("torch.compile: %s: %s" % (name, str(error).split("\n")[0]), file=sys.stderr)
        known[key] = best[1]
        if path:
            with open(path, "w") as f:
                json.dump(known, f, indent=1)
    return known[key]


def main():
    if sys.argv[1] == "start":
        make("cnn", [])()
        return
    name, threads, best = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "best"
    torch.set_num_threads(threads)
    settings = choose(name, threads) if best else []
    step = make(name, settings)
    for _ in sys.stdin:
        line = "%s %s %d %.5g" % ("torch_best" if best else "torch", name, threads, timed(step))
        print(line + (" " + "+".join(settings) if settings else ""), flush=True)


if __name__ == "__main__":
    main()
