/* machine.c: machines as rows of machines.def, and clusters: how many ranks of
 * one, with numbers of their own. A machine file is lines
 *
 *     chip h100                    what is not said is as of this row
 *     ranks 64
 *     network 2.5e10 measured      or datasheet, fitted
 */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include "plan.h"

typedef struct SpeedColumn {
    const char *name, *key;
    size_t at; /* in MachineSpeeds */
} SpeedColumn;

static const SpeedColumn column[] = {
#define SPEED(name, doc) \
    { #name, "cluster." #name, offsetof(MachineSpeeds, name) },
#define MACHINE(name, ...)
#include "machines.def"
#undef SPEED
#undef MACHINE
};
enum { NCOLUMN = sizeof column / sizeof *column };

#define SPEED(name, doc)
static const char *const machine_names[] = {
#define MACHINE(name, ...) #name,
#include "machines.def"
#undef MACHINE
};

static const MachineSpeeds machines[] = {
#define M(x)               x
#define D(x)               x
#define F(x)               x
#define MACHINE(name, ...) { __VA_ARGS__ },
#include "machines.def"
#undef MACHINE
#undef M
#undef D
#undef F
};

static const char sources[][NCOLUMN] = {
#define M(x)               'm'
#define D(x)               'd'
#define F(x)               'f'
#define MACHINE(name, ...) { __VA_ARGS__ },
#include "machines.def"
#undef MACHINE
};
#undef SPEED

static double *speed_at(MachineSpeeds *m, int i)
{
    return (double *)((char *)m + column[i].at);
}

MachineSpeeds machine_speeds(const Opts *o, Machine machine)
{
    const char *chip = o ? opts_str(o, "cluster.chip") : NULL;
    int row = chip ? word_index(chip, machine_names, NMACHINE) : -1;
    MachineSpeeds m = machines[row < 0 ? (int)machine : row];

    for (int i = 0; i < NCOLUMN && o; i++)
        if (opts_given(o, column[i].key))
            *speed_at(&m, i) = opts_num(o, column[i].key);
    return m;
}

/* ---- a cluster ----------------------------------------------------------- */

/* "h100x64": the length of the name, and the count; 0: there is none. */
static size_t split_name(const char *s, int64_t *ranks)
{
    size_t n = strlen(s), digits = 0;

    while (digits < n && strchr("0123456789", s[n - 1 - digits]))
        digits++;
    *ranks = 0;
    if (!digits || digits > 9 || n < digits + 2 || s[n - digits - 1] != 'x')
        return n;
    *ranks = strtoll(s + n - digits, NULL, 10);
    return n - digits - 1;
}

static void set_number(Opts *o, const char *key, int64_t n, const Loc *l)
{
    opts_set(o, key, strf(forever, "%lld", (long long)n), l);
}

/* "network 2.5e10 measured" */
static void read_line(Opts *o, char *line, const Loc *l)
{
    static const char *const from[] = { "measured", "datasheet", "fitted" };
    char *next, *name = strtok_r(line, " \t\r", &next);

    if (!name || *name == '#')
        return;
    char *value = strtok_r(NULL, " \t\r", &next);
    char *source = strtok_r(NULL, " \t\r", &next);
    const char *key = strf(forever, "cluster.%s", name);
    int chip = !strcmp(name, "chip"), count = !strcmp(name, "ranks");
    if (!value)
        err(l, "%s: no value stands behind it", name);
    if (!chip && !count && (!source || word_index(source, from, 3) < 0))
        err(l,
            "%s %s: behind a number stands where it is from: measured, "
            "datasheet or fitted",
            name, value);
    if (chip && word_index(value, machine_names, NMACHINE) < 0)
        err(l, "chip: there is no machine '%s'%s", value,
            did_you_mean(value, machine_names, NMACHINE));
    opts_set(o, key, value, l);
}

/* Its chip, and of the rest what o does not have. */
static void read_machine(Opts *o, const char *path, const Loc *l)
{
    Opts *own = opts_new(forever);
    const char *key, *value;
    size_t n;
    char *text = file_read(forever, path, &n), *next;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    if (!text)
        err(l,
            "cluster: '%s' is neither a machine nor a file of one%s; see pleat "
            "help machines",
            name, did_you_mean(name, machine_names, NMACHINE));
    source_add(path, text, n);
    opts_set(own, "cluster.chip", machine_names[MACHINEh200], l);
    text = strf(forever, "%s", text);
    for (int line = 1; text; text = next) {
        Loc *at = alloc(forever, sizeof *at);
        *at = (Loc){ intern(path), line++, NULL };
        next = strchr(text, '\n');
        if (next)
            *next++ = 0;
        read_line(own, text, at);
    }
    opts_set(o, "cluster.chip", opts_str(own, "cluster.chip"), l);
    for (int i = 0; opts_each(own, i, &key, &value); i++)
        if (!opts_given(o, key))
            opts_set(o, key, value, opts_loc(own, key));
}

/* Ranks of a host are a divisor of all. */
static int64_t host_of(int64_t ranks, int64_t host)
{
    while (host && ranks % host)
        host--;
    return host;
}

void cluster_settle(Opts *o)
{
    const char *s = opts_str(o, "cluster.chip");
    const Loc *l = opts_loc(o, "cluster.chip");
    int64_t ranks;

    if (!s)
        return;
    const char *name = internn(s, split_name(s, &ranks));
    if (word_index(name, machine_names, NMACHINE) >= 0)
        opts_set(o, "cluster.chip", name, l);
    else
        read_machine(o, name, l);
    if (ranks)
        set_number(o, "cluster.ranks", ranks, l);
    if (!opts_given(o, "cluster.ranks"))
        return;
    ranks = opts_int(o, "cluster.ranks");
    if (opts_given(o, "world") && opts_int(o, "world") != ranks)
        err(opts_loc(o, "world"),
            "world=%s, but the cluster has %lld ranks (world=%lld, or "
            "cluster=%sx%s)",
            opts_str(o, "world"), (long long)ranks, (long long)ranks,
            opts_str(o, "cluster.chip"), opts_str(o, "world"));
    set_number(o, "world", ranks, l);
    int64_t host = host_of(ranks, (int64_t)machine_speeds(o, 0).host);
    if (!opts_given(o, "fold.host") && host && host < ranks)
        set_number(o, "fold.host", host, l);
}

void put_machines(Text *out)
{
    put(out, "%-10s", "");
    for (int m = 0; m < NMACHINE; m++)
        put(out, "%11s", machine_names[m]);
    for (int i = 0; i < NCOLUMN; i++) {
        put(out, "\n%-10s", column[i].name);
        for (int m = 0; m < NMACHINE; m++) {
            MachineSpeeds s = machines[m];
            put(out, "%10.3g%c", *speed_at(&s, i), sources[m][i]);
        }
    }
    put(out, "\nm measured, d data sheet, f fitted\n");
}
