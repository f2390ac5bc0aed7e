#!/bin/sh
# build.sh - builds and checks what this machine can. Writes only under build/.
#
#   ./build.sh demo [options of examples/fashion_mnist.c]      trains Fashion-MNIST, for example: demo --epochs 15
#   ./build.sh                                                 the same as: ./build.sh test
#   ./build.sh test                                            unit, sanitize, config, examples, cuda
#   ./build.sh unit [part of a test's name ...]                tests/test_*.c
#   ./build.sh sanitize | config | examples | cuda             any of them, in the order given; cuda: what nvcc makes of
#                                                              nntrain_cuda.cu, without a card
#   ./build.sh fuzz [seconds] [fuzz_... ...]                   hostile files by libFuzzer (clang), 600 seconds each of
#                                                              tests/fuzz_*.c; keeps what it found interesting in build/fuzz
#   ./build.sh neon [part of a test's name ...]                the kernels' tests for aarch64, under qemu-aarch64: minutes
#   ./build.sh bench_loader FOLDER                             pictures a second, beside torchvision; a folder of class folders
#   ./build.sh bench [workload or group ...]                   speed, beside PyTorch and OpenBLAS; groups: step predict start gemm ops threads
#   ./build.sh bench memory                                    what a process takes, beside its plan and PyTorch
#
# Environment: CC, CXX, CFLAGS (for all programs but the compile matrix's warnings), STB (folder with stb_image.h),
# DATA (folder with Fashion-MNIST), PYTHON (for the comparison with PyTorch), JOBS (cores to use).
# On Debian, missing packages are installed when that is possible without a question.

set -u
cd "$(dirname "$0")" || exit 1
LC_ALL=C
export LC_ALL

warnings="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Werror"
warnings_c="$warnings -Wstrict-prototypes -Wc++-compat"
# The header takes its time to compile, above all with both sanitizers and optimisation; so each test has what it needs:
# "busy" ones compute much and are optimised, "public" ones need no internals and share one object of the header.
busy="conv elementwise plan pool_norm_loss schedule"
public="cases errors golden naive"
neon="cases conv elementwise golden naive pool_norm_loss train"    # what NEON's kernels compute
asan="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address -fno-sanitize-recover=all"
ubsan="-O1 -g1 -fsanitize=undefined -fno-sanitize-recover=all"
both="-O0 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all"
libfuzzer="-O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all"
tsan="-O1 -g1 -fno-omit-frame-pointer -fsanitize=thread"
tsan_tests="threads train data seeing pictures"    # where threads meet: pool, loader, profile

# --- what this machine has ---------------------------------------------------------------------------------------

has() { command -v "$1" >/dev/null 2>&1; }

first_of() { for candidate in "$@"; do has "${candidate%% *}" && { echo "$candidate"; return; }; done; }

compiles() { echo 'int main(void) { return 0; }' | $1 -x "$2" - $3 -o build/probe >/dev/null 2>&1; }

version_of() { echo "${1%% *} $($1 -dumpfullversion 2>/dev/null || $1 -dumpversion 2>/dev/null)"; }

look_around() {
    cc=${CC:-$(first_of gcc clang cc)}
    cxx=${CXX:-$(first_of g++ clang++ c++)}
    [ -n "$cc" ] && ! echo '#include <math.h>
        int main(void) { return 0; }' | $cc -x c - -o build/probe >/dev/null 2>&1 && cc=
    [ -n "$cxx" ] && ! echo '#include <math.h>
        int main() { return 0; }' | $cxx -x c++ - -o build/probe >/dev/null 2>&1 && cxx=
    rm -f build/probe
    stb=
    for folder in "${STB:-}" /usr/include/stb /usr/local/include/stb /usr/include /usr/local/include /opt/homebrew/include/stb; do
        [ -z "$stb" ] && [ -n "$folder" ] && [ -f "$folder/stb_image.h" ] && stb=$folder
    done
    data=${DATA:-/usr/share/datasets/fashion-mnist}
    [ -f "$data/train-images-idx3-ubyte.gz" ] || data=
    python=${PYTHON:-python3}
    jobs=${JOBS:-$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
}

say_found() {
    echo "cc: $(version_of "$cc") · c++: $([ -n "$cxx" ] && version_of "$cxx" || echo "not found, C++ skipped")" \
        "· clang: $(has clang && version_of clang || echo "not found, skipped") · cores: $jobs"
    echo "stb_image: ${stb:-not found, .gz files skipped}"
    echo "fashion-mnist: ${data:-not found, training on it skipped}"
    if has_torch; then echo "torch: $python"
    else echo "torch: not found, no comparison in bench (PYTHON names an interpreter that has it)"; fi
}
has_torch() {
    "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' >/dev/null 2>&1
}

# packages NAME...: has Debian install them; where it can't be done silently, prints the one command that does it.
packages() {
    if ! has apt-get; then return 1; fi
    if [ "$(id -u)" = 0 ]; then sudo=
    elif has sudo && sudo -n true 2>/dev/null; then sudo="sudo -n"
    else
        echo "packages are missing; please run as root: apt-get install $*"
        exit 1
    fi
    echo "installing: $*"
    if ! { $sudo apt-get update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
            >build/apt.log 2>&1; then
        tail -n 5 build/apt.log
        echo "apt-get install $* failed; all of its output: build/apt.log"
        exit 1
    fi
}

# need WORD...: c, c++, stb, data
need() {
    missing=
    for thing in "$@"; do
        case $thing in
        c)    [ -z "$cc" ]   && missing="$missing gcc libc6-dev" ;;
        c++)  [ -z "$cxx" ]  && missing="$missing g++" ;;
        stb)  [ -z "$stb" ]  && missing="$missing libstb-dev" ;;
        data) [ -z "$data" ] && missing="$missing dataset-fashion-mnist" ;;
        esac
    done
    if [ -n "$missing" ]; then packages $missing && look_around; fi
    [ -n "$cc" ] || { echo "no working C compiler was found; install gcc or clang, or set CC"; exit 1; }
}

# --- counting, parallel work -------------------------------------------------------------------------------------

count() { echo "$1 $2 $3" >>build/tally; }

finish() {
    echo
    awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }' build/tally
    exit $?
}

fail() {        # title, file with the output
    count 0 1 0
    printf '%s: FAILED; all of its output: %s\n' "$1" "$2"
    awk '{ line[NR] = $0 } END { for (i = 1; i <= NR; i++) if (i <= 30 || i > NR - 20) print line[i]; else if (i == 31) print "..." }' "$2"
}
skip() { count 0 0 1; printf '%-44s skipped: %s\n' "$1" "$2"; }

# check TITLE COMMAND...: one thing that passes or fails; its output is shown when it fails.
check() {
    title=$1
    shift
    log=build/log/$(echo "$title" | tr -c 'a-zA-Z0-9\n' _).txt
    if "$@" >"$log" 2>&1 </dev/null; then
        count 1 0 0
        printf '%-44s ok\n' "$title"
    else
        fail "$title" "$log"
        return 1
    fi
}

# ... | spread FUNCTION || exit 1: calls it for each line of the standard input, on all cores; after a failure starts no
# more, prints the counts and is false.
spread() {
    rm -rf build/claim build/failed
    mkdir build/claim
    cat >build/lines
    lane=0
    while [ $lane -lt "$jobs" ]; do
        (
            number=0
            while IFS= read -r line; do
                number=$((number + 1))
                [ -e build/failed ] && break
                mkdir build/claim/$number 2>/dev/null || continue
                "$1" "$line" || : >build/failed
            done <build/lines
        ) &
        lane=$((lane + 1))
    done
    wait
    [ ! -e build/failed ] || finish
}

# --- unit, sanitize ----------------------------------------------------------------------------------------------

compile_test() {        # program, source, flags
    program=$1 source=$2 with=
    shift 2
    object=$(dirname "$program")/nntrain.o
    is_one_of "$(basename "$source" .c | sed 's/^test_//')" $public && [ -f "$object" ] && with="-DNNTI_IMPLEMENTED $object"
    $cc ${CFLAGS:-} -I. -Itests ${stb:+-DNNT_TEST_STB -I"$stb"} ${data:+-DNNT_TEST_FASHION="\"$data\""} \
        -DNNT_TEST_TMP="\"$(dirname "$program")\"" "$@" "$source" $with -o "$program" -lm -pthread
}
is_one_of() {           # word, words
    one=$1
    shift
    case " $* " in *" $one "*) true ;; *) false ;; esac
}
compile_neon() {        # program, source, flags
    program=$1 source=$2
    shift 2
    aarch64-linux-gnu-gcc -static -I. -Itests -DNNT_TEST_TMP="\"$(dirname "$program")\"" "$@" "$source" -o "$program" -lm -pthread
}
compile_header() {      # object, flags: the header once, as a program that includes stb_image has it
    object=$1
    shift
    { [ -z "$stb" ] || echo '#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#include "stb_image.h"'
      echo '#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"'
    } | $cc ${CFLAGS:-} -I. ${stb:+-I"$stb"} -w "$@" -x c -c - -o "$object"
}

# A test of the CUDA backend without CUDA: g++ (or clang++, with NNT_TEST_PART) compiles the .cu files as C++ against
# tests/cuda_on_cpu.h.
compile_emulated() {    # program, source, flags
    program=$1 source=$2
    shift 2
    case $source in *emulator*) kernels=tests/cuda_faults.cu ;; *) kernels=nntrain_cuda.cu ;; esac
    case " $* " in          # the sanitizers see convolutions cut in tiles of some rows, and of some samples; and cuDNN's
    *" -DCOC_RACE "*)       own="-fsanitize=thread -DNNT_CUDNN -DNNT_CUDA_CHUNK=20000 -DNNT_CUDA_AHEAD=1" ;;
    *" -fsanitize=address"*) own="-DNNT_CUDNN -DNNT_CUDA_CHUNK=2048 -DNNT_CUDA_AHEAD=1" ;;
    *)                      own= ;;
    esac
    case " $* " in *" -DNNT_TEST_PART "*) compiler=clang++ ;; *) compiler=g++ ;; esac
    language="-std=c++17 -ffp-contract=off -I. -Itests -isystem tests/cuda_on_cpu -Wall -Wextra -Werror"
    $compiler $language "$@" $own -x c++ -c "$kernels" -o "$program.cu.o" &&
        $compiler $language "$@" -c tests/cuda_on_cpu.cpp -o "$program.machine.o" &&
        gcc ${CFLAGS:-} -I. -Itests $(echo "$*" | sed 's/,undefined//') -c "$source" -o "$program.o" &&
        $compiler "$@" "$program.o" "$program.cu.o" "$program.machine.o" -o "$program" -lm -pthread
}
emulates() { [ "$(uname -sm)" = "Linux x86_64" ] && has gcc && has g++; }

# run_test "FOLDER NAME FLAGS...": builds tests/NAME.c into build/FOLDER and runs it; its last line has the counts.
run_test() {
    set -- $1
    folder=build/$1
    name=$2
    shift 2
    log=$folder/$name.txt
    start=$(date +%s)
    compile=compile_test runner=
    case $folder/$name in
    build/neon/*) compile=compile_neon runner=qemu-aarch64 ;;
    */test_cuda*)
        emulates || { skip "$folder/$name" "needs gcc and g++ on Linux, x86-64"; return; }
        compile=compile_emulated ;;
    esac
    if ! $compile "$folder/$name" "tests/$name.c" "$@" >"$log" 2>&1; then
        fail "$folder/$name (compiling)" "$log"
        return 1
    fi
    has timeout && runner="timeout -k 10 1200 $runner"        # one that hangs has failed
    TMPDIR=$PWD/$folder $runner "$folder/$name" >"$log" 2>&1 </dev/null
    status=$?
    counts=$(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log")
    case "$status $counts" in
    "0 "?*)
        count $counts
        grep '^skipped ' "$log" | sed 's/^/    /'
        printf '%-44s %s, %d s\n' "$folder/$name" "$(tail -n 1 "$log")" $(($(date +%s) - start)) ;;
    *)  fail "$folder/$name (status $status)" "$log"
        return 1 ;;
    esac
}

tests_named() {         # names of tests that have one of the words in them; all without words
    for file in tests/test_*.c; do
        name=$(basename "$file" .c)
        [ $# -eq 0 ] && echo "$name"
        for word in "$@"; do case $name in *"$word"*) echo "$name"; break ;; esac; done
    done
}

do_unit() {
    mkdir -p build/unit
    rm -f build/unit/nntrain.o
    [ $# -gt 0 ] || compile_header build/unit/nntrain.o -O2 || exit 1
    for name in $(tests_named "$@"); do
        if is_one_of "${name#test_}" $busy $public; then echo "unit $name -O2 -Wall -Wextra"
        else echo "unit $name -O1 -Wall -Wextra"; fi
    done | spread run_test || exit 1
}

do_neon() {
    for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
        has $tool || { skip "tests for NEON" "no $tool (packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"; exit 0; }
    done
    mkdir -p build/neon
    [ $# -gt 0 ] || set -- $neon
    tests_named "$@" | sed 's/.*/neon & -O2 -Wall -Wextra/' | spread run_test || exit 1
}

# fuzz NAME: tests/NAME.c on its own mutations of a valid file, and on what libFuzzer found before
fuzz() {
    compile_test "build/asan/$1" "tests/$1.c" $both >"build/asan/$1.txt" 2>&1 || { fail "build/asan/$1 (compiling)" "build/asan/$1.txt"; return 1; }
    check "build/asan/$1 --random 3000" "build/asan/$1" --random 3000 || return 1
    [ -f "tests/corpus/$1.txt" ] || return 0            # a new target has none yet
    rm -rf "build/asan/corpus_$1"
    tests/corpus.sh unpack "tests/corpus/$1.txt" "build/asan/corpus_$1"
    check "build/asan/$1 tests/corpus/$1.txt" "build/asan/$1" "build/asan/corpus_$1"/*
}
works_with() { compiles "$cc" c "$1" && build/probe >/dev/null 2>&1; }

# Longer, guided by what the code does with its input: tests/NAME.c with libFuzzer.
fuzz_guided() {         # name, seconds
    mkdir -p "build/fuzz/$1"
    [ ! -f "tests/corpus/$1.txt" ] || tests/corpus.sh unpack "tests/corpus/$1.txt" "build/fuzz/$1"
    compile_test "build/fuzz/$1.run" "tests/$1.c" $libfuzzer -DFUZZ_LIBFUZZER &&
        "build/fuzz/$1.run" -max_total_time="$2" -max_len=8192 -len_control=0 -rss_limit_mb=2560 -timeout=25 -print_final_stats=1 -print_funcs=0 \
            -artifact_prefix="build/fuzz/$1-" "build/fuzz/$1"
}
do_fuzz() {             # [seconds] [names]
    cc=clang
    seconds=600
    case ${1:-} in [0-9]*) seconds=$1; shift ;; esac
    [ $# -gt 0 ] || set -- $(cd tests && ls fuzz_*.c | sed 's/\.c$//')
    mkdir -p build/fuzz
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }' >build/fuzz/probe.c
    has clang && clang $libfuzzer build/fuzz/probe.c -o build/fuzz/probe 2>/dev/null ||
        { echo "clang with libFuzzer was not found; on Debian: apt-get install clang libclang-rt-dev"; exit 1; }
    for name in "$@"; do check "$name, $seconds s" fuzz_guided "$name" "$seconds" || finish; done
}

do_sanitize() {
    mkdir -p build/asan build/ubsan build/tsan
    if works_with "$asan" && works_with "$both"; then
        compile_header build/asan/nntrain.o $asan || exit 1
        for name in $(tests_named); do
            kind=${name#test_}
            if is_one_of "$kind" $busy; then
                echo "asan $name $asan"
                echo "ubsan $name $ubsan"
            elif is_one_of "$kind" $public models; then echo "asan $name $asan"
            elif is_one_of "$kind" cuda cuda_emulator; then echo "asan $name -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all"
            else echo "asan $name $both"; fi
        done | spread run_test || exit 1
        (cd tests && ls fuzz_*.c) | sed 's/\.c$//' | spread fuzz || exit 1
    else
        skip "address and undefined sanitizers" "$cc can't run them here"
    fi
    mkdir -p build/race build/clang
    tests_named test_cuda | sed 's/.*/race & -O1 -g -DCOC_RACE/' | spread run_test || exit 1
    if compiles clang++ c++ ""; then tests_named test_cuda | sed 's/.*/clang & -O1 -Wall -Wextra -DNNT_TEST_PART/' | spread run_test || exit 1
    else skip "the CUDA backend by clang++" "not found"; fi
    if works_with "$tsan"; then tests_named $tsan_tests | sed "s/.*/tsan & $tsan/" | spread run_test || exit 1
    else skip "thread sanitizer" "$cc can't run it here"; fi
}

# --- config: every way to compile the header ---------------------------------------------------------------------

# smoke "NAME COMPILER FLAGS...": tests/config/smoke.c as one program with these flags, then runs it.
smoke() {
    set -- $1
    program=build/config/smoke_$1
    title="smoke $1 ($2)"
    shift
    check "$title" build_and_run "$program" "$@" -I. tests/config/smoke.c
}
build_and_run() {       # program, compiler, flags and sources
    program=$1
    shift
    "$@" -o "$program" -lm -pthread && "$program" "$program.safetensors"
}

# standard "COMPILER LANGUAGE STD": the header, included twice, before everything else, with all warnings as errors.
standard() {
    set -- $1
    case $2 in c) flags=$warnings_c ;; *) flags=$warnings ;; esac
    check "$3 $1" "$1" -x "$2" -std="$3" $flags -fsyntax-only -I. -DIMPLEMENTATION tests/config/twice.c
}

# units NAME COMPILER-OF-FIRST COMPILER-OF-SECOND FLAGS: two translation units in one program.
units() {
    set -- $1
    check "$1 ($2, $3)" link_units "$@"
}
link_units() {
    one=build/config/$1_1.o two=build/config/$1_2.o program=build/config/$1
    first=$2 second=$3
    shift 3
    language_of "$first";  $first  -x $language "$@" -O0 -DNNTRAIN_IMPLEMENTATION -DSECOND_UNIT -I. -c tests/config/smoke.c -o "$one" || return 1
    language_of "$second"; $second -x $language "$@" -O0 -I. -c tests/config/second.c -o "$two" || return 1
    "$second" "$one" "$two" -o "$program" -lm -pthread && "$program" "$program.safetensors"
}
language_of() { case $1 in *++*) language=c++ ;; *) language=c ;; esac; }

exported_names() { ! nm -g --defined-only "$1" | awk '$3 !~ /^_?nnt_/ { print "exported without prefix: " $3 }' | grep . ; }
changeable_data() {     # the table of backends is the only one
    ! nm "$1" | awk '$2 ~ /^[bBdDC]$/ && $3 !~ /^nnti_backend/ { print "data that can change: " $3 }' | grep .
}
forbidden_calls() {     # object, pattern
    ! nm -u "$1" | awk '{ print $NF }' | grep -E "^($2)(@.*)?$"
}
macros_of_ours() {      # flags; macros defined in nntrain.h itself and not undefined again
    $cc -std=c99 -dD -E "$@" -I. tests/config/twice.c | awk '
        /^# [0-9]+ "/ { ours = $3 ~ /nntrain\.h"$/ }
        ours && $1 == "#define" { sub(/\(.*/, "", $2); name[$2] = 1 }
        ours && $1 == "#undef"  { delete name[$2] }
        END { for (n in name) if (n !~ /^NNT/) { print "macro without prefix: " n; bad = 1 } exit bad }'
}

# NNT_USE_CBLAS: the header without warnings, a small net, products against the tests' own sums.
blas_links() {
    printf '#include <cblas.h>\nint main(void) { return cblas_sasum(0, 0, 1) != 0.0f; }\n' | $cc -x c - -o build/probe "$1" >/dev/null 2>&1
}
blas_products() {
    $cc ${CFLAGS:-} -O0 -I. -Itests -DNNT_USE_CBLAS tests/test_conv.c -o build/config/blas "$1" -lm -pthread &&
        nm build/config/blas | grep -q ' U .*cblas_sgemm' && build/config/blas gemm linear
}
do_blas() {
    blas=$(for library in -lopenblas -lcblas -lblas; do blas_links $library && echo $library && break; done)
    [ -n "$blas" ] || { skip "NNT_USE_CBLAS" "no cblas.h, or no library that has what it declares (libopenblas-dev)"; return; }
    flags="-O0 -I. -DNNTRAIN_IMPLEMENTATION -DNNT_USE_CBLAS"
    check "smoke blas ($cc, $blas)" build_and_run build/config/smoke_blas $cc $warnings_c $flags tests/config/smoke.c "$blas" || finish
    [ -z "$cxx" ] || check "NNT_USE_CBLAS in C++" $cxx -x c++ $warnings $flags -fsyntax-only tests/config/smoke.c || finish
    check "products by $blas" blas_products "$blas" || finish
}

do_config() {
    mkdir -p build/config
    c_compilers=$(for c in gcc clang; do compiles $c c "" && echo $c; done)
    [ -n "${CC:-}" ] && c_compilers=$cc
    cxx_compilers=$(for c in g++ clang++; do compiles $c c++ "" && echo $c; done)
    [ -n "${CXX:-}" ] && cxx_compilers=$cxx
    for c in gcc clang; do case " $(echo $c_compilers) " in *" $c "*) ;; *) skip "compile matrix: $c" "not found" ;; esac; done
    [ -n "$cxx_compilers" ] || skip "compile matrix: C++" "no C++ compiler found"

    {   for c in $c_compilers; do
            for std in c99 c11 c17 c2x; do echo "$c c $std"; done
        done
        for c in $cxx_compilers; do
            for std in c++11 c++17 c++20 c++2b; do echo "$c c++ $std"; done
        done
    } | while read -r c language std; do compiles "$c" "$language" "-std=$std" && echo "$c $language $std"; done | spread standard || exit 1

    {   for c in $c_compilers $cxx_compilers; do       # each optimised as it is; the first C compiler in all forms too
            language_of $c
            base="$c -x $language $([ $language = c ] && echo "$warnings_c" || echo "$warnings") -O1 -DNNTRAIN_IMPLEMENTATION"
            echo "plain_$c $base"
            [ "$c" = "${c_compilers%% *}" ] || continue
            echo "no_simd_$c $base -DNNT_NO_SIMD"
            echo "no_threads_$c $base -DNNT_NO_THREADS"
            echo "no_stdio_$c $base -DNNT_NO_STDIO"
            echo "fast_math_$c $base -ffast-math"
            echo "exact_conv_$c $base -DNNT_EXACT_CONV"
            echo "hostile_macros_$c $base -include tests/config/hostile.h"
        done
        echo "nothing_$cc $cc $warnings_c -O1 -DNNTRAIN_IMPLEMENTATION -DNNT_NO_SIMD -DNNT_NO_THREADS -DNNT_NO_STDIO"
    } | spread smoke || exit 1

    do_blas

    {   echo "two_units_c $cc $cc"
        echo "static_in_two_units_c $cc $cc -DNNT_STATIC"
        if [ -n "$cxx" ]; then
            echo "two_units_cxx $cxx $cxx"
            echo "implemented_in_c_used_in_cxx $cc $cxx"
            echo "static_in_two_units_cxx $cxx $cxx -DNNT_STATIC"
        fi
    } | spread units || exit 1

    object=build/config/implementation
    check "implementation without warnings" $cc -std=c99 -O2 -fno-pic -I. -DIMPLEMENTATION -c tests/config/twice.c -o $object.o || finish
    check "exports nnt_ and nothing else" exported_names $object.o || finish
    check "no data that changes but the backend table" changeable_data $object.o || finish
    check "never aborts, exits or prints to stdout" forbidden_calls $object.o "abort|exit|_exit|printf|puts|putchar|stdout|perror" || finish
    check "declarations add NNT macros only" macros_of_ours || finish
    check "implementation adds NNT macros only" macros_of_ours -DIMPLEMENTATION || finish
    $cc -std=c99 -O2 -fno-pic -DNNT_NO_STDIO -I. -DIMPLEMENTATION -c tests/config/twice.c -o ${object}_no_stdio.o
    check "NNT_NO_STDIO calls no file function" forbidden_calls ${object}_no_stdio.o "f?printf|fopen(64)?|fread|fwrite|fputs|rename|stderr" || finish
}

# --- examples, and the snippets of README, docs and header -------------------------------------------------------

# As it stands, for warnings and errors; then as a program, with the header compiled once for all.
build_example() {
    case $1 in jpeg_turbo) library=-ljpeg ;; *) library= ;; esac
    $cc ${CFLAGS:-} -Wall -Wextra -Werror -fsyntax-only -I. ${stb:+-I"$stb"} "examples/$1.c" &&
        $cc ${CFLAGS:-} -O2 -w -DNNTI_IMPLEMENTED -include tests/config/system.h -I. ${stb:+-I"$stb"} "examples/$1.c" build/nntrain.o -o "build/$1" $library -lm -pthread
}
has_jpeg() {
    printf '#include <stdio.h>\n#include <jpeglib.h>\nint main(void) { struct jpeg_error_mgr e; return jpeg_std_error(&e) == 0; }\n' |
        $cc -x c - -o build/probe_jpeg -ljpeg >/dev/null 2>&1
}
example() {
    case $1 in *fashion*|diagnose) [ -n "$stb" ] || { skip "examples/$1.c" "no stb_image"; return; } ;; esac
    case $1 in jpeg_turbo) has_jpeg || { skip "examples/$1.c" "no libjpeg-turbo (libjpeg62-turbo-dev)"; return; } ;; esac
    check "examples/$1.c compiles" build_example "$1"
}
example_cxx() {
    case $1 in jpeg_turbo.c) has_jpeg || return 0 ;; esac
    check "examples/$1 in C++11" $cxx -x c++ -std=c++11 -fsyntax-only -I. ${stb:+-I"$stb"} "examples/$1"
}
snippet() {
    title="snippet $(basename "$1" .c)"
    if [ -z "$stb" ] && grep -q stb_image.h "$1"; then skip "$title" "no stb_image"; return; fi
    check "$title" $cc -std=c99 -Wall -Wextra -Werror -Wno-unused -fsyntax-only -I. -Itests ${stb:+-I"$stb"} "$1"
}

fashion_runs() {
    build/fashion_mnist "$data" --epochs 1 --out build/fashion_1.safetensors &&
        "build/fashion_mnist" "$data" --epochs 0 >/dev/null 2>&1
    [ $? -eq 2 ]        # no epochs: a usage line and status 2
}

monitor_shows_cards() {         # those of an NVML that the tests bring
    mkdir -p build/fake
    $cc -shared -fPIC tests/fake_nvml.c -o build/fake/libnvidia-ml.so.1 && LD_LIBRARY_PATH=build/fake build/monitor --processes >build/fake/monitor.txt || return 1
    cat build/fake/monitor.txt
    for line in 'timestamp, memory.used [MiB], memory.free [MiB], memory.total [MiB], utilization.gpu [%]' \
            ', 3072 MiB, 13312 MiB, 16384 MiB, 87 %' ', 5 MiB, 16379 MiB, 16384 MiB, [N/A]' 'pid 4000000002, 2048 MiB, 12.5 %, ?'; do
        grep -qF -e "$line" build/fake/monitor.txt || { echo "missing: $line"; return 1; }
    done
}

do_examples() {
    compile_header build/nntrain.o -O2 || exit 1
    (cd examples && ls *.c) | sed 's/\.c$//' | spread example || exit 1
    [ -z "$cxx" ] || (cd examples && ls *.c) | spread example_cxx || exit 1
    check "examples/mlp runs" build/mlp || finish
    check "examples/slow_loader runs" build/slow_loader --epochs 1 --threads 1 || finish
    check "examples/add_bench runs" build/add_bench --rounds 2 || finish
    check "examples/own_loop runs" build/own_loop --epochs 2 --out build/own_loop.safetensors || finish
    check "examples/alexnet runs" build/alexnet --steps 2 --batch 2 --size 96 || finish
    check "examples/monitor runs" build/monitor --processes || finish
    if [ -n "$stb" ]; then check "examples/diagnose runs" build/diagnose build/diagnose_pictures --epochs 1 --out build/diagnose || finish
    else skip "examples/diagnose runs" "no stb_image"; fi
    if [ "$(uname)" = Linux ]; then check "examples/monitor shows cards" monitor_shows_cards || finish; fi
    if [ -n "$data" ] && [ -n "$stb" ]; then check "examples/fashion_mnist runs for an epoch" fashion_runs || finish
    else skip "examples/fashion_mnist runs for an epoch" "no data set or no stb_image"; fi

    rm -rf build/snippets
    mkdir -p build/snippets
    awk -v folder=build/snippets -f tests/snippets.awk README.md CONTRIBUTING.md docs/*.md nntrain.h || exit 1
    ls build/snippets/*.c | spread snippet || exit 1
}

do_demo() {
    $cc ${CFLAGS:-} -O2 -I. -I"$stb" examples/fashion_mnist.c -o build/fashion_mnist -lm -pthread || exit 1
    exec build/fashion_mnist "$data" --out build/fashion_mnist.safetensors "$@"
}

# --- cuda: what nvcc makes of nntrain_cuda.cu; needs no card -----------------------------------------------------

demangled() { if has c++filt; then c++filt; else cat; fi; }

# The text of a virtual architecture, which real ones are assembled from: bfloat16 is rounded in another way by each of these.
cuda_text() { check "nntrain_cuda.cu for compute_$1" nvcc -O3 -std=c++17 -Werror all-warnings -ptx -arch="compute_$1" nntrain_cuda.cu -o "build/cuda/$1.raw"; }
cuda_assemble() {
    check "nntrain_cuda.cu for sm_$1" ptxas -O3 -v -Werror -arch="sm_$1" "build/cuda/$(cuda_base "$1").raw" -o "build/cuda/$1.cubin" &&
        demangled <"build/log/nntrain_cuda_cu_for_sm_$1.txt" >"build/cuda/$1.ptxas.txt"
}
cuda_base() { if [ "$1" -lt 80 ]; then echo 75; elif [ "$1" -lt 90 ]; then echo 80; else echo 90; fi; }
cuda_example() {
    case $1 in *fashion*) [ -n "$stb" ] || { skip "examples/$1.c with nvcc" "no stb_image"; return; } ;; esac
    case $1 in
    jpeg_turbo) has_jpeg || { skip "examples/$1.c with nvcc" "no libjpeg-turbo"; return; }; library=-ljpeg ;;
    *) library= ;;
    esac
    check "examples/$1.c with nvcc" nvcc -O3 -std=c++17 -I. ${stb:+-I"$stb"} "examples/$1.c" build/cuda/nntrain_cuda.o -o "build/cuda/$1" $library -lcublas -lcublasLt
}
cuda_kernels() {
    for arch in 75 80 90; do
        demangled <build/cuda/$arch.raw >build/cuda/$arch.ptx
        awk -f tests/cuda_kernels.awk tests/cuda_exceptions.txt build/cuda/*.ptxas.txt build/cuda/$arch.ptx >build/cuda/kernels.txt || { grep '^fault' build/cuda/kernels.txt; return 1; }
    done
    cat build/cuda/kernels.txt
}
tidy_checks="-*,bugprone-*,performance-*,cert-err33-c,misc-redundant-expression,misc-unused-parameters,-bugprone-easily-swappable-parameters,-bugprone-narrowing-conversions,-bugprone-macro-parentheses,-bugprone-implicit-widening-of-multiplication-result,-bugprone-suspicious-memory-comparison"
cuda_tidy() { clang-tidy -quiet -warnings-as-errors='*' -checks="$tidy_checks" nntrain_cuda.cu -- -x c++ -std=c++17 -I. -Itests -isystem tests/cuda_on_cpu; }
without_a_card() {      # the program says so and ends
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(dirname "$(command -v nvcc)")/../lib64 "$@" 2>&1 | tee /dev/stderr | grep -q "no card"
}

has_cudnn() { echo '#include <cudnn.h>' >build/cuda/cudnn.cu && nvcc -E build/cuda/cudnn.cu -o build/cuda/cudnn.ii >/dev/null 2>&1; }
with_cudnn() {
    nvcc -std=c++17 -Werror all-warnings -arch=compute_75 -DNNT_CUDNN -c nntrain_cuda.cu -o build/cuda/nntrain_cudnn.o &&
        nvcc -std=c++17 -I. examples/mlp.c build/cuda/nntrain_cudnn.o -o build/cuda/mlp_cudnn -lcublas -lcublasLt -lcudnn
}
emulated_device_check() { OUT=build/cuda/device EMULATE=1 sh tests/device_check.sh build speed; }

do_cuda() {             # all: every example, and the table
    mkdir -p build/cuda
    if emulates; then check "tests/device_check.sh, emulated" emulated_device_check || finish
    else skip "tests/device_check.sh, emulated" "needs gcc and g++ on Linux, x86-64"; fi
    if has clang-tidy; then check "nntrain_cuda.cu by clang-tidy" cuda_tidy || finish
    else skip "nntrain_cuda.cu by clang-tidy" "not found"; fi
    has nvcc && has ptxas || { skip "CUDA: architectures, registers, instructions" "no nvcc"; return; }
    rm -f build/cuda/*.*
    printf '75\n80\n90\n' | spread cuda_text || exit 1
    nvcc --list-gpu-arch | sed -n 's/^compute_//p' | awk '$1 >= 75' | spread cuda_assemble || exit 1
    check "kernels keep to tests/cuda_exceptions.txt" cuda_kernels || finish
    [ "${1:-}" != all ] || cat "build/log/kernels_keep_to_tests_cuda_exceptions_txt.txt"
    check "nntrain_cuda.cu as an object" nvcc -O3 -std=c++17 -Werror all-warnings -arch=compute_75 -c nntrain_cuda.cu -o build/cuda/nntrain_cuda.o || finish
    if has_cudnn; then check "nntrain_cuda.cu with cuDNN" with_cudnn || finish
    else skip "nntrain_cuda.cu with cuDNN" "no cudnn.h"; fi
    if [ "${1:-}" = all ]; then (cd examples && ls *.c) | sed 's/\.c$//' | spread cuda_example || exit 1
    else cuda_example alexnet || finish; fi
    if [ -e /dev/nvidiactl ]; then skip "no card is told" "there is one"
    else check "no card is told" without_a_card build/cuda/alexnet --device cuda --steps 1 --batch 2 --size 96 || finish; fi
}

# --- bench -------------------------------------------------------------------------------------------------------

# bench [workload or group ...]: all of them without words. The machine's speed drifts, so the turns of the libraries
# alternate, and a ratio is one of neighbours. ROUNDS says how often (3).
keeps_pages="MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1099511627776 MALLOC_TOP_PAD_=268435456 GLIBC_TUNABLES=glibc.malloc.hugetlb=1"

# torch_begin NAME THREADS: two programs that take a turn whenever they are sent a line
torch_begin() {
    rm -f build/bench_ask* build/bench_answer*
    mkfifo build/bench_ask build/bench_answer build/bench_ask_best build/bench_answer_best || exit 1
    "$python" tests/bench_torch.py "$1" "$2" plain <build/bench_ask >build/bench_answer 2>>build/log/bench_torch.txt &
    env $keeps_pages BENCH_CHOICES=build/bench_choices.json \
        "$python" tests/bench_torch.py "$1" "$2" best <build/bench_ask_best >build/bench_answer_best 2>>build/log/bench_torch.txt &
    exec 5>build/bench_ask 6<build/bench_answer 7>build/bench_ask_best 8<build/bench_answer_best
}
torch_turn() {
    echo turn >&5 && read -r answer <&6 && echo "$answer" >>build/bench.txt
    echo turn >&7 && read -r answer <&8 && echo "$answer" >>build/bench.txt
}
torch_end() {
    exec 5>&- 6<&- 7>&- 8<&-
    wait
    rm -f build/bench_ask* build/bench_answer*
}
bench_rounds() {        # command that takes a turn, arguments
    round=0
    while [ $round -lt "${ROUNDS:-3}" ]; do
        "$@" || { echo "bench: $* failed; see build/log/bench_torch.txt"; exit 1; }
        round=$((round + 1))
    done
}
net_turn() {
    build/bench "$1" "$2" >>build/bench.txt || return 1
    [ -z "$torch" ] || torch_turn
}
product_turn() { build/bench "$1" "$2" >>build/bench.txt && build/bench openblas "$1" "$2" >>build/bench.txt; }
op_turn() { build/bench "$1" "$2" >>build/bench.txt; }
start_turn() {          # whole programs
    echo "nntrain start $2 $(build/bench time build/bench start "$2")" >>build/bench.txt
    [ -z "$torch" ] || echo "torch start $2 $(build/bench time "$python" tests/bench_torch.py start)" >>build/bench.txt
}

do_bench() {
    $cc ${CFLAGS:-} -O2 -I. tests/bench.c -o build/bench -lm -pthread -ldl || exit 1
    build/bench list "$@" >build/bench_list.txt || exit 2
    torch=
    has_torch && torch=$("$python" -c 'import torch; print(torch.__version__)') && echo "torch: $torch"
    : >build/bench.txt
    : >build/log/bench_torch.txt
    while read -r group name threads; do
        [ ! -t 2 ] || printf '\r%-60s' "measuring $name on $threads" >&2
        case $group in
        step|predict)
            [ -z "$torch" ] || torch_begin "$name" "$threads"
            bench_rounds net_turn "$name" "$threads"
            [ -z "$torch" ] || torch_end ;;
        start) bench_rounds start_turn "$name" "$threads" ;;
        gemm)  bench_rounds product_turn "$name" "$threads" ;;
        *)     bench_rounds op_turn "$name" "$threads" ;;
        esac
    done <build/bench_list.txt
    [ ! -t 2 ] || printf '\r%-60s\r' "" >&2
    awk -v torch="$torch" -v cpu="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)" \
        -v json=build/bench.json -f tests/bench.awk build/bench_list.txt build/bench.txt
}

# Peak memory of fresh processes: this library's beside its plan, PyTorch's with and without checkpoint_sequential.
do_bench_memory() {
    $cc ${CFLAGS:-} -O2 -I. tests/bench_memory.c -o build/bench_memory -lm -pthread || exit 1
    torch=
    "$python" -c 'import torchvision' >/dev/null 2>&1 && torch=$("$python" -c 'import torch; print(torch.__version__)')
    echo "torch: ${torch:-not found (torch and torchvision), this library alone}"
    echo "values and weights in MB, peak of the process; a net's plan tells the first, the system the second"
    printf '%-10s %6s  %-24s %9s %9s %8s %10s\n' net batch how planned peak ratio 'ms a step'
    for case in "alexnet 128" "vgg16 8" "resnet50 8"; do
        set -- $case
        for work in 0 0.1 0.2 0.35; do
            build/bench_memory "$1" "$2" $work | awk '{ how = $3 > 0 ? "at most +" 100 * $3 " % work" : "keeping all"
                printf "%-10s %6d  %-24s %9.1f %9.1f %8.3f %10.1f\n", $1, $2, how, $5, $7, $7 / $5, $13 }' || exit 1
        done
        for chunks in 0 2 4 8; do
            [ -z "$torch" ] || "$python" tests/bench_memory_torch.py "$1" "$2" $chunks | awk '{
                how = $3 > 0 ? "PyTorch, " $3 " chunks" : "PyTorch"
                printf "%-10s %6d  %-24s %9s %9.1f %8s %10.1f\n", $1, $2, how, "", $5, "", $7 }' || exit 1
        done
    done
}

do_bench_loader() {     # folder of class folders of pictures
    turbo=
    has_jpeg && turbo="-DWITH_TURBO -ljpeg"
    $cc ${CFLAGS:-} -O2 -w -I. -I"$stb" tests/bench_loader.c -o build/bench_loader ${turbo%% *} -lm -pthread ${turbo#* } || exit 1
    exec "$python" tests/bench_loader_torch.py build/bench_loader "$@"
}

# --- the words ---------------------------------------------------------------------------------------------------

mkdir -p build/log build/tmp || exit 1
TMPDIR=$PWD/build/tmp
export TMPDIR
trap ': >build/failed; exit 130' INT TERM         # work in the background sees the file
: >build/tally
word=${1:-test}
[ $# -eq 0 ] || shift
look_around

case $word in
demo)
    need c stb data
    [ -n "$stb" ] && [ -n "$data" ] || { echo "demo needs stb_image.h (STB=folder) and Fashion-MNIST's four .gz files (DATA=folder)"; exit 1; }
    say_found
    do_demo "$@" ;;
fuzz)
    need c stb
    say_found
    do_fuzz "$@"
    finish ;;
bench_loader)
    need c stb
    say_found
    do_bench_loader "$@" ;;
unit)
    need c stb
    say_found
    do_unit "$@"
    finish ;;
neon)
    need c
    say_found
    do_neon "$@"
    finish ;;
bench)
    need c
    say_found
    if [ "${1:-}" = memory ]; then do_bench_memory; else do_bench "$@"; fi ;;
test|sanitize|config|examples|cuda)
    case " $word $* " in
    *" test "*) need c c++ stb data ;;
    *)          need c ;;
    esac
    say_found
    for part in "$word" "$@"; do
        case $part in
        test) do_unit; do_sanitize; do_config; do_examples; do_cuda ;;
        cuda) do_cuda all ;;
        sanitize|config|examples) "do_$part" ;;
        *)    echo "build.sh: unknown word $part"; exit 2 ;;
        esac
    done
    finish ;;
*)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 2 ;;
esac
