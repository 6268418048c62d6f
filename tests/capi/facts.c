/* Asks a header for facts; the test makes the program. */
#include OXCCL_FACTS
