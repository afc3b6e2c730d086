// SPDX-License-Identifier: Apache-2.0
// Reads the probes as Parca's agent does: by position and by fixed offsets, casting every argument.
// Also counts the firings of any probe it is attached to, by cookie.
#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#define BPF_USDT_MAX_SPEC_CNT 256
#define BPF_USDT_MAX_IP_CNT 1
#include <bpf/usdt.bpf.h>

#define BATCH_MAX 128
#define RECORD_SIZE 160
#define NAME_MAX 256 // 255 bytes and the NUL
#define PC_BATCH_MAX 1024
#define PC_RECORD_SIZE 60
#define PC_NAME_MAX 128
#define REASONS 64
#define REASON_NAME 64

enum kind { CORRELATION = 1, RECORD = 2, KERNEL = 3, ERROR = 4, SAMPLE = 5, REASON_MAP = 6, CONFIG = 7, CUBIN = 8 };

// Without the name unless names are asked for.
struct event {
	__u32 kind;
	__u32 pid;
	__u32 tid;
	__u32 id;
	__s32 code; // cbid, activity kind or error code
	__u32 device;
	__u32 stream;
	__u32 graph;
	__u64 time_ns;
	__u64 start;
	__u64 end;
	__u64 node;
	__s32 name_len; // with the NUL, negative: unreadable
	__s32 stack;	// of the launching thread, negative: none
};

struct named_event {
	struct event e;
	char name[NAME_MAX];
	char component[64];
};

// What the probes of PC sampling tell has a form of its own.
struct head {
	__u32 kind;
	__u32 pid;
};

struct sample_event {
	struct head h;
	__u8 record[64]; // 60 bytes of it are read
	__u8 reasons[REASONS * 8];
	__s64 name_len; // with the NUL, negative: unreadable
	char name[PC_NAME_MAX];
};

struct map_event {
	struct head h;
	__u64 count;
	char names[REASONS * REASON_NAME];
};

struct numbers_event {
	struct head h;
	__u64 numbers[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} events SEC(".maps");

// 0: names wanted, 1: stacks wanted.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} wanted SEC(".maps");

// 0: events lost to a full ring, 1: records or tables that could not be read, 2: batches longer than allowed,
// 3: empty batches, but for a process's last one of kernels.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

// Processes that fired an activity_batch of nothing, as one may at its end.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, __u32);
	__type(value, __u32);
} last_words SEC(".maps");

// Firings, by cookie.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} firings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1024);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 32 * sizeof(__u64));
} stacks SEC(".maps");

static __always_inline void lose(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&losses, &what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline bool want(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&wanted, &what);

	return n && *n;
}

static __always_inline void send(struct event *e, const char *name, const char *component)
{
	__u64 who = bpf_get_current_pid_tgid();

	e->pid = who >> 32;
	e->tid = (__u32)who;
	e->time_ns = bpf_ktime_get_ns();
	if (!want(0)) {
		if (bpf_ringbuf_output(&events, e, sizeof(*e), 0))
			lose(0);
		return;
	}
	struct named_event *n = bpf_ringbuf_reserve(&events, sizeof(*n), 0);
	if (!n) {
		lose(0);
		return;
	}
	e->name_len = bpf_probe_read_user_str(n->name, NAME_MAX, name);
	if (component)
		bpf_probe_read_user_str(n->component, sizeof(n->component), component);
	n->e = *e;
	bpf_ringbuf_submit(n, 0);
}

SEC("usdt")
int BPF_USDT(on_cuda_correlation, __u64 id, __u64 cbid, const char *name)
{
	struct event e = { .kind = CORRELATION, .id = (__u32)id, .code = (__s32)cbid, .stack = -1 };

	if (want(1))
		e.stack = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK | BPF_F_FAST_STACK_CMP | BPF_F_REUSE_STACKID);
	send(&e, name, 0);
	return 0;
}

// Global, so that the verifier looks at it once.
__noinline int on_record(__u64 pointers, __u32 index)
{
	struct event e = { .kind = RECORD, .stack = -1 };
	__u64 record = 0, name = 0;

	if (bpf_probe_read_user(&record, sizeof(record), (void *)(pointers + index * 8ull)))
		goto unreadable;
	__u8 bytes[RECORD_SIZE];
	if (bpf_probe_read_user(bytes, sizeof(bytes), (void *)record))
		goto unreadable;
	__builtin_memcpy(&e.code, bytes + 0, 4);
	if (e.code != 3 && e.code != 10)
		goto unreadable;
	__builtin_memcpy(&e.start, bytes + 16, 8);
	__builtin_memcpy(&e.end, bytes + 24, 8);
	__builtin_memcpy(&e.device, bytes + 40, 4);
	__builtin_memcpy(&e.stream, bytes + 48, 4);
	__builtin_memcpy(&e.id, bytes + 92, 4);
	__builtin_memcpy(&name, bytes + 104, 8);
	__builtin_memcpy(&e.node, bytes + 144, 8);
	__builtin_memcpy(&e.graph, bytes + 156, 4);
	send(&e, (const char *)name, 0);
	return 0;
unreadable:
	lose(1);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_activity_batch, __u64 pointers, __u64 count)
{
	__u32 n = (__u32)count;

	if (n > BATCH_MAX)
		lose(2);
	if (n == 0) {
		__u32 pid = bpf_get_current_pid_tgid() >> 32, once = 1;
		if (bpf_map_update_elem(&last_words, &pid, &once, BPF_NOEXIST))
			lose(3);
	}
	for (__u32 i = 0; i < BATCH_MAX; i++) {
		if (i >= n)
			break;
		on_record(pointers, i);
	}
	return 0;
}

SEC("usdt")
int BPF_USDT(on_kernel_executed, __u64 start, __u64 end, __u64 id, __u64 device, __u64 stream, __u64 graph,
	     __u64 node, const char *name)
{
	struct event e = {
		.kind = KERNEL,
		.start = start,
		.end = end,
		.id = (__u32)id,
		.device = (__u32)device,
		.stream = (__u32)stream,
		.graph = (__u32)graph,
		.node = node,
		.stack = -1,
	};

	send(&e, name, 0);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_error, __u64 code, const char *message, const char *component)
{
	struct event e = { .kind = ERROR, .code = (__s32)code, .stack = -1 };

	send(&e, message, component);
	return 0;
}

// As the agent: 60 bytes of a record, then all 64 stall reasons whatever the count. True: the batch ends here.
__noinline int on_sample(__u64 pointers, __u32 index)
{
	__u64 record = 0, reasons = 0, name = 0;
	struct sample_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		lose(0);
		return 0;
	}
	__builtin_memset(e->record, 0, sizeof(e->record));
	if (bpf_probe_read_user(&record, sizeof(record), (void *)(pointers + index * 8ull)))
		goto unreadable;
	if (bpf_probe_read_user(e->record, PC_RECORD_SIZE, (void *)record))
		goto unreadable;
	__builtin_memcpy(&name, e->record + 32, 8);
	__builtin_memcpy(&reasons, e->record + 48, 8);
	if (bpf_probe_read_user(e->reasons, sizeof(e->reasons), (void *)reasons))
		goto unreadable;
	e->h.kind = SAMPLE;
	e->h.pid = bpf_get_current_pid_tgid() >> 32;
	e->name_len = bpf_probe_read_user_str(e->name, PC_NAME_MAX, (void *)name);
	bpf_ringbuf_submit(e, 0);
	return 0;
unreadable:
	bpf_ringbuf_discard(e, 0);
	lose(1);
	return 1;
}

SEC("usdt")
int BPF_USDT(on_pc_sample_batch, __u64 pointers, __u64 count)
{
	__u32 n = (__u32)count;

	// The contract says less than the agent takes.
	if (n > BATCH_MAX)
		lose(2);
	if (n == 0)
		lose(3);
	for (__u32 i = 0; i < PC_BATCH_MAX; i++) {
		if (i >= n || on_sample(pointers, i))
			break;
	}
	return 0;
}

SEC("usdt")
int BPF_USDT(on_stall_reason_map, __u64 names, __u64 count)
{
	struct map_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		lose(0);
		return 0;
	}
	e->h.kind = REASON_MAP;
	e->h.pid = bpf_get_current_pid_tgid() >> 32;
	e->count = (__u32)count;
	if (bpf_probe_read_user(e->names, sizeof(e->names), (void *)names)) {
		bpf_ringbuf_discard(e, 0);
		lose(1);
		return 0;
	}
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline void numbers(__u32 kind, __u64 a, __u64 b, __u64 c, __u64 d)
{
	struct numbers_event e = { .h = { .kind = kind, .pid = bpf_get_current_pid_tgid() >> 32 }, .numbers = { a, b, c, d } };

	if (bpf_ringbuf_output(&events, &e, sizeof(e), 0))
		lose(0);
}

SEC("usdt")
int BPF_USDT(on_gpu_config, __u64 device, __u64 factor, __u64 clock, __u64 sms)
{
	numbers(CONFIG, (__u32)device, (__u32)factor, (__u32)clock, (__u32)sms);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_cubin_loaded, __u64 crc, __u64 address, __u64 size)
{
	numbers(CUBIN, crc, address, size, 0);
	return 0;
}

SEC("usdt")
int on_any(struct pt_regs *ctx)
{
	__u32 key = (__u32)bpf_usdt_cookie(ctx);
	__u64 *n = bpf_map_lookup_elem(&firings, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
