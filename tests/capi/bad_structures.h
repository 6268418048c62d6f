/* What bad_arguments.c checks calls with, and its lists of structures and of variables' handles. */
#ifndef BAD_STRUCTURES_H_
#define BAD_STRUCTURES_H_

#include "nccl_device.h"
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, calls;

/* `call` is the source of the call: the text has to begin with its function's name. */
static void expect(ncclResult_t have, ncclResult_t want, const char *argument, const char *is,
                   const char *call) {
  const char *text = ncclGetLastError(NULL);
  size_t name = strcspn(call, "(");
  char wanted[160];
  snprintf(wanted, sizeof wanted, "argument %s is %s", argument, is);
  calls++;
  if (have != want || strncmp(text, call, name) != 0 || !strstr(text, wanted)) {
    fprintf(stderr, "%s: code %d, expected %d; text \"%s\", expected \"%s\"\n", call, have, want,
            text, wanted);
    failures++;
  }
}

#define BAD(call, argument, is) expect((call), ncclInvalidArgument, argument, is, #call)
#define FINE(call)                                                                       \
  do {                                                                                   \
    calls++;                                                                             \
    if ((call) != ncclSuccess) {                                                         \
      fprintf(stderr, "%s failed: %s\n", #call, ncclGetLastError(NULL));                 \
      failures++;                                                                        \
    }                                                                                    \
  } while (0)

/* Every function has a code for a bad state too: the text says what, and that it is no use. */
static void usage(ncclResult_t have, const char *text, const char *call) {
  calls++;
  if (have != ncclInvalidUsage || !strstr(ncclGetLastError(NULL), text)) {
    fprintf(stderr, "%s: code %d: %s\n", call, have, ncclGetLastError(NULL));
    failures++;
  }
}
#define USAGE(call, text) usage((call), text, #call)
/* A function that returns no code returns `none` instead. */
#define NONE(call, none, argument, is)                                                          \
  expect((call) == (none) ? ncclInvalidArgument : ncclSuccess, ncclInvalidArgument, argument, is, \
         #call)

static int in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
static ncclComm_t comm;
/* Three ranks of one communicator. */
static ncclComm_t trio[3];
static cudaStream_t stream;
static void *const UNTOUCHED = (void *)0x5a5a;
/* A window of `comm` of 100 bytes, and arrays with an element for its only rank. */
static ncclWindow_t window;
static const size_t one = 1, zero = 0;
static ncclWaitSignalDesc_t awaited = {1, 0, 0, 0};

/* Configurations of every function that takes one. */
static void configurations(ncclConfig_t *bad, const char *argument, const char *is) {
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id;
  int one = 1;
  FINE(ncclGetUniqueId(&id));
  BAD(ncclCommInitRankConfig(&made, 1, id, 0, bad), argument, is);
  BAD(ncclCommInitRankScalable(&made, 1, 0, 1, &id, bad), argument, is);
  BAD(oxcclCommInitEnv(&made, bad), argument, is);
  BAD(ncclCommSplit(comm, 0, 0, &made, bad), argument, is);
  BAD(ncclCommShrink(trio[0], &one, 1, &made, bad, NCCL_SHRINK_DEFAULT), argument, is);
  BAD(ncclCommGrow(comm, 2, &id, -1, &made, bad), argument, is);
  BAD(ncclCommGrow(NULL, 2, &id, 1, &made, bad), argument, is);
  if (made != (ncclComm_t)UNTOUCHED) failures++;
}

static void bad_configurations(void) {
  const size_t sizes[] = {0, 8, 16, 20, 23, 25, 4104, (size_t)1 << 40, (size_t)-1};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    /* No byte more than it says, so that valgrind sees what is read beyond. */
    size_t bytes = sizes[i] > 8 && sizes[i] <= sizeof config ? sizes[i] : 8;
    ncclConfig_t *small = (ncclConfig_t *)malloc(bytes);
    char is[64];
    config.size = sizes[i];
    memcpy((void *)small, &config, bytes);
    snprintf(is, sizeof is, "a structure of %zu bytes", sizes[i]);
    configurations(small, "config", is);
    free(small);
  }
  config.size = sizeof config;
  config.magic = 1;
  configurations(&config, "config", "a structure with magic 0x1");
#define FIELD(field, value, text)                         \
  do {                                                    \
    ncclConfig_t bad_field = NCCL_CONFIG_INITIALIZER;     \
    bad_field.maxCTAs = 4;                                \
    bad_field.field = value;                              \
    configurations(&bad_field, #field, text);             \
  } while (0)
  FIELD(blocking, 7, "7");
  FIELD(blocking, -1, "-1");
  FIELD(cgaClusterSize, -1, "-1");
  FIELD(minCTAs, 0, "0");
  FIELD(minCTAs, 5, "5");
  FIELD(maxCTAs, 0, "0");
  FIELD(splitShare, 2, "2");
  FIELD(collnetEnable, -1, "-1");
  FIELD(CTAPolicy, 4, "4");
  FIELD(shrinkShare, 3, "3");
  FIELD(nvlsCTAs, 0, "0");
  FIELD(nChannelsPerNetPeer, 65, "65");
  FIELD(nvlinkCentricSched, 2, "2");
  FIELD(graphUsageMode, 3, "3");
  FIELD(numRmaCtx, -1, "-1");
  FIELD(maxP2pPeers, 0, "0");
  FIELD(graphStreamOrdering, 2, "2");
  FIELD(launchOrderImplicit, 2, "2");
  FIELD(numRmaSig, 17, "17");
  FIELD(rmaEagerInit, -1, "-1");
  FIELD(hostCftMode, 4, "4");
  FIELD(nvlsHostMode, -1, "-1");
}

/* Functions that take the handle of a variable. */
static void variables(ncclParamHandle_t bad, const char *is) {
  int64_t number = 7;
  const char *text = NULL;
  int length = 7;
  BAD(ncclParamGetI8(bad, (int8_t *)&number), "h", is);
  BAD(ncclParamGetI16(bad, (int16_t *)&number), "h", is);
  BAD(ncclParamGetI32(bad, (int32_t *)&number), "h", is);
  BAD(ncclParamGetI64(bad, &number), "h", is);
  BAD(ncclParamGetU8(bad, (uint8_t *)&number), "h", is);
  BAD(ncclParamGetU16(bad, (uint16_t *)&number), "h", is);
  BAD(ncclParamGetU32(bad, (uint32_t *)&number), "h", is);
  BAD(ncclParamGetU64(bad, (uint64_t *)&number), "h", is);
  if (strncmp(is, "that of", 7) != 0) {
    BAD(ncclParamGetStr(bad, &text), "h", is);
    BAD(ncclParamGet(bad, &number, sizeof number, &length), "h", is);
  }
  if (number != 7 || text || length != 7) failures++;
}

static void bad_variables(void) {
  ncclParamHandle_t number, text, none = NULL;
  const char *value = NULL, **table = NULL;
  char bytes[4] = "xyz";
  int length = 7;
  FINE(ncclParamBind(&number, "OXCCL_ARENA_GIB"));
  FINE(ncclParamBind(&text, "NCCL_DEBUG"));
  variables(NULL, "null");
  variables((ncclParamHandle_t)&length, "0x");
  variables((ncclParamHandle_t)comm, "0x");
  variables((ncclParamHandle_t)((char *)number + 4096), "0x");
  variables(text, "that of NCCL_DEBUG=");
  BAD(ncclParamBind(NULL, "NCCL_DEBUG"), "out", "null");
  BAD(ncclParamBind(&none, NULL), "key", "null");
  BAD(ncclParamBind(&none, ""), "key", "\"\"");
  BAD(ncclParamBind(&none, "NCCL_DEBG"), "key", "\"NCCL_DEBG\"");
  BAD(ncclParamGetI8(number, NULL), "out", "null");
  BAD(ncclParamGetI16(number, NULL), "out", "null");
  BAD(ncclParamGetI32(number, NULL), "out", "null");
  BAD(ncclParamGetI64(number, NULL), "out", "null");
  BAD(ncclParamGetU8(number, NULL), "out", "null");
  BAD(ncclParamGetU16(number, NULL), "out", "null");
  BAD(ncclParamGetU32(number, NULL), "out", "null");
  BAD(ncclParamGetU64(number, NULL), "out", "null");
  BAD(ncclParamGetStr(text, NULL), "out", "null");
  BAD(ncclParamGet(text, NULL, 4, &length), "out", "null");
  BAD(ncclParamGet(text, bytes, 4, NULL), "len", "null");
  BAD(ncclParamGetParameter(NULL, &value, &length), "key", "null");
  BAD(ncclParamGetParameter("DEBUG", &value, &length), "key", "\"DEBUG\"");
  BAD(ncclParamGetParameter("NCCL_DEBUG", NULL, &length), "value", "null");
  BAD(ncclParamGetParameter("NCCL_DEBUG", &value, NULL), "valueLen", "null");
  BAD(ncclParamGetAllParameterKeys(NULL, &length), "table", "null");
  BAD(ncclParamGetAllParameterKeys(&table, NULL), "tableLen", "null");
  if (none || value || table || length != 7) failures++;
  /* The length that would do is told. */
  BAD(ncclParamGet(number, bytes, -1, &length), "maxLen", "-1");
  BAD(ncclParamGet(number, bytes, 3, &length), "maxLen", "3");
  if (length != 8 || strcmp(bytes, "xyz") != 0) failures++;
}

/* Structures in which functions answer. */
static void bad_answers(void) {
  const size_t sizes[] = {0, 8, 23, 25, 4104, (size_t)-1};
  ncclSimInfo_t estimate = NCCL_SIM_INFO_INITIALIZER;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    /* No byte more than the size itself, so that valgrind sees what is read beyond. */
    size_t *small = (size_t *)malloc(sizeof *small);
    char is[64];
    *small = sizes[i];
    snprintf(is, sizeof is, "a structure of %zu bytes", sizes[i]);
    FINE(ncclGroupStart());
    BAD(ncclGroupSimulateEnd((ncclSimInfo_t *)small), "simInfo", is);
    BAD(ncclCommQueryProperties(comm, (ncclCommProperties_t *)small), "props", is);
    free(small);
  }
  estimate.magic = properties.magic = 1;
  FINE(ncclGroupStart());
  BAD(ncclGroupSimulateEnd(&estimate), "simInfo", "a structure with magic 0x1");
  BAD(ncclCommQueryProperties(comm, &properties), "props", "a structure with magic 0x1");
  properties.size = 24;
  properties.magic = NCCL_API_MAGIC;
  BAD(ncclCommQueryProperties(comm, &properties), "props", "a structure of 24 bytes");
  if (properties.nRanks != 0 || estimate.estimatedTime != NCCL_UNDEF_FLOAT) failures++;
  /* The group has ended each time. */
  USAGE(ncclGroupSimulateEnd(&estimate), "without ncclGroupStart");
  FINE(ncclGroupStart());
  FINE(ncclGroupSimulateEnd(NULL));
}

#endif /* BAD_STRUCTURES_H_ */
