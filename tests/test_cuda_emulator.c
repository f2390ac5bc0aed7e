/* The emulator that runs nntrain_cuda.cu without a GPU (cuda_on_cpu.h) against programs with a planted mistake, each
   (cuda_faults.cu). A mistake has to be found; without it the same program has to pass, under any order of threads. */
#include "cuda_on_cpu.h"
#include "cuda_faults.h"
#include "test.h"
#include <sys/wait.h>
#include <unistd.h>

enum { SEEDS = 6, REPORT = 4096 };
static const int orders[3] = { COC_AT_ONCE, COC_LATE, COC_AT_RANDOM };

/* Under each seed and order of streams; the first wrong result. */
static int run(int (*program)(int fault), int fault)
{
    int seed, k;
    for (seed = 0; seed < SEEDS; seed++)
        for (k = 0; k < 3; k++) {
            coc_seed((unsigned)seed);
            coc_streams(orders[k]);
            if (program(fault)) return 1;
        }
    return 0;
}

/* In a process of its own, which may crash: what it printed, and how it ended. */
static void report_of(int (*program)(int fault), char report[REPORT])
{
    int pipes[2], status = 0;
    size_t length = 0;
    ssize_t got;
    pid_t child;
    report[0] = 0;
    fflush(stdout);
    if (pipe(pipes)) return;
    child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        if (run(program, 1)) fprintf(stderr, "wrong result\n");
        _exit(0);
    }
    close(pipes[1]);
    while (length < REPORT - 32 && (got = read(pipes[0], report + length, REPORT - 32 - length)) > 0) length += (size_t)got;
    report[length] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) snprintf(report + length, 32, "signal %d", WTERMSIG(status));
}

#if defined(__SANITIZE_ADDRESS__)
#  define CHOOSE(plain, asan, race) asan
#elif defined(COC_RACE)
#  define CHOOSE(plain, asan, race) race
#else
#  define CHOOSE(plain, asan, race) plain
#endif

typedef struct fault { const char *name; int (*program)(int fault); const char *report; } fault;
#define LINE(name, plain, asan, race) { #name, name, CHOOSE(plain, asan, race) },
static const fault faults[] = { FAULTS(LINE) };
enum { FAULT_COUNT = sizeof faults / sizeof faults[0] };

static void programs_without_a_fault_pass(void)
{
    int i;
    for (i = 0; i < (int)FAULT_COUNT; i++) CHECKF(!run(faults[i].program, 0), "%s", faults[i].name);
    CHECKF(coc_live() == 0, "%ld objects are left", coc_live());
}
static void planted_faults_are_found(void)
{
    static char report[REPORT];
    int i;
    for (i = 0; i < (int)FAULT_COUNT; i++) {
        if (!*faults[i].report) continue;
        report_of(faults[i].program, report);
        CHECKF(strstr(report, faults[i].report), "%s: not \"%s\", but \"%.200s\"", faults[i].name, faults[i].report, report);
    }
}
/* Each is found by one build at least, and by all three together every one is. */
static void every_fault_is_found_by_a_build(void)
{
#define FOUND(name, plain, asan, race) CHECKF(*plain || *asan || *race, "%s", #name);
    FAULTS(FOUND)
}

int main(int argc, char **argv)
{
    TEST_BEGIN(argc, argv);
    TEST(programs_without_a_fault_pass);
    TEST(planted_faults_are_found);
    TEST(every_fault_is_found_by_a_build);
    return TEST_END();
}
