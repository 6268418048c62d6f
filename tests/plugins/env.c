/* An environment plugin of the version VERSION. It answers with the variables of the environment whose
 * names begin with `PLUGIN_`, with that left out. FIXTURE=error makes its init fail, and `init=hang` or
 * `getEnv=hang` the function never return. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "nccl_env.h"

static void hang_in(const char *function) {
  const char *fixture = getenv("FIXTURE");
  size_t length = strlen(function);
  while (fixture && !strncmp(fixture, function, length) && !strcmp(fixture + length, "=hang")) pause();
}

static ncclResult_t start(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix) {
  hang_in("init");
  const char *fixture = getenv("FIXTURE");
  if (fixture && !strcmp(fixture, "error")) return ncclSystemError;
  return major == 2 && minor == 32 && patch == 3 && !*suffix ? ncclSuccess : ncclInvalidArgument;
}

#if VERSION == 1
static ncclResult_t init(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix) {
  return start(major, minor, patch, suffix);
}
#else
static ncclResult_t init(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix,
                         ncclDebugLogger_t log) {
  log(NCCL_LOG_INFO, NCCL_ENV, __FILE__, __LINE__, "it answers from version %d on", VERSION);
  return start(major, minor, patch, suffix);
}
#endif

static ncclResult_t finalize(void) {
  fprintf(stderr, "the plugin has ended\n");
  return ncclSuccess;
}

static const char *get(const char *name) {
  hang_in("getEnv");
  char own[200];
  snprintf(own, sizeof own, "PLUGIN_%s", name);
  return getenv(own);
}

#if VERSION == 1
__attribute__((visibility("default"))) ncclEnv_v1_t ncclEnvPlugin_v1 = {"Fixture", init, finalize, get};
#else
__attribute__((visibility("default"))) ncclEnv_v2_t ncclEnvPlugin_v2 = {"Fixture", init, finalize, get};
#endif
