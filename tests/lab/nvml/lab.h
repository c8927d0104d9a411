/* The lab's GPUs as state.c reads them from a folder, for the NVML entry points in nvml.c. */
#ifndef LAB_H
#define LAB_H

#include <stdint.h>

enum {
    NVML_OK = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_GPU_IS_LOST = 15,
    NVML_MISMATCH = 18,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
};

#define LAB_GPUS 16
#define LAB_HOLDERS 1024
#define LAB_MIG 2
#define MIB (1024ULL * 1024)

/* Kinds of holders; each locks a region of its own in the memory file (see hold.py). */
enum lab_kind { LAB_COMPUTE, LAB_GRAPHICS, LAB_MPS, LAB_KINDS };
#define LAB_REGION (1ULL << 40)

enum lab_hang { HANG_NONE, HANG_MEMORY, HANG_HANDLE, HANG_PROCESSES, HANG_INIT };

/* A device handle. A MIG instance is a handle of its own that points to its parent. */
struct lab_gpu {
    int index;
    char uuid[96], name[96];
    unsigned long long total, reserved, leak; /* bytes */
    unsigned bus, temperature, utilisation, recovery, hang;
    unsigned long long serial, ecc;
    int lost, memory_unavailable, process_memory_unavailable, no_memory_v2, mig, remap_pending,
        remap_failed, no_permission, hot;
    int memory_fd; /* opened once and never closed: see state.c */
    struct lab_gpu *parent;
    int instance;
};

struct lab_holder {
    unsigned pid; /* 0: out of sight of this pid namespace */
    unsigned long long bytes;
};

struct lab_state {
    int driver_loaded, mismatch, function_not_found, hang_init, processes_hidden, count;
    char driver_version[64];
    int cuda_version;
    struct lab_gpu gpus[LAB_GPUS];
    struct lab_gpu mig[LAB_GPUS][LAB_MIG];
};

extern struct lab_state lab;

/* Read the folder anew. */
void lab_reload(void);

/* Fill `holders` with the processes that hold memory of `kind`; returns their number, *sum their bytes
 * together, those out of sight included. */
int lab_scan(struct lab_gpu *gpu, enum lab_kind kind, struct lab_holder *holders,
             unsigned long long *sum);

/* Sleep for ever, as a call into a wedged driver does. */
void lab_hang(void);

#endif
