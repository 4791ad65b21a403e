/* A driver library of NVIDIA's for tests: what it answers is in a file that is read again at every call.

   Lines of the file (its path is in NVML_SCENARIO) are `name value`:
     init 9                 what nvmlInitWithFlags returns; 0 where the line is missing
     all 1                  what every other call returns
     generation 2           a driver that was loaded anew: calls return 1 until the library is opened again
     count 2                how many GPUs
     0.uuid GPU-a           of GPU 0; without it GPU-0
     0.use 40               a reading of GPU 0; any name of those below
     0.use.error 3          what the call for this reading returns
     0.handle.error 15      what asking for the GPU returns
     0.uuid.error 999       what asking for its UUID returns
     0.mig.error 999        what asking whether MIG is enabled returns
     shutdown 999           what nvmlShutdown returns
     0.error 15             what every reading of GPU 0 returns
     0.parts 2              MIG places of GPU 0; part 1 of it is called 0:1
     0:1.uuid MIG-b         of that part; a part without UUID is not there
   Every opening and closing adds a line to the file in NVML_CALLS. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct { char name[16]; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Use;

static int opened = 0;
static long long generation = 0;
static Device devices[256];
static int known = 0;

static int find(const char *wanted, char *value) {
    FILE *file = fopen(getenv("NVML_SCENARIO"), "r");
    char name[64], text[96];
    int found = 0;
    if (!file) return 0;
    while (!found && fscanf(file, "%63s %95s", name, text) == 2)
        if (!strcmp(name, wanted)) { strcpy(value, text); found = 1; }
    fclose(file);
    return found;
}

static long long number(const char *name, long long otherwise) {
    char value[96];
    return find(name, value) ? atoll(value) : otherwise;
}

static long long of(Device *device, const char *what, long long otherwise) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", device->name, what);
    return number(name, otherwise);
}

static void note(const char *call) {
    FILE *file = fopen(getenv("NVML_CALLS"), "a");
    if (file) { fprintf(file, "%s\n", call); fclose(file); }
}

static int state(void) {
    if (!opened || generation != number("generation", 0)) return UNINITIALIZED;
    return (int)number("all", 0);
}

/* One reading of a device: an error for all of it, one for this reading, or its value. */
static int reading(Device *device, const char *what, long long *value) {
    char error[64], name[64];
    int wrong = state();
    if (!wrong) wrong = (int)of(device, "error", 0);
    snprintf(error, sizeof error, "%s.error", what);
    if (!wrong) wrong = (int)of(device, error, 0);
    snprintf(name, sizeof name, "%s.%s", device->name, what);
    if (!wrong) { char text[96]; if (!find(name, text)) wrong = NOT_SUPPORTED; else *value = atoll(text); }
    return wrong;
}

static int small(Device *device, const char *what, unsigned *value) {
    long long found = 0;
    int wrong = reading(device, what, &found);
    *value = (unsigned)found;
    return wrong;
}

static Device *named(const char *name) {
    for (int i = 0; i < known; i++) if (!strcmp(devices[i].name, name)) return &devices[i];
    strcpy(devices[known].name, name);
    return &devices[known++];
}

int nvmlInitWithFlags(unsigned flags) {
    int wrong = (int)number("init", 0);
    (void)flags;
    if (wrong) return wrong;
    opened++;
    generation = number("generation", 0);
    note("open");
    return 0;
}

int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    opened--;
    note("close");
    return (int)number("shutdown", 0);
}

const char *nvmlErrorString(int code) { (void)code; return "an error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)number("count", 0);
    return state();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    char name[16];
    int wrong = state();
    if (wrong) return wrong;
    if (index >= (unsigned)number("count", 0)) return INVALID;
    snprintf(name, sizeof name, "%u", index);
    *device = named(name);
    return (int)of(*device, "handle.error", 0);
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    char name[64], value[96];
    int wrong = state();
    if (!wrong) wrong = (int)of(device, "uuid.error", 0);
    if (wrong) return wrong;
    snprintf(name, sizeof name, "%s.uuid", device->name);
    if (!find(name, value)) snprintf(value, sizeof value, "GPU-%s", device->name);
    snprintf(uuid, length, "%s", value);
    return 0;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *later) {
    int wrong = state();
    *now = *later = of(device, "parts", 0) > 0;
    return wrong ? wrong : (int)of(device, "mig.error", 0);
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    *count = (unsigned)of(device, "parts", 0);
    return state();
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **part) {
    char name[48], key[64], value[96];
    int wrong = state();
    if (wrong) return wrong;
    snprintf(name, sizeof name, "%s:%u", device->name, index);
    snprintf(key, sizeof key, "%s.uuid", name);
    if (!find(key, value)) return NOT_FOUND;
    *part = named(name);
    return 0;
}

int nvmlDeviceGetUtilizationRates(Device *device, Use *use) { return small(device, "use", &use->gpu); }
int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) { return small(device, "milliwatts", milliwatts); }

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    (void)sensor;
    return small(device, "celsius", celsius);
}

int nvmlDeviceGetClockInfo(Device *device, int which, unsigned *mhz) {
    return small(device, which == 1 ? "sm_mhz" : which == 2 ? "memory_mhz" : "no such clock", mhz);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    long long found = 0;
    int wrong = reading(device, "millijoules", &found);
    *millijoules = (unsigned long long)found;
    return wrong;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    long long used = 0;
    int wrong = reading(device, "used", &used);
    memory->total = (unsigned long long)of(device, "total", 0);
    memory->reserved = (unsigned long long)of(device, "reserved", 0);
    memory->used = (unsigned long long)used;
    memory->free = memory->total - memory->reserved - memory->used;
    return wrong;
}
#endif

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    long long used = 0;
    int wrong = reading(device, "used", &used);
    memory->total = (unsigned long long)of(device, "total", 0);
    memory->used = (unsigned long long)(used + of(device, "reserved", 0));
    memory->free = memory->total - memory->used;
    return wrong;
}
