/* An environment plugin of the version VERSION. It answers with the variables of the environment whose
 * names begin with `PLUGIN_`, with that left out. */
#include "nccl_env.h"
#include "fixture.h"

static ncclResult_t start(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix) {
  ENTER("init");
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
  ENTER("finalize");
  fprintf(stderr, "the plugin has ended\n");
  return ncclSuccess;
}

static const char *get(const char *name) {
  if (enter("getEnv")) return NULL;
  char own[200];
  snprintf(own, sizeof own, "PLUGIN_%s", name);
  return getenv(own);
}

#if VERSION == 1
__attribute__((visibility("default"))) ncclEnv_v1_t ncclEnvPlugin_v1 = {NAME, init, finalize, get};
#else
__attribute__((visibility("default"))) ncclEnv_v2_t ncclEnvPlugin_v2 = {NAME, init, finalize, get};
#endif
