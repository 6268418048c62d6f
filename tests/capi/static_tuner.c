/* A tuner plugin within the program: NCCL_TUNER_PLUGIN=STATIC_PLUGIN finds it by its symbol. */
#define VERSION 6
#include "../plugins/tuner.c"
