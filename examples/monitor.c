/* monitor.c - what memory and load look like from outside while something trains, in the columns of
       nvidia-smi --query-gpu=timestamp,memory.used,memory.free,memory.total,utilization.gpu --format=csv -l 5
   and which processes hold the memory. NVIDIA's library of measurements, NVML, comes with the driver and is looked for when
   the program runs; without it, it says so and shows the host.
   Build: cc -O2 -I. examples/monitor.c -o monitor -lm -pthread (before glibc 2.34 also -ldl)
   Run:   ./monitor [-l seconds] [-n lines] [--processes]      without -l one line, without -n until it is stopped
   Prints, on a machine without a card:
       monitor: libnvidia-ml.so.1: cannot open shared object file: No such file or directory; the host instead of a card
       timestamp, memory.used [MiB], memory.free [MiB], memory.total [MiB], utilization.cpu [%]
       2026/11/30 12:20:01.204, 1021 MiB, 23084 MiB, 24105 MiB, 97 %
   A program's own view of the same is nnt_memory_info. */
#define NNTRAIN_IMPLEMENTATION
#include "nntrain.h"
#include <time.h>
#ifdef _WIN32
#  define NVML "nvml.dll"
#else
#  include <ctype.h>
#  include <dirent.h>
#  include <dlfcn.h>
#  define NVML "libnvidia-ml.so.1"
#endif

enum { MOST = 64, SHOWN = 5 };

/* ---- NVML: the few functions that are needed, declared as its header does (docs.nvidia.com/deploy/nvml-api) */

typedef struct memory { unsigned long long total, unused, used; } memory;
typedef struct utilization { unsigned gpu, memory; } utilization;
typedef struct process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } process;

typedef struct nvml {
    int (*init)(void);
    int (*device_count)(unsigned *count);
    int (*device)(unsigned index, void **handle);
    int (*device_memory)(void *handle, memory *out);
    int (*device_load)(void *handle, utilization *out);
    int (*device_processes)(void *handle, unsigned *count, process *out);
} nvml;

static void *library_open(char *why, size_t cap)
{
#ifdef _WIN32
    void *library = (void *)LoadLibraryA(NVML);
    if (!library) snprintf(why, cap, "%s is not there", NVML);
#else
    void *library = dlopen(NVML, RTLD_NOW);
    if (!library) snprintf(why, cap, "%s", dlerror());
#endif
    return library;
}
/* Puts the function of that name into *to, a pointer to a function; 0 when there is none. */
static int library_find(void *library, const char *name, void *to)
{
#ifdef _WIN32
    FARPROC found = GetProcAddress((HMODULE)library, name);
#else
    void *found = dlsym(library, name);
#endif
    memcpy(to, &found, sizeof found);
    return found != NULL;
}
/* 0 and a reason when there is no card to ask. */
static int nvml_open(nvml *n, unsigned *cards, char *why, size_t cap)
{
    void *library = library_open(why, cap);
    if (!library) return 0;
    if (!library_find(library, "nvmlInit_v2", &n->init) || !library_find(library, "nvmlDeviceGetCount_v2", &n->device_count)
        || !library_find(library, "nvmlDeviceGetHandleByIndex_v2", &n->device) || !library_find(library, "nvmlDeviceGetMemoryInfo", &n->device_memory)
        || !library_find(library, "nvmlDeviceGetUtilizationRates", &n->device_load)) {
        snprintf(why, cap, "%s lacks a function", NVML);
        return 0;
    }
    if (!library_find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->device_processes))
        library_find(library, "nvmlDeviceGetComputeRunningProcesses_v2", &n->device_processes);     /* the same struct */
    if (n->init() || n->device_count(cards) || !*cards) {
        snprintf(why, cap, "%s finds no card", NVML);
        return 0;
    }
    return 1;
}

/* ---- lines */

static void print_line(double used, double unused, double total, int load)
{
    char date[32];
    double now = 0;
    time_t second = time(NULL);
#ifndef _WIN32
    struct timeval t;
    gettimeofday(&t, NULL);
    second = t.tv_sec;
    now = (double)t.tv_usec / 1000;
#endif
    strftime(date, sizeof date, "%Y/%m/%d %H:%M:%S", localtime(&second));
    printf("%s.%03d, %.0f MiB, %.0f MiB, %.0f MiB, ", date, (int)now, used / 1048576, unused / 1048576, total / 1048576);
    if (load >= 0) printf("%d %%\n", load);
    else printf("[N/A]\n");
}
static void process_name(unsigned pid, char *name, size_t cap)
{
    char path[64];
    FILE *f;
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    f = fopen(path, "r");
    if (!f || !fgets(name, (int)cap, f)) snprintf(name, cap, "?");
    name[strcspn(name, "\n")] = 0;
    if (f) fclose(f);
}
static int by_bytes(const void *a, const void *b)
{
    const process *x = (const process *)a, *y = (const process *)b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}
static void print_processes(process *list, unsigned count, double total)
{
    unsigned i;
    qsort(list, count, sizeof *list, by_bytes);
    for (i = 0; i < count && i < SHOWN; i++) {
        char name[64];
        process_name(list[i].pid, name, sizeof name);
        if (list[i].bytes == ~0ull) printf("    pid %u, [N/A], %s\n", list[i].pid, name);      /* the driver may not tell */
        else printf("    pid %u, %.0f MiB, %.1f %%, %s\n", list[i].pid, (double)list[i].bytes / 1048576, 100.0 * (double)list[i].bytes / total, name);
    }
}

static void watch_cards(const nvml *n, unsigned cards, int processes)
{
    static process list[MOST];
    unsigned i, count;
    for (i = 0; i < cards; i++) {
        void *card;
        memory m;
        utilization u;
        if (n->device(i, &card) || n->device_memory(card, &m)) { printf("card %u does not answer\n", i); continue; }
        print_line((double)m.used, (double)m.unused, (double)m.total, n->device_load(card, &u) ? -1 : (int)u.gpu);
        count = MOST;
        if (processes && n->device_processes && !n->device_processes(card, &count, list)) print_processes(list, count, (double)m.total);
    }
}

/* Share of all cores' time that was not idle since the last call, in percent; -1 where the system does not tell. */
static int host_load(void)
{
    static double last_all, last_idle;
    double field[8] = { 0 }, all = 0, idle, share;
    FILE *f = fopen("/proc/stat", "r");
    int i, read_fields = f ? fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &field[0], &field[1], &field[2], &field[3], &field[4], &field[5], &field[6], &field[7]) : 0;
    if (f) fclose(f);
    if (read_fields < 5) return -1;
    for (i = 0; i < read_fields; i++) all += field[i];
    idle = field[3] + field[4];                                 /* idle, waiting for a disk */
    share = all > last_all ? 100 * (1 - (idle - last_idle) / (all - last_all)) : 0;
    last_all = all;
    last_idle = idle;
    return (int)(share + 0.5);
}
/* The largest processes by their resident pages. */
static unsigned host_processes(process *list)
{
    unsigned count = 0;
#if defined(__linux__)
    DIR *proc = opendir("/proc");
    struct dirent *e;
    while (proc && (e = readdir(proc)) != NULL) {
        char path[300];
        double size, pages;
        FILE *f;
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%s/statm", e->d_name);
        f = fopen(path, "r");
        if (f && fscanf(f, "%lf %lf", &size, &pages) == 2) {
            list[count].pid = (unsigned)strtoul(e->d_name, NULL, 10);
            list[count++].bytes = (unsigned long long)(pages * (double)sysconf(_SC_PAGESIZE));
            if (count == MOST) {                                /* the larger half goes on */
                qsort(list, count, sizeof *list, by_bytes);
                count = MOST / 2;
            }
        }
        if (f) fclose(f);
    }
    if (proc) closedir(proc);
#else
    (void)list;
#endif
    return count;
}
static void watch_host(int processes)
{
    static process list[MOST];
    nnt_memory_usage m;
    char why[200];
    if (nnt_memory_info("cpu", &m, why, sizeof why)) { printf("%s\n", why); return; }
    print_line((double)m.used, (double)m.available, (double)m.total, host_load());
    if (processes) print_processes(list, host_processes(list), (double)m.total);
}

static void pause_for(int ms)
{
#ifdef _WIN32
    Sleep((DWORD)ms);
#else
    struct timespec t;
    t.tv_sec = ms / 1000;
    t.tv_nsec = (long)(ms % 1000) * 1000000;
    nanosleep(&t, NULL);
#endif
}

int main(int argc, char **argv)
{
    nvml n;
    char why[300] = "";
    unsigned cards = 0;
    int i, every = 0, lines = 0, processes = 0, gpu;
    memset(&n, 0, sizeof n);
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-l") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) every = atoi(argv[++i]);
        else if (strcmp(argv[i], "-n") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) lines = atoi(argv[++i]);
        else if (strcmp(argv[i], "--processes") == 0) processes = 1;
        else {
            fprintf(stderr, "usage: %s [-l seconds] [-n lines] [--processes]\n", argv[0]);
            return 2;
        }
    }
    if (!every) lines = lines ? lines : 1;
    gpu = nvml_open(&n, &cards, why, sizeof why);
    if (!gpu) {
        fprintf(stderr, "monitor: %s; the host instead of a card\n", why);
        host_load();                                            /* load is between two looks */
        pause_for(200);
    }
    printf("timestamp, memory.used [MiB], memory.free [MiB], memory.total [MiB], utilization.%s [%%]\n", gpu ? "gpu" : "cpu");
    for (i = 0; !lines || i < lines; i++) {
        if (i) pause_for(1000 * (every ? every : 1));
        if (gpu) watch_cards(&n, cards, processes);
        else watch_host(processes);
        fflush(stdout);
    }
    return 0;
}
