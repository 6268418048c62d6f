/* Configurations of communicators, several ids, and the host's part of the device API. */
#include "nccl_device.h"
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void same(long have, long want, const char *what) {
  if (have != want) {
    fprintf(stderr, "%s is %ld, expected %ld\n", what, have, want);
    failures++;
  }
}

#define SAME(value, want) same((long)(value), (want), #value)

static void bad_configurations(void) {
  ncclComm_t comm = NCCL_COMM_NULL;
  ncclUniqueId id;
  EXPECT(ncclGetUniqueId(&id), ncclSuccess, NULL);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 1;
  EXPECT(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "magic 0x1");
  config.magic = NCCL_API_MAGIC;
  config.size = 8;
  EXPECT(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "8 bytes");
  config.size = sizeof config;
  config.blocking = 7;
  EXPECT(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "blocking is 7");
  EXPECT(oxcclCommInitEnv(&comm, &config), ncclInvalidArgument, "blocking is 7");
  if (comm != NCCL_COMM_NULL) failures++;
}

static void configured(void) {
  ncclComm_t comm = NCCL_COMM_NULL;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  char name[] = "weights";
  config.commName = name;
  config.maxCTAs = 8;
  EXPECT(ncclGetUniqueId(&id), ncclSuccess, NULL);
  EXPECT(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess, NULL);
  /* The text is copied. */
  memset(name, 0, sizeof name);
  EXPECT(ncclCommDestroy(comm), ncclSuccess, NULL);
  EXPECT(oxcclCommInitEnv(&comm, &config), ncclSuccess, NULL);
  EXPECT(ncclCommDestroy(comm), ncclSuccess, NULL);
}

/* Whether a communicator has the three contexts of its parent; ends it. */
static void has_three_contexts(ncclComm_t comm) {
  int rank = -1;
  EXPECT(ncclCommUserRank(comm, &rank), ncclSuccess, NULL);
  EXPECT(ncclSignal(rank, 0, 2, 0, comm, NULL), ncclSuccess, NULL);
  EXPECT(ncclSignal(rank, 0, 3, 0, comm, NULL), ncclInvalidArgument, "in context 3");
  EXPECT(ncclCommDestroy(comm), ncclSuccess, NULL);
}

/* Children without a configuration have what their parent was given. */
static void inherited(void) {
  enum { ranks = 2 };
  ncclComm_t parents[ranks], split[ranks], shrunk, grown[ranks], none = NCCL_COMM_NULL;
  int excluded[] = {1};
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.numRmaCtx = 3;
  EXPECT(ncclGetUniqueId(&id), ncclSuccess, NULL);
  EXPECT(ncclGroupStart(), ncclSuccess, NULL);
  for (int i = 0; i < ranks; i++)
    EXPECT(ncclCommInitRankConfig(&parents[i], ranks, id, i, &config), ncclSuccess, NULL);
  EXPECT(ncclGroupEnd(), ncclSuccess, NULL);
  EXPECT(ncclGroupStart(), ncclSuccess, NULL);
  for (int i = 0; i < ranks; i++)
    EXPECT(ncclCommSplit(parents[i], 0, 0, &split[i], NULL), ncclSuccess, NULL);
  EXPECT(ncclGroupEnd(), ncclSuccess, NULL);
  EXPECT(ncclCommShrink(parents[0], excluded, 1, &shrunk, NULL, 0), ncclSuccess, NULL);
  EXPECT(ncclCommGetUniqueId(shrunk, &id), ncclSuccess, NULL);
  EXPECT(ncclGroupStart(), ncclSuccess, NULL);
  EXPECT(ncclCommGrow(shrunk, ranks, &id, -1, &grown[0], NULL), ncclSuccess, NULL);
  EXPECT(ncclCommGrow(none, ranks, &id, 1, &grown[1], NULL), ncclSuccess, NULL);
  EXPECT(ncclGroupEnd(), ncclSuccess, NULL);
  /* Who joins has no parent. */
  EXPECT(ncclSignal(1, 0, 1, 0, grown[1], NULL), ncclInvalidArgument, "in context 1");
  EXPECT(ncclCommDestroy(grown[1]), ncclSuccess, NULL);
  has_three_contexts(grown[0]);
  has_three_contexts(shrunk);
  for (int i = 0; i < ranks; i++) {
    has_three_contexts(split[i]);
    has_three_contexts(parents[i]);
  }
}

static void several_ids(void) {
  enum { ranks = 3 };
  ncclComm_t comms[ranks];
  ncclUniqueId ids[2];
  EXPECT(ncclGetUniqueId(&ids[0]), ncclSuccess, NULL);
  EXPECT(ncclGetUniqueId(&ids[1]), ncclSuccess, NULL);
  EXPECT(ncclCommInitRankScalable(comms, ranks, 0, 0, ids, NULL), ncclInvalidArgument, "nId is 0");
  EXPECT(ncclCommInitRankScalable(comms, ranks, 0, 4, ids, NULL), ncclInvalidArgument, "nId is 4");
  EXPECT(ncclCommInitRankScalable(comms, ranks, 0, 1, NULL, NULL), ncclInvalidArgument,
         "commIds is null");
  ncclUniqueId bad[2] = {ids[0], ids[0]};
  memset(&bad[1], 0, sizeof bad[1]);
  EXPECT(ncclCommInitRankScalable(comms, ranks, 0, 2, bad, NULL), ncclInvalidArgument, "commId");
  EXPECT(ncclGroupStart(), ncclSuccess, NULL);
  for (int i = 0; i < ranks; i++)
    EXPECT(ncclCommInitRankScalable(&comms[i], ranks, i, 2, ids, NULL), ncclSuccess, NULL);
  EXPECT(ncclGroupEnd(), ncclSuccess, NULL);
  for (int i = 0; i < ranks; i++) {
    int count = 0;
    EXPECT(ncclCommCount(comms[i], &count), ncclSuccess, NULL);
    SAME(count, ranks);
    EXPECT(ncclCommDestroy(comms[i]), ncclSuccess, NULL);
  }
}

static void teams(void) {
  enum { ranks = 4 };
  ncclComm_t comms[ranks];
  EXPECT(ncclCommInitAll(comms, ranks, NULL), ncclSuccess, NULL);
  for (int i = 0; i < ranks; i++) {
    ncclTeam_t world = ncclTeamWorld(comms[i]), lsa = pncclTeamLsa(comms[i]);
    ncclTeam_t rail = ncclTeamRail(comms[i]);
    SAME(world.nRanks == ranks && world.rank == i && world.stride == 1, 1);
    /* All ranks of a host share memory. */
    SAME(lsa.nRanks == ranks && lsa.rank == i && lsa.stride == 1, 1);
    SAME(rail.nRanks == 1 && rail.rank == 0 && rail.stride == ranks, 1);
    SAME(ncclTeamRankToWorld(comms[i], rail, 0), i);
    SAME(ncclTeamRankToWorld(comms[i], lsa, 3), 3);
    SAME(ncclTeamRankToLsa(comms[i], world, 2), 2);
    SAME(ncclTeamRankToWorld(comms[i], world, ranks), -1);
    ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT(ncclCommQueryProperties(comms[i], &props), ncclSuccess, NULL);
    SAME(props.size, (long)sizeof props);
    SAME(props.rank == i && props.nRanks == ranks && props.cudaDev == i, 1);
    SAME(props.nLsaTeams, 1);
    SAME(props.deviceApiSupport || props.multimemSupport, 0);
    SAME(props.ginType, NCCL_GIN_TYPE_NONE);
    props.size = 32;
    EXPECT(ncclCommQueryProperties(comms[i], &props), ncclInvalidArgument, "32 bytes");
    EXPECT(ncclCommQueryProperties(comms[i], NULL), ncclInvalidArgument, "props is null");
  }
  ncclDevComm_t device;
  ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  memset(&device, 0x5a, sizeof device);
  EXPECT(ncclDevCommCreate(comms[0], &needs, &device), ncclInvalidUsage, "ncclDevCommCreate");
  SAME(device.rank, 0x5a5a5a5a);
  ncclTeam_t team = ncclTeamWorld(comms[0]);
  ncclMultimemHandle_t multimem = {NULL};
  void *pointer = NULL;
  EXPECT(ncclDevCommDestroy(comms[0], &device), ncclInvalidUsage, "ncclDevCommDestroy");
  EXPECT(ncclGetLsaMultimemDevicePointer(NULL, 0, &pointer), ncclInvalidUsage,
         "ncclGetLsaMultimemDevicePointer");
  EXPECT(ncclGetMultimemDevicePointer(NULL, 0, multimem, &pointer), ncclInvalidUsage,
         "ncclGetMultimemDevicePointer");
  EXPECT(ncclGetLsaDevicePointer(NULL, 0, 0, &pointer), ncclInvalidUsage, "ncclGetLsaDevicePointer");
  EXPECT(ncclGetPeerDevicePointer(NULL, 0, 0, &pointer), ncclInvalidUsage,
         "ncclGetPeerDevicePointer");
  EXPECT(ncclLsaBarrierCreateRequirement(team, 1, NULL, NULL), ncclInvalidUsage,
         "ncclLsaBarrierCreateRequirement");
  EXPECT(ncclGinBarrierCreateRequirement(comms[0], team, 1, NULL, NULL), ncclInvalidUsage,
         "ncclGinBarrierCreateRequirement");
  EXPECT(ncclLLA2ACreateRequirement(1, 1, NULL, NULL), ncclInvalidUsage,
         "ncclLLA2ACreateRequirement");
  EXPECT(ncclGinOutboxCreateRequirement(1, 1, NULL, NULL), ncclInvalidUsage,
         "ncclGinOutboxCreateRequirement");
  EXPECT(ncclGinInboxA2ACreateRequirement(team, 1, 1, NULL, NULL), ncclInvalidUsage,
         "ncclGinInboxA2ACreateRequirement");
  if (pointer) failures++;
  for (int i = 0; i < ranks; i++) EXPECT(ncclCommDestroy(comms[i]), ncclSuccess, NULL);
  SAME(ncclTeamWorld(comms[0]).nRanks, 0);
  ncclTeam_t none = ncclTeamWorld(NULL);
  SAME(ncclTeamRankToLsa(NULL, none, 0), -1);
  SAME(ncclLLA2ACalcSlots(32, 12), 64);
  SAME(ncclLLA2ACalcSlots(-1, 8), -1);
}

int main(void) {
  bad_configurations();
  configured();
  inherited();
  several_ids();
  teams();
  if (failures) return 1;
  printf("configurations and teams work\n");
  return 0;
}
