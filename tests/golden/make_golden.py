#!/usr/bin/env python3
"""Records what PyTorch computes: outputs, gradients, and losses of short trainings, for tests/test_golden.c.

    python3 tests/golden/make_golden.py [directory]         (default: the directory of this script)

Needs PyTorch only to record anew; the tests read the text files. Every input, weight and hyperparameter is a float32
number, written so that it reads back exactly; the references are computed from them in float64 and written with 12
digits, far more than the tests compare. Beside them each case records how far PyTorch's own float32 is from its float64
(torch32_...: the largest norm of a difference over the norm of the reference), so that the tolerances can be judged.

The files, a line an item; `#` starts a comment:
    case GROUP.NAME key=value ...         begins a case; steps=N: a training of N nnt_step calls, batches in turn
    layer KIND NAME INPUTS key=value ...  INPUTS: names of earlier layers with commas between, or - for none
    optimizer KIND key=value ...
    give NAME : values                    what to write to a parameter or running statistic
    batch COUNT                           begins a batch of as many samples; then its x, and labels or targets
    want WHAT : values                    the reference:
        output               of nnt_predict
        training_output      the loss's input while training, through the gradient of "probe"
        loss                 of nnt_backward, or of each nnt_step
        grad:NAME            gradient of a parameter after nnt_backward
        state:NAME           parameter or running statistic after the last nnt_step
Key names are those of the structs in nntrain.h.

How the gradient of a layer's input gets out, though a net only tells gradients of parameters: sample i of the net's
input is the i-th unit vector and the first layer, "feed", is linear, so that its weight's column i is what the layer
under test gets as sample i, and the gradient of that column is the gradient of that sample.
"""
import os
import random
import struct
import sys

import torch
import torch.nn.functional as F


def f32(v):
    """v rounded to the nearest float32, as a Python float."""
    return struct.unpack("<f", struct.pack("<f", v))[0]


def text32(v):
    """The shortest decimal that reads back as the float32 v."""
    for digits in range(1, 10):
        s = "%.*g" % (digits, v)
        if f32(float(s)) == v:
            return s
    raise ValueError(v)


def pair(a, key, default):
    """(height, width) of a desc's members `key` and `key_w`, by the rules of nntrain.h."""
    height = a.get(key, 0) or default[0]
    if a.get(key + "_w", 0) == -1:
        return height, 0
    return height, a.get(key + "_w", 0) or (height if a.get(key, 0) else default[1])


# ----------------------------------------------------------------------------------------------------------------------
# Layers: what each kind is in PyTorch. p: parameters by name, x: the inputs' values, a: attributes.

def run_conv2d(x, a, p, name, training):
    return F.conv2d(x[0], p[name + ".weight"], p.get(name + ".bias"), pair(a, "stride", (1, 1)), pair(a, "pad", (0, 0)),
                    pair(a, "dilation", (1, 1)), a.get("groups", 1))


def run_linear(x, a, p, name, training):
    y = F.linear(x[0].flatten(1), p[name + ".weight"], p.get(name + ".bias"))
    return y[:, :, None, None]


def run_batchnorm(x, a, p, name, training):
    return F.batch_norm(x[0], p[name + ".running_mean"], p[name + ".running_var"], p.get(name + ".weight"),
                        p.get(name + ".bias"), training, a.get("momentum", f32(0.1)), a.get("eps", f32(1e-5)))


def run_maxpool(x, a, p, name, training):
    kernel = pair(a, "kernel", None)
    return F.max_pool2d(x[0], kernel, pair(a, "stride", kernel), pair(a, "pad", (0, 0)), 1, bool(a.get("ceil_mode")))


def run_avgpool(x, a, p, name, training):
    kernel = pair(a, "kernel", None)
    return F.avg_pool2d(x[0], kernel, pair(a, "stride", kernel), pair(a, "pad", (0, 0)), bool(a.get("ceil_mode")),
                        not a.get("exclude_pad"))


LAYERS = {
    "linear": run_linear,
    "conv2d": run_conv2d,
    "batchnorm": run_batchnorm,
    "maxpool": run_maxpool,
    "avgpool": run_avgpool,
    "adaptive_avgpool": lambda x, a, p, name, training: F.adaptive_avg_pool2d(x[0], (a["height"], a["width"])),
    "global_avgpool": lambda x, a, p, name, training: x[0].mean((2, 3), keepdim=True),
    "reshape": lambda x, a, p, name, training: x[0].reshape(-1, a["channels"], a["height"], a["width"]),
    "flatten": lambda x, a, p, name, training: x[0].flatten(1)[:, :, None, None],
    "relu": lambda x, a, p, name, training: F.relu(x[0]),
    "leaky_relu": lambda x, a, p, name, training: F.leaky_relu(x[0], a["slope"]),
    "sigmoid": lambda x, a, p, name, training: torch.sigmoid(x[0]),
    "tanh": lambda x, a, p, name, training: torch.tanh(x[0]),
    "gelu": lambda x, a, p, name, training: F.gelu(x[0]),
    "softmax": lambda x, a, p, name, training: F.softmax(x[0], 1),
    "dropout": lambda x, a, p, name, training: F.dropout(x[0], a["p"], training),
    "add": lambda x, a, p, name, training: x[0] + x[1],
    "concat": lambda x, a, p, name, training: torch.cat(x, 1),
}


def loss_sum_and_weight(kind, a, x, batch):
    """The loss's sum over the samples, and the weight by which it is divided for their mean."""
    if kind == "mse":
        return (F.mse_loss(x, batch["targets"].reshape(x.shape), reduction="sum") / x[0].numel(), x.shape[0])
    weights = torch.tensor(a["class_weights"], dtype=x.dtype) if "class_weights" in a else None
    ignore = a.get("ignore_index", -100)
    labels = batch["labels"]
    total = F.cross_entropy(x.flatten(1), labels, weights, ignore_index=ignore, reduction="sum",
                            label_smoothing=a.get("label_smoothing", 0.0))
    counted = labels[labels != ignore]
    return total, (weights[counted].sum() if weights is not None else counted.numel())


# ----------------------------------------------------------------------------------------------------------------------
# Cases

class Case:
    def __init__(self, name, **head):
        self.name, self.head = name, head
        self.random = random.Random(name)           # so that a new case leaves the others' numbers as they are
        self.layers, self.shapes, self.given, self.batches = [], {}, {}, []
        self.optimizer, self.want = None, []

    def numbers(self, count, scale=1.0, offset=0.0):
        return [f32(self.random.gauss(offset, scale)) for _ in range(count)]

    def give(self, name, shape, values):
        assert torch.Size(shape).numel() == len(values), (self.name, name)
        self.given[name] = (tuple(shape), [f32(v) for v in values])

    def add(self, kind, name, inputs=None, **a):
        """Adds a layer after the last one, or after `inputs`, and random weights for it."""
        a = {k: f32(v) if isinstance(v, float) else v for k, v in a.items()}
        inputs = inputs or ([self.layers[-1][1]] if self.layers else [])
        shapes = [self.shapes[i] for i in inputs]
        c, h, w = shapes[0] if shapes else (0, 0, 0)
        if kind == "conv2d":
            kernel = pair(a, "kernel", None)
            fan = c // a.get("groups", 1) * kernel[0] * kernel[1]
            self.give(name + ".weight", (a["filters"], c // a.get("groups", 1)) + kernel,
                      self.numbers(a["filters"] * fan, fan ** -0.5))
            if not a.get("no_bias"):
                self.give(name + ".bias", (a["filters"],), self.numbers(a["filters"], 0.5))
        if kind == "linear":
            self.give(name + ".weight", (a["features"], c * h * w),
                      self.numbers(a["features"] * c * h * w, (c * h * w) ** -0.5))
            if not a.get("no_bias"):
                self.give(name + ".bias", (a["features"],), self.numbers(a["features"], 0.5))
        if kind == "batchnorm":
            if not a.get("no_affine"):
                self.give(name + ".weight", (c,), self.numbers(c, 0.3, 1.0))
                self.give(name + ".bias", (c,), self.numbers(c, 0.5))
            self.give(name + ".running_mean", (c,), self.numbers(c, 0.5))
            self.give(name + ".running_var", (c,), [0.5 + abs(v) for v in self.numbers(c)])
        self.layers.append((kind, name, inputs, a))
        if kind == "input":
            shape = (a["channels"], a["height"], a["width"])
        elif kind in ("mse", "cross_entropy"):
            shape = shapes[0]
        else:
            p = {n: torch.zeros(s[0]) for n, s in self.given.items()}
            shape = tuple(LAYERS[kind]([torch.zeros((2,) + s) for s in shapes], a, p, name, False).shape[1:])
        self.shapes[name] = shape
        return name

    def forward(self, p, batch, training):
        """The loss's input, for a batch."""
        values = {}
        for kind, name, inputs, a in self.layers[:-1]:
            if kind == "input":
                values[name] = batch["x"]
            else:
                values[name] = LAYERS[kind]([values[i] for i in inputs], a, p, name, training)
        return values[self.layers[-1][2][0]]

    def loss(self, p, batch):
        kind, _, _, a = self.layers[-1]
        y = self.forward(p, batch, True)
        return (y,) + loss_sum_and_weight(kind, a, y, batch)

    def tensors(self, dtype):
        """Parameters and batches as tensors of that type."""
        p = {}
        for name, (shape, values) in self.given.items():
            p[name] = torch.tensor(values, dtype=dtype).reshape(shape)
            p[name].requires_grad_(".running_" not in name)
        batches = []
        for count, data in self.batches:
            t = {k: torch.tensor(v, dtype=torch.int64 if k == "labels" else dtype) for k, v in data.items()}
            t["x"] = t["x"].reshape((count,) + self.shapes[self.layers[0][1]])
            batches.append(t)
        return p, batches

    def batch(self, count, x=None, labels=None):
        """Adds a batch; what isn't given is random."""
        c, h, w = self.shapes[self.layers[0][1]]
        data = {"x": x or self.numbers(count * c * h * w)}
        out = torch.Size(self.shapes[self.layers[-1][1]]).numel()
        if self.layers[-1][0] == "mse":
            data["targets"] = self.numbers(count * out)
        else:
            data["labels"] = labels or [self.random.randrange(out) for _ in range(count)]
        self.batches.append((count, data))

    def record(self):
        compute = self.train if "steps" in self.head else self.backward
        self.want, single = compute(torch.float64), dict(compute(torch.float32))
        worst = {}
        for what, value in self.want:
            norm = value.norm().item()
            assert norm > 0 or what == "loss", (self.name, what)
            kind = ("gradients" if what[:5] == "grad:" else "outputs" if "steps" not in self.head else
                    "parameters" if what[:6] == "state:" else "losses")
            if norm > 0:
                worst[kind] = max(worst.get(kind, 0), (single[what].double() - value).norm().item() / norm)
        # A case that PyTorch's float32 itself can't do well would say nothing about anyone's rounding.
        assert worst.get("outputs", 0) < 5e-7 and worst.get("gradients", 0) < 1e-6, (self.name, worst)
        assert worst.get("losses", 0) < 5e-7 and worst.get("parameters", 0) < 1e-6, (self.name, worst)
        self.head.update({"torch32_" + k: "%.1e" % v for k, v in worst.items()})
        return self

    def backward(self, dtype):
        """References of a single batch: outputs, the loss, gradients, running statistics."""
        p, (batch,) = self.tensors(dtype)
        want = [("output", self.forward(p, batch, False))] if self.layers[-1][0] == "mse" else []
        y, total, weight = self.loss(p, batch)
        (total / weight).backward()
        if "probe.weight" in p:
            want.append(("training_output", y))
        want.append(("loss", total / weight))
        want += [("grad:" + n, v.grad) for n, v in p.items() if v.requires_grad]
        want += [("state:" + n, v) for n, v in p.items() if not v.requires_grad]
        return [(what, v.detach()) for what, v in want]

    def train(self, dtype):
        """References of a training: each call's loss, and parameters and running statistics after the last."""
        p, batches = self.tensors(dtype)
        parameters = [v for v in p.values() if v.requires_grad]
        kind, a = self.optimizer
        optimizer, scheduler = make_optimizer(kind, a, parameters), None
        scheduler = make_schedule(optimizer, a)
        losses, pending = [], []
        for step in range(self.head["steps"]):
            _, total, weight = self.loss(p, batches[step % len(batches)])
            losses.append((total / weight).detach())
            pending.append((total, weight))
            if len(pending) == a.get("accumulate", 1):
                optimizer.zero_grad()
                (sum(t for t, _ in pending) / sum(w for _, w in pending)).backward()
                if a.get("clip_norm"):
                    torch.nn.utils.clip_grad_norm_(parameters, a["clip_norm"])
                optimizer.step()
                if scheduler:
                    scheduler.step()
                pending = []
        want = [("loss", torch.stack(losses))]
        return want + [("state:" + n, v.detach()) for n, v in p.items()]

    def lines(self):
        def text(v):
            return ",".join(map(text32, v)) if isinstance(v, list) else text32(v) if isinstance(v, float) else str(v)

        def attributes(a):
            return "".join(" %s=%s" % (k, text(v)) for k, v in a.items())

        yield "case %s%s" % (self.name, attributes(self.head))
        for kind, name, inputs, a in self.layers:
            yield "layer %s %s %s%s" % (kind, name, ",".join(inputs) or "-", attributes(a))
        if self.optimizer:
            yield "optimizer %s%s" % (self.optimizer[0], attributes(self.optimizer[1]))
        for name, (_, values) in self.given.items():
            yield "give %s : %s" % (name, " ".join(map(text32, values)))
        for count, data in self.batches:
            yield "batch %d" % count
            for k, v in data.items():
                yield "%s : %s" % (k, " ".join(map(str if k == "labels" else text32, v)))
        for what, value in self.want:
            yield "want %s : %s" % (what, " ".join("%.12g" % v for v in value.double().flatten().tolist()))


def make_optimizer(kind, a, parameters):
    lr, decay = a["lr"], a.get("weight_decay", 0.0)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr, a.get("momentum", 0.0), 0.0, decay, bool(a.get("nesterov")))
    betas = (a.get("beta1", f32(0.9)), a.get("beta2", f32(0.999)))
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    return make(parameters, lr, betas, a.get("eps", f32(1e-8)), decay)


def make_schedule(optimizer, a):
    main = None
    if a.get("schedule") == "step":
        main = torch.optim.lr_scheduler.StepLR(optimizer, a["schedule_steps"], a["gamma"])
    if a.get("schedule") == "cosine":
        main = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, a["schedule_steps"], a.get("lr_min", 0.0))
    if a.get("warmup_steps"):
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, a["warmup_start"], 1.0, a["warmup_steps"])
        if main is None:
            return warm
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, main], [a["warmup_steps"]])
    return main


# ----------------------------------------------------------------------------------------------------------------------
# Layers and losses: one batch

def begin(name, samples, feeds, values=None):
    """A case whose layers called `feeds` (name -> shape) give chosen values, with observable gradients."""
    case = Case(name)
    case.add("input", "x", channels=samples, height=1, width=1)
    for feed, shape in feeds.items():
        size = shape[0] * shape[1] * shape[2]
        case.add("linear", "feed_" + feed, ["x"], features=size, no_bias=1)
        numbers = values(case, size * samples) if values else case.numbers(size * samples)
        case.given["feed_%s.weight" % feed] = ((size, samples), numbers)
        case.add("reshape", feed, channels=shape[0], height=shape[1], width=shape[2])
    return case


def end(case, loss="mse", labels=None, probe=False, **a):
    """Adds a probe if asked for, the loss, and the batch of unit vectors; computes."""
    samples = case.shapes["x"][0]
    if probe:
        last, shape = case.layers[-1][1], case.shapes[case.layers[-1][1]]
        size = shape[0] * shape[1] * shape[2]
        case.add("linear", "probe", ["x"], features=size, no_bias=1)
        case.given["probe.weight"] = ((size, samples), [0.0] * (size * samples))
        case.add("reshape", "probe_shape", channels=shape[0], height=shape[1], width=shape[2])
        case.add("add", "probed", [last, "probe_shape"])
    case.add(loss, "loss", **a)
    case.batch(samples, [float(i == j) for i in range(samples) for j in range(samples)], labels)
    return case.record()


def layer(name, samples, shape, kind, values=None, probe=False, **a):
    case = begin(name, samples, {"in": shape}, values)
    case.add(kind, "layer", **a)
    return end(case, probe=probe)


def conv2d():
    grid = [
        ("one_by_one", 2, (3, 4, 5), dict(filters=4, kernel=1)),
        ("one_by_one_strided", 2, (3, 5, 7), dict(filters=2, kernel=1, stride=2)),
        ("smallest", 1, (1, 1, 1), dict(filters=1, kernel=1)),
        ("single_sample_and_channel", 1, (1, 5, 5), dict(filters=1, kernel=3, pad=1)),
        ("usual", 2, (4, 6, 6), dict(filters=5, kernel=3, pad=1)),
        ("usual_without_bias", 3, (2, 5, 4), dict(filters=3, kernel=3, pad=1, no_bias=1)),
        ("kernel_as_large_as_padded_input", 2, (2, 3, 5), dict(filters=3, kernel=5, kernel_w=7, pad=1)),
        ("kernel_as_large_as_input", 3, (3, 4, 4), dict(filters=6, kernel=4)),
        ("kernel_larger_than_stride", 2, (2, 9, 7), dict(filters=3, kernel=5, stride=2, pad=2)),
        ("stride_larger_than_kernel", 2, (3, 8, 9), dict(filters=2, kernel=2, stride=3)),
        ("stride_leaves_a_rest", 2, (2, 8, 6), dict(filters=3, kernel=3, stride=2, pad=1)),
        ("rectangular_kernel", 2, (2, 6, 7), dict(filters=3, kernel=3, kernel_w=1, pad=1, pad_w=-1)),
        ("rectangular_all", 2, (3, 9, 8), dict(filters=4, kernel=2, kernel_w=5, stride=3, stride_w=1, pad=1, pad_w=2)),
        ("pad_in_width_only", 1, (2, 4, 3), dict(filters=2, kernel=2, pad_w=3)),
        ("pad_beyond_kernel", 2, (1, 3, 3), dict(filters=2, kernel=2, pad=3)),
        ("dilated", 2, (2, 8, 9), dict(filters=3, kernel=3, dilation=2, pad=2)),
        ("dilated_rectangular", 2, (2, 9, 7), dict(filters=2, kernel=3, kernel_w=2, dilation=2, dilation_w=3, stride=2,
                                                   pad=1)),
        ("two_groups", 2, (4, 5, 6), dict(filters=6, kernel=3, pad=1, groups=2)),
        ("three_groups_strided", 2, (6, 7, 5), dict(filters=3, kernel=3, stride=2, pad=1, groups=3)),
        ("depthwise", 2, (5, 6, 5), dict(filters=5, kernel=3, pad=1, groups=5)),
        ("depthwise_multiplier", 2, (3, 5, 5), dict(filters=6, kernel=3, stride=2, pad=1, groups=3, no_bias=1)),
        ("depthwise_dilated", 1, (4, 7, 7), dict(filters=4, kernel=3, pad=2, dilation=2, groups=4)),
        ("odd_counts", 3, (5, 4, 3), dict(filters=17, kernel=3, pad=1)),
        ("first_layer_of_alexnet", 1, (2, 15, 15), dict(filters=2, kernel=11, stride=4, pad=2)),
        ("seven_by_seven", 1, (2, 12, 10), dict(filters=3, kernel=7, stride=2, pad=3)),
        ("sixteen_channels", 2, (16, 4, 3), dict(filters=5, kernel=3, pad=1)),
        ("one_row", 2, (3, 1, 19), dict(filters=4, kernel=1, kernel_w=4, pad_w=2)),
        ("one_column", 2, (2, 18, 1), dict(filters=3, kernel=5, kernel_w=1, stride=2, pad=2, pad_w=-1)),
    ]
    for name, samples, shape, a in grid:
        yield layer("conv2d." + name, samples, shape, "conv2d", **a)


def linear():
    yield layer("linear.plain", 3, (7, 1, 1), "linear", features=5)
    yield layer("linear.of_an_image", 2, (3, 4, 5), "linear", features=9)
    yield layer("linear.without_bias", 4, (10, 1, 1), "linear", features=3, no_bias=1)
    yield layer("linear.single_sample", 1, (33, 1, 1), "linear", features=17)
    yield layer("linear.single_value", 5, (1, 1, 1), "linear", features=1)
    yield layer("linear.odd_sizes", 11, (23, 1, 1), "linear", features=13)
    case = begin("linear.after_flatten", 3, {"in": (2, 3, 4)})
    case.add("flatten", "flat")
    case.add("linear", "layer", features=4)
    yield end(case)


def activations():
    def spread(case, count):            # both tails, and zeros
        return [0.0 if i % 17 == 5 else v for i, v in enumerate(case.numbers(count, 2.5))]

    def far(case, count):               # where exponentials leave float32's range
        edge = [0.0, 1e-20, -1e-20, 20.0, -20.0, 88.0, -88.0, 100.0, -100.0, 1e4, -1e4]
        return [f32(v) for v in (edge * (count // len(edge) + 1))[:count]]

    for kind, a in (("relu", {}), ("leaky_relu", {"slope": 0.01}), ("sigmoid", {}), ("tanh", {}), ("gelu", {})):
        yield layer(kind + ".usual", 3, (5, 3, 7), kind, spread, **a)
        yield layer(kind + ".one_value", 1, (1, 1, 1), kind, lambda case, count: [f32(0.7)], **a)
        yield layer(kind + ".far_out", 2, (11, 2, 1), kind, far, **a)
    yield layer("leaky_relu.steep", 2, (3, 5, 4), "leaky_relu", spread, slope=1.7)
    yield layer("leaky_relu.flat", 2, (3, 5, 4), "leaky_relu", spread, slope=0.0)
    yield layer("softmax.usual", 3, (5, 3, 7), "softmax", spread)
    yield layer("softmax.two_values", 1, (2, 1, 1), "softmax")
    yield layer("softmax.vector", 4, (10, 1, 1), "softmax")
    yield layer("softmax.large_values", 4, (6, 2, 1), "softmax", lambda case, count: case.numbers(count, 2.0, 300.0))


def pooling():
    def halves(case, count):            # many equal values: the first in row order gets the gradient
        return [case.random.randrange(-2, 2) * 0.5 for _ in range(count)]

    grid = [
        ("usual", 2, (3, 4, 6), dict(kernel=2, stride=2)),
        ("overlapping", 2, (2, 7, 7), dict(kernel=3, stride=2)),
        ("overlapping_padded", 2, (2, 6, 7), dict(kernel=3, stride=2, pad=1)),
        ("stride_one", 2, (2, 5, 4), dict(kernel=3, stride=1, pad=1)),
        ("stride_larger_than_kernel", 2, (2, 8, 9), dict(kernel=2, stride=3)),
        ("stride_from_kernel", 2, (2, 7, 6), dict(kernel=3, kernel_w=2)),
        ("rectangular", 2, (2, 7, 9), dict(kernel=2, kernel_w=4, stride=3, stride_w=2, pad=1, pad_w=2)),
        ("pad_in_height_only", 2, (2, 5, 6), dict(kernel=3, stride=2, pad=1, pad_w=-1)),
        ("kernel_as_large_as_input", 2, (3, 5, 4), dict(kernel=5, kernel_w=4)),
        ("leaves_a_rest", 2, (2, 8, 5), dict(kernel=3, stride=3)),
        ("ceil", 2, (2, 8, 5), dict(kernel=3, stride=3, ceil_mode=1)),
        ("ceil_padded", 2, (2, 6, 8), dict(kernel=3, stride=2, pad=1, ceil_mode=1)),
        ("ceil_window_would_start_in_the_padding", 2, (2, 5, 5), dict(kernel=2, stride=2, pad=1, ceil_mode=1)),
        ("ceil_rectangular", 2, (2, 6, 9), dict(kernel=4, kernel_w=3, stride=3, stride_w=4, pad=2, pad_w=1,
                                                ceil_mode=1)),
        ("single_value", 1, (1, 1, 1), dict(kernel=1, stride=1)),
        ("large_kernel", 1, (1, 17, 18), dict(kernel=17, stride=4, pad=8)),
    ]
    for name, samples, shape, a in grid:
        yield layer("maxpool." + name, samples, shape, "maxpool", **a)
    yield layer("maxpool.equal_values", 2, (3, 7, 6), "maxpool", halves, kernel=3, stride=2, pad=1)
    yield layer("maxpool.equal_values_ceil", 2, (2, 6, 6), "maxpool", halves, kernel=3, stride=2, ceil_mode=1)
    for name, samples, shape, a in grid:
        yield layer("avgpool." + name, samples, shape, "avgpool", **a)
        if a.get("pad"):
            yield layer("avgpool.%s_excluded" % name, samples, shape, "avgpool", exclude_pad=1, **a)
    for name, samples, shape, height, width in (
            ("divides", 2, (3, 6, 8), 3, 2), ("does_not_divide", 2, (2, 10, 7), 3, 3), ("to_one", 2, (3, 5, 4), 1, 1),
            ("same_size", 1, (2, 4, 3), 4, 3), ("larger_than_input", 2, (2, 3, 2), 5, 7),
            ("rectangular", 2, (2, 7, 11), 2, 6)):
        yield layer("adaptive_avgpool." + name, samples, shape, "adaptive_avgpool", height=height, width=width)
    yield layer("global_avgpool.usual", 3, (5, 4, 7), "global_avgpool")
    yield layer("global_avgpool.of_single_values", 2, (6, 1, 1), "global_avgpool")


def batchnorm():
    def shifted(case, count):
        return case.numbers(count, 0.7, 3.0)

    yield layer("batchnorm.usual", 4, (3, 4, 5), "batchnorm", probe=True)
    yield layer("batchnorm.of_features", 7, (6, 1, 1), "batchnorm", probe=True)
    yield layer("batchnorm.single_sample", 1, (4, 3, 3), "batchnorm", probe=True)
    yield layer("batchnorm.one_channel", 3, (1, 5, 7), "batchnorm", probe=True)
    yield layer("batchnorm.without_affine", 3, (5, 3, 2), "batchnorm", probe=True, no_affine=1)
    yield layer("batchnorm.momentum_and_eps", 3, (4, 4, 3), "batchnorm", probe=True, momentum=0.37, eps=0.02)
    yield layer("batchnorm.momentum_one", 3, (2, 4, 3), "batchnorm", probe=True, momentum=1.0)
    yield layer("batchnorm.mean_far_from_zero", 4, (3, 5, 3), "batchnorm", shifted, probe=True)
    case = begin("batchnorm.between_conv_and_relu", 3, {"in": (2, 5, 6)})
    case.add("conv2d", "conv", filters=4, kernel=3, pad=1, no_bias=1)
    case.add("batchnorm", "layer")
    case.add("relu", "relu")
    yield end(case, probe=True)
    case = begin("batchnorm.twice", 4, {"in": (3, 4, 4)})
    case.add("batchnorm", "first")
    case.add("gelu", "gelu")
    case.add("batchnorm", "second")
    case.add("add", "sum", ["first", "second"])
    yield end(case, probe=True)


def graph():
    """Branches, joins, and neighbours that may be fused or share memory."""
    case = begin("add.two_inputs", 2, {"a": (3, 4, 5), "b": (3, 4, 5)})
    case.add("add", "layer", ["a", "b"])
    yield end(case)
    case = begin("add.with_itself", 2, {"a": (2, 3, 4)})
    case.add("add", "layer", ["a", "a"])
    yield end(case)
    case = begin("add.then_relu", 3, {"a": (3, 3, 3), "b": (3, 3, 3)})
    case.add("add", "sum", ["a", "b"])
    case.add("relu", "layer")
    yield end(case)
    case = begin("add.of_relu_and_its_input", 2, {"a": (3, 4, 3)})
    case.add("conv2d", "conv", filters=3, kernel=3, pad=1)
    case.add("relu", "relu")
    case.add("add", "layer", ["conv", "relu"])
    yield end(case)
    case = begin("add.sum_used_twice", 2, {"a": (2, 3, 3), "b": (2, 3, 3)})
    case.add("add", "sum", ["a", "b"])
    case.add("tanh", "left", ["sum"])
    case.add("sigmoid", "right", ["sum"])
    case.add("add", "layer", ["left", "right"])
    yield end(case)
    case = begin("concat.two_inputs", 2, {"a": (3, 4, 5), "b": (2, 4, 5)})
    case.add("concat", "layer", ["a", "b"])
    yield end(case)
    case = begin("concat.three_inputs", 3, {"a": (1, 3, 2), "b": (4, 3, 2), "c": (2, 3, 2)})
    case.add("concat", "layer", ["a", "b", "c"])
    yield end(case)
    case = begin("concat.with_itself", 2, {"a": (2, 3, 3)})
    case.add("concat", "layer", ["a", "a"])
    yield end(case)
    case = begin("concat.of_relus", 2, {"a": (3, 4, 4)})
    case.add("conv2d", "left", ["a"], filters=2, kernel=1)
    case.add("relu", "left_relu")
    case.add("conv2d", "right", ["a"], filters=3, kernel=3, pad=1)
    case.add("relu", "right_relu")
    case.add("maxpool", "third", ["a"], kernel=3, stride=1, pad=1)
    case.add("concat", "layer", ["left_relu", "right_relu", "third"])
    yield end(case)
    case = begin("concat.dense_block", 2, {"a": (2, 4, 4)})
    for i in range(3):
        case.add("conv2d", "conv%d" % i, filters=2, kernel=3, pad=1)
        case.add("relu", "relu%d" % i)
        case.add("concat", "dense%d" % i, [case.layers[-3][1], "relu%d" % i])
    yield end(case)
    case = begin("flatten.then_relu", 2, {"a": (2, 3, 4)})
    case.add("flatten", "flat")
    case.add("relu", "layer")
    yield end(case)
    case = begin("fused.conv_relu_maxpool", 2, {"a": (3, 6, 7)})
    case.add("conv2d", "conv", filters=4, kernel=3, pad=1)
    case.add("relu", "relu")
    case.add("maxpool", "layer", kernel=2, stride=2)
    yield end(case)
    for kind, a in (("avgpool", dict(kernel=3, stride=2, pad=1)), ("adaptive_avgpool", dict(height=2, width=3)),
                    ("global_avgpool", {}), ("softmax", {}), ("gelu", {}), ("sigmoid", {}), ("batchnorm", {})):
        case = begin("fused.conv_relu_%s" % kind, 2, {"a": (2, 5, 4)})
        case.add("conv2d", "conv", filters=3, kernel=3, pad=1)
        case.add("relu", "relu")
        case.add(kind, "layer", **a)
        yield end(case, probe=kind == "batchnorm")
    case = begin("fused.maxpool_relu", 2, {"a": (3, 6, 6)})
    case.add("maxpool", "pool", kernel=3, stride=2)
    case.add("relu", "layer")
    yield end(case)
    case = begin("fused.linear_relu_linear", 3, {"a": (8, 1, 1)})
    case.add("linear", "first", features=6)
    case.add("relu", "relu")
    case.add("linear", "second", features=4)
    yield end(case)
    case = begin("fused.relu_relu", 2, {"a": (2, 3, 3)})
    case.add("relu", "once")
    case.add("relu", "layer")
    yield end(case)
    case = begin("fused.relu_into_three", 2, {"a": (3, 4, 4)})
    case.add("relu", "relu")
    case.add("conv2d", "conv", ["relu"], filters=3, kernel=3, pad=1)
    case.add("maxpool", "pool", ["relu"], kernel=3, stride=1, pad=1)
    case.add("add", "sum", ["conv", "pool"])
    case.add("add", "layer", ["sum", "relu"])
    yield end(case)
    case = begin("fused.bottleneck", 2, {"a": (4, 5, 5)})
    case.add("conv2d", "reduce", filters=2, kernel=1, no_bias=1)
    case.add("batchnorm", "bn1")
    case.add("relu", "relu1")
    case.add("conv2d", "conv", filters=2, kernel=3, stride=2, pad=1, no_bias=1)
    case.add("batchnorm", "bn2")
    case.add("relu", "relu2")
    case.add("conv2d", "expand", filters=6, kernel=1, no_bias=1)
    case.add("batchnorm", "bn3")
    case.add("conv2d", "short", ["a"], filters=6, kernel=1, stride=2, no_bias=1)
    case.add("batchnorm", "bn4")
    case.add("add", "sum", ["bn3", "bn4"])
    case.add("relu", "layer")
    yield end(case, probe=True)


def losses():
    def cross_entropy(name, samples, classes, labels=None, values=None, **a):
        return end(begin("cross_entropy." + name, samples, {"in": (classes, 1, 1)}, values), "cross_entropy",
                   labels=labels, **a)

    def large(case, count):
        return case.numbers(count, 60.0)

    weights = [f32(v) for v in (0.5, 2.0, 1.25, 0.0, 3.0)]
    yield cross_entropy("usual", 5, 10)
    yield cross_entropy("two_classes", 3, 2)
    yield cross_entropy("one_sample", 1, 4)
    yield cross_entropy("many_classes", 2, 65)
    yield cross_entropy("large_logits", 6, 5, values=large)
    yield cross_entropy("smoothing", 4, 7, label_smoothing=0.1)
    yield cross_entropy("smoothing_large_logits", 4, 5, values=large, label_smoothing=0.3)
    yield cross_entropy("weights", 6, 5, [0, 1, 2, 3, 4, 1], class_weights=weights)
    yield cross_entropy("weights_and_smoothing", 6, 5, [4, 1, 2, 3, 0, 1], class_weights=weights, label_smoothing=0.2)
    yield cross_entropy("ignoring", 6, 4, [0, 2, 3, 2, 1, 0], use_ignore_index=1, ignore_index=2)
    yield cross_entropy("ignoring_a_negative_label", 5, 4, [0, -1, 3, -1, 1], use_ignore_index=1, ignore_index=-1)
    yield cross_entropy("ignoring_a_label_beyond_the_classes", 4, 3, [0, 255, 2, 1], use_ignore_index=1,
                        ignore_index=255)
    yield cross_entropy("ignoring_and_smoothing", 5, 4, [0, 2, 3, 2, 1], use_ignore_index=1, ignore_index=2,
                        label_smoothing=0.15)
    yield cross_entropy("ignoring_weights_and_smoothing", 7, 5, [0, 4, 2, -100, 1, 4, 3], class_weights=weights,
                        use_ignore_index=1, ignore_index=-100, label_smoothing=0.05)
    yield cross_entropy("ignoring_and_weights", 6, 5, [0, 4, 2, 1, 4, 3], class_weights=weights, use_ignore_index=1,
                        ignore_index=4)
    yield end(begin("mse.vector", 5, {"in": (3, 1, 1)}))
    yield end(begin("mse.image", 2, {"in": (3, 4, 5)}))
    yield end(begin("mse.one_value", 1, {"in": (1, 1, 1)}))


# ----------------------------------------------------------------------------------------------------------------------
# Trainings of ten steps

def plain_net(case):
    case.add("input", "x", channels=2, height=6, width=7)
    case.add("conv2d", "conv1", filters=4, kernel=3, pad=1)
    case.add("relu", "relu1")
    case.add("maxpool", "pool1", kernel=2, stride=2)
    case.add("conv2d", "conv2", filters=5, kernel=2)
    case.add("relu", "relu2")
    case.add("linear", "fc", features=4)


def residual_net(case):
    case.add("input", "x", channels=2, height=6, width=5)
    case.add("conv2d", "conv1", filters=3, kernel=3, pad=1, no_bias=1)
    case.add("batchnorm", "bn1")
    case.add("relu", "relu1")
    case.add("conv2d", "conv2", filters=4, kernel=3, stride=2, pad=1, no_bias=1)
    case.add("batchnorm", "bn2")
    case.add("relu", "relu2")
    case.add("conv2d", "conv3", filters=4, kernel=3, pad=1, no_bias=1)
    case.add("batchnorm", "bn3")
    case.add("conv2d", "short", ["relu1"], filters=4, kernel=1, stride=2, no_bias=1)
    case.add("batchnorm", "bn4")
    case.add("add", "sum", ["bn3", "bn4"])
    case.add("relu", "relu3")
    case.add("global_avgpool", "pool")
    case.add("linear", "fc", features=3)


def mixed_net(case):
    case.add("input", "x", channels=4, height=4, width=3)
    case.add("conv2d", "conv1", filters=4, kernel=3, pad=1, groups=2)
    case.add("gelu", "gelu")
    case.add("conv2d", "left", ["gelu"], filters=2, kernel=1)
    case.add("tanh", "tanh")
    case.add("avgpool", "right", ["gelu"], kernel=3, stride=1, pad=1, exclude_pad=1)
    case.add("concat", "both", ["tanh", "right"])
    case.add("adaptive_avgpool", "pool", height=2, width=2)
    case.add("linear", "fc1", features=8)
    case.add("leaky_relu", "leaky", slope=0.1)
    case.add("dropout", "dropout", p=0.0)
    case.add("linear", "fc2", features=3)


def training():
    nets = (("plain", plain_net, "cross_entropy", {}), ("residual", residual_net, "cross_entropy", {}),
            ("mixed", mixed_net, "mse", {}))

    def train(net, name, kind, counts=(4, 4), loss=None, labels=None, **a):
        case = Case("train_%s.%s" % (net[0], name), steps=10)
        net[1](case)
        case.add(net[2], "loss", **(loss or {}))
        case.optimizer = (kind, {k: f32(v) if isinstance(v, float) else v for k, v in a.items()})
        for i, count in enumerate(counts):
            case.batch(count, labels=labels[i] if labels else None)
        return case.record()

    for net in nets:
        yield train(net, "sgd", "sgd", lr=0.05, momentum=0.9, weight_decay=5e-3)
        yield train(net, "adam", "adam", lr=0.01)
        yield train(net, "adamw", "adamw", lr=0.01, weight_decay=0.1)
    yield train(nets[0], "sgd_plain", "sgd", lr=0.1)
    yield train(nets[1], "nesterov", "sgd", lr=0.03, momentum=0.8, nesterov=1, weight_decay=0.01)
    yield train(nets[2], "adam_decay", "adam", lr=0.02, weight_decay=0.05, beta1=0.8, beta2=0.98, eps=1e-3)
    yield train(nets[0], "clip", "sgd", lr=0.2, momentum=0.9, clip_norm=0.4)
    yield train(nets[2], "clip_adamw_step_schedule", "adamw", lr=0.02, weight_decay=0.01, clip_norm=0.5,
                schedule="step", schedule_steps=3, gamma=0.5)
    yield train(nets[0], "warmup_and_cosine", "sgd", lr=0.2, momentum=0.9, schedule="cosine", schedule_steps=7,
                warmup_steps=3, warmup_start=0.1, lr_min=0.01)
    yield train(nets[1], "cosine", "adam", lr=0.01, schedule="cosine", schedule_steps=12)
    yield train(nets[2], "warmup", "adam", lr=0.02, warmup_steps=6, warmup_start=0.25)
    yield train(nets[0], "accumulate", "sgd", (3, 5, 2), lr=0.1, momentum=0.9, weight_decay=1e-3, accumulate=2)
    yield train(nets[0], "accumulate_weighted", "adamw", (3, 5, 4, 1), dict(
        class_weights=[0.5, 2.0, 1.25, 3.0], use_ignore_index=1, ignore_index=9, label_smoothing=0.1),
        [[0, 9, 3], [1, 2, 9, 0, 3], [2, 2, 9, 1], [3]], lr=0.01, weight_decay=0.05, accumulate=5, clip_norm=0.3)
    yield train(nets[2], "batches_of_different_size", "sgd", (5, 1, 3), lr=0.1, momentum=0.5)


# ----------------------------------------------------------------------------------------------------------------------

FILES = (("conv2d", conv2d), ("linear", linear), ("activations", activations), ("pooling", pooling),
         ("batchnorm", batchnorm), ("graph", graph), ("losses", losses), ("training", training))


def main():
    to = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    for name, cases in FILES:
        path, count = os.path.join(to, name + ".txt"), 0
        with open(path, "w", newline="\n") as file:
            file.write("# Recorded by make_golden.py with PyTorch %s; the format is described there.\n"
                       % torch.__version__.split("+")[0])
            for case in cases():
                for line in case.lines():
                    file.write(line + "\n")
                worst = " ".join("%s %s" % (k[8:], v) for k, v in case.head.items() if k.startswith("torch32_"))
                print("%-50s float32: %s" % (case.name, worst))
                count += 1
        print("%s: %d cases, %d bytes" % (path, count, os.path.getsize(path)))


if __name__ == "__main__":
    main()
