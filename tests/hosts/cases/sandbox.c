/*
 * A program that locks itself into a short list of system calls once CUDA works, all threads of it, and goes on
 * launching. Whatever is not in the list ends it, and tells which call it was.
 *
 *   sandbox LAUNCHES        gate, launches, filter, gate, launches, gate, launches, gate, exit 5
 */
#include "../interposer/cuda.h"
#include <execinfo.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* What a program needs that computes, waits, allocates and ends. */
static const unsigned allowed[] = {
	SYS_read, SYS_write, SYS_futex, SYS_exit, SYS_exit_group, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise,
	SYS_mremap, SYS_brk, SYS_clock_nanosleep, SYS_sched_yield, SYS_restart_syscall, SYS_rt_sigreturn, SYS_rt_sigprocmask,
#ifdef SYS_rseq
	SYS_rseq,
#endif
#ifdef GUM
	/* At the end of each thread. */
	SYS_gettid,
#endif
};
enum { COUNT = sizeof allowed / sizeof *allowed };

static void forbidden(int signal, siginfo_t *info, void *context)
{
	char text[] = "forbidden call 000\n";
	int number = info->si_syscall;
	void *stack[32];

	(void)signal, (void)context;
	for (int i = 17; number && i > 14; i--, number /= 10)
		text[i] = '0' + number % 10;
	if (write(2, text, sizeof text - 1) < 0)
		_exit(32);
	backtrace_symbols_fd(stack, backtrace(stack, 32), 2);
	_exit(31);
}

static void filter(void)
{
	struct sock_filter code[COUNT * 2 + 2];
	struct sock_fprog program = { 0, code };
	struct sigaction action = { .sa_sigaction = forbidden, .sa_flags = SA_SIGINFO };

	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < COUNT; i++) {
		code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
		code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
	/* Loads what it needs. */
	backtrace((void *[1]){ 0 }, 1);
	check("sigaction", sigaction(SIGSYS, &action, NULL));
	check("no new privileges", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	check("filter", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

static void gate(void)
{
	char line[64];

	if (write(1, "gate\n", 5) != 5 || read(0, line, sizeof line) <= 0)
		_exit(71);
}

int main(int argc, char **argv)
{
	struct cuda cuda = { 0 };
	long launches = argc > 1 ? atol(argv[1]) : 1;

	cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
	cuda_find(&cuda);
	check("cuInit", cuda.cuInit(0));
	cuda_context(&cuda);
	cuda_launch(&cuda, 10);
	check("cuCtxSynchronize", cuda.cuCtxSynchronize());
	gate();
	cuda_launch(&cuda, launches);
	check("cuCtxSynchronize", cuda.cuCtxSynchronize());
	/* A thread that CUPTI has started just now gets through its start. */
	pause_ms(200);
	filter();
	for (int i = 0; i < 2; i++) {
		gate();
		cuda_launch(&cuda, launches);
		check("cuCtxSynchronize", cuda.cuCtxSynchronize());
	}
	gate();
	exit(5);
}
