/* devices.c: the table of devices, and checks of the abilities that a plan
 * needs. */
#include "../../ir/settings/keys.h"
#include "device.h"

/* A run takes the first available device. */
static const Device *const devices[] = { &cuda_device, &host_device,
                                         &null_device };

const Device *device_here(void)
{
    int i = 0;

    while (!devices[i]->count())
        i++;
    return devices[i];
}

const Device *device_named(const char *name)
{
    for (int i = 0; i < countof(devices); i++)
        if (!strcmp(devices[i]->name, name))
            return devices[i];
    return NULL;
}

void need_device(const Plan *p)
{
    const Device *device = device_named(p->target);
    Text out = { .arena = forever };

    if (device && device->can & CANrun)
        return;
    for (int i = countof(devices); i--;)
        if (devices[i]->can & CANrun)
            put(&out, "%s'%s'", out.len ? " and " : "", devices[i]->name);
    err(NULL, "the plan is for target '%s'; this program runs %s", p->target,
        out.s);
}

const Device *device_for(const Plan *p, const Comm *comm)
{
    const Device *d = device_named(p->target);

    need_device(p);
    if (comm->n > 1 && !(d->can & CANranks))
        err(NULL, "a plan for %ld GPUs runs under mpirun, one rank a GPU",
            comm->world);
    if (opts_sum_order(p->opts) == SUMSplacement && comm->world > 1 &&
        !(d->can & CANorder))
        err(opts_loc(p->opts, "deterministic"),
            "deterministic=placement needs sums in rank order; on several GPUs "
            "NCCL chooses the order (target=host keeps it)");
    return d;
}
