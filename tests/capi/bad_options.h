/* Bad options of one call, in all eight functions that take them, and of encryption. */
#ifndef BAD_OPTIONS_H_
#define BAD_OPTIONS_H_

#include "bad_structures.h"

/* Calls of every function with the same options. */
#define EIGHT(check, of, who, on, given, ...)                                                \
  do {                                                                                       \
    check(ncclAllReduceConfig(in, of, 1, ncclInt, ncclSum, who, on, given), __VA_ARGS__);    \
    check(ncclBroadcastConfig(in, of, 1, ncclInt, 0, who, on, given), __VA_ARGS__);          \
    check(ncclReduceConfig(in, of, 1, ncclInt, ncclSum, 0, who, on, given), __VA_ARGS__);    \
    check(ncclAllGatherConfig(in, of, 1, ncclInt, who, on, given), __VA_ARGS__);             \
    check(ncclReduceScatterConfig(in, of, 1, ncclInt, ncclSum, who, on, given), __VA_ARGS__); \
    check(ncclAlltoAllConfig(in, of, 1, ncclInt, who, on, given), __VA_ARGS__);              \
    check(ncclGatherConfig(in, of, 1, ncclInt, 0, who, on, given), __VA_ARGS__);             \
    check(ncclScatterConfig(in, of, 1, ncclInt, 0, who, on, given), __VA_ARGS__);            \
  } while (0)

static void options_of_bad(ncclComm_t bad, const char *is) {
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  EIGHT(BAD, out, bad, stream, NULL, "comm", is);
  EIGHT(BAD, out, bad, stream, &config, "comm", is);
}

/* A list of one option of this library. */
static void bad_option(int option, ncclConfigExtValue_t value, const char *argument, const char *is) {
  ncclConfigExt_t foreign = {NULL, {1, 1}, {0}};
  ncclConfigExt_t ext = {&foreign, {OXCCL_VENDOR_ID, 0}, {0}};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  ext.key.optionId = option;
  ext.val = value;
  config.ext = &ext;
  EIGHT(BAD, out, comm, stream, &config, argument, is);
}

static void bad_extensions(void) {
  ncclConfigExt_t two[2] = {{NULL, {OXCCL_VENDOR_ID, oxcclOptionDeterministic}, {0}},
                            {NULL, {OXCCL_VENDOR_ID, oxcclOptionDeterministic}, {0}}};
  ncclConfigExt_t circle = {NULL, {7, 1}, {0}}, plan = {NULL, {OXCCL_VENDOR_ID, oxcclOptionPlan}, {0}};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  ncclConfigExtValue_t value;
  memset(&value, 0, sizeof value);
  bad_option(0, value, "ext", "option 0 of OXCCL_VENDOR_ID");
  bad_option(4, value, "ext", "option 4 of OXCCL_VENDOR_ID");
  bad_option(oxcclOptionDeadlineMs, value, "oxcclOptionDeadlineMs", "0");
  bad_option(oxcclOptionPlan, value, "oxcclOptionPlan", "\"\"");
  value.i = -5;
  bad_option(oxcclOptionDeadlineMs, value, "oxcclOptionDeadlineMs", "-5");
  value.i = 2;
  bad_option(oxcclOptionDeterministic, value, "oxcclOptionDeterministic", "2");
  value.s = "RING";
  bad_option(oxcclOptionPlan, value, "oxcclOptionPlan", "\"RING\"");
  two[0].next = &two[1];
  config.ext = two;
  EIGHT(BAD, out, comm, stream, &config, "ext", "option 2 of OXCCL_VENDOR_ID; expected each");
  circle.next = &circle;
  config.ext = &circle;
  EIGHT(BAD, out, comm, stream, &config, "ext", "a list of more than 1024 options");
  plan.val.s = "ring";
  config.ext = &plan;
  config.algSelection = "ring";
  EIGHT(BAD, out, comm, stream, &config, "oxcclOptionPlan", "\"ring\"; expected algSelection or");
}

static void bad_collective_options(oxcclEvent_t dead_event) {
  const size_t sizes[] = {0, 8, 16, 20, 23, 25, 4104, (size_t)-1};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    /* No byte more than it says, so that valgrind sees what is read beyond. */
    size_t bytes = sizes[i] > 8 && sizes[i] <= sizeof config ? sizes[i] : 8;
    ncclCollConfig_t *small = (ncclCollConfig_t *)malloc(bytes);
    char is[64];
    config.size = sizes[i];
    memcpy((void *)small, &config, bytes);
    snprintf(is, sizeof is, "a structure of %zu bytes", sizes[i]);
    EIGHT(BAD, out, comm, stream, small, "config", is);
    free(small);
  }
  config.size = sizeof config;
  config.magic = 1;
  EIGHT(BAD, out, comm, stream, &config, "config", "a structure with magic 0x1");
  config.magic = NCCL_API_MAGIC;
  EIGHT(BAD, NULL, comm, stream, &config, "recvbuff", "null");
  EIGHT(BAD, out, comm, (cudaStream_t)comm, &config, "stream", "0x");
#define OPTION(field, value, text)                                \
  do {                                                            \
    ncclCollConfig_t bad_field = NCCL_COLLCONFIG_INITIALIZER;     \
    bad_field.field = value;                                      \
    EIGHT(BAD, out, comm, stream, &bad_field, #field, text);      \
  } while (0)
  OPTION(minCTAs, 0, "0");
  OPTION(minCTAs, 65, "65; expected 1 to 64");
  OPTION(maxCTAs, 0, "0");
  OPTION(maxCTAs, 65, "65; expected 1 to 64");
  OPTION(nvlsCTAs, 0, "0");
  OPTION(cgaClusterSize, -1, "-1");
  OPTION(algSelection, "ring,no_such", "\"ring,no_such\" with \"no_such\"");
  OPTION(algSelection, "RING_LL64", "\"RING_LL64\"");
  OPTION(algSelection, "^", "\"^\"");
  OPTION(forceAlgSelection, 2, "2; expected 0 or 1");
  OPTION(forceAlgSelection, NCCL_CONFIG_UNDEF_INT, "-2147483648; expected 0 or 1");
  OPTION(CTAPolicy, 4, "4");
  OPTION(CTAPolicy, -1, "-1");
  OPTION(userProfilerTag, (uint64_t)1 << 63, "0x8000000000000000; expected a number below 2^63");
  OPTION(launchCompletionEvent, (oxcclEvent_t)stream, "0x");
  OPTION(launchCompletionEvent, dead_event, "0xc");
  bad_extensions();
}

static void bad_encryption(void) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  FINE(ncclSetEncryption(&config));
  BAD(ncclSetEncryption(NULL), "config", "null");
  config.mode = 2;
  BAD(ncclSetEncryption(&config), "mode", "2");
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  BAD(ncclSetEncryption(&config), "psk", "null");
  config.psk = "fifteen bytes..";
  BAD(ncclSetEncryption(&config), "psk", "a text of 15 bytes");
  config.mode = NCCL_ENCRYPTION_MODE_NONE;
  config.size = 24;
  BAD(ncclSetEncryption(&config), "config", "a structure of 24 bytes");
  config.size = sizeof config;
  config.magic = 1;
  BAD(ncclSetEncryption(&config), "config", "a structure with magic 0x1");
}

#endif /* BAD_OPTIONS_H_ */
