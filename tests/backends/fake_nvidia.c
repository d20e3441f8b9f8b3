/* Stand-ins for libnvidia-ml.so.1, libcuda.so.1 and libcudart.so: signatures from nvml.h, cuda.h and
 * cuda_runtime_api.h. What they answer comes from the environment, so one build serves every recorded machine:
 * FAKE_NVML "name|uuid|major|minor|bytes;...", FAKE_CUDA likewise in CUDA's order, FAKE_VERSION the driver's,
 * FAKE_FAIL the name of a call that answers 999. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu {
  char name[96], uuid[96];
  int major, minor;
  unsigned long long memory;
};
static struct gpu gpus[16];

static int list(const char *variable) {
  const char *text = getenv(variable);
  int count = 0, used = 0;
  struct gpu *g = gpus;
  while (text && *text &&
         sscanf(text, "%95[^|]|%95[^|]|%d|%d|%llu%n", g->name, g->uuid, &g->major, &g->minor, &g->memory, &used) == 5) {
    text += used;
    if (*text == ';') text++;
    count++, g++;
  }
  return count;
}

static int fails(const char *call) {
  const char *name = getenv("FAKE_FAIL");
  return name && strcmp(name, call) == 0 ? 999 : 0;
}

static int number(const char *variable) {
  const char *text = getenv(variable);
  return text ? atoi(text) : 0;
}

/* NVML */
int nvmlInit_v2(void) { return fails(__func__); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "Success"; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = number("FAKE_VERSION"), fails(__func__); }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = list("FAKE_NVML"), fails(__func__); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return *handle = &gpus[index], 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  return *handle = &gpus[0], strncmp(uuid, "MIG-", 4) == 0 && list("FAKE_NVML") ? 0 : 6;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *part, void **parent) { return *parent = part, 0; }
int nvmlDeviceGetName(struct gpu *g, char *name, unsigned length) { return snprintf(name, length, "%s", g->name), 0; }
int nvmlDeviceGetUUID(struct gpu *g, char *uuid, unsigned length) { return snprintf(uuid, length, "%s", g->uuid), 0; }
int nvmlDeviceGetCudaComputeCapability(struct gpu *g, int *major, int *minor) {
  return *major = g->major, *minor = g->minor, 0;
}
int nvmlDeviceGetMemoryInfo(struct gpu *g, unsigned long long *amounts) {
  return amounts[0] = g->memory, amounts[1] = amounts[2] = 0, fails(__func__);
}

/* The driver API */
static int initialised;
int cuDriverGetVersion(int *version) { return *version = number("FAKE_VERSION"), fails(__func__); }
int cuInit(unsigned flags) { return initialised = 1, flags ? 1 : fails(__func__); }
int cuDeviceGetCount(int *count) { return *count = list("FAKE_CUDA"), initialised ? 0 : 3; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "%s", gpus[device].name), 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
  const char *text = gpus[device].uuid + 4;
  for (int i = 0; i < 16; i++, text += 2) {
    if (*text == '-') text++;
    sscanf(text, "%2hhx", &uuid[i]);
  }
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = gpus[device].memory, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return *value = attribute == 75 ? gpus[device].major : gpus[device].minor, 0;
}

/* The runtime */
int cudaRuntimeGetVersion(int *version) { return *version = number("FAKE_RUNTIME"), 0; }
