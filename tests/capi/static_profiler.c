/* A profiler plugin within the program: NCCL_PROFILER_PLUGIN=STATIC_PLUGIN finds it by its
 * symbol. */
#define VERSION 7
#include "../plugins/profiler.c"
