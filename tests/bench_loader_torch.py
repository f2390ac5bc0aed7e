"""bench_loader_torch.py - pictures a second through nntrain's loader and through torchvision (Pillow) with DataLoader, and
normal noise on a batch, in turns. Started by ./build.sh bench_loader.

    bench_loader_torch.py PROGRAM FOLDER [rounds]

Both: decode, resize the shorter side to 256, center crop of 224, to numbers, normalise; batches of 32; the folder's pictures
repeated to 1,000. One process at a time on the same cores; medians, and the median of the ratios of neighbouring turns.
"""
import glob
import os
import statistics
import subprocess
import sys
import time

import torch
from PIL import Image
from torchvision import transforms

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, folder):
        files = sorted(glob.glob(os.path.join(folder, "*", "*")))
        self.files = [files[i % len(files)] for i in range(1000)]
        self.transform = transforms.Compose([
            transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with open(self.files[i], "rb") as f:
            return self.transform(Image.open(f).convert("RGB")), 0


def torch_rate(folder, workers):
    loader = torch.utils.data.DataLoader(Pictures(folder), batch_size=32, num_workers=workers)
    start, n = time.perf_counter(), 0
    for x, _ in loader:
        n += len(x)
    return n / (time.perf_counter() - start)


def torch_noise(threads):
    torch.set_num_threads(threads)
    x = torch.zeros(64, 3, 224, 224)
    best = 1e9
    for _ in range(4):
        start = time.perf_counter()
        x += 0.1 * torch.randn_like(x)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def ask(program, *arguments):
    return float(subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    program, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 3
    torch.set_num_threads(1)
    print("pictures a second (median of %d turns)   torchvision   nntrain    ratio" % rounds)
    for workers in 0, 2:
        rates = {"torch": []}
        ratios = {}
        for _ in range(rounds):
            rates["torch"].append(torch_rate(folder, workers))
            for decoder in "stb", "turbo_exact", "turbo":
                rate = ask(program, folder, decoder, str(workers))
                rates.setdefault(decoder, []).append(rate)
                ratios.setdefault(decoder, []).append(rate / rates["torch"][-1])
        for decoder, title in (("stb", "stb_image"), ("turbo_exact", "libjpeg-turbo, exact"), ("turbo", "libjpeg-turbo, reduced")):
            if rates[decoder][0] > 0:
                print("%-24s %d workers   %14.0f %9.0f %7.2fx" % (title, workers, statistics.median(rates["torch"]),
                      statistics.median(rates[decoder]), statistics.median(ratios[decoder])))
    for threads in 1, 2:
        peer, own = [], []
        for _ in range(rounds):
            peer.append(torch_noise(threads))
            own.append(ask(program, "noise", str(threads)))
        print("noise on 64x3x224x224    %d threads, ms  %13.1f %9.2f %7.2fx" % (threads, statistics.median(peer), statistics.median(own),
              statistics.median(a / b for a, b in zip(peer, own))))


main()
