/* A library that answers like NVML from a text file, so that the real bindings can be tested.
 *
 * $STANDIN_NVML names the file. Each line is "CALL[.BOARD[.ARGUMENT]] ANSWER", for example
 * "Name.0 NVIDIA H200", "NvLinkState.0.3 1"; an answer "!4" makes the call return error 4. A call
 * that the file does not mention is "not supported", which is what a slice or an old board says.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7 };
typedef struct {
  char bus_legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static char board[64]; /* a handle is the address of one of these characters */
static int number(void *handle) { return (int)((char *)handle - board); }

static int answer(char *out, const char *format, ...) {
  char key[96], line[256], name[96];
  va_list list;
  va_start(list, format);
  vsnprintf(key, sizeof key, format, list);
  va_end(list);
  FILE *file = fopen(getenv("STANDIN_NVML"), "r");
  int code = NOT_SUPPORTED, at = 0;
  while (file && code == NOT_SUPPORTED && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%95s %n", name, &at) < 1 || strcmp(name, key)) continue;
    code = line[at] == '!' ? atoi(line + at + 1) : OK;
    strcpy(out, line + at);
    break;
  }
  if (file) fclose(file);
  return code;
}

static int text(char *to, unsigned size, int code, const char *from) {
  if (code) return code;
  if (strlen(from) >= size) return TOO_SMALL;
  strcpy(to, from);
  return OK;
}

static int address(pci_t *pci, int code, const char *from) {
  if (code) return code;
  memset(pci, 0, sizeof *pci);
  sscanf(from, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%s", from);
  return OK;
}

#define WHOLE(call, type)                                                          \
  int nvmlDeviceGet##call(void *d, type *value) {                                  \
    char a[256];                                                                   \
    int code = answer(a, #call ".%d", number(d));                                  \
    if (!code) *value = (type)strtoull(a, 0, 0);                                   \
    return code;                                                                   \
  }
#define PAIR(call)                                                                 \
  int nvmlDeviceGet##call(void *d, int *first, int *second) {                      \
    char a[256];                                                                   \
    int code = answer(a, #call ".%d", number(d));                                  \
    if (!code) sscanf(a, "%d %d", first, second);                                  \
    return code;                                                                   \
  }
#define INDEXED(call)                                                              \
  int nvmlDeviceGet##call(void *d, unsigned index, unsigned *value) {              \
    char a[256];                                                                   \
    int code = answer(a, #call ".%d.%u", number(d), index);                        \
    if (!code) *value = (unsigned)strtoul(a, 0, 0);                                \
    return code;                                                                   \
  }
#define TEXT(call)                                                                 \
  int nvmlDeviceGet##call(void *d, char *value, unsigned size) {                   \
    char a[256];                                                                   \
    int code = answer(a, #call ".%d", number(d));                                  \
    return text(value, size, code, a);                                             \
  }

int nvmlInitWithFlags(unsigned flags) {
  char a[256];
  int code = answer(a, "Init");
  (void)flags;
  return code == NOT_SUPPORTED ? OK : code;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == 4 ? "Insufficient Permissions" : "Refused"; }
int nvmlSystemGetDriverVersion(char *value, unsigned size) {
  char a[256];
  int code = answer(a, "Driver");
  return text(value, size, code, a);
}
int nvmlSystemGetCudaDriverVersion_v2(int *value) {
  char a[256];
  int code = answer(a, "Cuda");
  if (!code) *value = atoi(a);
  return code;
}
int nvmlDeviceGetCount_v2(unsigned *value) {
  char a[256];
  int code = answer(a, "Count");
  if (!code) *value = (unsigned)atoi(a);
  return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  char a[256];
  int code = answer(a, "Handle.%u", index);
  *handle = board + index;
  return code == NOT_SUPPORTED ? OK : code;
}
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *pci) {
  char a[256];
  int code = answer(a, "Pci.%d", number(d));
  return address(pci, code, a);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, pci_t *pci) {
  char a[256];
  int code = answer(a, "NvLinkPci.%d.%u", number(d), link);
  return address(pci, code, a);
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *memory) {
  char a[256];
  int code = answer(a, "Memory.%d", number(d));
  if (!code) memory->total = strtoull(a, 0, 0);
  return code;
}
int nvmlDeviceGetTopologyCommonAncestor(void *d, void *e, int *level) {
  char a[256];
  int code = answer(a, "Ancestor.%d.%d", number(d), number(e));
  if (!code) *level = atoi(a);
  return code;
}
TEXT(Name)
TEXT(UUID)
PAIR(CudaComputeCapability)
PAIR(EccMode)
PAIR(MigMode)
WHOLE(CurrPcieLinkGeneration, unsigned)
WHOLE(MaxPcieLinkGeneration, unsigned)
WHOLE(CurrPcieLinkWidth, unsigned)
WHOLE(MaxPcieLinkWidth, unsigned)
WHOLE(EnforcedPowerLimit, unsigned)
WHOLE(NumaNodeId, unsigned)
WHOLE(CurrentClocksEventReasons, unsigned long long)
INDEXED(ClockInfo)
INDEXED(MaxClockInfo)
INDEXED(NvLinkState)
INDEXED(NvLinkRemoteDeviceType)
