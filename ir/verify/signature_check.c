/* signature_check.c: laws of the signatures of kernels. */
#include "verify.h"

/* Is what says where an operand's rows begin one that is read, a map? */
static int begins(const KernelSignature *signature,
                  const KernelOperand *operand)
{
    int b = operand->base - 1;
    return b >= 0 && b < (int)strlen(signature->use) &&
           signature->use[b] == 'r' && signature->op[b].dt == Di32 &&
           signature->op[b].nd == 1 && operand->nd > 1;
}

static const char *signature_wrong(const PlanCheck *check,
                                   const KernelSignature *signature)
{
    const Mesh *m = check->p->mesh;
    const char *name = intern(signature->kernel);
    if (!bsearch(&name, check->kernels, (size_t)check->p->nkernel, sizeof name,
                 by_pointer) &&
        law(Lkernel_there))
        return "is of a kernel that is not in the plan";
    const Launch *launch = &signature->launch;
    const char *field = launch_wrong(launch);
    if (field && law(Llaunch_range))
        return strf(check->arena, "has a '%s' out of its range", field);
    if ((launch->threads
             ? launch->grain || launch->host || !launch->y || !launch->z ||
                   !launch->then != !launch->pairs ||
                   (launch->then && launch->persistent) ||
                   (launch->peers && launch->items > PEERBLOCKS)
             : !launch->grain || launch->y || launch->z || launch->shared ||
                   launch->persistent || launch->hopper || launch->then ||
                   launch->pairs || launch->peers) &&
        law(Llaunch))
        return "runs neither on a host nor on a GPU";
    for (int i = 0; i < signature->nword; i++)
        if (aff_stray(m, &signature->word[i].at) && law(Lint_atoms))
            return "speaks of atoms that the mesh does not have";
    for (int i = 0; i < signature->nword; i++)
        if (signature->word[i].type == WORDadd &&
            signature->word[i].at.c != (strchr(signature->use, 'b') != NULL) &&
            law(Lsig_adds))
            return "does not say whether it adds to an operand";
    for (int i = 0; signature->use[i]; i++)
        if (signature->op[i].base && !begins(signature, &signature->op[i]) &&
            law(Lragged_base))
            return "has rows that begin where no operand says";
    return NULL;
}

/* Where kernels of the host have a prelude of their own, a text is behind one
 * of the two. */
static const char *text_wrong(const PlanCheck *check, int sig)
{
    const KernelSignature *all = check->p->sig;
    for (int i = 0; check->p->host && i < sig; i++)
        if (!strcmp(all[i].kernel, all[sig].kernel) &&
            all[i].launch.host != all[sig].launch.host && law(Lhost_text))
            return "runs on the host and on the device";
    return NULL;
}

const char *signatures_wrong(const PlanCheck *check)
{
    for (int i = 0; i < check->p->nsig; i++) {
        const char *why = signature_wrong(check, &check->p->sig[i]);
        why = why ? why : text_wrong(check, i);
        if (why)
            return strf(check->arena, "signature %d of '%s' %s", i,
                        check->p->sig[i].kernel, why);
    }
    return NULL;
}
