/* machine.c: machines as rows of machines.def, and clusters: a number of ranks
 * of one, with overridden numbers. A machine file has lines
 *
 *     chip h100                    row of the other numbers
 *     ranks 64
 *     device NVIDIA H100 PCIe      chip of a calibration
 *     network 2.5e10 measured      or datasheet, fitted
 *     gemm 5.1e14 measured 1e11    for products of 1e11 FLOPs; any number of
 *                                  sizes, ascending
 * */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>

#include "settings.h"

typedef struct SpeedColumn {
    const char *name, *key;
    const char *doc; /* begins with the unit */
    size_t at;       /* offset in MachineSpeeds */
} SpeedColumn;

static const SpeedColumn column[] = {
#define SPEED(name, doc) \
    { #name, "cluster." #name, doc, offsetof(MachineSpeeds, name) },
#include "machines.def"
};

static const char *const machine_names[] = {
#define MACHINE(name, ...) #name,
#include "machines.def"
};

static const MachineSpeeds machines[] = {
#define M(x)               x
#define D(x)               x
#define F(x)               x
#define MACHINE(name, ...) { __VA_ARGS__, { 0 } },
#include "machines.def"
#undef M
#undef D
#undef F
};

static const char sources[][NSPEEDS] = {
#define M(x)               'm'
#define D(x)               'd'
#define F(x)               'f'
#define MACHINE(name, ...) { __VA_ARGS__ },
#include "machines.def"
};

typedef struct Figures { /* a machine's number by sizes */
    Machine machine;
    Speed speed;
    char source;
    const SpeedPoint *points;
} Figures;

#define FIGURES(chip, speed, source, ...)                          \
    { MACHINE##chip, SPEED##speed, (char)(#source[0] + 'a' - 'A'), \
      (SpeedPoint[]){ __VA_ARGS__, { 0, 0 } } },
static const Figures figures[] = {
#include "machines.def"
    { 0 }
};
enum { NFIGURES = countof(figures) - 1 };

static double number_of(const MachineSpeeds *m, int i)
{
    return *(const double *)((const char *)m + column[i].at);
}

static void set_number(MachineSpeeds *m, int i, double v)
{
    *(double *)((char *)m + column[i].at) = v;
}

const char *machine_name(Machine m)
{
    return machine_names[m];
}

const char *speed_name(Speed s)
{
    return column[s].name;
}

static void set_points(MachineSpeeds *m, int i, const SpeedPoint *points)
{
    m->points[i] = points;
    while (points[1].size > 0)
        points++;
    set_number(m, i, points->value);
}

/* Sets "3e14", or "1e9:3e13,1e12:6e14" by sizes. */
static void set_speed(MachineSpeeds *m, int i, const char *text)
{
    SpeedPoint *points = NULL, at = { 0 };

    m->points[i] = NULL;
    set_number(m, i, strtod(text, NULL));
    for (const char *s = text; strchr(s, ':');) {
        char *end;
        at.size = strtod(s, &end);
        at.value = strtod(end + 1, &end);
        vec_push(forever, points, at);
        s = end + (*end == ',');
    }
    vec_push(forever, points, ((SpeedPoint){ 0, 0 }));
    if (points->size > 0)
        set_points(m, i, points);
}

/* Sets numbers that were not measured separately to related ones. */
static void fill_unknown(MachineSpeeds *m)
{
    static const struct {
        Speed speed, as;
    } like[] = { { SPEEDgrouped, SPEEDgemm },  { SPEEDweights, SPEEDgrouped },
                 { SPEEDattn, SPEEDgemm },     { SPEEDattn_bwd, SPEEDattn },
                 { SPEEDsingle, SPEEDgemm },   { SPEEDindex, SPEEDmemory },
                 { SPEEDsoftmax, SPEEDmemory } };

    for (int i = 0; i < countof(like); i++)
        if (number_of(m, (int)like[i].speed) == 0) {
            set_number(m, (int)like[i].speed, number_of(m, (int)like[i].as));
            m->points[like[i].speed] = m->points[like[i].as];
        }
}

Machine machine_row(const Opts *opts, Machine machine)
{
    const char *chip = opts ? opts_str(opts, "cluster.chip") : NULL;
    int row = chip ? word_index(chip, machine_names, NMACHINE) : -1;

    return row < 0 ? machine : (Machine)row;
}

MachineSpeeds machine_speeds(const Opts *opts, Machine machine)
{
    Machine of = machine_row(opts, machine);
    MachineSpeeds m = machines[of];

    for (int i = 0; i < NFIGURES; i++)
        if (figures[i].machine == of)
            set_points(&m, (int)figures[i].speed, figures[i].points);
    for (int i = 0; i < NSPEEDS && opts; i++)
        if (opts_given(opts, column[i].key))
            set_speed(&m, i, opts_str(opts, column[i].key));
    fill_unknown(&m);
    return m;
}

double speed_at(const MachineSpeeds *m, Speed speed, double size)
{
    const SpeedPoint *point = m->points[speed];

    if (!point)
        return number_of(m, (int)speed);
    while (point[1].size > 0 && point[1].size <= size)
        point++;
    if (point[1].size == 0 || size <= point->size)
        return point->value;
    return point->value *
           pow(point[1].value / point->value,
               log(size / point->size) / log(point[1].size / point->size));
}

double product_secs(const MachineSpeeds *m, Speed work, double size,
                    double flops, double bytes)
{
    return hypot(flops / speed_at(m, work, size),
                 bytes / speed_at(m, SPEEDmemory, bytes));
}

double transfer_secs(const MachineSpeeds *m, double all, double here,
                     double bytes, int alltoall)
{
    double out = here == all ? 0
                 : alltoall  ? (all - here) / (all - 1)
                             : 1 / here;

    return m->hop + (here == all ? 0 : m->far) +
           bytes * (out / speed_at(m, SPEEDnetwork, bytes) +
                    (1 - out) / speed_at(m, SPEEDlink, bytes));
}

/* ---- a cluster ----------------------------------------------------------- */

/* Returns the length of the name in "h100x64", and the count; -1: no count. */
static size_t split_name(const char *s, int64_t *ranks)
{
    size_t n = strlen(s), digits = 0;

    while (digits < n && strchr("0123456789", s[n - 1 - digits]))
        digits++;
    *ranks = -1;
    if (!digits || n < digits + 2 || s[n - digits - 1] != 'x')
        return n;
    *ranks = digits > 9 ? INT64_MAX : strtoll(s + n - digits, NULL, 10);
    return n - digits - 1;
}

/* Returns the machine of this name, in upper or lower case; -1: none. */
static int machine_named(const char *name)
{
    char *lower = strf(forever, "%s", name);

    for (char *c = lower; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 'a' - 'A' : *c);
    return word_index(lower, machine_names, NMACHINE);
}

static void set_count(Opts *opts, const char *key, int64_t n, const Loc *loc)
{
    opts_set(opts, key, strf(forever, "%ld", n), loc);
}

/* Reads "network 2.5e10 measured" or "gemm 5e14 measured 1e11". */
static void read_line(Opts *opts, char *line, const Loc *loc)
{
    static const char *const from[] = { "measured", "datasheet", "fitted" };
    char *next, *name;

    line[strcspn(line, "#")] = 0;
    name = strtok_r(line, " \t\r", &next);
    if (!name)
        return;
    if (!strcmp(name, "device")) { /* a name of several words */
        opts_set(opts, "cluster.device", next + strspn(next, " \t"), loc);
        return;
    }
    const char *value = strtok_r(NULL, " \t\r", &next);
    const char *source = strtok_r(NULL, " \t\r", &next);
    const char *size = strtok_r(NULL, " \t\r", &next);
    const char *key = strf(forever, "cluster.%s", name);
    int chip = !strcmp(name, "chip"), count = !strcmp(name, "ranks");
    if (!value)
        err(loc, "%s: no value stands behind it", name);
    if (!chip && !count && (!source || word_index(source, from, 3) < 0))
        err(loc,
            "%s %s: behind a number stands where it is from: measured, "
            "datasheet or fitted",
            name, value);
    if (chip && machine_named(value) < 0)
        err(loc, "chip: there is no machine '%s'%s", value,
            did_you_mean(value, machine_names, NMACHINE));
    value = chip ? machine_names[machine_named(value)] : value;
    if (size) {
        opts_set(opts_new(forever), key, value, loc); /* checks the value */
        const char *before = opts_given(opts, key) ? opts_str(opts, key) : NULL;
        value = strf(forever, "%s%s%s:%s", before ? before : "",
                     before ? "," : "", size, value);
    }
    opts_set(opts, key, value, loc);
}

/* Reads a machine file: its chip, and numbers that opts lacks. */
static void read_machine(Opts *opts, const char *path, const Loc *loc)
{
    Opts *own = opts_new(forever);
    const char *key, *value;
    size_t n;
    char *text = file_read(forever, path, &n), *next;
    const char *name = file_name(path);

    if (!text && errno != ENOENT)
        err(loc, "cluster: cannot read %s: %s", path, file_why());
    if (!text)
        err(loc,
            "cluster: '%s' is neither a machine nor a file of one%s; see pleat "
            "help machines",
            name, did_you_mean(name, machine_names, NMACHINE));
    source_add(path, text, n);
    opts_set(own, "cluster.chip", machine_names[MACHINEh200], loc);
    text = strf(forever, "%s", text);
    for (int line = 1; text; text = next) {
        Loc *at = alloc(forever, sizeof *at);
        *at = (Loc){ intern(path), line++, NULL };
        next = strchr(text, '\n');
        if (next)
            *next++ = 0;
        read_line(own, text, at);
    }
    if (opts_loc(own, "cluster.chip") == loc &&
        !opts_each(own, 1, &key, &value))
        err(loc, "cluster: the file '%s' says nothing of a machine", name);
    opts_set(opts, "cluster.chip", opts_str(own, "cluster.chip"), loc);
    for (int i = 0; opts_each(own, i, &key, &value); i++)
        if (!opts_given(opts, key))
            opts_set(opts, key, value, opts_loc(own, key));
}

/* Returns the ranks of a host, a divisor of all ranks. */
static int64_t host_of(int64_t ranks, int64_t host)
{
    while (host && ranks % host)
        host--;
    return host;
}

/* Checks numbers by which every prediction divides. */
static void need_speeds(const Opts *opts)
{
    static const Speed needed[] = { SPEEDgemm,   SPEEDunaligned, SPEEDplain,
                                    SPEEDloop,   SPEEDmemory,    SPEEDlink,
                                    SPEEDnetwork };
    MachineSpeeds m = machine_speeds(opts, 0);

    for (int i = 0; i < countof(needed); i++) {
        const char *key = column[needed[i]].key;
        const SpeedPoint *point = m.points[needed[i]];
        double least = number_of(&m, (int)needed[i]);
        for (; point && point->size > 0; point++)
            least = point->value < least ? point->value : least;
        if (opts_given(opts, key) && least <= 0)
            err(opts_loc(opts, key), "%s: at 0 a step would never end", key);
    }
}

void cluster_settle(Opts *opts)
{
    const char *s = opts_str(opts, "cluster.chip");
    const Loc *l = opts_loc(opts, "cluster.chip");
    int64_t ranks;

    need_speeds(opts);
    if (!s)
        return;
    const char *name = internn(s, split_name(s, &ranks));
    int row = machine_named(name);
    if (row >= 0)
        opts_set(opts, "cluster.chip", machine_names[row], l);
    else
        read_machine(opts, name, l);
    if (!ranks || ranks == INT64_MAX)
        err(l, "cluster: %s has %s ranks (1 to 999999999)", s,
            ranks ? "too many" : "no");
    if (ranks > 0)
        set_count(opts, "cluster.ranks", ranks, l);
    if (!opts_given(opts, "cluster.ranks"))
        return;
    ranks = opts_int(opts, "cluster.ranks");
    if (opts_given(opts, "world") && opts_int(opts, "world") != ranks)
        err(opts_loc(opts, "world"),
            "world=%s, but the cluster has %ld ranks (world=%ld, or "
            "cluster=%sx%s)",
            opts_str(opts, "world"), ranks, ranks,
            opts_str(opts, "cluster.chip"), opts_str(opts, "world"));
    set_count(opts, "world", ranks, l);
    int64_t host = host_of(ranks, (int64_t)machine_speeds(opts, 0).host);
    if (!opts_given(opts, "fold.host") && host && host < ranks)
        set_count(opts, "fold.host", host, l);
}

static void put_figures(Text *out)
{
    for (int i = 0; i < NFIGURES; i++) {
        const Figures *f = &figures[i];
        put(out, "\n%s %s, by size:", machine_names[f->machine],
            column[f->speed].name);
        for (const SpeedPoint *p = f->points; p->size > 0; p++)
            put(out, " %.2g:%.3g%c", p->size, p->value, f->source);
    }
}

void put_machines(Text *out)
{
    put(out, "%-15s%-8s", "", "unit");
    for (int m = 0; m < NMACHINE; m++)
        put(out, "%11s", machine_names[m]);
    for (int i = 0; i < NSPEEDS; i++) {
        put(out, "\n%-15s%-8.*s", column[i].name,
            (int)strcspn(column[i].doc, " "), column[i].doc);
        for (int m = 0; m < NMACHINE; m++)
            put(out, "%10.3g%c", number_of(&machines[m], i), sources[m][i]);
    }
    put_figures(out);
    put(out,
        "\nm measured, d data sheet, f fitted; what a row means: pleat help "
        "cluster.<row>\n\n"
        "a machine file, cluster=./my.machine: what differs from a column\n\n"
        "    chip h100\n"
        "    ranks 64\n"
        "    network 2.5e10 measured\n"
        "    gemm 2.4e14 measured 1e9     # of products of 1e9 FLOPs\n"
        "    gemm 5.1e14 measured 1e11\n");
}
