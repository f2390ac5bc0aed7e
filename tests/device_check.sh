#!/bin/sh
# device_check.sh - everything that needs a card, in one command and under 8 minutes: builds with nvcc, runs the tests of
# the CUDA backend on the device, looks at its memory accesses with compute-sanitizer, trains Fashion-MNIST, times known
# nets and kernels beside PyTorch with cuDNN. What is not there is left out, and said so.
#
#   tests/device_check.sh [build] [tests] [sanitizer] [train] [speed]       all of them without a word
#   tests/device_check.sh cudnn         only when asked for, 4 minutes more: tests and speed of the build with NNT_CUDNN
#
# Limits of time: build about 40 s, tests 100, sanitizer 4 x 20, train 60, speed 90 + 110. Each line goes to $OUT/table.txt (OUT: build/device) as it comes, so that a run that is cut off has kept what it did.
# Environment: OUT, DATA (folder with Fashion-MNIST), STB (folder with stb_image.h), PYTHON (with torch), NVCC;
# EMULATE=1: the emulator in place of card and nvcc, at toy sizes, to check this script.

set -u
cd "$(dirname "$0")/.." || exit 1
LC_ALL=C
export LC_ALL
out=${OUT:-build/device}
built=build/device_programs
mkdir -p "$out" "$built" || exit 1
table=$out/table.txt
nvcc=${NVCC:-nvcc}
python=${PYTHON:-python3}
emulate=${EMULATE:-}
data=${DATA:-/usr/share/datasets/fashion-mnist}
stb=${STB:-/usr/include/stb}
failed=0

has() { command -v "$1" >/dev/null 2>&1; }
say() { echo "$*" | tee -a "$table"; }
fail() { say "$*"; failed=1; }

# limited SECONDS NAME COMMAND...: its output in $out/NAME.txt; says how it ended unless that was well.
limited() {
    seconds=$1 name=$2
    shift 2
    began=$(date +%s)
    timeout "$seconds" "$@" >"$out/$name.txt" 2>&1 </dev/null
    status=$?
    case $status in
    0)   say "$name: $(tail -n 1 "$out/$name.txt") ($(($(date +%s) - began)) s)" ;;
    124) fail "$name: not done after $seconds s; so far: $(tail -n 1 "$out/$name.txt")" ;;
    *)   fail "$name: status $status: $(tail -n 1 "$out/$name.txt")" ;;
    esac
    return $status
}

compile() {     # program, source, and instead of the backend's object: another, libraries
    program=$1 source=$2
    shift 2
    [ $# -gt 0 ] || set -- "$built/backend.o"
    if [ -n "$emulate" ]; then gcc -O2 -I. -Itests -c "$source" -o "$program.o" && g++ "$program.o" "$1" "$built/machine.o" -o "$program" -lm -pthread
    else "$nvcc" -O3 -I. -Itests -I"$stb" -DNNT_TEST_ON_DEVICE "$source" "$@" -o "$program" -lcublas -lcublasLt; fi
}
compile_backend() {     # object, flags
    object=$1
    shift
    if [ -n "$emulate" ]; then
        g++ -std=c++17 -O2 -ffp-contract=off -I. -Itests -isystem tests/cuda_on_cpu "$@" -x c++ -c nntrain_cuda.cu -o "$object" &&
            g++ -std=c++17 -O2 -c tests/cuda_on_cpu.cpp -o "$built/machine.o"
    else "$nvcc" -O3 -std=c++17 -arch=native -lineinfo "$@" -c nntrain_cuda.cu -o "$object"; fi
}
programs() {
    compile_backend "$built/backend.o" || return 1
    compile "$built/bench" tests/device_bench.c & bench=$!
    tests=
    if [ -z "$emulate" ]; then compile "$built/test" tests/test_cuda.c & tests=$!; fi
    fashion=
    if [ -z "$emulate" ] && [ -f "$stb/stb_image.h" ]; then compile "$built/fashion" examples/fashion_mnist.c & fashion=$!; fi
    for process in $bench $tests $fashion; do wait "$process" || return 1; done
    echo "programs are built"
}

do_build() {
    began=$(date +%s)
    if programs >"$out/build.txt" 2>&1; then say "build: $(($(date +%s) - began)) s"
    else
        fail "build: failed: $(grep -m 1 -i error "$out/build.txt")"
        exit 1
    fi
}
do_tests() {
    [ -z "$emulate" ] || { say "tests: by build.sh when emulated"; return; }
    limited 100 tests "$built/test"
}
do_sanitizer() {
    has compute-sanitizer || { say "sanitizer: no compute-sanitizer here"; return; }
    for tool in memcheck racecheck synccheck initcheck; do
        limited 20 "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$built/test" convolutions_with_pooling batchnorms losses
    done
}
cudnn_programs() {
    compile_backend "$built/backend_cudnn.o" -DNNT_CUDNN &&
        compile "$built/bench_cudnn" tests/device_bench.c "$built/backend_cudnn.o" -lcudnn || return 1
    [ -n "$emulate" ] || compile "$built/test_cudnn" tests/test_cuda.c "$built/backend_cudnn.o" -lcudnn
}
do_cudnn() {            # lines of its own: "ours" is with cuDNN here
    cudnn_programs >"$out/cudnn_build.txt" 2>&1 || { fail "cudnn: not built: $(grep -m 1 -i error "$out/cudnn_build.txt")"; return; }
    if [ -n "$emulate" ]; then limited 300 cudnn_speed "$built/bench_cudnn" --toy
    else
        limited 100 cudnn_tests "$built/test_cudnn"
        limited 90 cudnn_speed "$built/bench_cudnn"
    fi
    sed 's/^ours/with cuDNN:/' "$out/cudnn_speed.txt" | tee -a "$table"
}
do_train() {
    if [ ! -x "$built/fashion" ] || [ ! -f "$data/train-images-idx3-ubyte.gz" ]; then say "train: no stb_image or no Fashion-MNIST here"; return; fi
    limited 60 train "$built/fashion" "$data" --device cuda --epochs 3 --out "$built/fashion.safetensors"
}
do_speed() {
    rm -f "$out/speed.txt" "$out/torch.txt"
    if [ -n "$emulate" ]; then
        limited 300 speed "$built/bench" --toy
    else
        limited 90 speed "$built/bench"
        if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
            limited 110 torch env PYTHONPATH=tests "$python" tests/device_torch.py
        else say "torch: no PyTorch with CUDA here (PYTHON names an interpreter that has it)"; fi
    fi
    cat "$out/speed.txt" "$out/torch.txt" 2>/dev/null | awk '
        NF == 6 && ($1 == "ours" || $1 == "torch") {
            key = $2 " " $3 " " $4
            if (!(key in seen)) { seen[key] = 1; order[++n] = key }
            ms[$1, key] = $5; bytes[$1, key] = $6
        }
        END {
            printf "%-10s %9s %-5s %10s %10s %7s %9s %9s\n", "net", "batch", "", "ours, ms", "torch, ms", "ratio", "ours, MB", "torch, MB"
            for (i = 1; i <= n; i++) {
                key = order[i]
                split(key, part, " ")
                ratio = ""
                if (ms["torch", key] > 0 && ms["ours", key] > 0) ratio = sprintf("%.2f", ms["torch", key] / ms["ours", key])
                printf "%-10s %9s %-5s %10s %10s %7s %9.0f %9.0f\n", part[1], part[2], part[3], ms["ours", key], ms["torch", key], ratio,
                    bytes["ours", key] / 1e6, bytes["torch", key] / 1e6
            }
        }' | tee -a "$table"
}

: >"$table"
if [ -z "$emulate" ]; then
    has "$nvcc" || { echo "device_check.sh: no nvcc here (NVCC names it)"; exit 2; }
    has nvidia-smi && nvidia-smi -L >/dev/null 2>&1 || { echo "device_check.sh: no card here"; exit 2; }
    say "$(date -u +%Y-%m-%d) $(nvidia-smi --query-gpu=name,driver_version,memory.free --format=csv,noheader | head -n 1)," \
        "nvcc $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
else say "emulated: no figure here says anything about a card"; fi
[ $# -gt 0 ] || set -- build tests sanitizer train speed
for part in "$@"; do
    case $part in
    build|tests|sanitizer|train|speed|cudnn) "do_$part" ;;
    *) echo "device_check.sh: unknown part $part"; exit 2 ;;
    esac
done
if [ $failed = 0 ]; then say "device check passed"; else say "device check FAILED; all output: $out"; fi
exit $failed
