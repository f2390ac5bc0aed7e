# cuda_kernels.awk - what became of the kernels of nntrain_cuda.cu: a table of registers, stack and shared memory from
# the assembler's words, rules about its instructions from the PTX text, both demangled.
#
#   awk -f cuda_kernels.awk cuda_exceptions.txt ARCH.ptxas.txt ... FILE.ptx
#
# Fails on kernels that the list has no number of registers for, or that take more, on static shared memory of another size,
# on local memory, spills, double precision, atomics where cuda_exceptions.txt does not give a reason, on blocks that
# can't start, and on kernels that don't do what it demands.

function short(name)
{
    sub(/^void /, "", name)
    gsub(/\(anonymous namespace\)::|_GLOBAL__N_[A-Za-z0-9_]*::/, "", name)
    sub(/\([^()]*(\([^()]*\)[^()]*)*\)$/, "", name)
    return name
}
function excepted(rule, kernel,    i)
{
    for (i = 1; i <= rules; i++) if (rule_kind[i] == rule && index(kernel, rule_name[i])) { used[i] = 1; return 1 }
    return 0
}
function listed(rule, kernel,    i)      # the number that the list gives; "" without one
{
    for (i = 1; i <= rules; i++) if (rule_kind[i] == rule && index(kernel, rule_name[i])) { used[i] = 1; return rule_number[i] + 0 }
    return ""
}
function fault(what) { faults++; print "fault: " what }

FNR == 1 { kind = FILENAME ~ /\.ptx$/ ? "ptx" : FILENAME ~ /exceptions/ ? "rules" : "table"; kernel = "" }

kind == "rules" && !/^#/ && NF { rules++; rule_kind[rules] = $1; rule_name[rules] = $2; rule_number[rules] = $3 }

# ---- the assembler's table ----

kind == "table" && /Compiling entry function/ {
    split($0, part, "'")
    kernel = short(part[2])
    arch = part[4]
    if (!(kernel in count)) order[++kernels] = kernel
    count[kernel]++
    archs[arch] = 1
}
kind == "table" && /bytes stack frame/ {
    if ($1 + $5 + $9 > 0) {
        frame = $1 " bytes of stack, " $5 + $9 " spilled on " arch
        if (!excepted("frame", kernel)) fault(kernel ": " frame)
        if ($1 > stack[kernel]) stack[kernel] = $1
        if ($5 + $9 > spill[kernel]) spill[kernel] = $5 + $9
    }
}
kind == "table" && /: Used [0-9]+ registers/ {
    for (i = 1; i <= NF; i++) {
        if ($i == "Used") registers = $(i + 1)
        if ($i == "bytes" && $(i + 1) ~ /^smem/ && $(i - 1) > shared[kernel]) shared[kernel] = $(i - 1)
    }
    if (!(kernel in least) || registers < least[kernel]) least[kernel] = registers
    if (registers > most[kernel]) most[kernel] = registers
}

# ---- the text ----

kind == "ptx" && /\.entry / {
    kernel = $0
    sub(/.*\.entry /, "", kernel)
    sub(/\($/, "", kernel)              # what follows are parameters
    kernel = short(kernel)
    random = excepted("random", kernel)
    doubles = excepted("double", kernel)
    atomics = excepted("atomic", kernel)
    texts++
}
kind == "ptx" && /^\.maxntid/ { split($0, part, /[ ,]+/); threads[kernel] = part[2] }
kind == "ptx" && /^}/ { kernel = "" }
kind == "ptx" && kernel != "" && /^[ \t]+(@!?%p[0-9]+[ \t]+)?[a-z]/ {
    op = $1 ~ /^@/ ? $2 : $1
    sub(/;$/, "", op)
    if (op ~ /\.f64/ && op !~ /^(ld|st|mov|selp)\./ && !doubles && !said[kernel, "f64"]++) fault(kernel ": " op " is double precision")
    if (op ~ /^(atom|red)\./ && !atomics && !said[kernel, "atom"]++) fault(kernel ": " op)
    if (op ~ /^(ld|st)\.global.*\.v4\./ || (kernel ~ /nnti_cuda_half/ && op ~ /^(ld|st)\.global.*\.v2\.[bu]32/)) vector[kernel] = 1
    if (random && op ~ /\.f(32|64)/ && op !~ /\.(rn|rni|rzi)\./ && op !~ /^(ld|st|mov|selp|setp|neg|abs|min|max|set)\./ && !said[kernel, op]++)
        fault(kernel ": " op " has no rounding of its own")
    if (op ~ /\.approx|\.full|\.ftz/ && random && !said[kernel, op]++) fault(kernel ": " op)
}

END {
    for (i = 1; i <= kernels; i++) {
        kernel = order[i]
        limit = listed("registers", kernel)
        if (limit == "") fault(kernel ": not in the list of registers")
        else if (most[kernel] > limit) fault(kernel ": " most[kernel] " registers, at most " limit " are listed")
        if (shared[kernel] + 0 != listed("shared", kernel) + 0) fault(kernel ": " shared[kernel] + 0 " bytes of static shared memory, not as listed")
        if (most[kernel] * threads[kernel] > 65536) fault(kernel ": " threads[kernel] " threads of " most[kernel] " registers don't fit")
        if (excepted("vector", kernel) && !vector[kernel]) fault(kernel ": no access of four values")
    }
    for (i = 1; i <= rules; i++) if (!used[i]) fault("cuda_exceptions.txt: no kernel needs \"" rule_kind[i] " " rule_name[i] "\"")
    for (a in archs) n++
    printf "%d kernels on %d architectures; registers from - to, stack, spilled, shared bytes:\n", kernels, n
    for (i = 1; i <= kernels; i++) {
        kernel = order[i]
        printf "%4d %4d %5d %5d %6d  %s\n", least[kernel], most[kernel], stack[kernel], spill[kernel], shared[kernel], kernel
    }
    if (!kernels || texts != kernels) fault(kernels " kernels in the table, " texts + 0 " in the text")
    exit faults > 0
}
