/* diagnose.c: `pleat check --json`, for editors. One object on standard output:
 *
 *     { "ok": false,
 *       "messages": [ { "file": "my.lua", "line": 12, "severity": "error",
 *                       "message": "dot: axis 'k' ...", "source": "..." } ],
 *       "parameters": 2723712, "active": 954240, "flops_per_token": 5799936,
 *       "params": [ { "name": "layers.0-2.attn.wq", "axes": "hidden=128 ...",
 *                     "elements": 98304, "state": false } ] }
 *
 * Without an error there are all the numbers; with an "error" message there are
 * none. The check runs in a child process, whose output, in the format of
 * err.c, is parsed here however it ended. The exit status is that of check. */
#include <jansson.h>
#include <sys/wait.h>

#include "../commands.h"

/* Parses "file:12: error: text" to an object; null: no message begins here. */
static json_t *message(const char *s, size_t n)
{
    static const char *const kinds[] = { "error", "warning", "note",
                                         "internal error" };
    char *text = strf(forever, "%.*s", (int)n, s);

    for (int i = 0; i < countof(kinds); i++) {
        char *mark = strf(forever, "%s: ", kinds[i]), *at = strstr(text, mark);
        if (!at || (at != text && (at - text < 2 || at[-2] != ':')))
            continue;
        const char *said = at + strlen(mark);
        *at = 0;
        char *colon = strchr(text, ':'), *end = colon;
        long line = colon ? strtol(colon + 1, &end, 10) : 0;
        if (colon)
            *colon = 0;
        return json_pack("{s:s*, s:o*, s:s, s:s}", "file", colon ? text : NULL,
                         "line", line > 0 ? json_integer(line) : NULL,
                         "severity", kinds[i], "message", said);
    }
    return NULL;
}

/* Parses all messages; other lines are the source of the message before. */
static json_t *messages(const char *s, size_t len)
{
    json_t *all = json_array(), *last = NULL;

    for (const char *end = s + len; s < end;) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((nl ? nl : end) - s), indent = strspn(s, " ");
        json_t *m = indent ? NULL : message(s, n);
        if (m)
            json_array_append_new(all, last = m);
        else if (last && indent < n && !json_object_get(last, "source"))
            json_object_set_new(last, "source",
                                json_stringn(s + indent, n - indent));
        s += n + 1;
    }
    return all;
}

/* Reads the output as UTF-8: a message may quote other bytes from a file. */
static char *read_back(FILE *f, size_t *n)
{
    Text out = { .arena = forever };
    char buf[1 << 14];
    size_t k;

    rewind(f);
    while ((k = fread(buf, 1, sizeof buf, f)) > 0)
        putn(&out, buf, k);
    fclose(f);
    *n = out.len;
    int64_t bad = 0;
    for (size_t at = 0; at < out.len; at += (size_t)bad + 1) {
        bad = utf8_bad(out.s + at, out.len - at);
        if (bad < 0)
            break;
        out.s[at + (size_t)bad] = '?';
    }
    return out.s ? out.s : "";
}

int check_as_json(int (*check)(Args *args), Args *args)
{
    FILE *out = tmpfile(), *said = tmpfile();
    int status = 0;
    size_t n, len;

    fflush(NULL);
    pid_t pid = out && said ? fork() : -1;
    if (pid < 0)
        err(NULL, "cannot start a process: %s", strerror(errno));
    if (!pid) {
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(said), STDERR_FILENO);
        exit(check(args));
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    char *s = read_back(said, &n), *numbers = read_back(out, &len);
    json_t *all = json_object(), *r = json_loadb(numbers, len, 0, NULL);
    int bad = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    json_object_set_new(all, "ok", json_boolean(!bad));
    json_object_set_new(all, "messages", messages(s, n));
    json_object_update(all, r);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    return bad;
}
