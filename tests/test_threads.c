/* test_threads.c - the pool: every chunk once, on a worker of its own; regions inside regions; the host's threads; how many
   cores there are; what an empty region costs. */
#define _GNU_SOURCE                     /* sched_setaffinity */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include "test.h"

enum { MOST_CHUNKS = 1000 };
static const int thread_counts[] = { 1, 2, 3, 8 };

static nnt_allocator heap(void) { return nnti_allocator(NULL); }

/* Each chunk leaves its mark and checks that nobody else has this worker's place. */
typedef struct marks {
    nnti_pool *pool;
    int count[MOST_CHUNKS], busy[NNTI_MAX_THREADS], clashes, strangers, inner[MOST_CHUNKS];
} marks;

static void mark(void *arg, int64_t chunk, int worker)
{
    marks *m = (marks *)arg;
    if (worker < 0 || worker >= nnti_pool_threads(m->pool)) { nnti_atomic_add(&m->strangers, 1); return; }
    if (nnti_atomic_add(&m->busy[worker], 1)) nnti_atomic_add(&m->clashes, 1);
    nnti_atomic_add(&m->count[chunk], 1);
    nnti_atomic_add(&m->busy[worker], -1);
}
static void check_marks(const marks *m, int chunks, int times)
{
    int i;
    CHECKF(!m->clashes && !m->strangers, "threads=%d chunks=%d: %d clashes, %d strangers", nnti_pool_threads(m->pool), chunks, m->clashes, m->strangers);
    for (i = 0; i < MOST_CHUNKS; i++)
        CHECKF(m->count[i] == (i < chunks ? times : 0), "threads=%d chunks=%d: chunk %d ran %d times", nnti_pool_threads(m->pool), chunks, i, m->count[i]);
}
static void every_chunk_runs_once_on_a_worker_of_its_own(void)
{
    static const int chunk_counts[] = { 0, 1, 2, 3, 7, 8, 9, 100, MOST_CHUNKS };
    static marks m;
    const nnt_allocator a = heap();
    int t, c, times;
    for (t = 0; t < 4; t++) {
        nnti_pool *pool = nnti_pool_start(&a, thread_counts[t]);
        for (c = 0; c < 9; c++) {
            memset(&m, 0, sizeof m);
            m.pool = pool;
            for (times = 0; times < 20; times++) nnti_parallel(pool, chunk_counts[c], mark, &m);
            check_marks(&m, chunk_counts[c], 20);
        }
        nnti_pool_stop(pool);
    }
}

static void add_one(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    ((int *)arg)[chunk]++;              /* not atomic: a region has to be over before the next one begins */
}
static void regions_follow_each_other_awake_and_asleep(void)
{
    const nnt_allocator a = heap();
    nnti_pool *pool = nnti_pool_start(&a, 3);
    int sums[16] = { 0 }, i, times = 0;
    for (i = 0; i < 3000; i++, times++) nnti_parallel(pool, 16, add_one, sums);
    for (i = 0; i < 20; i++, times++) {
        double start = nnti_seconds();
        while (nnti_seconds() - start < 1e-3) nnti_yield();     /* ten times as long as workers stay awake */
        nnti_parallel(pool, 16, add_one, sums);
    }
    for (i = 0; i < 16; i++) CHECKF(sums[i] == times, "chunk %d: %d of %d", i, sums[i], times);
    nnti_pool_stop(pool);
}
static void pools_start_and_stop_in_any_state(void)
{
    const nnt_allocator a = heap();
    int i, sums[4] = { 0 };
    for (i = 0; i < 50; i++) {
        nnti_pool *pool = nnti_pool_start(&a, 4);
        if (i % 2) nnti_parallel(pool, 4, add_one, sums);
        nnti_pool_stop(pool);
    }
    CHECK(sums[0] == 25 && sums[3] == 25);
    nnti_pool_stop(NULL);
}

/* A region inside of a chunk runs on that chunk's worker. */
static void mark_inner(void *arg, int64_t chunk, int worker)
{
    marks *m = (marks *)arg;
    m->inner[worker]++;
    (void)chunk;
}
static void mark_outer(void *arg, int64_t chunk, int worker)
{
    marks *m = (marks *)arg;
    const int before = m->inner[worker];
    mark(arg, chunk, worker);
    nnti_parallel(m->pool, 5, mark_inner, m);
    if (m->inner[worker] != before + 5) nnti_atomic_add(&m->clashes, 1);
}
static void a_region_inside_a_region_runs_on_its_worker(void)
{
    static marks m;
    const nnt_allocator a = heap();
    int t;
    for (t = 0; t < 4; t++) {
        nnti_pool *pool = nnti_pool_start(&a, thread_counts[t]);
        memset(&m, 0, sizeof m);
        m.pool = pool;
        nnti_parallel(pool, 200, mark_outer, &m);
        check_marks(&m, 200, 1);
        nnti_pool_stop(pool);
    }
}

/* The caller is done with its own chunks, and waits, when a worker's chunk begins a region of its own. */
typedef struct late { nnti_pool *pool; int ran, came, inner, late, outside; } late;
static void count_late(void *arg, int64_t chunk, int worker)
{
    late *l = (late *)arg;
    (void)chunk;
    if (worker == 1) l->inner++; else nnti_atomic_add(&l->outside, 1);
}
static void begin_late(void *arg, int64_t chunk, int worker)
{
    late *l = (late *)arg;
    const double start = nnti_seconds();
    if (chunk == 0 && worker == 0) {        /* leaves the other chunk to the worker */
        while (!nnti_atomic_load(&l->came) && nnti_seconds() - start < 1) nnti_yield();
        return;
    }
    nnti_atomic_store(&l->came, 1);
    if (worker != 1) return;                /* nobody else has come: nothing is late */
    while (nnti_atomic_load(&l->pool->state) & 1 && nnti_seconds() - start < 1) nnti_yield();
    l->late += !(nnti_atomic_load(&l->pool->state) & 1);
    l->ran = 1;
    nnti_parallel(l->pool, 5, count_late, l);
}
static void a_region_inside_the_last_chunk_runs_on_its_worker(void)
{
    const nnt_allocator a = heap();
    nnti_pool *pool = nnti_pool_start(&a, 2);
    int i, late_ones = 0;
    if (nnti_pool_threads(pool) < 2) { nnti_pool_stop(pool); SKIP("needs threads"); }
    for (i = 0; i < 50; i++) {
        late l;
        memset(&l, 0, sizeof l);
        l.pool = pool;
        nnti_parallel(pool, 2, begin_late, &l);
        CHECKF(l.inner == 5 * l.ran && !l.outside, "turn %d: %d of %d on the worker, %d elsewhere", i, l.inner, 5 * l.ran, l.outside);
        late_ones += l.late;
    }
    CHECKF(late_ones > 0, "in no turn of %d was the caller done first", i);
    nnti_pool_stop(pool);
}

/* ---- the host's threads ---- */

typedef struct host { int way, calls, most; } host;
typedef struct host_job { void (*task)(void *, int); void *arg; int first, count; } host_job;
static void host_main(void *arg)
{
    host_job *j = (host_job *)arg;
    int i;
    for (i = j->first; i < j->count; i += 2) j->task(j->arg, i);
}
/* way 0: backwards in this thread; 1: on two new threads; 2: leaves the last ones out, which is not allowed */
static void host_for(void *user, int count, void (*task)(void *arg, int index), void *arg)
{
    host *h = (host *)user;
    int i;
    h->calls++;
    h->most = nnti_max(h->most, count);
    if (h->way == 1) {
        host_job jobs[2];
        nnti_thread threads[2];
        int started[2];
        for (i = 0; i < 2; i++) {
            jobs[i].task = task;
            jobs[i].arg = arg;
            jobs[i].first = i;
            jobs[i].count = count;
            started[i] = nnti_thread_start(&threads[i], host_main, &jobs[i]);
            if (!started[i]) host_main(&jobs[i]);
        }
        for (i = 0; i < 2; i++) if (started[i]) nnti_thread_join(&threads[i]);
    } else {
        for (i = h->way == 2 ? 0 : count - 1; i >= 0; i--) task(arg, i);
    }
}
static void a_host_runs_every_chunk_once(void)
{
    static marks m;
    const nnt_allocator a = heap();
    int way;
    for (way = 0; way < 3; way++) {
        nnti_pool *pool = nnti_pool_start(&a, 4);
        int sums[4] = { 0 };
        host h;
        memset(&h, 0, sizeof h);
        memset(&m, 0, sizeof m);
        h.way = way;
        m.pool = pool;
        nnti_parallel(pool, 4, add_one, sums);                  /* own threads before */
        nnti_pool_set_host(pool, host_for, &h);
        nnti_parallel(pool, 200, mark_outer, &m);
        check_marks(&m, 200, 1);
        CHECKF(h.calls == (nnti_pool_threads(pool) > 1) && h.most <= 4, "way %d: %d calls, %d tasks", way, h.calls, h.most);
        nnti_pool_set_host(pool, NULL, NULL);
        nnti_parallel(pool, 4, add_one, sums);                  /* and after */
        CHECK(sums[0] == 2 && sums[3] == 2);
        nnti_pool_stop(pool);
    }
}
/* Three steps of a small net; the loss of the last. */
static float train(int threads, host *h)
{
    enum { BATCH = 16 };
    static float x[BATCH * 64];
    int32_t labels[BATCH];
    nnt_net *net = nnt_new(NULL);
    nnt_compile_desc d;
    nnt_batch b;
    nnt_node n = nnt_input(net, 1, 8, 8);
    float loss = -1;
    int i;
    memset(&d, 0, sizeof d);
    memset(&b, 0, sizeof b);
    for (i = 0; i < BATCH * 64; i++) x[i] = (float)(i * 7 % 31) / 31.0f;
    for (i = 0; i < BATCH; i++) labels[i] = i % 10;
    n = nnt_maxpool(nnt_relu(nnt_batchnorm(nnt_conv2d(n, 16, 3, 1, 1))), 2, 2, 0);
    n = nnt_linear(nnt_dropout(nnt_relu(nnt_linear(n, 100)), 0.5f), 10);
    d.batch = b.count = BATCH;
    d.threads = threads;
    d.optimizer = nnt_adam(1e-2f);
    if (h) {
        d.parallel_for = host_for;
        d.parallel_user = h;
    }
    b.x = x;
    b.labels = labels;
    CHECKF(nnt_compile(net, nnt_cross_entropy(n), d) == NNT_OK, "%s", nnt_error(net));
    for (i = 0; i < 3; i++) CHECKF(nnt_step(net, &b, &loss) == NNT_OK, "%s", nnt_error(net));
    nnt_free(net);
    return loss;
}
static void a_net_trains_on_the_hosts_threads_to_the_same_bits(void)
{
    const float alone = train(1, NULL);
    int way;
    for (way = 0; way < 2; way++) {
        host h;
        float loss;
        memset(&h, 0, sizeof h);
        h.way = way;
        loss = train(4, &h);
        CHECKF(nnti_float_bits(loss) == nnti_float_bits(alone), "way %d: %.9g instead of %.9g", way, (double)loss, (double)alone);
        CHECKF(h.calls > 10, "way %d: called %d times", way, h.calls);
    }
}

/* ---- how many cores ---- */

static void affinity_is_read_from_its_mask(void)
{
    CHECK(nnti_affinity_cores("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n") == 8);
    CHECK(nnti_affinity_cores("Cpus_allowed:\t00000001,80000000\n") == 2);
    CHECK(nnti_affinity_cores("Cpus_allowed:\t5") == 2);
    CHECK(nnti_affinity_cores("Name:\tx\n") == 0);
    CHECK(nnti_affinity_cores("") == 0);
}
static void quota_is_rounded_to_cores(void)
{
    CHECK(nnti_quota_cores("max 100000\n") == 0);
    CHECK(nnti_quota_cores("200000 100000\n") == 2);
    CHECK(nnti_quota_cores("250000 100000\n") == 3);        /* a half core more is worth a thread */
    CHECK(nnti_quota_cores("240000 100000\n") == 2);
    CHECK(nnti_quota_cores("1000 100000\n") == 1);          /* never none */
    CHECK(nnti_quota_cores("200000") == 0);
    CHECK(nnti_quota_cores("200000 0") == 0);
    CHECK(nnti_quota_cores("") == 0);
}
static void a_process_bound_to_one_core_gets_one_thread(void)
{
#if defined(__linux__) && !defined(NNT_NO_THREADS)
    cpu_set_t all, one;
    int i;
    if (sched_getaffinity(0, sizeof all, &all)) SKIP("no affinity here");
    CPU_ZERO(&one);
    for (i = 0; i < CPU_SETSIZE && !CPU_ISSET(i, &all); i++) { }
    CPU_SET(i, &one);
    if (sched_setaffinity(0, sizeof one, &one)) SKIP("affinity can't be set here");
    CHECK(nnti_core_count() == 1);
    sched_setaffinity(0, sizeof all, &all);
    CHECK(nnti_core_count() <= CPU_COUNT(&all));
#else
    SKIP("Linux only");
#endif
}

/* ---- cost ---- */

static void nothing(void *arg, int64_t chunk, int worker) { (void)arg; (void)chunk; (void)worker; }
static void an_empty_region_takes_less_than_5_microseconds(void)
{
    const nnt_allocator a = heap();
    nnti_pool *pool;
    double best = 1, start = nnti_seconds();
    int batch, i;
    for (i = 0; i < 100; i++) nnti_seconds();
    if (nnti_seconds() - start > 100 * 0.5e-6) SKIP("reading the clock takes longer than half a microsecond: no machine to time on");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers slow it down");
#endif
    if (nnti_core_count() < 2) SKIP("a single core");
    pool = nnti_pool_start(&a, 2);
    for (batch = 0; batch < 300; batch++) {     /* the best of many: the machine may be busy */
        start = nnti_seconds();
        for (i = 0; i < 50; i++) nnti_parallel(pool, 2, nothing, NULL);
        if (nnti_seconds() - start < 50 * best) best = (nnti_seconds() - start) / 50;
    }
    CHECKF(best < 5e-6, "%.2f microseconds", 1e6 * best);
    nnti_pool_stop(pool);
}

/* ---- pages ---- */

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <sys/resource.h>
static long faults(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_minflt + u.ru_majflt;
}
#endif
/* Everything was taken by nnt_compile and touched by the first step. */
static void later_steps_fault_no_pages(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__linux__)
    SKIP("needs Linux without sanitizers, whose own pages would count");
#else
    enum { BATCH = 32, SIZE = 64, STEPS = 10 };
    const size_t floats = (size_t)BATCH * 3 * SIZE * SIZE;
    float *x = (float *)calloc(floats, sizeof *x);
    int32_t labels[BATCH] = { 0 };
    nnt_net *net = nnt_new(NULL);
    nnt_node n = nnt_input(net, 3, SIZE, SIZE);
    nnt_compile_desc d;
    nnt_batch b;
    nnt_memory m;
    long before;
    int i;
    memset(&d, 0, sizeof d);
    memset(&b, 0, sizeof b);
    n = nnt_maxpool(nnt_relu(nnt_batchnorm(nnt_conv2d(n, 32, 3, 1, 1))), 2, 2, 0);
    n = nnt_relu(nnt_batchnorm(nnt_conv2d(n, 64, 3, 1, 1)));
    n = nnt_linear(nnt_dropout(nnt_relu(nnt_linear(n, 64)), 0.5f), 10);
    d.batch = b.count = BATCH;
    d.threads = 2;
    d.optimizer = nnt_adam(1e-3f);
    b.x = x;
    b.labels = labels;
    CHECK(nnt_plan(net, nnt_cross_entropy(n), d, &m) == NNT_OK && m.total > (size_t)16 << 20);  /* 4096 pages and more */
    CHECKF(nnt_compile(net, nnt_cross_entropy(n), d) == NNT_OK, "%s", nnt_error(net));
    for (i = 0; i < 2; i++) CHECK(nnt_step(net, &b, NULL) == NNT_OK);
    before = faults();
    for (i = 0; i < STEPS; i++) CHECK(nnt_step(net, &b, NULL) == NNT_OK);
    /* one a step is left to the stacks, and to a system that moves or joins pages behind our back */
    CHECKF(faults() - before <= STEPS, "%ld faults in %d steps", faults() - before, (int)STEPS);
    nnt_free(net);
    free(x);
#endif
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(every_chunk_runs_once_on_a_worker_of_its_own);
    TEST(regions_follow_each_other_awake_and_asleep);
    TEST(pools_start_and_stop_in_any_state);
    TEST(a_region_inside_a_region_runs_on_its_worker);
    TEST(a_region_inside_the_last_chunk_runs_on_its_worker);
    TEST(a_host_runs_every_chunk_once);
    TEST(a_net_trains_on_the_hosts_threads_to_the_same_bits);
    TEST(affinity_is_read_from_its_mask);
    TEST(quota_is_rounded_to_cores);
    TEST(a_process_bound_to_one_core_gets_one_thread);
    TEST(an_empty_region_takes_less_than_5_microseconds);
    TEST(later_steps_fault_no_pages);
    return TEST_END();
}
