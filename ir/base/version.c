/* version.c: program version and file formats. */
#include "base.h"

const char program_version[] = "0.3";
const char *program_commit = "";

/* clang-format off */
const FormatInfo formattab[] = {
#define FORMAT(name, number, since, what) {FMT##name, #name, number, since, what},
#include "formats.def"
#undef FORMAT
};
/* clang-format on */

const int nformat = countof(formattab);

int format_now(Format f)
{
    int now = 0;

    for (int i = 0; i < nformat; i++)
        if (formattab[i].format == f)
            now = formattab[i].number;
    return now;
}

const char *format_name(Format f)
{
    int i = 0;

    while (formattab[i].format != f)
        i++;
    return formattab[i].name;
}

const char *format_wrong(Arena *a, Format f, int64_t number)
{
    int now = format_now(f);

    if (number >= 1 && number <= now)
        return NULL;
    return strf(a, "is of %s format %ld; Pleat %s knows format%s%d",
                format_name(f), number, program_version,
                now > 1 ? "s 1 to " : " ", now);
}
