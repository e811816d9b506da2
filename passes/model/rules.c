/* rules.c: how a parameter is updated: by which optimizer of the model, and
 * what multiplies its learning rate and weight decay. */
#include "../../ir/settings/keys.h"
#include "model.h"

const Node *optimizer_result(const Node *optimizer, int i)
{
    const Graph *body = optimizer->body;
    size_t k = 0;

    while (body->node[k]->op != Oresult || i-- > 0)
        k++;
    return body->node[k]->in[0];
}

/* The parameter's new value. */
static const Node *new_parameter(const Node *optimizer)
{
    const Graph *body = optimizer->body;

    return body->node[vec_len(body->node) - 1]->in[0];
}

/* Has the tensor the axes that the parameter is declared with? The fold pads
 * those of experts. */
static int has_declared_dims(const Node *n, const Param *param)
{
    Dim dim[MAXD];

    for (int i = 0; i < param->nd; i++) {
        Axis *a = unpadded(param->dim[i].a);
        dim[i] = a == param->dim[i].a ? param->dim[i] : (Dim){ a, a->n };
    }
    return has_dims(n, dim, param->nd);
}

int optimizer_fits(const Node *n, const Param *param)
{
    if (n->op != Ooptimizer ||
        !pattern_match(n->at.optimizer.params, param->path))
        return 0;
    const Node *p = new_parameter(n);
    return !p->nd || has_declared_dims(p, param);
}

int is_frozen(const Graph *g, const char *path)
{
    const char *rest;

    return opts_match(g->opts, "train.freeze", path) ||
           opts_source(g->opts, path, &rest);
}

int is_frozen_rule(const UpdateRule *rule)
{
    return !rule->optimizer;
}

int is_elementwise_rule(const UpdateRule *rule)
{
    return is_frozen_rule(rule) || !new_parameter(rule->optimizer)->nd;
}

static int decays(const Opts *opts, const Param *param)
{
    return opts_str(opts, "train.no_decay")
               ? !opts_match(opts, "train.no_decay", param->path)
               : param->nd > 1;
}

const Node **optimizers_of(const Graph *g)
{
    const Node **v = NULL;

    for (size_t i = 0; i < vec_len(g->node); i++)
        if (g->node[i]->op == Ooptimizer)
            vec_push(g->arena, v, g->node[i]);
    return v;
}

UpdateRule update_rule(const Graph *g, const Node *const *optimizers,
                       const Param *param)
{
    UpdateRule rule = { .lr = opts_factor(g->opts, "train.lr.", param->path) };
    size_t i = vec_len(optimizers);

    if (decays(g->opts, param))
        rule.decay = opts_num(g->opts, "train.weight_decay") *
                     opts_factor(g->opts, "train.decay.", param->path);
    while (i > 0 && !optimizer_fits(optimizers[i - 1], param))
        i--;
    if (!i)
        err(param->loc, "parameter '%s' has no optimizer", param->path);
    rule.optimizer = optimizers[i - 1];
    return rule;
}

int same_rule(const UpdateRule *x, const UpdateRule *y)
{
    return x->optimizer == y->optimizer && x->lr == y->lr &&
           x->decay == y->decay;
}
