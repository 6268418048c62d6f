/* An environment plugin within the program: NCCL_ENV_PLUGIN=STATIC_PLUGIN finds it by its symbol. */
#define VERSION 2
#include "../plugins/env.c"
