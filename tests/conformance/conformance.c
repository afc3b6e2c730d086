/* What the driver and CUPTI do, as a transcript that is the same on a GPU and on the simulated driver.
 *
 *   conformance [--libcuda FILE] [--libcupti FILE] [--libcudart FILE] [--long-ms N] [--section NAME]
 *
 * Each section runs in a process of its own (a crash or a hang is a line of the transcript, not its
 * end). Lines with # in front describe the machine. Times and addresses are never printed, ids only
 * relative to the section's first. Exit status: 0 all sections ran, 1 one could not be set up. */
#define _GNU_SOURCE
#include "harness.h"
#include "sections.h"
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECTION_SECONDS = 30 };
const char *libcudart;

static const struct section {
    const char *name;
    void (*body)(void);
    const char *injection; /* what the injected library does, NULL: none */
} sections[] = {
    {"names", names, NULL},
    {"subscribing", subscribing, NULL},
    {"activity_results", activity_results, NULL},
    {"attributes", attributes, NULL},
    {"entry_points", entry_points, NULL},
    {"launches", launches, NULL},
    {"failing", failing, NULL},
    {"failing_null_function", failing_null_function, NULL},
    {"failing_null_graph", failing_null_graph, NULL},
    {"graphs", graphs, NULL},
    {"graphs_of_before", graphs_of_before, NULL},
    {"windows", windows, NULL},
    {"capturing", capturing, NULL},
    {"flush_beside_running_kernel", flush_beside_running_kernel, NULL},
    {"unsubscribe_with_work_queued", unsubscribe_with_work_queued, NULL},
    {"hand_over_without_force", hand_over_without_force, NULL},
    {"hand_over_forced", hand_over_forced, NULL},
    {"threads_one_buffer", threads_one_buffer, NULL},
    {"threads_buffer_each", threads_buffer_each, NULL},
    {"at_exit", at_exit, NULL},
    {"modules", modules, NULL},
    {"injection", injection, "subscribe"},
    {"injection_refuses", injection, "refuse"},
    {"injection_calls_cuInit", injection, "cuInit"},
    {"runtime", runtime, NULL},
};

static void describe(void)
{
    char name[128] = "?";
    int version = 0;
    uint32_t api = 0;
    time_t now = time(NULL);
    char day[32];
    start_cuda();
    cu.cuDeviceGetName(name, sizeof name, device);
    cu.cuDriverGetVersion(&version);
    cupti.cuptiGetVersion(&api);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime(&now));
    printf("# gpu %s\n# cuda driver API %d.%d\n# cupti API %u\n# date %s\n", name, version / 1000, version % 1000 / 10, api, day);
    char line[256];
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file && fgets(line, sizeof line, file)) printf("# driver %s", line);
    if (file) fclose(file);
}

static int run_section(const char *self, char **argv, const struct section *s)
{
    char name[64] = "describe", library[PATH_MAX + 64];
    if (s) {
        snprintf(name, sizeof name, "%s", s->name);
        printf("== %s\n", name);
    }
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        char *args[32];
        int n = 0;
        while (argv[n] && n < 28) {
            args[n] = argv[n];
            n++;
        }
        args[n++] = "--section";
        args[n++] = name;
        args[n] = NULL;
        unsetenv("CUDA_INJECTION64_PATH");
        if (s && s->injection) {
            char copy[PATH_MAX];
            snprintf(copy, sizeof copy, "%s", self);
            snprintf(library, sizeof library, "%s/conformance_injection.so", dirname(copy));
            setenv("CUDA_INJECTION64_PATH", library, 1);
            setenv("CONFORMANCE_INJECTION", s->injection, 1);
        }
        execv(self, args);
        _exit(127);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) fail("waitpid");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) printf("did not end\n");
    else if (WIFSIGNALED(status)) printf("died of signal %d\n", WTERMSIG(status));
    else if (WEXITSTATUS(status)) printf("could not be set up\n");
    fflush(stdout);
    return WIFEXITED(status) && WEXITSTATUS(status) ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *libcuda = NULL, *libcupti = NULL, *only = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--libcuda")) libcuda = argv[i + 1];
        else if (!strcmp(argv[i], "--libcupti")) libcupti = argv[i + 1];
        else if (!strcmp(argv[i], "--libcudart")) libcudart = argv[i + 1];
        else if (!strcmp(argv[i], "--long-ms")) long_ns = strtoull(argv[i + 1], NULL, 10) * 1000000u;
        else if (!strcmp(argv[i], "--section")) only = argv[i + 1];
        else fail("unknown option %s", argv[i]);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) fail("/proc/self/exe");
    self[length] = 0;
    if (!only) {
        int failures = run_section(self, argv, NULL);
        for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
            failures += run_section(self, argv, &sections[i]);
        return failures ? 1 : 0;
    }
    alarm(SECTION_SECONDS);
    load_libraries(libcuda, libcupti);
    if (!strcmp(only, "describe")) {
        describe();
        return 0;
    }
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (!strcmp(only, sections[i].name)) {
            sections[i].body();
            return 0;
        }
    fail("no section %s", only);
}
