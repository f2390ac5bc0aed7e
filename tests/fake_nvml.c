/* fake_nvml.c - two cards for examples/monitor.c: the driver's libnvidia-ml.so.1 as far as that calls it. Built as a shared
   library of that name by build.sh. */
struct memory { unsigned long long total, unused, used; };
struct utilization { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };

static char cards[2];

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &cards[index]; return index < 2 ? 0 : 2; }
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out)
{
    out->total = 16ull << 30;
    out->used = handle == &cards[0] ? 3ull << 30 : 5ull << 20;
    out->unused = out->total - out->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *out)
{
    out->gpu = 87;
    out->memory = 40;
    return handle == &cards[0] ? 0 : 3;             /* NVML_ERROR_NOT_SUPPORTED */
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *out)
{
    *count = handle == &cards[0] ? 2 : 0;
    out[0].pid = 4000000001u;
    out[0].bytes = 1ull << 30;
    out[1].pid = 4000000002u;
    out[1].bytes = 2ull << 30;
    return 0;
}
