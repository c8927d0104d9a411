/* The NVML entry points that programs around inference servers call, over the lab's GPUs.
 *
 * Structures and numbers are those of the NVML API (as nvidia-ml-py 13 declares them). */
#define _GNU_SOURCE
#include "lab.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct lab_gpu *device;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised;

static void unlock(int *held)
{
    if (*held)
        pthread_mutex_unlock(&mutex);
}

/* Take the lock, reload the state, and answer for the faults that any call on a device meets. */
static int begin(device gpu, int *held, unsigned what)
{
    pthread_mutex_lock(&mutex);
    *held = 1;
    if (!initialised)
        return NVML_UNINITIALIZED;
    lab_reload();
    if (!gpu)
        return NVML_INVALID_ARGUMENT;
    if (what != HANG_NONE && gpu->hang == what) {
        pthread_mutex_unlock(&mutex);
        *held = 0;
        lab_hang();
    }
    if (gpu->lost)
        return NVML_GPU_IS_LOST;
    return NVML_OK;
}

#define BEGIN(gpu, what)                                                                           \
    int held __attribute__((cleanup(unlock))) = 0;                                                 \
    int began = begin(gpu, &held, what);                                                           \
    if (began != NVML_OK)                                                                          \
        return began;

static int put(const char *text, char *buffer, u32 length)
{
    if (!buffer)
        return NVML_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length)
        return NVML_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_OK;
}

/* ---- the library ---- */

API int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    int held __attribute__((cleanup(unlock))) = 1;
    pthread_mutex_lock(&mutex);
    lab_reload();
    if (lab.hang_init) {
        pthread_mutex_unlock(&mutex);
        held = 0;
        lab_hang();
    }
    if (!lab.driver_loaded)
        return NVML_DRIVER_NOT_LOADED;
    if (lab.mismatch)
        return NVML_MISMATCH;
    initialised++;
    return NVML_OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void)
{
    int held __attribute__((cleanup(unlock))) = 1;
    pthread_mutex_lock(&mutex);
    if (!initialised)
        return NVML_UNINITIALIZED;
    initialised--;
    return NVML_OK;
}

API const char *nvmlErrorString(int code)
{
    static const char *words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires restart",
        "The operating system has blocked the request", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch",
    };
    return code >= 0 && code < (int)(sizeof words / sizeof *words) ? words[code] : "Unknown Error";
}

API int nvmlSystemGetDriverVersion(char *buffer, u32 length)
{
    BEGIN(&lab.gpus[0], HANG_NONE)
    return put(lab.driver_version, buffer, length);
}
API int nvmlSystemGetNVMLVersion(char *buffer, u32 length)
{
    char text[80];
    pthread_mutex_lock(&mutex);
    lab_reload();
    snprintf(text, sizeof text, "%d.%s", lab.cuda_version / 1000, lab.driver_version);
    pthread_mutex_unlock(&mutex);
    return put(text, buffer, length);
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    pthread_mutex_lock(&mutex);
    lab_reload();
    *version = lab.cuda_version;
    pthread_mutex_unlock(&mutex);
    return NVML_OK;
}
API int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}
API int nvmlSystemGetProcessName(u32 pid, char *name, u32 length)
{
    char path[32], text[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    return put(text, name, length);
}

/* ---- handles ---- */

API int nvmlDeviceGetCount_v2(u32 *count)
{
    int held __attribute__((cleanup(unlock))) = 1;
    pthread_mutex_lock(&mutex);
    if (!initialised)
        return NVML_UNINITIALIZED;
    lab_reload();
    *count = lab.count;
    return NVML_OK;
}
API int nvmlDeviceGetCount(u32 *count) { return nvmlDeviceGetCount_v2(count); }

API int nvmlDeviceGetHandleByIndex_v2(u32 index, device *handle)
{
    u32 count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != NVML_OK)
        return code;
    if (index >= count)
        return NVML_INVALID_ARGUMENT;
    BEGIN(&lab.gpus[index], HANG_HANDLE)
    *handle = &lab.gpus[index];
    return NVML_OK;
}
API int nvmlDeviceGetHandleByIndex(u32 index, device *handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, device *handle)
{
    u32 count;
    int code = nvmlDeviceGetCount_v2(&count);
    for (u32 i = 0; code == NVML_OK && i < count; i++) {
        if (!strcmp(uuid, lab.gpus[i].uuid))
            return nvmlDeviceGetHandleByIndex_v2(i, handle);
        for (int k = 0; k < LAB_MIG; k++)
            if (lab.gpus[i].mig && !strcmp(uuid, lab.mig[i][k].uuid)) {
                *handle = &lab.mig[i][k];
                return NVML_OK;
            }
    }
    return code == NVML_OK ? NVML_NOT_FOUND : code;
}

static void bus_id(device gpu, char *text, size_t length)
{
    snprintf(text, length, "00000000:%02X:00.0", gpu->bus);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, device *handle)
{
    u32 count;
    int code = nvmlDeviceGetCount_v2(&count);
    for (u32 i = 0; code == NVML_OK && i < count; i++) {
        char own[32];
        bus_id(&lab.gpus[i], own, sizeof own);
        if (!strcasecmp(wanted, own) || !strcasecmp(wanted, own + 4))
            return nvmlDeviceGetHandleByIndex_v2(i, handle);
    }
    return code == NVML_OK ? NVML_NOT_FOUND : code;
}

/* ---- identity ---- */

#define TEXT_OF(function, field)                                                                   \
    API int function(device gpu, char *buffer, u32 length)                                         \
    {                                                                                              \
        BEGIN(gpu, HANG_NONE)                                                                      \
        return put(gpu->field, buffer, length);                                                    \
    }
TEXT_OF(nvmlDeviceGetName, name)
TEXT_OF(nvmlDeviceGetUUID, uuid)

API int nvmlDeviceGetSerial(device gpu, char *buffer, u32 length)
{
    char text[32];
    BEGIN(gpu, HANG_NONE)
    snprintf(text, sizeof text, "%llu", gpu->serial);
    return put(text, buffer, length);
}

/* One number that every device answers. */
#define NUMBER_OF(function, type, expression)                                                      \
    API int function(device gpu, type *value)                                                      \
    {                                                                                              \
        BEGIN(gpu, HANG_NONE)                                                                      \
        *value = expression;                                                                       \
        return NVML_OK;                                                                            \
    }
NUMBER_OF(nvmlDeviceGetIndex, u32, gpu->index)
NUMBER_OF(nvmlDeviceGetMinorNumber, u32, gpu->index)
NUMBER_OF(nvmlDeviceGetBrand, u32, 14)        /* NVIDIA RTX */
NUMBER_OF(nvmlDeviceGetArchitecture, u32, 10) /* Blackwell */
NUMBER_OF(nvmlDeviceGetPersistenceMode, u32, 1)
NUMBER_OF(nvmlDeviceGetComputeMode, u32, 0)
NUMBER_OF(nvmlDeviceGetDisplayMode, u32, 0)
NUMBER_OF(nvmlDeviceGetDisplayActive, u32, 0)
NUMBER_OF(nvmlDeviceGetPerformanceState, u32, gpu->utilisation ? 0 : 8)
NUMBER_OF(nvmlDeviceGetPowerUsage, u32, gpu->utilisation ? 540000 : 31000)
NUMBER_OF(nvmlDeviceGetPowerManagementLimit, u32, 600000)
NUMBER_OF(nvmlDeviceGetEnforcedPowerLimit, u32, 600000)
NUMBER_OF(nvmlDeviceGetMaxMigDeviceCount, u32, LAB_MIG * 2)
NUMBER_OF(nvmlDeviceIsMigDeviceHandle, u32, gpu->parent != NULL)

API int nvmlDeviceGetP2PStatus(device gpu, device other, u32 index, u32 *status)
{
    (void)index;
    BEGIN(gpu, HANG_NONE)
    *status = other->parent == NULL ? 0 : 6;
    return NVML_OK;
}

API int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor)
{
    BEGIN(gpu, HANG_NONE)
    *major = 12;
    *minor = 0;
    return NVML_OK;
}

struct pci {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
};
API int nvmlDeviceGetPciInfo_v3(device gpu, struct pci *pci)
{
    BEGIN(gpu, HANG_NONE)
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu->bus;
    pci->id = 0x2bb510de; /* GB202GL, NVIDIA */
    bus_id(gpu, pci->bus_id, sizeof pci->bus_id);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", gpu->bus);
    return NVML_OK;
}

/* ---- memory and processes ---- */

static int may_not_look(device gpu, int for_memory)
{
    if (gpu->no_permission)
        return NVML_NO_PERMISSION;
    return for_memory && gpu->memory_unavailable ? NVML_NOT_SUPPORTED : NVML_OK;
}

static u64 bytes_used(device gpu)
{
    static struct lab_holder holders[LAB_HOLDERS];
    u64 used = 0, sum;
    if (gpu->parent)
        return 0; /* nobody holds memory of the lab's MIG instances */
    for (int kind = 0; kind < LAB_KINDS; kind++) {
        lab_scan(gpu, kind, holders, &sum);
        used += sum;
    }
    used += gpu->leak;
    return used + gpu->reserved > gpu->total ? gpu->total - gpu->reserved : used;
}

struct memory {
    u64 total, free, used;
};
API int nvmlDeviceGetMemoryInfo(device gpu, struct memory *memory)
{
    BEGIN(gpu, HANG_MEMORY)
    int code = may_not_look(gpu, 1);
    if (code != NVML_OK)
        return code;
    memory->total = gpu->total;
    memory->used = bytes_used(gpu) + gpu->reserved;
    memory->free = memory->total - memory->used;
    return NVML_OK;
}

struct memory_v2 {
    u32 version;
    u64 total, reserved, free, used;
};
API int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *memory)
{
    BEGIN(gpu, HANG_MEMORY)
    if (lab.function_not_found || gpu->no_memory_v2)
        return NVML_FUNCTION_NOT_FOUND;
    if (memory->version != (sizeof *memory | 2 << 24))
        return NVML_ARGUMENT_VERSION_MISMATCH;
    int code = may_not_look(gpu, 1);
    if (code != NVML_OK)
        return code;
    memory->total = gpu->total;
    memory->reserved = gpu->reserved;
    memory->used = bytes_used(gpu);
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_OK;
}
API int nvmlDeviceGetBAR1MemoryInfo(device gpu, struct memory *memory)
{
    BEGIN(gpu, HANG_NONE)
    *memory = (struct memory){.total = 131072 * MIB, .free = 131071 * MIB, .used = MIB};
    return NVML_OK;
}

struct process {
    u32 pid;
    u64 used;
    u32 gpu_instance, compute_instance;
};
struct process_v1 {
    u32 pid;
    u64 used;
};

static int list(device gpu, enum lab_kind kind, u32 *count, struct process *out)
{
    static struct lab_holder holders[LAB_HOLDERS];
    u64 sum;
    u32 room = *count;
    BEGIN(gpu, HANG_PROCESSES)
    int code = may_not_look(gpu, 0);
    if (code != NVML_OK)
        return code;
    int found = gpu->parent ? 0 : lab_scan(gpu, kind, holders, &sum);
    *count = found;
    if (found == 0)
        return NVML_OK;
    if (!out || room < (u32)found)
        return NVML_INSUFFICIENT_SIZE;
    for (int i = 0; i < found; i++) {
        u64 used = gpu->process_memory_unavailable ? ~0ULL : holders[i].bytes;
        u32 instance = gpu->mig ? 1 : ~0u;
        out[i] = (struct process){holders[i].pid, used, instance, gpu->mig ? 0 : ~0u};
    }
    return NVML_OK;
}

static int list_v1(device gpu, enum lab_kind kind, u32 *count, struct process_v1 *out)
{
    static struct process found[LAB_HOLDERS];
    u32 room = *count, all = LAB_HOLDERS;
    int code = list(gpu, kind, &all, found);
    if (code != NVML_OK)
        return code;
    *count = all;
    if (all && (!out || room < all))
        return NVML_INSUFFICIENT_SIZE;
    for (u32 i = 0; i < all; i++)
        out[i] = (struct process_v1){found[i].pid, found[i].used};
    return NVML_OK;
}

#define PROCESS_LISTS(kind_name, kind)                                                             \
    API int nvmlDeviceGet##kind_name##RunningProcesses_v3(device gpu, u32 *count,                  \
                                                          struct process *out)                     \
    {                                                                                              \
        if (lab.function_not_found)                                                                \
            return NVML_FUNCTION_NOT_FOUND;                                                        \
        return list(gpu, kind, count, out);                                                        \
    }                                                                                              \
    API int nvmlDeviceGet##kind_name##RunningProcesses_v2(device gpu, u32 *count,                  \
                                                          struct process *out)                     \
    {                                                                                              \
        return list(gpu, kind, count, out);                                                        \
    }                                                                                              \
    API int nvmlDeviceGet##kind_name##RunningProcesses(device gpu, u32 *count,                     \
                                                       struct process_v1 *out)                     \
    {                                                                                              \
        return list_v1(gpu, kind, count, out);                                                     \
    }
PROCESS_LISTS(Compute, LAB_COMPUTE)
PROCESS_LISTS(Graphics, LAB_GRAPHICS)
PROCESS_LISTS(MPSCompute, LAB_MPS)

/* ---- health ---- */

struct utilisation {
    u32 gpu, memory;
};
API int nvmlDeviceGetUtilizationRates(device gpu, struct utilisation *rates)
{
    BEGIN(gpu, HANG_NONE)
    if (gpu->mig)
        return NVML_NOT_SUPPORTED;
    *rates = (struct utilisation){gpu->utilisation, gpu->utilisation / 2};
    return NVML_OK;
}
API int nvmlDeviceGetTemperature(device gpu, int sensor, u32 *celsius)
{
    (void)sensor;
    BEGIN(gpu, HANG_NONE)
    *celsius = gpu->temperature;
    return NVML_OK;
}
struct temperature {
    u32 version;
    int sensor, celsius;
};
API int nvmlDeviceGetTemperatureV(device gpu, struct temperature *temperature)
{
    BEGIN(gpu, HANG_NONE)
    temperature->celsius = gpu->temperature;
    return NVML_OK;
}
API int nvmlDeviceGetTemperatureThreshold(device gpu, int kind, u32 *celsius)
{
    BEGIN(gpu, HANG_NONE)
    *celsius = kind == 0 ? 99 : 95; /* shutdown, slowdown */
    return NVML_OK;
}
static u64 reasons_of(device gpu) { return gpu->hot ? 0x60 : gpu->utilisation ? 0 : 1; }
NUMBER_OF(nvmlDeviceGetCurrentClocksEventReasons, u64, reasons_of(gpu))
NUMBER_OF(nvmlDeviceGetCurrentClocksThrottleReasons, u64, reasons_of(gpu))
NUMBER_OF(nvmlDeviceGetSupportedClocksEventReasons, u64, 0x1ff)
NUMBER_OF(nvmlDeviceGetSupportedClocksThrottleReasons, u64, 0x1ff)

API int nvmlDeviceGetClockInfo(device gpu, int kind, u32 *mhz)
{
    BEGIN(gpu, HANG_NONE)
    *mhz = kind == 2 ? 12481 : gpu->utilisation ? 2430 : 180;
    return NVML_OK;
}
API int nvmlDeviceGetMaxClockInfo(device gpu, int kind, u32 *mhz)
{
    BEGIN(gpu, HANG_NONE)
    *mhz = kind == 2 ? 12481 : 2430;
    return NVML_OK;
}
API int nvmlDeviceGetFanSpeed(device gpu, u32 *percent)
{
    BEGIN(gpu, HANG_NONE)
    *percent = 0;
    return NVML_NOT_SUPPORTED; /* the server edition is cooled by its chassis */
}
API int nvmlDeviceGetEccMode(device gpu, u32 *now, u32 *pending)
{
    BEGIN(gpu, HANG_NONE)
    *now = *pending = 1;
    return NVML_OK;
}
API int nvmlDeviceGetTotalEccErrors(device gpu, int type, int counter, u64 *count)
{
    (void)counter;
    BEGIN(gpu, HANG_NONE)
    *count = type == 1 ? gpu->ecc : 0;
    return NVML_OK;
}
API int nvmlDeviceGetMemoryErrorCounter(device gpu, int type, int counter, int where, u64 *count)
{
    (void)counter;
    BEGIN(gpu, HANG_NONE)
    *count = type == 1 && where == 2 ? gpu->ecc : 0; /* 2: device memory */
    return NVML_OK;
}
API int nvmlDeviceGetRemappedRows(device gpu, u32 *correctable, u32 *uncorrectable, u32 *pending,
                                  u32 *failed)
{
    BEGIN(gpu, HANG_NONE)
    *correctable = 0;
    *uncorrectable = gpu->remap_pending || gpu->remap_failed;
    *pending = gpu->remap_pending;
    *failed = gpu->remap_failed;
    return NVML_OK;
}
API int nvmlDeviceGetRetiredPagesPendingStatus(device gpu, u32 *pending)
{
    BEGIN(gpu, HANG_NONE)
    *pending = 0;
    return NVML_NOT_SUPPORTED; /* replaced by row remapping */
}

struct field {
    u32 id, scope;
    long long timestamp, latency;
    int type, code;
    union {
        double d;
        u32 u;
        u64 l;
    } value;
};
API int nvmlDeviceGetFieldValues(device gpu, int count, struct field *fields)
{
    BEGIN(gpu, HANG_NONE)
    for (int i = 0; i < count; i++) {
        struct field *field = &fields[i];
        field->timestamp = (long long)time(NULL) * 1000000;
        field->latency = 0;
        field->type = 1; /* unsigned int */
        field->code = NVML_OK;
        field->value.l = 0;
        if (field->id == 230) /* recovery action */
            field->value.u = gpu->recovery;
        else if (field->id == 226) /* reset status, its predecessor */
            field->value.u = gpu->recovery == 1;
        else if (field->id == 227) /* drain and reset status */
            field->value.u = gpu->recovery >= 3;
        else
            field->code = NVML_NOT_SUPPORTED;
    }
    return NVML_OK;
}

/* ---- MIG ---- */

API int nvmlDeviceGetMigMode(device gpu, u32 *now, u32 *pending)
{
    BEGIN(gpu, HANG_NONE)
    if (gpu->no_permission)
        return NVML_NO_PERMISSION;
    *now = *pending = gpu->mig;
    return NVML_OK;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, u32 index, device *handle)
{
    BEGIN(gpu, HANG_NONE)
    if (!gpu->mig || index >= LAB_MIG)
        return NVML_NOT_FOUND;
    *handle = &lab.mig[gpu - lab.gpus][index];
    return NVML_OK;
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device gpu, device *parent)
{
    BEGIN(gpu, HANG_NONE)
    if (!gpu->parent)
        return NVML_INVALID_ARGUMENT;
    *parent = gpu->parent;
    return NVML_OK;
}
API int nvmlDeviceGetGpuInstanceId(device gpu, u32 *id)
{
    BEGIN(gpu, HANG_NONE)
    *id = gpu->instance + 1;
    return gpu->parent ? NVML_OK : NVML_INVALID_ARGUMENT;
}
API int nvmlDeviceGetComputeInstanceId(device gpu, u32 *id)
{
    BEGIN(gpu, HANG_NONE)
    *id = 0;
    return gpu->parent ? NVML_OK : NVML_INVALID_ARGUMENT;
}
