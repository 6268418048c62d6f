/* Variables: ncclParam*, configuration files, logging. The environment is set before the first call of
 * the library, which then reads it. */
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;

static void expect(ncclResult_t have, ncclResult_t want, const char *text, const char *what) {
  const char *got = ncclGetLastError(NULL);
  if (have != want || (text && !strstr(got, text))) {
    fprintf(stderr, "%s: code %d, expected %d; text \"%s\", expected \"%s\"\n", what, have, want,
            got, text ? text : "");
    failures++;
  }
}

#define EXPECT(call, code, text) expect((call), (code), (text), #call)
#define BAD(call, text) expect((call), ncclInvalidArgument, (text), #call)
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      failures++;                                                     \
    }                                                                 \
  } while (0)

static ncclParamHandle_t bound(const char *key) {
  ncclParamHandle_t h = NULL;
  EXPECT(ncclParamBind(&h, key), ncclSuccess, NULL);
  return h;
}

static void numbers(void) {
  int8_t i8 = 77;
  uint8_t u8 = 77;
  int16_t i16 = 77;
  uint16_t u16 = 77;
  int32_t i32 = 77;
  uint32_t u32 = 77;
  int64_t i64 = 77;
  uint64_t u64 = 77;
  ncclParamHandle_t h = bound("OXCCL_TIMEOUT"); /* in nanoseconds */
  BAD(ncclParamGetI8(h, &i8), "OXCCL_TIMEOUT=40us; expected a value from -128 to 127");
  BAD(ncclParamGetU8(h, &u8), "expected a value from 0 to 255");
  BAD(ncclParamGetI16(h, &i16), "expected a value from -32768 to 32767");
  CHECK(i8 == 77 && u8 == 77 && i16 == 77);
  EXPECT(ncclParamGetU16(h, &u16), ncclSuccess, NULL);
  EXPECT(ncclParamGetI32(h, &i32), ncclSuccess, NULL);
  EXPECT(ncclParamGetU32(h, &u32), ncclSuccess, NULL);
  EXPECT(ncclParamGetI64(h, &i64), ncclSuccess, NULL);
  EXPECT(pncclParamGetU64(h, &u64), ncclSuccess, NULL);
  CHECK(u16 == 40000 && i32 == 40000 && u32 == 40000 && i64 == 40000 && u64 == 40000);

  h = bound("NCCL_IB_GID_INDEX"); /* default -1 */
  BAD(ncclParamGetU32(h, &u32), "NCCL_IB_GID_INDEX=-1; expected a value from 0");
  BAD(ncclParamGetU64(h, &u64), "expected a value from 0");
  EXPECT(ncclParamGetI8(h, &i8), ncclSuccess, NULL);
  CHECK(i8 == -1);
  h = bound("NCCL_SOCKET_MAGIC");
  BAD(ncclParamGetU32(h, &u32), "expected a value from 0 to 2^32 - 1");
  EXPECT(ncclParamGetI64(h, &i64), ncclSuccess, NULL);
  CHECK(i64 == 0x564ab9f2fc4b9d6cLL);
  h = bound("OXCCL_COUNTER_START"); /* 2^64 - 1 */
  BAD(ncclParamGetI64(h, &i64), "expected a value from -2^63");
  EXPECT(ncclParamGetU64(h, &u64), ncclSuccess, NULL);
  CHECK(u64 == UINT64_MAX);
  h = bound("OXCCL_INSECURE");
  EXPECT(ncclParamGetU8(h, &u8), ncclSuccess, NULL);
  CHECK(u8 == 1);

  BAD(ncclParamGetI32(bound("NCCL_DEBUG"), &i32), "NCCL_DEBUG=WARN; expected a variable that holds a number");
  BAD(ncclParamGetI32(bound("NCCL_MIN_CTAS"), &i32), "NCCL_MIN_CTAS=; expected a variable that is set");
  BAD(ncclParamGetI32(NULL, &i32), "h is null");
  BAD(ncclParamGetI32((ncclParamHandle_t)&i32, &i32), "expected a handle from ncclParamBind");
  BAD(ncclParamGetI32((ncclParamHandle_t)((char *)h + 4096), &i32), "expected a handle");
  BAD(ncclParamGetI32(bound("OXCCL_TIMEOUT"), NULL), "out is null");
}

static void texts(void) {
  const char *text = NULL;
  int length = 0;
  char bytes[16];
  ncclParamHandle_t h = NULL;
  EXPECT(ncclParamGetStr(bound("NCCL_HOSTID"), &text), ncclSuccess, NULL);
  CHECK(text && strcmp(text, "from a file") == 0);
  EXPECT(ncclParamGetStr(bound("OXCCL_TIMEOUT"), &text), ncclSuccess, NULL);
  CHECK(text && strcmp(text, "40us") == 0);
  EXPECT(ncclParamGetStr(bound("NCCL_MIN_CTAS"), &text), ncclSuccess, NULL);
  CHECK(text && strcmp(text, "") == 0);
  BAD(ncclParamGetStr(NULL, &text), "h is null");
  BAD(ncclParamGetStr(bound("NCCL_DEBUG"), NULL), "out is null");

  EXPECT(ncclParamGetParameter("NCCL_HOSTID", &text, &length), ncclSuccess, NULL);
  CHECK(text && strcmp(text, "from a file") == 0 && length == 11);
  BAD(ncclParamGetParameter("NCCL_DEBG", &text, &length), "did you mean NCCL_DEBUG?");
  BAD(ncclParamGetParameter("DEBUG", &text, &length), "did you mean NCCL_DEBUG?");
  BAD(ncclParamGetParameter("\xff\xfe", &text, &length), "as `oxccl env` lists them");
  CHECK(length == 11);
  BAD(ncclParamGetParameter(NULL, &text, &length), "key is null");
  BAD(ncclParamGetParameter("NCCL_DEBUG", NULL, &length), "value is null");
  BAD(ncclParamGetParameter("NCCL_DEBUG", &text, NULL), "valueLen is null");

  BAD(ncclParamBind(NULL, "NCCL_DEBUG"), "out is null");
  BAD(ncclParamBind(&h, NULL), "key is null");
  BAD(ncclParamBind(&h, "OXCCL_TIMEOUTS"), "\"OXCCL_TIMEOUTS\"; expected the name of a variable; did you mean OXCCL_TIMEOUT?");
  CHECK(h == NULL);

  memset(bytes, 'x', sizeof bytes);
  EXPECT(ncclParamGet(bound("NCCL_HOSTID"), bytes, sizeof bytes, &length), ncclSuccess, NULL);
  CHECK(length == 12 && memcmp(bytes, "from a file\0xxxx", 16) == 0);
  BAD(ncclParamGet(bound("NCCL_HOSTID"), bytes, 11, &length), "maxLen is 11; expected at least 12 bytes");
  CHECK(length == 12);
  BAD(ncclParamGet(bound("NCCL_HOSTID"), bytes, -1, &length), "maxLen is -1");
  uint64_t number = 0;
  EXPECT(ncclParamGet(bound("OXCCL_TIMEOUT"), &number, sizeof number, &length), ncclSuccess, NULL);
  CHECK(length == 8 && number == 40000);
  EXPECT(ncclParamGet(bound("OXCCL_INSECURE"), bytes, 1, &length), ncclSuccess, NULL);
  CHECK(length == 1 && bytes[0] == 1);
  BAD(ncclParamGet(NULL, bytes, 1, &length), "h is null");
  BAD(ncclParamGet(bound("NCCL_DEBUG"), NULL, 1, &length), "out is null");
  BAD(ncclParamGet(bound("NCCL_DEBUG"), bytes, 1, NULL), "len is null");
}

static int has(const char **table, int count, const char *key) {
  for (int i = 0; i < count; i++)
    if (strcmp(table[i], key) == 0) return 1;
  return 0;
}

static void keys(void) {
  const char **table = NULL;
  int count = 0, all = 0;
  EXPECT(ncclParamGetAllParameterKeys(&table, &count), ncclSuccess, NULL);
  CHECK(count > 112 && has(table, count, "NCCL_DEBUG") && has(table, count, "OXCCL_TIMEOUT"));
  CHECK(!has(table, count, "NCCL_PAT_ENABLE"));
  for (int i = 0; i < count; i++) {
    const char *value = NULL;
    int length = -1;
    EXPECT(ncclParamGetParameter(table[i], &value, &length), ncclSuccess, NULL);
    CHECK(value && (int)strlen(value) == length);
  }
  setenv("NCCL_PARAM_DUMP_ALL", "true", 1);
  EXPECT(pncclParamGetAllParameterKeys(&table, &all), ncclSuccess, NULL);
  CHECK(all > count && has(table, all, "NCCL_PAT_ENABLE"));
  unsetenv("NCCL_PARAM_DUMP_ALL");
  BAD(ncclParamGetAllParameterKeys(NULL, &count), "table is null");
  BAD(ncclParamGetAllParameterKeys(&table, NULL), "tableLen is null");
}

/* The whole of a small file, in a static buffer. */
static const char *content(const char *path) {
  static char text[1 << 16];
  FILE *file = fopen(path, "r");
  size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file) fclose(file);
  text[n] = 0;
  return text;
}

static char heard[256];
static int lines[6];

static void count(void *user, int level, const char *text) {
  CHECK(user == lines && level >= 0 && level < 6 && text);
  lines[level]++;
}

/* Level 3 brings INFO, 2 only warnings, 0 nothing. */
static void levels(void) {
  int number;
  EXPECT(oxcclSetLog(3, count, lines), ncclSuccess, NULL);
  BAD(ncclCommCount(NULL, &number), "comm is null");
  EXPECT(oxcclSetLog(2, count, lines), ncclSuccess, NULL);
  CHECK(lines[3] > 0);
  memset(lines, 0, sizeof lines);
  BAD(ncclCommCount(NULL, &number), "comm is null");
  EXPECT(oxcclSetLog(0, count, lines), ncclSuccess, NULL);
  CHECK(lines[3] == 0);
  memset(lines, 0, sizeof lines);
  BAD(ncclCommCount(NULL, &number), "comm is null");
  EXPECT(oxcclSetLog(2, NULL, NULL), ncclSuccess, NULL);
  for (int i = 0; i < 6; i++) CHECK(lines[i] == 0);
}

static void hear(void *user, int level, const char *text) {
  /* A callback may set the callback, which then gets the next line. */
  EXPECT(oxcclSetLog(level > 0 ? 2 : 0, hear, user), ncclSuccess, NULL);
  if (strstr(text, "OXCCL_TIMEOUT = ")) snprintf(heard, sizeof heard, "%s", text);
}

static void logging(const char *folder) {
  char pattern[512], path[512], prefix[64], host[256];
  struct stat status;
  ncclUniqueId id;
  ncclComm_t comm;

  /* What was asked for by a call is written at any level; a callback gets the text alone. */
  EXPECT(oxcclSetLog(2, hear, NULL), ncclSuccess, NULL);
  ncclParamDumpAll();
  /* Which waits for the lines on their way. */
  EXPECT(oxcclSetLog(2, hear, NULL), ncclSuccess, NULL);
  CHECK(strstr(heard, "OXCCL_TIMEOUT = 40us (environment; default \"0s\"), duration: How long") == heard);
  EXPECT(oxcclSetLog(2, NULL, NULL), ncclSuccess, NULL);

  CHECK(gethostname(host, sizeof host) == 0);
  host[strcspn(host, ".")] = 0;
  snprintf(pattern, sizeof pattern, "%s/%%%%-%%h-%%p.log", folder);
  snprintf(path, sizeof path, "%s/%%-%.200s-%d.log", folder, host, getpid());
  setenv("NCCL_DEBUG", "INFO", 1);
  /* The service tells of itself whenever its thread comes to it. */
  setenv("NCCL_DEBUG_SUBSYS", "^ENV,RAS", 1);
  setenv("NCCL_DEBUG_FILE", pattern, 1);
  ncclResetDebugInit();
  EXPECT(ncclGetUniqueId(&id), ncclSuccess, NULL);
  EXPECT(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess, NULL);
  EXPECT(ncclCommDestroy(comm), ncclSuccess, NULL);
  /* Many a program tells of a failure no more than its code. */
  BAD(ncclCommDestroy(comm), "destroyed");
  CHECK(strstr(content(path), "OXCCL INFO a call failed: ncclCommDestroy"));
  CHECK(stat(path, &status) == 0 && (status.st_mode & 0777) == 0600);
  snprintf(prefix, sizeof prefix, ":%d:%d [0] OXCCL ", getpid(), getpid());
  /* The version is told at once, a name that nothing has is a warning, with the time; what was given
   * belongs to ENV. */
  CHECK(strstr(content(path), prefix) && strstr(content(path), "OXCCL VERSION OxCCL "));
  CHECK(strstr(content(path), "OXCCL WARN NCCL_DEBG (environment) is no variable; did you mean NCCL_DEBUG?\n"));
  CHECK(strstr(content(path), "<time> "));
  CHECK(!strstr(content(path), "OXCCL_TIMEOUT=40us"));

  /* Back to the level WARN and another file: nothing more arrives in the first. */
  size_t before = strlen(content(path));
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", "/dev/null", 1);
  pncclResetDebugInit();
  ncclParamDumpAll();
  CHECK(strlen(content(path)) == before);
  unlink(path);
}

int main(void) {
  char folder[] = "/tmp/oxccl-params-XXXXXX";
  char conf[512];
  if (!mkdtemp(folder)) return 1;
  snprintf(conf, sizeof conf, "%s/nccl.conf", folder);
  FILE *file = fopen(conf, "w");
  if (!file) return 1;
  fputs("# A configuration file.\nNCCL_HOSTID = from a file\nOXCCL_TIMEOUT=1\n", file);
  fclose(file);
  setenv("NCCL_CONF_FILE", conf, 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_TIMESTAMP_FORMAT", "<time> ", 1);
  setenv("NCCL_DEBG", "INFO", 1);
  setenv("OXCCL_TIMEOUT", "40us", 1);
  setenv("OXCCL_COUNTER_START", "0xffffffffffffffff", 1);
  setenv("OXCCL_INSECURE", "true", 1);
  numbers();
  texts();
  keys();
  levels();
  logging(folder);
  unlink(conf);
  rmdir(folder);
  if (!failures) puts("all variables are read");
  return failures != 0;
}
