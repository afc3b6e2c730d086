/* The program: host MODE ARGUMENTS. Prints what it sees, so that a run with
 * the library preloaded can be compared with one without. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned);
typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                         void **, void **);

static void *need(void *handle, const char *what)
{
    if (!handle) {
        printf("%s: %s\n", what, dlerror());
        exit(3);
    }
    return handle;
}

static int call(void *handle, const char *name, unsigned argument)
{
    return ((init_fn)need(dlsym(handle, name), name))(argument);
}

static void use(void *handle)
{
    launch_fn launch = (launch_fn)need(dlsym(handle, "targetLaunch"), "targetLaunch");
    for (unsigned i = 0; i < 3; i++)
        printf("init %d\n", call(handle, "targetInit", i));
    printf("launch %d\n", launch((void *)1, 2, 3, 4, 5, 6, 7, 8, (void *)9, (void **)10, (void **)11));
    errno = 5;
    printf("errno before %d", call(handle, "targetErrno", 44));
    printf(" after %d\n", errno);
    printf("inner %d\n", call(handle, "targetInner", 6));
    printf("short %d jump %d loop %d back %d alias %d\n", call(handle, "targetShort", 0),
           call(handle, "targetJump", 1), call(handle, "targetLoop", 10), call(handle, "targetBack", 2),
           call(handle, "targetAlias", 3));
    printf("calls %d\n", call(handle, "targetCalls", 0));
}

static int count(const char *directory)
{
    int n = 0;
    DIR *d = opendir(directory);
    while (d && readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void failures(void)
{
    static const char *const names[] = {"libnone.so", "/none/libtarget.so.1", "/dev/null", "/etc/passwd"};
    for (int i = 0; i < 4; i++) {
        void *handle = dlopen(names[i], RTLD_NOW);
        const char *text = dlerror();
        printf("%p [%s]", handle, text);
        text = dlerror();
        printf(" then [%s]\n", text ? text : "none");
        handle = dlmopen(LM_ID_NEWLM, names[i], RTLD_NOW);
        printf("%p [%s]\n", handle, dlerror());
    }
    printf("%p", dlmopen(99, "libtarget.so.1", RTLD_NOW));
    printf(" [%s]\n", dlerror());
}

static const char *shared_path;
static void *race(void *argument)
{
    long wrong = 0;
    for (int round = 0; round < 50; round++) {
        void *handle = need(dlopen(shared_path, RTLD_NOW), "dlopen");
        for (unsigned i = 0; i < 200; i++)
            wrong += call(handle, "targetInit", i) != 100 + (int)i;
        dlclose(handle);
    }
    (void)argument;
    return (void *)wrong;
}

static void cleanup(void *argument)
{
    (void)argument;
    puts("cleaned up");
}

static void *cancelled(void *handle)
{
    pthread_cleanup_push(cleanup, NULL);
    call(handle, "targetWait", 20000000);
    pause();
    pthread_cleanup_pop(0);
    return NULL;
}

static jmp_buf away;

static void jump(void)
{
    longjmp(away, 1);
}

/* Leaves a call by a jump; whether this thread can still be cancelled. */
static void jumped(void *handle)
{
    int (*call_it)(void (*)(void)) = (int (*)(void (*)(void)))need(dlsym(handle, "targetCall"), "targetCall");
    int state;

    for (int i = 0; i < 3; i++)
        if (!setjmp(away))
            printf("came back %d\n", call_it(jump));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    printf("cancellation %s\n", state == PTHREAD_CANCEL_ENABLE ? "on" : "off");
}

static void filter(int call, int action)
{
    /* `action` for a call that asks for both writable and executable. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        printf("no filter: %s\n", strerror(errno));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Best of several runs, in ns a call; the load itself in us. */
static void measure(const char *path)
{
    double before = now();
    void *handle = need(dlopen(path, RTLD_NOW), path);
    double load = now() - before;
    launch_fn launch = (launch_fn)dlsym(handle, "targetLaunch");
    init_fn init = (init_fn)dlsym(handle, "targetInit");
    double best_launch = 1e9, best_init = 1e9;
    for (int run = 0; run < 20; run++) {
        double start = now();
        for (int i = 0; i < 1000000; i++)
            launch(0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0);
        double end = now();
        if ((end - start) / 1e6 < best_launch)
            best_launch = (end - start) / 1e6;
        start = now();
        for (int i = 0; i < 1000000; i++)
            init(1);
        end = now();
        if ((end - start) / 1e6 < best_init)
            best_init = (end - start) / 1e6;
    }
    printf("%.2f %.2f %.1f\n", best_init, best_launch, load / 1e3);
}

#ifdef LINKED
int targetInit(unsigned);
#endif

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const char *path = argc > 2 ? argv[2] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(mode, "nothing")) {
        extern char **environ;
        printf("threads %d\n", count("/proc/self/task"));
        for (char **e = environ; *e; e++)
            if (strncmp(*e, "LD_PRELOAD=", 11) && strncmp(*e, "FIXTURE_", 8))
                puts(*e);
    } else if (!strcmp(mode, "open")) {
        use(need(dlopen(path, RTLD_NOW | RTLD_LOCAL), path));
        printf("threads %d\n", count("/proc/self/task"));
    } else if (!strcmp(mode, "deep")) {
        use(need(dlopen(path, RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND), path));
    } else if (!strcmp(mode, "link")) {
        void *handle = need(dlopen(path, RTLD_NOW), path);
        printf("link %d\n", call(handle, "linkCall", 5));
    } else if (!strcmp(mode, "space")) {
        for (int i = 2; i < argc; i++)
            use(need(dlmopen(LM_ID_NEWLM, argv[i], RTLD_NOW), argv[i]));
    } else if (!strcmp(mode, "spaces")) {
        /* Namespaces come and go; the base copy stays. */
        void *base = need(dlopen(path, RTLD_NOW), path);
        for (unsigned i = 0; i < 20; i++) {
            void *handle = need(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), path);
            printf("%d %d\n", call(handle, "targetInit", i), call(base, "targetInit", i));
            dlclose(handle);
        }
    } else if (!strcmp(mode, "reload")) {
        for (unsigned i = 0; i < 200; i++) {
            void *handle = need(dlopen(argv[2 + i % (argc - 2)], RTLD_NOW), path);
            printf("%d\n", call(handle, "targetInit", i));
            dlclose(handle);
        }
    } else if (!strcmp(mode, "copies")) {
        void *handles[16];
        for (int i = 2; i < argc; i++)
            handles[i] = need(dlopen(argv[i], RTLD_NOW), argv[i]);
        for (int round = 0; round < 2; round++) {
            for (int i = 2 + round; i < argc; i++)
                use(handles[i]);
            if (!round)
                dlclose(handles[2]);
        }
    } else if (!strcmp(mode, "walk")) {
        /* Two at a time, each at a place of its own. */
        void *before = NULL;
        for (int i = 2; i < argc; i++) {
            void *handle = need(dlopen(argv[i], RTLD_NOW), argv[i]);
            printf("%d\n", call(handle, "targetInit", 1));
            if (before)
                dlclose(before);
            before = handle;
        }
    } else if (!strcmp(mode, "fail")) {
        failures();
    } else if (!strcmp(mode, "race") || !strcmp(mode, "mixed")) {
        pthread_t threads[8];
        long wrong = 0;
        shared_path = path;
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, race, NULL);
        if (*mode == 'm') {
            /* The first dlmopen comes while others load and unload. */
            usleep(atoi(argv[3]));
            void *handle = need(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), path);
            printf("mixed %d\n", call(handle, "targetInit", 1));
        }
        for (int i = 0; i < 8; i++) {
            void *result;
            pthread_join(threads[i], &result);
            wrong += (long)result;
        }
        printf("wrong %ld\n", wrong);
    } else if (!strcmp(mode, "cancel")) {
        pthread_t thread;
        void *result;
        double before = now();
        pthread_create(&thread, NULL, cancelled, need(dlopen(path, RTLD_NOW), path));
        usleep(100000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        printf("cancelled %d %s\n", result == PTHREAD_CANCELED, now() - before < 15e9 ? "at once" : "later");
    } else if (!strcmp(mode, "jump")) {
        jumped(need(dlopen(path, RTLD_NOW), path));
    } else if (!strcmp(mode, "mdwe")) {
        printf("mdwe %d\n", prctl(65, 1, 0, 0, 0));
        use(need(dlopen(path, RTLD_NOW), path));
        use(need(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), path));
    } else if (!strcmp(mode, "allow") || !strcmp(mode, "deny") || !strcmp(mode, "kill") || !strcmp(mode, "map")) {
        filter(*mode == 'm' ? SYS_mmap : SYS_mprotect, *mode == 'a'   ? (int)SECCOMP_RET_ALLOW
                                                       : *mode == 'd' ? (int)(SECCOMP_RET_ERRNO | EPERM)
                                                                      : (int)SECCOMP_RET_KILL_PROCESS);
        use(need(dlopen(path, RTLD_NOW), path));
        use(need(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), path));
        printf("children %d\n", waitpid(-1, NULL, __WALL));
    } else if (!strcmp(mode, "late")) {
        /* host late TARGET LIBRARY OTHER: ours comes after the target. */
        void *handle = need(dlopen(path, RTLD_NOW), path);
        if (argc > 4)
            need(dlopen(argv[3], RTLD_NOW | RTLD_LOCAL), argv[3]);
        use(handle);
        use(need(dlopen(argv[argc - 1], RTLD_NOW), argv[argc - 1]));
    } else if (!strcmp(mode, "fork")) {
        void *handle = need(dlopen(path, RTLD_NOW), path);
        pid_t child = fork();
        if (!child) {
            printf("child %d\n", call(handle, "targetInit", 1));
            printf("child %d\n", call(need(dlopen(argv[3], RTLD_NOW), "dlopen"), "targetInit", 1));
            exit(7);
        }
        int status;
        waitpid(child, &status, 0);
        printf("status %d parent %d\n", WEXITSTATUS(status), call(handle, "targetInit", 2));
    } else if (!strcmp(mode, "seldom")) {
        /* Loaded first, noticed only when something else is loaded. */
        use(need(dlopen(path, RTLD_NOW), path));
        if (*argv[3])
            use(need(dlopen(argv[3], RTLD_NOW), path));
        use(need(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), path));
    } else if (!strcmp(mode, "measure")) {
        measure(path);
    }
#ifdef LINKED
    else if (!strcmp(mode, "linked")) {
        printf("linked %d\n", targetInit(4));
        use(RTLD_DEFAULT);
    }
#endif
    return argc;
}
