/* cuda_on_cpu.cpp - the machine behind cuda_on_cpu.h. Always compiled without -fsanitize=thread: with -DCOC_RACE it
   provides the callbacks that such code calls. */
#include "cuda_on_cpu.h"
#if !defined(__x86_64__) || !defined(__linux__)
#  error "the switch of stacks below is written for Linux on x86-64"
#endif
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>
#ifdef __SANITIZE_ADDRESS__
#  include <sanitizer/asan_interface.h>
#  include <sanitizer/common_interface_defs.h>
#else
#  define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

/* ============================================================================
   Findings, random numbers, calls that fail
   ============================================================================ */

static const char *kernel_name = "(host)", *kernel_types = "";     /* of the parameters: a functor's, for example */

__attribute__((format(printf, 1, 2), noreturn)) static void finding(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "cuda_on_cpu: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, " [kernel %s]\n", kernel_name);
    va_end(list);
    abort();
}

static unsigned seed;
static uint64_t random_state = 1;

static uint64_t random_bits()           /* xorshift64*, Vigna 2016 */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u >> 16;
}
static size_t random_below(size_t n) { return (size_t)(random_bits() % n); }

void coc_seed(unsigned s)
{
    seed = s;
    random_state = 0x9E3779B97F4A7C15u * (s + 1u) | 1;
}
/* Which of n things that are ready goes next. */
static size_t choose(size_t n) { return seed == 0 ? 0 : seed == 1 ? n - 1 : random_below(n); }

float coc_about(float exact, float units)
{
    if (!seed || !(fabsf(exact) < 1e38f) || fabsf(exact) < 1e-37f) return exact;
    const int u = (int)units;
    return __int_as_float(__float_as_int(exact) + (int)random_below((size_t)(2 * u + 1)) - u);
}

static long calls, launches, live, fail_call, fail_kernel;
static int fail_code;
static cudaError_t last_error, sticky_error;

void coc_fail_call(long n, int code) { fail_call = n; fail_code = code; }
void coc_fail_kernel(long n) { fail_kernel = n; }
void coc_recover() { last_error = sticky_error = cudaSuccess; }
long coc_calls() { return calls; }
long coc_launches() { return launches; }
long coc_live() { return live; }

static cudaError_t error(cudaError_t e)
{
    if (e) last_error = e;
    return e;
}
/* At the beginning of each call: what it has to return, if not success. */
static cudaError_t enter()
{
    calls++;
    if (fail_call > 0 && --fail_call == 0) return error((cudaError_t)fail_code);
    return sticky_error;
}
#define ENTER do { const cudaError_t e_ = enter(); if (e_) return e_; } while (0)

/* ============================================================================
   Device memory: one range of addresses for each device, never used twice
   Filled with 0xff, which are NaN (the first MiB); surrounded by bytes that nothing may touch; closed while host code runs.
   ============================================================================ */

static const size_t RANGE = (size_t)1 << 34, PAGE = 4096, MARGIN = 512;
static const size_t FILLED = (size_t)1 << 20;           /* of a larger allocation: pages that exist cost time at each opening */
enum { DEVICES = 4 };

struct Block { size_t bytes; int device; };
static char *memory;                    /* DEVICES ranges */
static size_t given[DEVICES];           /* of a range, so far */
static size_t limit = (size_t)1 << 33, used[DEVICES], peak;
static std::map<const char *, Block> blocks;
static std::map<const char *, size_t> pinned_blocks;
static int device_count = 1, device;
static int inside;                      /* code of the device is running */
static uint8_t *written;                /* race build: of each byte, whether anything wrote it */

void coc_memory(size_t bytes) { limit = bytes; peak = used[0]; }
void coc_devices(int count) { device_count = count < DEVICES ? count : (int)DEVICES; }
size_t coc_bytes() { return used[0]; }
size_t coc_peak_bytes() { return peak; }

static void reserve()
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (memory) return;
    memory = (char *)mmap(0, RANGE * DEVICES, PROT_NONE, flags, -1, 0);
#ifdef COC_RACE
    written = (uint8_t *)mmap(0, RANGE * DEVICES, PROT_READ | PROT_WRITE, flags, -1, 0);
#endif
    if (memory == MAP_FAILED || written == MAP_FAILED) { perror("cuda_on_cpu: addresses for device memory"); exit(2); }
}
static bool on_device(const void *p) { return memory && (size_t)((const char *)p - memory) < RANGE * DEVICES; }

template <class Map> static typename Map::const_iterator block_of(const Map &m, const void *p)
{
    auto it = m.upper_bound((const char *)p);
    return it == m.begin() ? m.end() : --it;
}
static bool within(const void *p, size_t bytes)         /* one allocation of the device? */
{
    auto it = block_of(blocks, p);
    return it != blocks.end() && (const char *)p + bytes <= it->first + it->second.bytes;
}
static bool is_pinned(const void *p, size_t bytes)
{
    auto it = block_of(pinned_blocks, p);
    return it != pinned_blocks.end() && (const char *)p + bytes <= it->first + it->second;
}
static void mark_written(const void *p, size_t bytes, int value)
{
    if (written && on_device(p)) memset(written + ((const char *)p - memory), value, bytes);
}

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
static size_t with_margins(size_t bytes) { return round_up(MARGIN + bytes + MARGIN, PAGE); }

static void protect(int mode)
{
    for (const auto &b : blocks) mprotect((char *)b.first - MARGIN, with_margins(b.second.bytes), mode);
}
struct Inside {                         /* while it lives, device memory is open */
    Inside() { if (inside++ == 0) protect(PROT_READ | PROT_WRITE); }
    ~Inside() { if (--inside == 0) protect(PROT_NONE); }
};

static char *take(size_t bytes)
{
    const size_t whole = with_margins(bytes);
    char *base = memory + RANGE * (size_t)device + given[device], *p = base + MARGIN;
    if (given[device] + whole > RANGE) { fprintf(stderr, "cuda_on_cpu: all addresses are used up\n"); exit(2); }
    given[device] += whole;
    blocks[p] = Block{ bytes, device };
    Inside open;
    memset(p, 0xff, std::min(bytes, FILLED));
    ASAN_POISON_MEMORY_REGION(base, MARGIN);
    ASAN_POISON_MEMORY_REGION(p + bytes, whole - MARGIN - bytes);
    return p;
}
static cudaError_t take_pinned(void **out, size_t bytes)
{
    char *p = (char *)malloc(bytes);
    if (!p) return error(cudaErrorMemoryAllocation);
    memset(p, 0xff, std::min(bytes, FILLED));
    pinned_blocks[p] = bytes;
    *out = p;
    live++;
    return cudaSuccess;
}
static bool capturing();
cudaError_t coc_malloc(void **out, size_t bytes, int pinned)
{
    ENTER;
    *out = 0;
    if (capturing()) finding("memory is allocated while a stream is captured");
    if (!bytes) return cudaSuccess;
    if (pinned) return take_pinned(out, bytes);
    reserve();
    if (bytes > limit || used[device] + round_up(bytes, MARGIN) > limit) return error(cudaErrorMemoryAllocation);
    *out = take(bytes);
    used[device] += round_up(bytes, MARGIN);
    peak = std::max(peak, used[device]);
    live++;
    return cudaSuccess;
}
static void drain_all();
cudaError_t cudaFree(void *p)
{
    const cudaError_t failed = enter();         /* memory is given back even so: see the header */
    if (!p) return failed;
    auto it = blocks.find((char *)p);
    if (it == blocks.end()) finding("cudaFree of %p, which is no allocation of the device", p);
    if (capturing()) finding("cudaFree while a stream is captured");
    drain_all();
    const Block b = it->second;
    ASAN_POISON_MEMORY_REGION(p, b.bytes);
    mark_written(p, b.bytes, 0);
    madvise((char *)p - MARGIN, with_margins(b.bytes), MADV_DONTNEED);     /* and closed for good */
    used[b.device] -= round_up(b.bytes, MARGIN);
    blocks.erase(it);
    live--;
    return failed;
}
cudaError_t cudaFreeHost(void *p)
{
    const cudaError_t failed = enter();
    if (!p) return failed;
    if (!pinned_blocks.count((char *)p)) finding("cudaFreeHost of %p, which is no pinned memory", p);
    drain_all();
    pinned_blocks.erase((char *)p);
    free(p);
    live--;
    return failed;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER;
    *total = limit;
    *free_bytes = limit - std::min(limit, used[device]);
    return cudaSuccess;
}

/* ============================================================================
   Fibers, and the threads that run on them
   Threads that never wait run one after another on one fiber, without any switch.
   ============================================================================ */

extern "C" void coc_switch(void **save, void *load);
__asm__(".text\n.globl coc_switch\n.type coc_switch,@function\ncoc_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size coc_switch,.-coc_switch\n");

static const size_t STACK = 128 * 1024;
enum { MAX_THREADS = 1024 };
enum State { NEW, RUNNING, READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber { void *sp; char *stack; void *fake_stack; };
struct Copy { void *to; const void *from; size_t bytes; int group; };
struct Thread {
    coc_place place;
    int id, lane, warp;
    State state;
    Fiber *fiber;
    int line, kind, argument, width, result;    /* what it waits for */
    unsigned mask, warp_epoch;          /* epoch: warp operations done */
    const void *in;
    void *out;
    size_t bytes;
    std::vector<Copy> copies;           /* in flight to shared memory */
    int copy_group;
};

coc_place *coc_here;
static Thread *threads, *running;       /* running: 0 in host code */
static int thread_count;
static std::vector<int> order, ready;
static size_t next_new;                 /* threads order[next_new ...] have not begun */
static std::vector<Fiber *> idle;
static Fiber main_fiber, *fiber = &main_fiber;
static const coc_call *call;
static char *shared_memory;             /* dynamic */
static size_t shared_bytes;
static unsigned epoch, block_number;    /* epoch: barriers of the block done */
static char *own;                       /* stacks and threads: never looked at by the race checker */
static size_t own_used;
static const size_t OWN = (MAX_THREADS + 1) * (STACK + 2 * PAGE) + (1 << 20);

void *coc_dynamic_shared() { return shared_memory; }

static void *take_own(size_t bytes)
{
    if (!own) own = (char *)mmap(0, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *p = own + own_used;
    own_used += round_up(bytes, PAGE);
    if (own == MAP_FAILED || own_used > OWN) { perror("cuda_on_cpu: stacks"); exit(2); }
    return p;
}

#ifdef __SANITIZE_ADDRESS__
static const void *main_bottom;
static size_t main_size;
static void leave_stack(Fiber *from, Fiber *to)
{
    const bool main = to == &main_fiber;
    __sanitizer_start_switch_fiber(&from->fake_stack, main ? main_bottom : to->stack, main ? main_size : STACK);
}
static void come_back(Fiber *f) { __sanitizer_finish_switch_fiber(f->fake_stack, 0, 0); }
static void arrive_first()
{
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(0, &bottom, &size);
    if (!main_bottom) { main_bottom = bottom; main_size = size; }
}
#else
static void leave_stack(Fiber *, Fiber *) {}
static void come_back(Fiber *) {}
static void arrive_first() {}
#endif

static void go(Fiber *to)
{
    Fiber *from = fiber;
    fiber = to;
    leave_stack(from, to);
    coc_switch(&from->sp, to->sp);
    come_back(from);
}
static void become(Thread *t)
{
    running = t;
    coc_here = &t->place;
    t->state = RUNNING;
}
static void run_thread(Thread *t)
{
    become(t);
    t->fiber = fiber;
    call->run();
    t->state = DONE;
    if (!t->copies.empty()) finding("thread %d ended with asynchronous copies in flight", t->id);
}
static void fiber_main()
{
    arrive_first();
    for (;;) {
        while (next_new < order.size() && ready.empty()) run_thread(&threads[order[next_new++]]);
        idle.push_back(fiber);
        go(&main_fiber);
    }
}
static Fiber *idle_fiber()
{
    if (!idle.empty()) {
        Fiber *f = idle.back();
        idle.pop_back();
        return f;
    }
    char *p = (char *)take_own(2 * PAGE + STACK);
    Fiber *f = new (p) Fiber();
    mprotect(p + PAGE, PAGE, PROT_NONE);        /* below the stack: overflow crashes */
    f->stack = p + 2 * PAGE;
    void **sp = (void **)(f->stack + STACK) - 8;        /* six registers, the address to go to, that of no caller */
    sp[6] = (void *)fiber_main;
    f->sp = sp;
    return f;
}
/* Gives way; comes back when someone has put this thread among the ready ones. */
static void wait(Thread *t, State what)
{
    t->state = what;
    go(&main_fiber);
    become(t);
}
static void release(Thread *t)
{
    t->state = READY;
    ready.push_back(t->id);
}

/* ============================================================================
   Barriers, warp operations, asynchronous copies
   ============================================================================ */

int coc_barrier(int kind, int predicate, int line)
{
    Thread *t = running;
    t->kind = kind;
    t->argument = predicate != 0;
    t->line = line;
    wait(t, AT_BARRIER);
    return t->result;
}
/* When nothing else can run: do all threads stand at one barrier? */
static bool release_barrier()
{
    const Thread *first = 0;
    int waiting = 0, sum = 0;
    for (int i = 0; i < thread_count; i++) {
        const Thread *t = &threads[i];
        if (t->state == AT_WARP) return false;
        if (t->state != AT_BARRIER) continue;
        if (!first) first = t;
        if (t->line != first->line || t->kind != first->kind)
            finding("threads of a block wait at different barriers: lines %d and %d", first->line, t->line);
        waiting++;
        sum += t->argument;
    }
    if (!waiting) return false;
    if (waiting < thread_count)
        finding("%d of %d threads have returned while the others wait at the barrier of line %d", thread_count - waiting,
                thread_count, first->line);
    epoch++;
    for (int i = 0; i < thread_count; i++) {
        Thread *t = &threads[i];
        t->result = t->kind == COC_BARRIER_COUNT ? sum : t->kind == COC_BARRIER_AND ? sum == waiting : sum > 0;
        release(t);
    }
    return true;
}

/* The lane that a lane reads from. */
static int source_lane(const Thread *t)
{
    const int first = t->lane & ~(t->width - 1), end = first + t->width;
    int from = t->lane;
    switch (t->kind) {
    case COC_WARP_IDX:  return first + (t->argument & (t->width - 1));
    case COC_WARP_UP:   from = t->lane - t->argument; break;
    case COC_WARP_DOWN: from = t->lane + t->argument; break;
    case COC_WARP_XOR:  from = t->lane ^ t->argument; break;
    }
    return from < first || from >= end ? t->lane : from;
}
/* If all lanes of the mask that have not returned wait at the same operation, does it for all of them. */
static bool release_warp(const Thread *one)
{
    Thread *warp = threads + one->warp * 32;
    const int lanes = std::min(32, thread_count - one->warp * 32);
    const unsigned mask = one->mask;
    Thread *here[32];
    int count = 0;
    unsigned ballot = 0;
    for (int l = 0; l < lanes; l++) {
        Thread *t = &warp[l];
        if (!(mask >> l & 1) || t->state == DONE) continue;
        if (t->state != AT_WARP) return false;
        here[count++] = t;
    }
    for (int i = 0; i < count; i++) {
        const Thread *t = here[i];
        if (t->mask != mask || t->kind != one->kind || t->line != one->line)
            finding("lanes of one mask meet at different warp operations: lines %d and %d, masks %08x and %08x", one->line,
                    t->line, mask, t->mask);
        if (t->kind == COC_WARP_BALLOT) ballot |= *(const unsigned *)t->in << t->lane;
    }
    for (int i = 0; i < count; i++) {
        const Thread *t = here[i];
        const int from = source_lane(t);
        if (t->kind == COC_WARP_SYNC) continue;
        if (t->kind == COC_WARP_BALLOT) { *(unsigned *)t->out = ballot; continue; }
        if (from >= lanes || !(mask >> from & 1) || warp[from].state != AT_WARP)
            finding("line %d: lane %d reads from lane %d, which takes no part in the shuffle", t->line, t->lane, from);
        memcpy(t->out, warp[from].in, t->bytes);
    }
    for (int i = 0; i < count; i++) {
        here[i]->warp_epoch++;
        release(here[i]);
    }
    return true;
}
void coc_warp(int kind, unsigned mask, int argument, int width, const void *in, void *out, size_t bytes, int line)
{
    Thread *t = running;
    const int lanes = thread_count - t->warp * 32;
    if (lanes < 32) mask &= (1u << lanes) - 1;
    if (!(mask >> t->lane & 1)) finding("line %d: lane %d calls with mask %08x, which leaves it out", line, t->lane, mask);
    t->kind = kind;
    t->mask = mask;
    t->argument = argument;
    t->width = width;
    t->in = in;
    t->out = out;
    t->bytes = bytes;
    t->line = line;
    t->state = AT_WARP;
    release_warp(t);                    /* the last lane to arrive */
    go(&main_fiber);
    become(t);
}

static void look(const void *p, size_t bytes, bool write, bool atomic);
void coc_atomic(void *p, size_t bytes)
{
    look(p, bytes, true, true);
    look(p, bytes, false, true);
}
void coc_copy_async(void *to, const void *from, size_t bytes)
{
    if (bytes != 4 && bytes != 8 && bytes != 16) finding("an asynchronous copy of %zu bytes", bytes);
    if (((uintptr_t)to | (uintptr_t)from) % bytes) finding("an asynchronous copy is not aligned to its %zu bytes", bytes);
    running->copies.push_back(Copy{ to, from, bytes, running->copy_group });
}
void coc_copy_commit() { running->copy_group++; }
void coc_copy_wait(int prior)
{
    std::vector<Copy> later;
    for (const Copy &c : running->copies) {
        if (c.group >= running->copy_group - prior) { later.push_back(c); continue; }
        look(c.from, c.bytes, false, false);
        look(c.to, c.bytes, true, false);
        memcpy(c.to, c.from, c.bytes);
    }
    running->copies.swap(later);
}

/* ============================================================================
   Blocks and grids
   ============================================================================ */

__attribute__((noreturn)) static void deadlock()
{
    int count[DONE + 1] = { 0 }, line[DONE + 1] = { 0 };
    for (int i = 0; i < thread_count; i++) {
        count[threads[i].state]++;
        line[threads[i].state] = threads[i].line;
    }
    finding("deadlock in block %u: %d threads at the barrier of line %d, %d at the warp operation of line %d, %d returned",
            block_number, count[AT_BARRIER], line[AT_BARRIER], count[AT_WARP], line[AT_WARP], count[DONE]);
}
static bool release_any_warp()          /* some lanes may have returned after the others came */
{
    for (int i = 0; i < thread_count; i++)
        if (threads[i].state == AT_WARP && release_warp(&threads[i])) return true;
    return false;
}
static Thread *take_ready()
{
    const size_t k = choose(ready.size());
    Thread *t = &threads[ready[k]];
    ready.erase(ready.begin() + (ptrdiff_t)k);
    return t;
}
static void begin_block_check();
static void end_block_check();
static void run_block()
{
    epoch = 1;
    next_new = 0;
    ready.clear();
    if (shared_memory) memset(shared_memory, 0xff, shared_bytes);
    for (int i = 0; i < thread_count; i++) {
        threads[i].state = NEW;
        threads[i].warp_epoch = 0;
        threads[i].copy_group = 0;
    }
    if (seed > 1)
        for (size_t i = order.size() - 1; i > 0; i--) std::swap(order[i], order[random_below(i + 1)]);
    begin_block_check();
    for (;;) {
        const bool more = next_new < order.size(), later = seed > 1 && more && random_below(2);
        if (!ready.empty() && !later) go(take_ready()->fiber);
        else if (more) go(idle_fiber());
        else if (!release_barrier() && !release_any_warp()) break;
    }
    for (int i = 0; i < thread_count; i++) if (threads[i].state != DONE) deadlock();
    end_block_check();
}

struct Grid { const char *name, *types; dim3 blocks, threads; size_t shared; };

static void place_threads(const Grid &g)
{
    if (!threads) {
        threads = (Thread *)take_own(MAX_THREADS * sizeof(Thread));
        for (int i = 0; i < MAX_THREADS; i++) new (&threads[i]) Thread();
    }
    thread_count = (int)(g.threads.x * g.threads.y * g.threads.z);
    order.resize((size_t)thread_count);
    for (int i = 0; i < thread_count; i++) {
        const unsigned u = (unsigned)i, x = g.threads.x, y = g.threads.y;
        Thread *t = &threads[i];
        t->id = i;
        t->lane = i % 32;
        t->warp = i / 32;
        t->place.thread = uint3{ u % x, u / x % y, u / (x * y) };
        t->place.threads = uint3{ x, y, g.threads.z };
        t->place.blocks = uint3{ g.blocks.x, g.blocks.y, g.blocks.z };
        order[(size_t)i] = seed == 1 ? thread_count - 1 - i : i;
    }
}
static void begin_grid_check(const coc_call *c);
static void run_grid(const Grid &g, const coc_call *c)
{
    const uint64_t n = (uint64_t)g.blocks.x * g.blocks.y * g.blocks.z;
    uint64_t step = 1, start = 0;
    if (fail_kernel > 0 && --fail_kernel == 0) sticky_error = cudaErrorLaunchFailure;
    if (sticky_error) return;
    Inside open;
    kernel_name = g.name;
    kernel_types = g.types;
    call = c;
    shared_bytes = g.shared;
    shared_memory = g.shared ? (char *)malloc(g.shared) : 0;    /* to the byte, for ASan */
    place_threads(g);
    begin_grid_check(c);
    if (seed > 1 && n > 1) {            /* a random order: start + i step, modulo n */
        do step = random_below(n) + 1; while (std::gcd(step, n) != 1);
        start = random_below(n);
    }
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t b = seed == 1 ? n - 1 - i : (uint64_t)(((unsigned __int128)i * step + start) % n);
        block_number = (unsigned)b;
        for (int t = 0; t < thread_count; t++)
            threads[t].place.block = uint3{ (unsigned)(b % g.blocks.x), (unsigned)(b / g.blocks.x % g.blocks.y),
                                            (unsigned)(b / g.blocks.x / g.blocks.y) };
        run_block();
    }
    free(shared_memory);
    shared_memory = 0;
    running = 0;
    kernel_name = "(host)";
}

/* ============================================================================
   Streams, events, graphs
   ============================================================================ */

typedef std::function<void()> Work;
struct coc_node { Work work; std::vector<size_t> after; };
struct coc_graph { std::vector<coc_node> nodes; };
struct coc_event {
    uint64_t recorded, reached;         /* how often */
    cudaStream_t stream;
    coc_graph *graph;                   /* recorded in a capture: */
    std::vector<size_t> after;          /*   nodes that it stands behind */
};
struct coc_item { Work work; cudaEvent_t event; uint64_t number; bool waits; };     /* event 0: work */
struct coc_stream {
    std::deque<coc_item> queue;
    int device;
    bool blocking;                      /* waits for the legacy stream, and that for it */
    coc_graph *graph;                   /* being captured */
    bool origin;                        /*   by a call for this stream */
    std::vector<size_t> last;           /*   nodes that the next one comes after */
};
static std::set<cudaStream_t> streams;
static std::set<cudaEvent_t> events;
static int when = COC_AT_ONCE;
static cudaStream_t lagging;            /* at random: for a while this one runs only when something waits for it */

void coc_streams(int w) { when = w; }

static void drain_to(cudaEvent_t e, uint64_t number);
static void advance(cudaStream_t s)
{
    const coc_item i = std::move(s->queue.front());
    s->queue.pop_front();
    if (!i.event) { if (!sticky_error) i.work(); }
    else if (i.waits) drain_to(i.event, i.number);
    else i.event->reached = std::max(i.event->reached, i.number);
}
static void drain(cudaStream_t s)
{
    Inside open;
    while (!s->queue.empty()) advance(s);
}
static void drain_to(cudaEvent_t e, uint64_t number)
{
    while (events.count(e) && e->reached < number && streams.count(e->stream) && !e->stream->queue.empty()) advance(e->stream);
}
static void drain_all() { for (cudaStream_t s : std::vector<cudaStream_t>(streams.begin(), streams.end())) drain(s); }
static void drain_blocking()
{
    for (cudaStream_t s : std::vector<cudaStream_t>(streams.begin(), streams.end())) if (s->blocking) drain(s);
}
static void queue(cudaStream_t s, coc_item i)
{
    s->queue.push_back(std::move(i));
    if (when == COC_AT_ONCE) drain(s);
    if (when != COC_AT_RANDOM) return;
    std::vector<cudaStream_t> all(streams.begin(), streams.end());
    if (random_below(16) == 0) lagging = all[random_below(all.size())];
    for (size_t k = random_below(4); k > 0; k--) {
        cudaStream_t other = all[random_below(all.size())];
        if (other != lagging && !other->queue.empty()) advance(other);
    }
}
static bool capturing()
{
    for (cudaStream_t s : streams) if (s->graph) return true;
    return false;
}
static void no_capture(const char *what) { if (capturing()) finding("%s while a stream is captured", what); }

static void enqueue(cudaStream_t s, Work work)
{
    if (!s) {                           /* the legacy stream: non-blocking ones neither wait for it nor it for them */
        no_capture("work on the legacy stream");
        drain_blocking();
        if (!sticky_error) work();
    } else if (s->graph) {
        s->graph->nodes.push_back(coc_node{ std::move(work), s->last });
        s->last.assign(1, s->graph->nodes.size() - 1);
    } else queue(s, coc_item{ std::move(work), 0, 0, false });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    ENTER;
    *s = new coc_stream();
    (*s)->device = device;
    (*s)->blocking = !(flags & cudaStreamNonBlocking);
    streams.insert(*s);
    live++;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    const cudaError_t failed = enter();
    if (!streams.count(s)) finding("cudaStreamDestroy of %p, which is no stream", (void *)s);
    drain(s);
    streams.erase(s);
    delete s;
    live--;
    return failed;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER;
    no_capture("cudaStreamSynchronize");
    if (s) drain(s); else drain_blocking();
    return error(sticky_error);
}
cudaError_t cudaDeviceSynchronize()
{
    ENTER;
    no_capture("cudaDeviceSynchronize");
    drain_all();
    return error(sticky_error);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    ENTER;
    *e = new coc_event();
    events.insert(*e);
    live++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    const cudaError_t failed = enter();
    if (!events.count(e)) finding("cudaEventDestroy of %p, which is no event", (void *)e);
    drain_to(e, e->recorded);
    for (cudaStream_t s : streams)      /* who waits for it has waited */
        for (coc_item &i : s->queue) if (i.event == e) i = coc_item{ [] {}, 0, 0, false };
    events.erase(e);
    delete e;
    live--;
    return failed;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER;
    e->stream = s;
    e->graph = s ? s->graph : 0;
    if (e->graph) { e->after = s->last; return cudaSuccess; }
    e->recorded++;
    if (s) queue(s, coc_item{ {}, e, e->recorded, false });
    else { drain_blocking(); e->reached = e->recorded; }
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    ENTER;
    if (e->graph) {                     /* recorded in a capture: the stream joins it */
        if (s->graph && s->graph != e->graph) finding("a capture waits for another capture");
        if (!s->graph) { s->graph = e->graph; s->last.clear(); }
        s->last.insert(s->last.end(), e->after.begin(), e->after.end());
        return cudaSuccess;
    }
    if (s && s->graph) finding("a captured stream waits for an event from outside of the capture");
    if (s) queue(s, coc_item{ {}, e, e->recorded, true });
    else drain_to(e, e->recorded);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER;
    no_capture("cudaEventSynchronize");
    drain_to(e, e->recorded);
    return error(sticky_error);
}

/* Time is not emulated: each pair is a millisecond apart. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER;
    drain_to(from, from->recorded);
    drain_to(to, to->recorded);
    *ms = 1;
    return error(sticky_error);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    ENTER;
    if (!s) finding("the legacy stream can't be captured");
    if (s->graph) finding("a stream is captured that is being captured");
    s->graph = new coc_graph();
    s->origin = true;
    s->last.clear();
    live++;
    return cudaSuccess;
}
static bool comes_before(const coc_graph *g, size_t node, const std::vector<size_t> &ends)
{
    std::vector<size_t> todo(ends);
    std::set<size_t> seen;
    while (!todo.empty()) {
        const size_t i = todo.back();
        todo.pop_back();
        if (i == node) return true;
        if (seen.insert(i).second) todo.insert(todo.end(), g->nodes[i].after.begin(), g->nodes[i].after.end());
    }
    return false;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const cudaError_t failed = enter();
    coc_graph *g = s->graph;
    *out = 0;
    if (!g || !s->origin) return failed ? failed : error(cudaErrorInvalidValue);
    for (cudaStream_t o : streams) {
        if (o == s || o->graph != g) continue;
        for (size_t node : o->last)
            if (!comes_before(g, node, s->last)) finding("a capture ends while a stream that joined it has not come back");
        o->graph = 0;
    }
    s->graph = 0;
    s->origin = false;
    if (!failed) *out = g;
    else { delete g; live--; }
    return failed;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long)
{
    ENTER;
    *out = new coc_graph(*g);
    live++;
    return cudaSuccess;
}
/* Nodes in any order that keeps the captured dependencies. */
static void run_graph(const coc_graph *g)
{
    const size_t n = g->nodes.size();
    Inside open;
    std::vector<size_t> missing(n), can;
    std::vector<std::vector<size_t>> then(n);
    for (size_t i = 0; i < n; i++) {
        missing[i] = g->nodes[i].after.size();
        for (size_t a : g->nodes[i].after) then[a].push_back(i);
        if (!missing[i]) can.push_back(i);
    }
    while (!can.empty() && !sticky_error) {
        const size_t k = choose(can.size()), i = can[k];
        can.erase(can.begin() + (ptrdiff_t)k);
        g->nodes[i].work();
        for (size_t t : then[i]) if (--missing[t] == 0) can.push_back(t);
    }
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    ENTER;
    enqueue(s, [g] { run_graph(g); });
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    const cudaError_t failed = enter();
    delete g;
    live--;
    return failed;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    drain_all();
    return cudaGraphDestroy(g);
}

/* ============================================================================
   Launches, copies, devices
   ============================================================================ */

static std::map<const void *, size_t> most_shared;      /* asked for with cudaFuncSetAttribute */
enum { SHARED_PLAIN = 49152, SHARED_MOST = 166912 };    /* bytes a block: without asking; of compute capability 8.0 */

cudaError_t coc_function_attribute(const void *kernel, cudaFuncAttribute, int value)
{
    ENTER;
    if (value < 0 || value > SHARED_MOST) return error(cudaErrorInvalidValue);
    most_shared[kernel] = (size_t)value;
    return cudaSuccess;
}
void coc_enqueue(const char *name, const char *types, const void *kernel, dim3 g, dim3 b, size_t shared, cudaStream_t s, coc_call *c)
{
    const std::shared_ptr<coc_call> held(c);
    const size_t most = std::max((size_t)SHARED_PLAIN, most_shared[kernel]);
    if (enter()) return;
    launches++;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || !b.x || !b.y || !b.z || b.x > MAX_THREADS
        || b.y > MAX_THREADS || b.z > 64 || (uint64_t)b.x * b.y * b.z > MAX_THREADS) error(cudaErrorInvalidConfiguration);
    else if (shared > most) error(cudaErrorInvalidValue);
    else if (s && s->device != device) error(cudaErrorInvalidResourceHandle);
    else enqueue(s, [=] { run_grid(Grid{ name, types, g, b, shared }, held.get()); });
}

static void move(void *to, const void *from, size_t bytes)
{
    Inside open;
    memcpy(to, from, bytes);
    mark_written(to, bytes, 1);
}
static void check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
               from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) return;
    if (on_device(to) != to_device || on_device(from) != from_device) finding("the kind of a copy does not fit its pointers");
    if ((to_device && !within(to, bytes)) || (from_device && !within(from, bytes)))
        finding("a copy of %zu bytes leaves the allocation", bytes);
}
/* Pageable memory is read before the call returns, and written before it returns; pinned memory when the copy runs. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    ENTER;
    if (!bytes) return cudaSuccess;
    check_copy(to, from, bytes, kind);
    const bool reads_host = !on_device(from), writes_host = !on_device(to);
    const bool pageable = (reads_host && !is_pinned(from, bytes)) || (writes_host && !is_pinned(to, bytes));
    if (pageable && s && s->graph) finding("a copy of pageable memory is captured");
    if (pageable && reads_host) {
        const auto copy = std::make_shared<std::string>((const char *)from, bytes);
        enqueue(s, [=] { move(to, copy->data(), bytes); });
    } else enqueue(s, [=] { move(to, from, bytes); });
    if (pageable && writes_host && s) drain(s);
    return error(sticky_error);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, 0);
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    ENTER;
    if (!bytes) return cudaSuccess;
    if (!within(p, bytes)) finding("a memset of %zu bytes leaves the allocation", bytes);
    enqueue(s, [=] {
        Inside open;
        memset(p, value, bytes);
        mark_written(p, bytes, 1);
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) { return cudaMemsetAsync(p, value, bytes, 0); }

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:                   return "cudaSuccess";
    case cudaErrorMemoryAllocation:     return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:         return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:        return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice:             return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:   return "cudaErrorInsufficientDriver";
    case cudaErrorLaunchFailure:        return "cudaErrorLaunchFailure";
    default:                            return "cudaErrorUnknown";
    }
}
const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }
cudaError_t cudaPeekAtLastError() { return sticky_error ? sticky_error : last_error; }
cudaError_t cudaGetLastError()
{
    const cudaError_t e = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return e;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER;
    *n = std::max(0, device_count);
    return device_count > 0 ? cudaSuccess : error(device_count ? cudaErrorInsufficientDriver : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int d)
{
    ENTER;
    if (d < 0 || d >= device_count) return error(cudaErrorInvalidDevice);
    device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d)
{
    ENTER;
    *d = device;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
    ENTER;
    *v = device_count < 0 ? 0 : 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    ENTER;
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int d)
{
    ENTER;
    if (d < 0 || d >= device_count) return error(cudaErrorInvalidDevice);
    switch (a) {
    case cudaDevAttrMultiProcessorCount:            *v = 4; break;
    case cudaDevAttrL2CacheSize:                    *v = 1 << 20; break;
    case cudaDevAttrComputeCapabilityMajor:         *v = 8; break;
    case cudaDevAttrComputeCapabilityMinor:         *v = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:   *v = SHARED_MOST; break;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    ENTER;
    if (d < 0 || d >= device_count) return error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cuda_on_cpu");
    p->totalGlobalMem = limit;
    p->sharedMemPerBlock = SHARED_PLAIN;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = MAX_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 8;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 1 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}

/* ============================================================================
   Short floats, cuBLAS
   ============================================================================ */

uint16_t coc_to_bfloat16(float f)
{
    const uint32_t u = __float_as_uint(f);
    if (f != f) return 0x7fff;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
/* A half's exponent is a float's less 112. Rounded to nearest even; those without an exponent by an addition. By bits, since
   clang has _Float16 for few processors only. */
uint16_t coc_to_half(float f)
{
    const uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);         /* 65520 and more: infinity */
    if (size < 0x38800000u) return (uint16_t)(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - __float_as_uint(0.5f)));
    return (uint16_t)(sign | (size - (112u << 23) + 0xfffu + (size >> 13 & 1)) >> 13);
}
float coc_from_half(uint16_t u)
{
    const uint32_t sign = (uint32_t)(u & 0x8000u) << 16, size = (uint32_t)(u & 0x7fffu) << 13;
    if (size >= 0x0f800000u) return __uint_as_float(sign | 0x70000000u | size);     /* infinity, not a number */
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(size) * 0x1p112f));
}

struct Matrix {                         /* column-major, as it is stored */
    char *at;
    cudaDataType_t type;
    int64_t rows, cols, ld, stride;     /* stride: to the next of a batch */

    size_t size() const { return type == CUDA_R_32F ? 4 : 2; }
    char *place(int64_t row, int64_t col) const { return at + (size_t)(col * ld + row) * size(); }
    float get(int64_t row, int64_t col) const
    {
        const char *p = place(row, col);
        if (type == CUDA_R_32F) return *(const float *)p;
        return type == CUDA_R_16F ? coc_from_half(*(const uint16_t *)p) : coc_from_bfloat16(*(const uint16_t *)p);
    }
    void set(int64_t row, int64_t col, float v) const
    {
        char *p = place(row, col);
        if (type == CUDA_R_32F) *(float *)p = v;
        else *(uint16_t *)p = type == CUDA_R_16F ? coc_to_half(v) : coc_to_bfloat16(v);
    }
    Matrix in_batch(int64_t i) const
    {
        Matrix m = *this;
        m.at += (size_t)(i * stride) * size();
        return m;
    }
    void check(const char *what, bool reads) const
    {
        if (!rows || !cols) return;
        if (!within(at, (size_t)((cols - 1) * ld + rows) * size()))
            finding("cuBLAS: %s (%d x %d, leading dimension %d) leaves the allocation", what, (int)rows, (int)cols, (int)ld);
        for (int64_t j = 0; j < cols && written; j++) {
            uint8_t *w = written + (place(0, j) - memory);
            if (!reads) memset(w, 1, (size_t)rows * size());
            else if (memchr(w, 0, (size_t)rows * size())) finding("cuBLAS reads values of %s that nothing has written", what);
        }
    }
};
struct Product {                        /* d = epilogue(alpha op(a) op(b) + beta c) */
    Matrix a, b, c, d;
    bool transpose_a, transpose_b;
    int bits;                           /* significant ones that factors keep */
    float alpha, beta;
    int batch, epilogue;
    Matrix bias;                        /* or its gradient */
    uint8_t *mask;
    int64_t mask_ld;                    /* bits */
};

enum { FLOAT_BITS = 24, TF32_BITS = 11, BFLOAT16_BITS = 8 };
static float rounded(float v, int bits)
{
    const unsigned low = (1u << (FLOAT_BITS - bits)) - 1, u = __float_as_uint(v);
    return bits == FLOAT_BITS ? v : __uint_as_float((u + low / 2 + (u >> (FLOAT_BITS - bits) & 1)) & ~low);
}
static int bits_of(cudaDataType_t type, cublasComputeType_t compute, bool tf32)
{
    if (type != CUDA_R_32F) return FLOAT_BITS;          /* already short */
    if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) return BFLOAT16_BITS;
    return compute == CUBLAS_COMPUTE_32F_FAST_TF32 || (compute == CUBLAS_COMPUTE_32F && tf32) ? TF32_BITS : FLOAT_BITS;
}
/* The rows of op(m), one after the other when by_rows, else its columns. */
static std::vector<float> gather(const Matrix &m, bool transpose, bool by_rows, int bits)
{
    const int64_t rows = transpose ? m.cols : m.rows, cols = transpose ? m.rows : m.cols;
    std::vector<float> out((size_t)(rows * cols));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            const float v = transpose ? m.get(j, i) : m.get(i, j);
            out[(size_t)(by_rows ? i * cols + j : j * rows + i)] = rounded(v, bits);
        }
    return out;
}
static std::vector<float> multiply(const Product &p)    /* column-major, summed in floats */
{
    const size_t m = (size_t)p.d.rows, n = (size_t)p.d.cols, k = (size_t)(p.transpose_a ? p.a.rows : p.a.cols);
    const std::vector<float> a = gather(p.a, p.transpose_a, false, p.bits), b = gather(p.b, p.transpose_b, false, p.bits);
    std::vector<float> sum(m * n);
    for (size_t j = 0; j < n; j++)
        for (size_t l = 0; l < k; l++) {
            const float v = b[j * k + l], *column = &a[l * m];
            float *to = &sum[j * m];
            for (size_t i = 0; i < m; i++) to[i] += v * column[i];
        }
    return sum;
}
static void write_sums(const Matrix &bias, const std::vector<double> &sum)
{
    for (size_t i = 0; i < sum.size(); i++) bias.set((int64_t)i, 0, (float)sum[i]);
    bias.check("the bias gradient", false);
}
static void finish_product(const Product &p, const std::vector<float> &sum)
{
    const int64_t m = p.d.rows, n = p.d.cols;
    std::vector<double> bias_gradient(p.epilogue & 16 ? (size_t)m : 0);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float v = p.alpha * sum[(size_t)(j * m + i)];
            if (p.beta != 0) v += p.beta * p.c.get(i, j);
            if (p.epilogue & 4) v += p.bias.get(i, 0);
            uint8_t *mask = p.mask ? p.mask + (j * p.mask_ld + i) / 8 : 0;
            const uint8_t bit = (uint8_t)(1 << (i & 7));
            if (p.epilogue & 2) {
                if (mask) *mask = (uint8_t)(v > 0 ? *mask | bit : *mask & ~bit);
                if (mask) mark_written(mask, 1, 1);
                v = v < 0 ? 0 : v;
            }
            if ((p.epilogue & 8) && !(*mask & bit)) v = 0;
            if (p.epilogue & 16) bias_gradient[(size_t)i] += v;
            p.d.set(i, j, v);
        }
    p.d.check("D", false);
    if (p.epilogue & 16) write_sums(p.bias, bias_gradient);
}
static std::vector<double> sums_over(const std::vector<float> &v, size_t length)
{
    std::vector<double> sum(v.size() / length);
    for (size_t i = 0; i < v.size(); i++) sum[i / length] += v[i];
    return sum;
}
static void run_product(const Product &batch)
{
    Inside open;
    for (int z = 0; z < batch.batch; z++) {
        Product p = batch;
        p.a = batch.a.in_batch(z);
        p.b = batch.b.in_batch(z);
        p.c = batch.c.in_batch(z);
        p.d = batch.d.in_batch(z);
        p.a.check("A", true);
        p.b.check("B", true);
        if (p.beta != 0) p.c.check("C", true);
        if (p.epilogue & 4) p.bias.check("the bias", true);
        const size_t k = (size_t)(p.transpose_a ? p.a.rows : p.a.cols);
        finish_product(p, multiply(p));
        if (p.epilogue & 256) write_sums(p.bias, sums_over(gather(p.a, p.transpose_a, true, FLOAT_BITS), k));
        if (p.epilogue & 512) write_sums(p.bias, sums_over(gather(p.b, p.transpose_b, false, FLOAT_BITS), k));
    }
}

struct coc_blas { cudaStream_t stream; cublasMath_t math; int device; };

static cublasStatus_t enter_blas(const coc_blas *h)
{
    if (enter()) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (h->device != device) finding("cuBLAS is called while device %d is current, on a handle of device %d", device, h->device);
    return CUBLAS_STATUS_SUCCESS;
}
#define ENTER_BLAS(h) do { const cublasStatus_t s_ = enter_blas(h); if (s_) return s_; } while (0)

const char *cublasGetStatusString(cublasStatus_t s) { return s ? "a cuBLAS error" : "success"; }
cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    if (enter()) return CUBLAS_STATUS_ALLOC_FAILED;
    *h = new coc_blas();
    (*h)->device = device;
    live++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    const cudaError_t failed = enter();
    drain_all();
    delete h;
    live--;
    return failed ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) { return cublasCreate(h); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return cublasDestroy(h); }
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    ENTER_BLAS(h);
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t m)
{
    ENTER_BLAS(h);
    h->math = m;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t h, cublasAtomicsMode_t)
{
    ENTER_BLAS(h);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t h, void *p, size_t bytes)
{
    ENTER_BLAS(h);
    if (bytes && (!within(p, bytes) || (uintptr_t)p % 256)) finding("cuBLAS's workspace is not 256-byte aligned device memory");
    return CUBLAS_STATUS_SUCCESS;
}
static std::map<int, long> products;        /* by batch */
long coc_products(int batch) { return products[batch]; }
cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType at, int lda, long long sa, const void *b, cudaDataType bt, int ldb, long long sb, const void *beta,
    void *c, cudaDataType ct, int ldc, long long sc, int batch, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    ENTER_BLAS(h);
    if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(1, ta ? k : m) || ldb < std::max(1, tb ? n : k)
        || ldc < std::max(1, m)) return CUBLAS_STATUS_INVALID_VALUE;
    if (at != bt) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!m || !n || !batch) return CUBLAS_STATUS_SUCCESS;
    if (on_device(alpha) || on_device(beta)) finding("alpha and beta are read on the host");
    if (ct == CUDA_R_16BF && !(h->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)) finding("parts of a sum may be added in bfloat16");
    products[batch]++;
    Product p = {};
    p.a = Matrix{ (char *)a, at, ta ? k : m, ta ? m : k, lda, sa };
    p.b = Matrix{ (char *)b, bt, tb ? n : k, tb ? k : n, ldb, sb };
    p.c = p.d = Matrix{ (char *)c, ct, m, n, ldc, sc };
    p.transpose_a = ta != CUBLAS_OP_N;
    p.transpose_b = tb != CUBLAS_OP_N;
    p.alpha = *(const float *)alpha;
    p.beta = *(const float *)beta;
    p.batch = batch;
    p.bits = bits_of(at, compute, h->math == CUBLAS_TF32_TENSOR_OP_MATH);
    enqueue(h->stream, [=] { run_product(p); });
    return CUBLAS_STATUS_SUCCESS;
}

struct coc_matmul {
    cublasComputeType_t compute;
    int32_t transpose_a, transpose_b, bias_type;
    uint32_t epilogue;
    void *bias, *mask;
    int64_t mask_ld;
};
struct coc_layout { cudaDataType_t type; uint64_t rows, cols; int64_t ld, stride; int32_t batch; };
struct coc_preference { uint64_t workspace; uint32_t reductions, alignment[4]; };     /* of A, B, C, D */
static bool refuse;
static long epilogues;
long coc_epilogues(void) { return epilogues; }
void coc_refuse(int on) { refuse = on != 0; }

template <class T> static cublasStatus_t create(T **out, const T &value)
{
    if (enter()) return CUBLAS_STATUS_ALLOC_FAILED;
    *out = new T(value);
    live++;
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> static cublasStatus_t destroy(T *p)
{
    const cudaError_t failed = enter();
    delete p;
    live--;
    return failed ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
template <class T> static cublasStatus_t set(T *to, const void *value, size_t bytes)
{
    if (enter()) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    return create(d, coc_matmul{ compute, 0, 0, -1, CUBLASLT_EPILOGUE_DEFAULT, 0, 0, 0 });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v, size_t n)
{
    switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:               return set(&d->transpose_a, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSB:               return set(&d->transpose_b, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:             return set(&d->epilogue, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:         return set(&d->bias, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:       return set(&d->bias_type, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&d->mask, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:      return set(&d->mask_ld, v, n);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType t, uint64_t rows, uint64_t cols, int64_t ld)
{
    return create(l, coc_layout{ t, rows, cols, ld, 0, 1 });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return destroy(l); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const void *v, size_t n)
{
    return a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? set(&l->batch, v, n) : set(&l->stride, v, n);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) { return create(p, coc_preference{ 0, 7, { 256, 256, 256, 256 } }); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a,
                                                    const void *v, size_t n)
{
    switch (a) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:   return set(&p->workspace, v, n);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&p->reductions, v, n);
    default:                                         return set(&p->alignment[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, n);
    }
}
static bool fits(const coc_layout *l, uint64_t rows, uint64_t cols)
{
    return l->rows == rows && l->cols == cols && l->ld >= (int64_t)rows;
}
static cublasStatus_t check_matmul(const coc_matmul *d, const coc_layout *a, const coc_layout *b, const coc_layout *c,
                                   const coc_layout *y)
{
    const uint64_t m = y->rows, n = y->cols, k = d->transpose_a ? a->rows : a->cols;
    const uint32_t single = 2 | 4;      /* epilogues that a batch can have */
    if (!fits(c, m, n) || !fits(y, m, n) || !fits(a, d->transpose_a ? k : m, d->transpose_a ? m : k)
        || !fits(b, d->transpose_b ? n : k, d->transpose_b ? k : n)) return CUBLAS_STATUS_INVALID_VALUE;
    if ((d->epilogue & (4 | 16 | 256 | 512)) && !d->bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (d->bias && d->bias_type >= 0 && d->bias_type != (int32_t)y->type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((d->epilogue & 128) && (!d->mask || d->mask_ld % 128 || d->mask_ld < (int64_t)m)) return CUBLAS_STATUS_INVALID_VALUE;
    if (y->batch > 1 && d->epilogue != 1 && (d->epilogue & ~single)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return refuse && d->epilogue != 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p, int wanted, cublasLtMatmulHeuristicResult_t *r, int *got)
{
    *got = 0;
    ENTER_BLAS(h);
    const cublasStatus_t s = check_matmul(d, a, b, c, y);
    if (s || wanted < 1) return s;
    if (y->type != CUDA_R_32F && (p->reductions & ~CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) finding("parts of a sum may be added in the type of D");
    memset(r, 0, sizeof *r);
    for (int i = 0; i < 4; i++) r->algo.data[i] = p->alignment[i];
    *got = 1;
    return CUBLAS_STATUS_SUCCESS;
}
static Matrix matrix(const void *p, const coc_layout *l)
{
    return Matrix{ (char *)p, l->type, (int64_t)l->rows, (int64_t)l->cols, l->ld, l->stride };
}
cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a, cublasLtMatrixLayout_t la, const void *b,
    cublasLtMatrixLayout_t lb, const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *y, cublasLtMatrixLayout_t ly,
    const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const void *const operands[4] = { a, b, c, y };
    ENTER_BLAS(h);
    const cublasStatus_t s = check_matmul(d, la, lb, lc, ly);
    if (s) return s;
    if (on_device(alpha) || on_device(beta)) finding("alpha and beta are read on the host");
    if (workspace_bytes && !within(workspace, workspace_bytes)) finding("cuBLASLt's workspace is not device memory");
    for (int i = 0; i < 4; i++)
        if (algo && (uintptr_t)operands[i] % algo->data[i]) finding("cublasLt was told that operand %c is a multiple of %d bytes", "ABCD"[i], (int)algo->data[i]);
    epilogues += d->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    Product p = {};
    p.a = matrix(a, la);
    p.b = matrix(b, lb);
    p.c = matrix(c, lc);
    p.d = matrix(y, ly);
    p.transpose_a = d->transpose_a != CUBLAS_OP_N;
    p.transpose_b = d->transpose_b != CUBLAS_OP_N;
    p.alpha = *(const float *)alpha;
    p.beta = *(const float *)beta;
    p.batch = ly->batch;
    p.bits = bits_of(la->type, d->compute, false);
    p.epilogue = (int)d->epilogue;
    const int64_t length = d->epilogue & 512 ? p.d.cols : p.d.rows;
    p.bias = Matrix{ (char *)d->bias, d->bias_type < 0 ? ly->type : (cudaDataType_t)d->bias_type, length, 1, length, 0 };
    p.mask = (uint8_t *)d->mask;
    p.mask_ld = d->mask_ld;
    enqueue(stream, [=] { run_product(p); });
    return CUBLAS_STATUS_SUCCESS;
}

/* ============================================================================
   cuDNN: each direction by the same loops
   ============================================================================ */

struct coc_dnn { cudaStream_t stream; int device; };
struct coc_tensor {
    int n, c, h, w;
    size_t count() const { return (size_t)n * (size_t)c * (size_t)h * (size_t)w; }
};
struct coc_filter {
    int k, c, h, w;
    size_t count() const { return (size_t)k * (size_t)c * (size_t)h * (size_t)w; }
};
struct coc_convolution { int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups; cudnnMathType_t math; };

enum { FORWARD, DATA, FILTER };
struct Convolution {
    int direction;
    coc_tensor x, y;
    coc_filter w;
    coc_convolution how;
    const void *a, *b;                  /* factors: x w, w dy or x dy */
    void *out;
    float alpha, beta;
    char *workspace;
    size_t workspace_bytes;
};
static bool has_algorithms;
static long cudnn_calls, convolutions;
void coc_cudnn(int on) { has_algorithms = on != 0; }
long coc_cudnn_calls() { return cudnn_calls; }
long coc_convolutions() { return convolutions; }

/* f(index in x, in w, in y) for every product; padding has none */
template <class F> static void each_product(const Convolution &v, F f)
{
    const int in = v.w.c, out = v.w.k / v.how.groups;
    size_t at_y = 0;
    for (int n = 0; n < v.y.n; n++)
        for (int k = 0; k < v.w.k; k++)
            for (int oh = 0; oh < v.y.h; oh++)
                for (int ow = 0; ow < v.y.w; ow++, at_y++)
                    for (int c = 0; c < in; c++)
                        for (int r = 0; r < v.w.h; r++)
                            for (int s = 0; s < v.w.w; s++) {
                                const int ih = oh * v.how.stride_h - v.how.pad_h + r * v.how.dilation_h;
                                const int iw = ow * v.how.stride_w - v.how.pad_w + s * v.how.dilation_w;
                                if (ih < 0 || ih >= v.x.h || iw < 0 || iw >= v.x.w) continue;
                                const size_t channel = (size_t)(n * v.x.c + k / out * in + c);
                                f((channel * (size_t)v.x.h + (size_t)ih) * (size_t)v.x.w + (size_t)iw,
                                  (((size_t)k * (size_t)in + (size_t)c) * (size_t)v.w.h + (size_t)r) * (size_t)v.w.w + (size_t)s, at_y);
                            }
}
static Matrix flat(const void *p, size_t count) { return Matrix{ (char *)p, CUDA_R_32F, (int64_t)count, 1, (int64_t)count, 0 }; }
static void run_convolution(const Convolution &v)
{
    Inside open;
    const size_t nx = v.x.count(), nw = v.w.count(), ny = v.y.count();
    const Matrix a = flat(v.a, v.direction == DATA ? nw : nx), b = flat(v.b, v.direction == FORWARD ? nw : ny);
    const Matrix out = flat(v.out, v.direction == FORWARD ? ny : v.direction == DATA ? nx : nw);
    const int bits = v.how.math == CUDNN_FMA_MATH ? FLOAT_BITS : TF32_BITS;
    if (v.workspace_bytes) memset(v.workspace, 0xff, v.workspace_bytes);        /* what lay there is gone */
    a.check("a factor of a convolution", true);
    b.check("a factor of a convolution", true);
    if (v.beta != 0) out.check("what a convolution is added to", true);
    const std::vector<float> fa = gather(a, false, false, bits), fb = gather(b, false, false, bits);
    std::vector<float> sum((size_t)out.rows);
    if (v.direction == FORWARD)   each_product(v, [&](size_t x, size_t w, size_t y) { sum[y] += fa[x] * fb[w]; });
    else if (v.direction == DATA) each_product(v, [&](size_t x, size_t w, size_t y) { sum[x] += fa[w] * fb[y]; });
    else                          each_product(v, [&](size_t x, size_t w, size_t y) { sum[w] += fa[x] * fb[y]; });
    for (int64_t i = 0; i < out.rows; i++) out.set(i, 0, v.alpha * sum[(size_t)i] + (v.beta != 0 ? v.beta * out.get(i, 0) : 0));
    out.check("a convolution", false);
}

static cudnnStatus_t enter_cudnn()
{
    cudnn_calls++;
    return enter() ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}
#define ENTER_CUDNN do { const cudnnStatus_t s_ = enter_cudnn(); if (s_) return s_; } while (0)

template <class T> static cudnnStatus_t create_cudnn(T **out)
{
    ENTER_CUDNN;
    *out = new T();
    live++;
    return CUDNN_STATUS_SUCCESS;
}
template <class T> static cudnnStatus_t destroy_cudnn(T *p)
{
    const cudnnStatus_t failed = enter_cudnn();
    delete p;
    live--;
    return failed;
}
const char *cudnnGetErrorString(cudnnStatus_t s) { return s ? "a cuDNN error" : "success"; }
cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    const cudnnStatus_t s = create_cudnn(h);
    if (!s) (*h)->device = device;
    return s;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
    drain_all();
    return destroy_cudnn(h);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
    ENTER_CUDNN;
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *t) { return create_cudnn(t); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return destroy_cudnn(t); }
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t, cudnnDataType_t, int n, int c, int h, int w)
{
    ENTER_CUDNN;
    if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
    *t = coc_tensor{ n, c, h, w };
    return t->count() < (size_t)1 << 31 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *f) { return create_cudnn(f); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f) { return destroy_cudnn(f); }
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t, cudnnTensorFormat_t, int k, int c, int h, int w)
{
    ENTER_CUDNN;
    *f = coc_filter{ k, c, h, w };
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *c) { return create_cudnn(c); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c) { return destroy_cudnn(c); }
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int pad_h, int pad_w, int stride_h, int stride_w,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t mode, cudnnDataType_t)
{
    ENTER_CUDNN;
    if (mode != CUDNN_CROSS_CORRELATION) finding("cuDNN turns filters round unless told otherwise");
    *c = coc_convolution{ pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, 1, CUDNN_DEFAULT_MATH };
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int groups)
{
    ENTER_CUDNN;
    c->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t m)
{
    ENTER_CUDNN;
    c->math = m;
    return CUDNN_STATUS_SUCCESS;
}

/* Algorithms as the heuristic tells them, the fastest first: one that does not take the shape, one that gives other bits
   each time, one that needs memory, one that needs none. */
enum { CANNOT, AT_RANDOM, WITH_MEMORY, PLAIN, ALGORITHMS };
static size_t memory_of(int algorithm, const coc_tensor *y) { return algorithm == WITH_MEMORY ? 100 + 4 * y->count() : 0; }

static int reach(int in, int pad, int kernel, int stride, int dilation) { return (in + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1; }
static void check_shapes(const coc_tensor *x, const coc_filter *w, const coc_convolution *c, const coc_tensor *y)
{
    if (x->n != y->n || y->c != w->k || x->c != w->c * c->groups || w->k % c->groups
        || y->h != reach(x->h, c->pad_h, w->h, c->stride_h, c->dilation_h) || y->w != reach(x->w, c->pad_w, w->w, c->stride_w, c->dilation_w))
        finding("cuDNN: these shapes are no convolution");
}
template <class P> static cudnnStatus_t algorithms(
    const coc_dnn *h, const coc_tensor *x, const coc_filter *w, const coc_convolution *c, const coc_tensor *y, int wanted, int *got, P *p)
{
    *got = 0;
    ENTER_CUDNN;
    if (h->device != device) finding("cuDNN is called while device %d is current, on a handle of device %d", device, h->device);
    check_shapes(x, w, c, y);
    if (!has_algorithms) return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    for (int i = 0; i < ALGORITHMS && i < wanted; i++, ++*got) {
        memset(&p[i], 0xff, sizeof p[i]);
        p[i].algo = (decltype(p->algo))i;
        p[i].status = i == CANNOT ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
        p[i].memory = memory_of(i, y);
        p[i].determinism = i == AT_RANDOM ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
    }
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t h, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y,
    int wanted, int *got, cudnnConvolutionFwdAlgoPerf_t *p)
{
    return algorithms(h, x, w, c, y, wanted, got, p);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t h, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t x,
    int wanted, int *got, cudnnConvolutionBwdDataAlgoPerf_t *p)
{
    return algorithms(h, x, w, c, y, wanted, got, p);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t h, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t c, cudnnFilterDescriptor_t w,
    int wanted, int *got, cudnnConvolutionBwdFilterAlgoPerf_t *p)
{
    return algorithms(h, x, w, c, y, wanted, got, p);
}
static cudnnStatus_t convolve(
    int direction, const coc_dnn *h, const void *alpha, const coc_tensor *x, const coc_filter *w, const coc_convolution *c, const coc_tensor *y,
    const void *a, const void *b, int algorithm, void *workspace, size_t bytes, const void *beta, void *out)
{
    ENTER_CUDNN;
    check_shapes(x, w, c, y);
    if (algorithm == CANNOT) return CUDNN_STATUS_NOT_SUPPORTED;
    if (algorithm == AT_RANDOM) finding("a convolution that gives other bits each time");
    if (bytes < memory_of(algorithm, y) || (bytes && !within(workspace, bytes))) finding("cuDNN's workspace is too small");
    if (on_device(alpha) || on_device(beta)) finding("alpha and beta are read on the host");
    convolutions++;
    const Convolution v = { direction, *x, *y, *w, *c, a, b, out, *(const float *)alpha, *(const float *)beta, (char *)workspace, bytes };
    enqueue(h->stream, [=] { run_convolution(v); });
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t tx, const void *x, cudnnFilterDescriptor_t tw, const void *w,
    cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t bytes, const void *beta,
    cudnnTensorDescriptor_t ty, void *y)
{
    return convolve(FORWARD, h, alpha, tx, tw, c, ty, x, w, algorithm, workspace, bytes, beta, y);
}
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t h, const void *alpha, cudnnFilterDescriptor_t tw, const void *w, cudnnTensorDescriptor_t ty, const void *dy,
    cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace, size_t bytes, const void *beta,
    cudnnTensorDescriptor_t tx, void *dx)
{
    return convolve(DATA, h, alpha, tx, tw, c, ty, w, dy, algorithm, workspace, bytes, beta, dx);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t tx, const void *x, cudnnTensorDescriptor_t ty, const void *dy,
    cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes, const void *beta,
    cudnnFilterDescriptor_t tw, void *dw)
{
    return convolve(FILTER, h, alpha, tx, tw, c, ty, x, dy, algorithm, workspace, bytes, beta, dw);
}

/* ============================================================================
   Race build: every access of a kernel comes here
   For each word: the last write and the last read since the launch (global memory) or since the block began (shared);
   of its upper half alone in a place of their own, since neighbouring threads may have a half each.
   Two accesses of which one writes collide when no barrier of their block, or operation of their warp, lies between.
   ============================================================================ */

#ifdef COC_RACE
struct Access {
    uint32_t life, block, epoch, warp_epoch;    /* life: of the launch or of the block's shared memory */
    uint16_t thread;
    uint8_t bytes;                      /* bit mask within the word */
    bool atomic, threads, warps, blocks;        /* stands for the reads of several */
};
struct Word { Access write[2], read[2]; };
enum Where { OWN_MEMORY, SHARED, GLOBAL };

static const uintptr_t WORDS = 1024;    /* words a page */
static std::map<uintptr_t, std::vector<Word>> pages;
static uint32_t launch_life, block_life;
static uintptr_t call_begin, call_end;
extern "C" char __executable_start, __data_start, _end;         /* the linker's */

static Word *word_at(uintptr_t a)
{
    static uintptr_t last_page = ~(uintptr_t)0;
    static Word *last_words;
    const uintptr_t page = a / 4 / WORDS;
    if (page != last_page) {
        std::vector<Word> &words = pages[page];
        words.resize(WORDS);
        last_page = page;
        last_words = words.data();
    }
    return last_words + a / 4 % WORDS;
}
__attribute__((noreturn)) static void bad(const char *what, uintptr_t a, const void *pc)
{
    finding("%s: %p, by thread %d of block %u, at +0x%zx", what, (void *)a, running->id, block_number,
            (size_t)((const char *)pc - &__executable_start));
}
static bool in(uintptr_t a, const void *p, size_t bytes) { return a - (uintptr_t)p < bytes; }

static Where where(uintptr_t a, size_t bytes, const void *pc)
{
    const void *p = (const void *)a;
    if (in(a, own, OWN) || in(a, &coc_here, sizeof coc_here) || (a >= call_begin && a < call_end)) return OWN_MEMORY;
    if (on_device(p)) {
        if (!within(p, bytes)) bad("outside of every allocation", a, pc);
        return GLOBAL;
    }
    if (in(a, shared_memory, shared_bytes)) return SHARED;
    if (a >= (uintptr_t)&__data_start && a < (uintptr_t)&_end) return SHARED;           /* static shared arrays */
    if (a >= (uintptr_t)&__executable_start && a < (uintptr_t)&__data_start) return OWN_MEMORY;         /* constants */
    if (!is_pinned(p, bytes)) bad("a kernel touches memory of the host", a, pc);
    return OWN_MEMORY;
}
static bool ordered(const Access &a, const Access &b)
{
    if (a.blocks || a.block != b.block) return false;
    if (a.epoch != b.epoch) return true;
    if (a.warps || a.thread / 32 != b.thread / 32) return false;
    return a.warp_epoch != b.warp_epoch || (!a.threads && a.thread == b.thread);
}
static void meet(const Access &before, const Access &now, const char *what, Where w, uintptr_t a, const void *pc)
{
    if (before.life != now.life || !(before.bytes & now.bytes) || (before.atomic && now.atomic) || ordered(before, now)) return;
    finding("race: %s, %s memory %p, thread %d of block %u and thread %d of block %u without a barrier between, at +0x%zx", what,
            w == SHARED ? "shared" : "global", (void *)a, running->id, block_number, before.thread, before.block,
            (size_t)((const char *)pc - &__executable_start));
}
static void look_at_word(uintptr_t a, uint8_t bytes, bool write, bool atomic, Where w, const void *pc)
{
    Word *word = word_at(a);
    const int half = !(bytes & 3);
    Access now = { w == SHARED ? block_life : launch_life, block_number, epoch, running->warp_epoch, (uint16_t)running->id,
                   bytes, atomic, false, false, false };
    if (w == SHARED && !write && word->write[0].life != now.life && word->write[1].life != now.life) bad("shared memory that this block has not written is read", a, pc);
    for (const Access &before : word->write) meet(before, now, write ? "two writes" : "a write, then a read", w, a, pc);
    if (write) {
        for (const Access &before : word->read) meet(before, now, "a read, then a write", w, a, pc);
        const Access &old = word->write[half];
        if (old.life == now.life && old.block == now.block && old.epoch == now.epoch && old.thread == now.thread) now.bytes |= old.bytes;
        word->write[half] = now;
        return;
    }
    const Access &old = word->read[half];
    if (old.life == now.life && !ordered(old, now)) {   /* else who comes behind this read comes behind that one too */
        now.blocks = old.blocks || old.block != now.block;
        now.warps = old.warps || old.thread / 32 != now.thread / 32;
        now.threads = old.threads || old.thread != now.thread;
        now.bytes |= old.bytes;
    } else if (old.life == now.life && old.thread == now.thread && old.epoch == now.epoch) now.bytes |= old.bytes;
    word->read[half] = now;
}
static void count_access(uintptr_t a, size_t bytes, bool write, Where w, const void *pc);
static void access(uintptr_t a, size_t bytes, bool write, bool atomic, const void *pc)
{
    if (!running || fiber == &main_fiber) return;       /* host code */
    const Where w = where(a, bytes, pc);
    if (w == OWN_MEMORY) return;
    if (w == GLOBAL && !write && memchr(written + (a - (uintptr_t)memory), 0, bytes))
        bad("device memory that nothing has written is read", a, pc);
    if (w == GLOBAL && write) memset(written + (a - (uintptr_t)memory), 1, bytes);
    count_access(a, bytes, write, w, pc);
    for (size_t done = 0; done < bytes;) {
        const uintptr_t p = a + done;
        const size_t part = std::min(4 - (p & 3), bytes - done);
        look_at_word(p, (uint8_t)(((1u << part) - 1) << (p & 3)), write, atomic, w, pc);
        done += part;
    }
}
static void look(const void *p, size_t bytes, bool write, bool atomic)
{
    access((uintptr_t)p, bytes, write, atomic, __builtin_return_address(0));
}

extern "C" {
#define CALLBACK(name, n, write) \
    void name##n(void *p) { access((uintptr_t)p, n, write, false, __builtin_return_address(0)); }
CALLBACK(__tsan_read, 1, false) CALLBACK(__tsan_read, 2, false) CALLBACK(__tsan_read, 4, false)
CALLBACK(__tsan_read, 8, false) CALLBACK(__tsan_read, 16, false)
CALLBACK(__tsan_write, 1, true) CALLBACK(__tsan_write, 2, true) CALLBACK(__tsan_write, 4, true)
CALLBACK(__tsan_write, 8, true) CALLBACK(__tsan_write, 16, true)
CALLBACK(__tsan_unaligned_read, 2, false) CALLBACK(__tsan_unaligned_read, 4, false)
CALLBACK(__tsan_unaligned_read, 8, false) CALLBACK(__tsan_unaligned_read, 16, false)
CALLBACK(__tsan_unaligned_write, 2, true) CALLBACK(__tsan_unaligned_write, 4, true)
CALLBACK(__tsan_unaligned_write, 8, true) CALLBACK(__tsan_unaligned_write, 16, true)
void __tsan_read_range(void *p, size_t n) { access((uintptr_t)p, n, false, false, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t n) { access((uintptr_t)p, n, true, false, __builtin_return_address(0)); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
}

/* ---- memory transactions, of the first blocks of each launch ---- */

enum { COUNTED_BLOCKS = 4 };
struct Piece { uintptr_t at; size_t bytes; bool write; Where where; const void *pc; };
struct Request { bool shared; std::vector<Piece> pieces; };
static bool counting;
static int counted_blocks;
static std::map<std::string, coc_traffic> traffic;
static std::map<std::tuple<const void *, int, int>, Request> requests;  /* by place in the code, warp, how often there */
static std::map<std::pair<const void *, int>, int> times;               /*   which is counted by thread */
static Piece open_piece[MAX_THREADS];   /* g++ may split the access of a float4 in four: they are put together again */

void coc_count_traffic(int on)
{
    counting = on != 0;
    if (on) traffic.clear();
}
coc_traffic coc_traffic_of(const char *kernel)
{
    coc_traffic sum = { 0, 0, 0, 0, 0 };
    for (const auto &t : traffic)
        if (t.first.find(kernel) != std::string::npos) {
            sum.requests += t.second.requests;
            sum.sectors += t.second.sectors;
            sum.least_sectors += t.second.least_sectors;
            sum.passes += t.second.passes;
            sum.least_passes += t.second.least_passes;
        }
    return sum;
}
static void close_piece(int thread)
{
    Piece *p = &open_piece[thread];
    if (!p->bytes) return;
    Request &r = requests[std::make_tuple(p->pc, thread / 32, times[std::make_pair(p->pc, thread)]++)];
    r.shared = p->where == SHARED;
    r.pieces.push_back(*p);
    p->bytes = 0;
}
static void count_access(uintptr_t a, size_t bytes, bool write, Where w, const void *pc)
{
    if (!counting || counted_blocks >= COUNTED_BLOCKS) return;
    Piece *p = &open_piece[running->id];
    if (p->bytes && p->at + p->bytes == a && p->write == write && p->where == w && p->at % 16 + p->bytes + bytes <= 16) {
        p->bytes += bytes;
        return;
    }
    close_piece(running->id);
    *p = Piece{ a, bytes, write, w, pc };
}
static void count_request(const Request &r, coc_traffic *sum)
{
    std::set<uintptr_t> sectors, words;
    size_t bank[32] = { 0 };
    for (const Piece &p : r.pieces) {
        for (uintptr_t s = p.at / 32; s <= (p.at + p.bytes - 1) / 32; s++) sectors.insert(s);
        for (uintptr_t w = p.at / 4; w <= (p.at + p.bytes - 1) / 4; w++) words.insert(w);
    }
    sum->requests++;
    if (!r.shared) {
        sum->sectors += (double)sectors.size();
        sum->least_sectors += (double)((words.size() + 7) / 8);
        return;
    }
    for (uintptr_t w : words) bank[w % 32]++;
    sum->passes += (double)*std::max_element(bank, bank + 32);
    sum->least_passes += (double)((words.size() + 31) / 32);
}
static void begin_grid_check(const coc_call *c)
{
    launch_life += 2;                   /* even; blocks' are odd */
    call_begin = (uintptr_t)c;
    call_end = call_begin + c->bytes;
    counted_blocks = 0;
}
static void begin_block_check() { block_life = block_life ? block_life + 2 : 1; }
static void end_block_check()
{
    if (!counting || counted_blocks++ >= COUNTED_BLOCKS) return;
    for (int t = 0; t < thread_count; t++) close_piece(t);
    for (const auto &r : requests) count_request(r.second, &traffic[std::string(kernel_name) + kernel_types]);
    requests.clear();
    times.clear();
}
#else
static void look(const void *, size_t, bool, bool) {}
static void begin_grid_check(const coc_call *) {}
static void begin_block_check() {}
static void end_block_check() {}
void coc_count_traffic(int) {}
coc_traffic coc_traffic_of(const char *) { return coc_traffic{ 0, 0, 0, 0, 0 }; }
#endif
