/*
 * A stub of NVIDIA's libnvidia-ml.so.1 for machines without a GPU. It has the part of NVML's public
 * ABI (developer.nvidia.com, NVML API Reference) that slurmkit's exporter uses, and plays back what
 * files say:
 *
 *   STATE/gpus         the GPUs in the order of NVML's ordinals, one a line, NAME=VALUE words:
 *                        gpu key=0 minor=0 pci=00000000:1B:00.0 uuid=GPU-… name=NVIDIA_H100
 *                          memory_mib=81559 idle_watts=70 gpm=1 [energy_base=JOULES] [energy_bits=32]
 *                        mig key=1 gi=1 ci=0 uuid=MIG-… memory_mib=20096     (of the gpu above it)
 *   STATE/driver       the version of the driver
 *   STATE/error        an NVML error number: the answer to every call, and to nvmlInit
 *   STATE/KEY/…        one value of a GPU or MIG instance; `gpu-play` writes them:
 *     utilization, sm  percent (250 and nan are passed on as they are)
 *     memory           bytes in use
 *     power            history, lines of "EPOCH WATTS"; the energy counter is its integral
 *     temperature      degrees Celsius
 *     throttle         NVML's bits of the clock event reasons
 *     ecc              "CORRECTED UNCORRECTED"
 *     xid              Xid numbers, one a line; each new line is an event
 *     processes        lines of "PID BYTES PERCENT"; "-" is not available
 *     error            an NVML error number: the answer to every call about this GPU
 *
 * STATE is $NVML_STUB_STATE, or /run/nvml-stub. Energy counts from the time of STATE/gpus, so two
 * processes, and one that was started again, read the same counter.
 *
 * With -DOLD_DRIVER the library lacks what drivers before 535 do not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    MEMORY_ERROR = 20,
};

#define MAX_GPUS 16
#define MAX_MIGS 8
#define MAX_PROCESSES 64
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFULL
#define XID_EVENT 0x8ULL
#define GRAPHICS_UTIL 1
#define SM_UTIL 2

typedef struct Device Device;
struct Device {
    char key[64], pci[32], uuid[96], name[96];
    unsigned minor, gpu_instance, compute_instance;
    unsigned long long memory;
    double idle_watts, energy_base;
    int energy_bits, gpm, migs;
    Device *parent, *mig[MAX_MIGS];
};

typedef struct {
    unsigned count;
    Device *device[MAX_GPUS];
    long seen[MAX_GPUS]; /* lines of its xid file that were handed out */
} EventSet;

typedef struct {
    double sm, graphics;
} Sample;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} PciInfo;

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned version, sensor;
    int celsius;
} Temperature;

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

typedef struct {
    unsigned id;
    int result;
    double value;
    char *short_name, *long_name, *unit;
} GpmMetric;

typedef struct {
    unsigned version, count;
    Sample *first, *second;
    GpmMetric metrics[];
} GpmMetrics;

typedef struct {
    unsigned version, supported;
} GpmSupport;

static Device devices[MAX_GPUS * (1 + MAX_MIGS)];
static Device *gpus[MAX_GPUS];
static unsigned gpu_count;
static int users;

/* --- Files ------------------------------------------------------------------------------------ */

static const char *state_folder(void) {
    const char *folder = getenv("NVML_STUB_STATE");
    return folder && *folder ? folder : "/run/nvml-stub";
}

static FILE *open_state(const char *key, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s%s", state_folder(), key, *key ? "/" : "", name);
    return fopen(path, "r");
}

/* The first number of a file; `missing` without the file, or with something else in it. */
static double number(const char *key, const char *name, double missing) {
    FILE *file = open_state(key, name);
    double value;
    if (!file)
        return missing;
    if (fscanf(file, "%lf", &value) != 1)
        value = missing;
    fclose(file);
    return value;
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double state_began(void) {
    char path[4096];
    struct stat facts;
    snprintf(path, sizeof path, "%s/gpus", state_folder());
    if (stat(path, &facts))
        return now_seconds();
    return (double)facts.st_mtim.tv_sec + (double)facts.st_mtim.tv_nsec / 1e9;
}

/* Power now, in watts, and its integral so far, in joules. */
static void read_power(const char *key, double idle, double *watts, double *joules) {
    double from = state_began(), now = now_seconds(), at, next;
    FILE *file = open_state(key, "power");
    *watts = idle;
    *joules = 0;
    while (file && fscanf(file, "%lf %lf", &at, &next) == 2 && at <= now) {
        if (at > from) {
            *joules += *watts * (at - from);
            from = at;
        }
        *watts = next;
    }
    if (file)
        fclose(file);
    if (now > from)
        *joules += *watts * (now - from);
}

/* What MIG instances draw is on top of what their GPU draws. */
static void gpu_power(const Device *gpu, double *watts, double *joules) {
    double more_watts, more_joules;
    read_power(gpu->key, gpu->idle_watts, watts, joules);
    for (int at = 0; at < gpu->migs; at++) {
        read_power(gpu->mig[at]->key, 0, &more_watts, &more_joules);
        *watts += more_watts;
        *joules += more_joules;
    }
}

/* --- The GPUs --------------------------------------------------------------------------------- */

static void set_field(Device *device, const char *name, const char *value) {
    struct {
        const char *name;
        char *into;
        size_t size;
    } texts[] = {{"key", device->key, sizeof device->key},
                 {"pci", device->pci, sizeof device->pci},
                 {"uuid", device->uuid, sizeof device->uuid},
                 {"name", device->name, sizeof device->name}};
    for (size_t at = 0; at < sizeof texts / sizeof *texts; at++)
        if (!strcmp(name, texts[at].name))
            snprintf(texts[at].into, texts[at].size, "%s", value);
    if (!strcmp(name, "minor"))
        device->minor = (unsigned)atoi(value);
    else if (!strcmp(name, "gi"))
        device->gpu_instance = (unsigned)atoi(value);
    else if (!strcmp(name, "ci"))
        device->compute_instance = (unsigned)atoi(value);
    else if (!strcmp(name, "memory_mib"))
        device->memory = strtoull(value, NULL, 10) << 20;
    else if (!strcmp(name, "idle_watts"))
        device->idle_watts = atof(value);
    else if (!strcmp(name, "energy_base"))
        device->energy_base = atof(value);
    else if (!strcmp(name, "energy_bits"))
        device->energy_bits = atoi(value);
    else if (!strcmp(name, "gpm"))
        device->gpm = atoi(value);
}

static int add_device(char *line, unsigned used) {
    Device *device = &devices[used];
    char *word = strtok(line, " \t\n"), *value;
    int is_mig = word && !strcmp(word, "mig");
    if (!word || *word == '#')
        return 0;
    memset(device, 0, sizeof *device);
    while ((word = strtok(NULL, " \t\n"))) {
        if (!(value = strchr(word, '=')))
            continue;
        *value++ = 0;
        set_field(device, word, value);
    }
    for (char *letter = device->name; *letter; letter++)
        if (*letter == '_')
            *letter = ' ';
    if (!is_mig && gpu_count < MAX_GPUS) {
        gpus[gpu_count++] = device;
    } else if (is_mig && gpu_count && gpus[gpu_count - 1]->migs < MAX_MIGS) {
        device->parent = gpus[gpu_count - 1];
        device->gpm = device->parent->gpm;
        device->parent->mig[device->parent->migs++] = device;
    } else {
        return 0;
    }
    return 1;
}

static int load_gpus(void) {
    FILE *file = open_state("", "gpus");
    char line[1024];
    unsigned used = 0;
    if (!file)
        return DRIVER_NOT_LOADED;
    gpu_count = 0;
    while (used < sizeof devices / sizeof *devices && fgets(line, sizeof line, file))
        used += (unsigned)add_device(line, used);
    fclose(file);
    return SUCCESS;
}

static int driver_state(void) {
    return users ? (int)number("", "error", SUCCESS) : UNINITIALIZED;
}

static int check(const Device *device) {
    int result = driver_state();
    if (result != SUCCESS)
        return result;
    if (!device)
        return INVALID_ARGUMENT;
    if (device->parent && (result = (int)number(device->parent->key, "error", SUCCESS)))
        return result;
    return (int)number(device->key, "error", SUCCESS);
}

/* For what NVML answers of whole GPUs only. */
static int check_whole(const Device *device) {
    int result = check(device);
    return result == SUCCESS && device->parent ? NOT_SUPPORTED : result;
}

#define TRY(call)                 \
    do {                          \
        int result_ = (call);     \
        if (result_ != SUCCESS)   \
            return result_;       \
    } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    TRY((int)number("", "error", SUCCESS));
    if (!users)
        TRY(load_gpus());
    users++;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int result) {
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

static int copy_text(char *into, unsigned length, const char *text) {
    if (length <= strlen(text))
        return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    char text[80] = "570.00";
    FILE *file;
    TRY(driver_state());
    if ((file = open_state("", "driver"))) {
        if (fscanf(file, "%79s", text) != 1)
            strcpy(text, "570.00");
        fclose(file);
    }
    return copy_text(version, length, text);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    TRY(driver_state());
    *count = gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    TRY(driver_state());
    if (index >= gpu_count)
        return INVALID_ARGUMENT;
    TRY(check(gpus[index]));
    *device = gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    TRY(check(device));
    return copy_text(uuid, length, device->uuid);
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    TRY(check(device));
    return copy_text(name, length, device->parent ? device->parent->name : device->name);
}

int nvmlDeviceGetMinorNumber(Device *device, unsigned *minor) {
    TRY(check_whole(device));
    *minor = device->minor;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    TRY(check_whole(device));
    memset(info, 0, sizeof *info);
    if (sscanf(device->pci, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3)
        return INVALID_ARGUMENT;
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", info->domain & 0xFFFF, info->bus & 0xFF,
             info->device & 0xFF);
    snprintf(info->id, sizeof info->id, "%s", device->pci);
    return SUCCESS;
}

/* --- Measurements ----------------------------------------------------------------------------- */

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    TRY(check_whole(device));
    if (device->migs)
        return NOT_SUPPORTED;
    rates->gpu = (unsigned)number(device->key, "utilization", 0);
    rates->memory = 0;
    return SUCCESS;
}

static unsigned long long memory_used(const Device *device) {
    unsigned long long used = (unsigned long long)number(device->key, "memory", 0);
    for (int at = 0; at < device->migs; at++)
        used += memory_used(device->mig[at]);
    return used;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    TRY(check(device));
    memory->total = device->memory;
    memory->used = memory_used(device);
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    Memory plain;
    TRY(nvmlDeviceGetMemoryInfo(device, &plain));
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return SUCCESS;
}
#endif

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    double watts, joules;
    TRY(check_whole(device));
    gpu_power(device, &watts, &joules);
    *milliwatts = (unsigned)(watts * 1000);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    double watts, joules;
    TRY(check_whole(device));
    gpu_power(device, &watts, &joules);
    *millijoules = (unsigned long long)((joules + device->energy_base) * 1000);
    if (device->energy_bits)
        *millijoules &= (1ULL << device->energy_bits) - 1;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    TRY(check_whole(device));
    *celsius = (unsigned)number(device->key, "temperature", 35);
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetTemperatureV(Device *device, Temperature *temperature) {
    TRY(check_whole(device));
    temperature->celsius = (int)number(device->key, "temperature", 35);
    return SUCCESS;
}
#define nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetCurrentClocksEventReasons
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    TRY(check_whole(device));
    *reasons = (unsigned long long)number(device->key, "throttle", 0);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *count) {
    unsigned long long counts[2] = {0, 0};
    FILE *file;
    (void)counter;
    TRY(check_whole(device));
    if (type > 1)
        return INVALID_ARGUMENT;
    if (!(file = open_state(device->key, "ecc")))
        return NOT_SUPPORTED;
    if (fscanf(file, "%llu %llu", &counts[0], &counts[1]) != 2)
        counts[0] = counts[1] = 0;
    fclose(file);
    *count = counts[type];
    return SUCCESS;
}

/* --- MIG -------------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    TRY(check_whole(device));
    *current = *pending = device->migs > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    TRY(check_whole(device));
    *count = device->migs ? MAX_MIGS : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **mig) {
    TRY(check_whole(device));
    if (index >= (unsigned)device->migs)
        return NOT_FOUND;
    TRY(check(device->mig[index]));
    *mig = device->mig[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) {
    TRY(check(device));
    if (!device->parent)
        return INVALID_ARGUMENT;
    *id = device->gpu_instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(Device *device, unsigned *id) {
    TRY(check(device));
    if (!device->parent)
        return INVALID_ARGUMENT;
    *id = device->compute_instance;
    return SUCCESS;
}

/* --- Processes -------------------------------------------------------------------------------- */

typedef struct {
    unsigned pid;
    unsigned long long memory;
    int percent; /* -1: not available */
} Process;

static unsigned read_processes(const Device *device, Process *processes) {
    char memory[32], percent[32];
    unsigned pid, count = 0;
    FILE *file = open_state(device->key, "processes");
    while (file && count < MAX_PROCESSES && fscanf(file, "%u %31s %31s", &pid, memory, percent) == 3) {
        processes[count].pid = pid;
        processes[count].memory = *memory == '-' ? NOT_AVAILABLE : strtoull(memory, NULL, 10);
        processes[count].percent = *percent == '-' ? -1 : atoi(percent);
        count++;
    }
    if (file)
        fclose(file);
    return count;
}

#ifdef OLD_DRIVER
#define nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
#endif

/* As NVML does: without enough room only their number. */
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *infos) {
    Process processes[MAX_PROCESSES];
    unsigned found, room = *count;
    TRY(check(device));
    *count = found = read_processes(device, processes);
    if (room < found)
        return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < found; at++) {
        infos[at].pid = processes[at].pid;
        infos[at].memory = processes[at].memory;
        infos[at].gpu_instance = device->parent ? device->gpu_instance : 0xFFFFFFFFU;
        infos[at].compute_instance = device->parent ? device->compute_instance : 0xFFFFFFFFU;
    }
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *infos) {
    (void)infos;
    TRY(check(device));
    *count = 0;
    return SUCCESS;
}
#endif

int nvmlDeviceGetProcessUtilization(Device *device, ProcessSample *samples, unsigned *count,
                                    unsigned long long since) {
    Process processes[MAX_PROCESSES];
    unsigned found, room = *count, busy = 0;
    (void)since;
    TRY(check_whole(device));
    if (device->migs)
        return NOT_SUPPORTED;
    found = read_processes(device, processes);
    for (unsigned at = 0; at < found; at++)
        if (processes[at].percent > 0)
            processes[busy++] = processes[at];
    *count = busy;
    if (!busy)
        return NOT_FOUND;
    if (!samples || room < busy)
        return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < busy; at++) {
        memset(&samples[at], 0, sizeof samples[at]);
        samples[at].pid = processes[at].pid;
        samples[at].sm = (unsigned)processes[at].percent;
        samples[at].time = (unsigned long long)(now_seconds() * 1e6);
    }
    return SUCCESS;
}

/* --- Events ----------------------------------------------------------------------------------- */

/* The number of lines of the xid file; `xid` is the one after the first `skip`. */
static long read_xids(const Device *device, long skip, unsigned long long *xid) {
    FILE *file = open_state(device->key, "xid");
    unsigned long long value;
    long count = 0;
    while (file && fscanf(file, "%llu", &value) == 1)
        if (count++ == skip)
            *xid = value;
    if (file)
        fclose(file);
    return count;
}

int nvmlEventSetCreate(EventSet **set) {
    TRY(driver_state());
    *set = calloc(1, sizeof **set);
    return *set ? SUCCESS : MEMORY_ERROR;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    unsigned long long unused;
    TRY(check_whole(device));
    if (types != XID_EVENT || set->count == MAX_GPUS)
        return NOT_SUPPORTED;
    set->device[set->count] = device;
    set->seen[set->count++] = read_xids(device, -1, &unused);
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned milliseconds) {
    double end = now_seconds() + milliseconds / 1000.0;
    const struct timespec pause = {0, 10000000};
    unsigned long long xid;
    do {
        TRY(driver_state());
        for (unsigned at = 0; at < set->count; at++) {
            if (read_xids(set->device[at], set->seen[at], &xid) <= set->seen[at])
                continue;
            set->seen[at]++;
            *data = (EventData){set->device[at], XID_EVENT, xid, 0xFFFFFFFFU, 0xFFFFFFFFU};
            return SUCCESS;
        }
        if (milliseconds)
            nanosleep(&pause, NULL);
    } while (now_seconds() < end);
    return TIMEOUT;
}

int nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}

/* --- GPM: measurements between two samples, from Hopper on ------------------------------------- */

int nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *support) {
    TRY(check(device));
    support->supported = (unsigned)device->gpm;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(Sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : MEMORY_ERROR;
}

int nvmlGpmSampleFree(Sample *sample) {
    free(sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(Device *device, Sample *sample) {
    TRY(check(device));
    if (!device->gpm)
        return NOT_SUPPORTED;
    sample->graphics = number(device->key, "utilization", 0);
    sample->sm = number(device->key, "sm", sample->graphics);
    return SUCCESS;
}

int nvmlGpmMigSampleGet(Device *device, unsigned gpu_instance, Sample *sample) {
    TRY(check_whole(device));
    for (int at = 0; at < device->migs; at++)
        if (device->mig[at]->gpu_instance == gpu_instance)
            return nvmlGpmSampleGet(device->mig[at], sample);
    return INVALID_ARGUMENT;
}

int nvmlGpmMetricsGet(GpmMetrics *metrics) {
    TRY(driver_state());
    if (metrics->version != 1 || !metrics->first || !metrics->second)
        return INVALID_ARGUMENT;
    for (unsigned at = 0; at < metrics->count; at++) {
        GpmMetric *metric = &metrics->metrics[at];
        metric->result = SUCCESS;
        if (metric->id == GRAPHICS_UTIL)
            metric->value = metrics->second->graphics;
        else if (metric->id == SM_UTIL)
            metric->value = metrics->second->sm;
        else
            metric->result = NOT_SUPPORTED;
    }
    return SUCCESS;
}
