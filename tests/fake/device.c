/* device.c: which GPUs there are.
 *
 *   count, name, major, minor, processors   of the devices; name7: of rank 7's
 *   memory=MiB                              of each (1024) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { PROCESSORS = 16, MAJOR = 75, MINOR = 76 };
enum { DRIVER = 13000 };

int cuDriverGetVersion(int *v)
{
    *v = DRIVER;
    return 0;
}

int cuDeviceGetCount(int *n)
{
    *n = (int)setting_number("count", 1);
    return 0;
}

int cuDeviceGetName(char *name, int len, int device)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    char key[64];

    (void)device;
    snprintf(key, sizeof key, "name%s", rank ? rank : "");
    snprintf(name, (size_t)len, "%s", setting(key, setting("name", "H200")));
    return 0;
}

int cuDeviceGetAttribute(int *v, int attribute, int device)
{
    (void)device;
    *v = attribute == MAJOR        ? (int)setting_number("major", 9)
         : attribute == MINOR      ? (int)setting_number("minor", 0)
         : attribute == PROCESSORS ? (int)setting_number("processors", 132)
                                   : 1;
    return 0;
}

int cuDeviceGetUuid_v2(void *uuid, int device)
{
    memset(uuid, 7, 16);
    *(char *)uuid = (char)device;
    return 0;
}

int cuGetErrorString(int e, const char **text)
{
    *text = e == ILLEGAL    ? "an illegal memory access was encountered"
            : e == NOMEMORY ? "out of memory"
            : e == TOOLARGE ? "too many resources requested for launch"
                            : "some error";
    return 0;
}
