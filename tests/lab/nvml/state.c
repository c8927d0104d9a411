/* Read the state of the lab's GPUs: identities, faults, and who holds how much memory.
 *
 * Memory is held by POSIX record locks on gpuN.mem, one byte of range per MiB: the kernel names the
 * holder's pid (translated to the reader's pid namespace, as NVML on the owning host does), and drops
 * the lock when the process dies, however it dies. OFD locks would survive in forked children and
 * carry no pid. A POSIX lock is also dropped when its process closes any descriptor of the file, so
 * this library opens each file once and never closes it: it may share a process with a holder.
 * Asking with F_OFD_GETLK shows the caller's own locks too; F_GETLK would leave them out.
 */
#define _GNU_SOURCE
#include "lab.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lab_state lab;
static char folder[256];

static FILE *open_state(const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "re");
}

static void read_gpus(void)
{
    FILE *file = open_state("gpus");
    char line[512];
    lab.count = 0;
    if (!file)
        return;
    while (lab.count < LAB_GPUS && fgets(line, sizeof line, file)) {
        struct lab_gpu *gpu = &lab.gpus[lab.count];
        int fd = gpu->memory_fd;
        unsigned long long total, reserved;
        memset(gpu, 0, sizeof *gpu);
        gpu->memory_fd = fd;
        if (sscanf(line, "%d|%95[^|]|%95[^|]|%llu|%llu|%u|%llu", &gpu->index, gpu->uuid, gpu->name,
                   &total, &reserved, &gpu->bus, &gpu->serial) != 7)
            continue;
        gpu->total = total * MIB;
        gpu->reserved = reserved * MIB;
        gpu->temperature = 31 + gpu->index;
        if (fd == 0) {
            char path[400];
            snprintf(path, sizeof path, "%s/gpu%d.mem", folder, gpu->index);
            gpu->memory_fd = open(path, O_RDONLY | O_CLOEXEC);
        }
        lab.count++;
    }
    fclose(file);
}

static unsigned recovery_of(const char *word)
{
    static const char *words[] = {"none", "reset", "reboot", "drain", "drain-reset"};
    for (unsigned i = 0; i < 5; i++)
        if (!strcmp(word, words[i]))
            return i;
    return 1;
}

static unsigned hang_of(const char *word)
{
    static const char *words[] = {"none", "memory", "handle", "processes", "init"};
    for (unsigned i = 0; i < 5; i++)
        if (!strcmp(word, words[i]))
            return i;
    return HANG_MEMORY;
}

static void apply_to_gpu(struct lab_gpu *gpu, const char *name, const char *value)
{
    unsigned long long number = strtoull(value, NULL, 10);
    if (!strcmp(name, "lost")) gpu->lost = 1;
    else if (!strcmp(name, "reserved")) gpu->reserved = number * MIB;
    else if (!strcmp(name, "memory-unavailable")) gpu->memory_unavailable = 1;
    else if (!strcmp(name, "process-memory-unavailable")) gpu->process_memory_unavailable = 1;
    else if (!strcmp(name, "no-memory-v2")) gpu->no_memory_v2 = 1;
    else if (!strcmp(name, "hang")) gpu->hang = hang_of(value);
    else if (!strcmp(name, "leak")) gpu->leak = number * MIB;
    else if (!strcmp(name, "mig")) gpu->mig = 1;
    else if (!strcmp(name, "remap-pending")) gpu->remap_pending = 1;
    else if (!strcmp(name, "remap-failed")) gpu->remap_failed = 1;
    else if (!strcmp(name, "ecc")) gpu->ecc = number;
    else if (!strcmp(name, "recovery")) gpu->recovery = recovery_of(value);
    else if (!strcmp(name, "no-permission")) gpu->no_permission = 1;
    else if (!strcmp(name, "hot")) gpu->temperature = number, gpu->hot = 1;
    else if (!strcmp(name, "busy")) gpu->utilisation = number;
}

static void read_faults(void)
{
    FILE *file = open_state("faults");
    char name[64], gpu[16], value[64];
    if (!file)
        return;
    while (fscanf(file, "%63s %15s %63s", name, gpu, value) == 3) {
        if (!strcmp(name, "driver-not-loaded")) lab.driver_loaded = 0;
        if (!strcmp(name, "mismatch")) lab.mismatch = 1;
        if (!strcmp(name, "function-not-found")) lab.function_not_found = 1;
        if (!strcmp(name, "hang") && hang_of(value) == HANG_INIT) lab.hang_init = 1;
        for (int i = 0; i < lab.count; i++)
            if (gpu[0] == '*' || atoi(gpu) == lab.gpus[i].index)
                apply_to_gpu(&lab.gpus[i], name, value);
    }
    fclose(file);
}

static void make_mig_handles(void)
{
    for (int i = 0; i < lab.count; i++)
        for (int k = 0; k < LAB_MIG; k++) {
            struct lab_gpu *mig = &lab.mig[i][k], *parent = &lab.gpus[i];
            *mig = *parent;
            mig->parent = parent;
            mig->instance = k;
            mig->total = parent->total / LAB_MIG;
            mig->reserved = parent->reserved / LAB_MIG;
            snprintf(mig->uuid, sizeof mig->uuid, "MIG-%.34s%02x", parent->uuid + 4, k + 1);
            snprintf(mig->name, sizeof mig->name, "%.70s MIG 2g.48gb", parent->name);
        }
}

void lab_reload(void)
{
    const char *chosen = getenv("NVML_LAB_DIR");
    snprintf(folder, sizeof folder, "%s", chosen ? chosen : "/var/lib/lab-gpu");
    lab.mismatch = lab.function_not_found = lab.hang_init = 0;
    FILE *file = open_state("driver");
    lab.driver_loaded = file != NULL;
    if (file) {
        if (fscanf(file, "%63s %d", lab.driver_version, &lab.cuda_version) != 2)
            lab.driver_loaded = 0;
        fclose(file);
    }
    lab.processes_hidden = access("/var/lib/lab-gpu-view", F_OK) == 0;
    read_gpus();
    read_faults();
    make_mig_handles();
}

/* The kernel names one lock of the range, not the first: look left and right of it as well. */
static int scan_range(int fd, unsigned long long from, unsigned long long to,
                      struct lab_holder *holders, int count, unsigned long long *sum)
{
    if (from >= to)
        return count;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = to - from};
    if (fcntl(fd, F_OFD_GETLK, &lock) || lock.l_type == F_UNLCK)
        return count;
    unsigned long long start = (unsigned long long)lock.l_start, end = to;
    if (lock.l_len)
        end = start + lock.l_len;
    if (start < from) start = from;
    if (end > to) end = to;
    *sum += (end - start) * MIB;
    if (lock.l_pid > 0 && count < LAB_HOLDERS) {
        int k = 0;
        while (k < count && holders[k].pid != (unsigned)lock.l_pid)
            k++;
        if (k == count)
            holders[count++] = (struct lab_holder){.pid = lock.l_pid};
        holders[k].bytes += (end - start) * MIB;
    }
    count = scan_range(fd, from, start, holders, count, sum);
    return scan_range(fd, end, to, holders, count, sum);
}

int lab_scan(struct lab_gpu *gpu, enum lab_kind kind, struct lab_holder *holders,
             unsigned long long *sum)
{
    unsigned long long from = (unsigned long long)kind * LAB_REGION;
    *sum = 0;
    if (gpu->memory_fd < 0)
        return 0;
    int count = scan_range(gpu->memory_fd, from, from + gpu->total / MIB, holders, 0, sum);
    return lab.processes_hidden ? 0 : count;
}

void lab_hang(void)
{
    for (;;)
        pause();
}
