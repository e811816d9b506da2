/* memory_use.c: names of the uses of a device's memory. */
#include "device.h"

const char *const memory_uses[NMEMORYUSE] = {
    [MEMcontext] = "context and others",
    [MEMkernels] = "kernels",
    [MEMproducts] = "products",
    [MEMcommunicators] = "communicators",
    [MEMgraphs] = "graphs and launches",
    [MEMwork] = "work space of products",
    [MEMplan] = "the plan",
    [MEMoffloaded] = "what the plan offloads",
    [MEMresults] = "inputs and results",
    [MEMstate] = "moving the state"
};
