// SPDX-License-Identifier: Apache-2.0
// Copies what the probes of libparcagpu.so show into one ring buffer.
//
// Runs in the thread that fired the probe, possibly preempted on newer kernels: events are built on
// the stack or in reserved ring memory, never in shared scratch. Loops are bounded by constants so
// that the verifier of Linux 5.15 accepts them; a record is read by a global function, which it
// checks once instead of once per iteration. The wire structs have a decoder in ../events.rs.
#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#define BPF_USDT_MAX_SPEC_CNT 2048
#define BPF_USDT_MAX_IP_CNT 1
#include <bpf/usdt.bpf.h>

#include "parcagpu.h"

// Kernel types, by the few fields used; libbpf adjusts the offsets to the running kernel.
struct task_struct {
	struct task_struct *group_leader;
	__u64 start_boottime;
	struct pid *thread_pid;
	char comm[16];
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct pid_namespace {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct upid {
	int nr;
	struct pid_namespace *ns;
} __attribute__((preserve_access_index));

struct pid {
	unsigned int level;
	struct upid numbers[1];
} __attribute__((preserve_access_index));

// Order of parcagpu_abi::probe::ALL.
enum probe {
	CUDA_CORRELATION,
	KERNEL_EXECUTED,
	ACTIVITY_BATCH,
	PC_SAMPLE_BATCH,
	STALL_REASON_MAP,
	GPU_CONFIG,
	CUBIN_LOADED,
	CUBIN_UNLOADED,
	ERROR,
	NVTX_EVENT_BATCH,
	NVTX_RESOURCE_NAME,
	PROBES,
};

enum text_flag {
	TEXT_CUT = 1,
	TEXT_NULL = 2,
	TEXT_UNREADABLE = 4,
	/* Not about the text: a copy of the stack follows instead of addresses. */
	STACK_COPIED = 8,
};

#define TEXT_MAX 256
#define PC_NAME_MAX 128
#define COMPONENT_MAX 64
#define MAX_PID_LEVELS 8
#define STACK_MAX 127
#define COPY_PART 1024
#define COPY_PARTS 16

struct header {
	__u32 probe;
	__u32 pid;
	__u32 tid;
	__u32 text_flags;
	__u64 time_ns;	/* CLOCK_MONOTONIC */
	__u64 start_ns; /* CLOCK_BOOTTIME, start of the process */
};

struct correlation_event {
	struct header h;
	__u32 correlation_id;
	__s32 cbid;
	__u32 text_len;
	__s32 stack_bytes; /* negative: why there is none */
	char text[TEXT_MAX];
};

struct launch_event {
	struct correlation_event e;
	__u64 stack[STACK_MAX]; /* leaf first */
};

struct copied_launch_event {
	struct correlation_event e;
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 link; /* arm64: where to return to */
	__u8 stack[COPY_PART * COPY_PARTS]; /* from sp on */
};

// No length: the text goes to its NUL or to the end of the event. Linux 5.15 allows 512 bytes of stack
// for emit_kernel (rounded up to 416) and its caller (96), so there is no room to spare.
struct kernel_event {
	struct header h;
	__u8 head[8];	/* record bytes 0..8 */
	__u8 body[80];	/* record bytes 16..96 */
	__u8 graph[16]; /* record bytes 144..160 */
	char text[TEXT_MAX];
};

_Static_assert(sizeof(struct kernel_event) <= 392, "stack of emit_kernel");

struct pc_event {
	struct header h;
	__u64 cubin_crc;
	__u64 pc_offset;
	__u64 reason_count;
	__u32 function_index;
	__u32 correlation_id;
	__u32 text_len;
	__u32 reasons_read;
	struct parcagpu_stall_reason reasons[PARCAGPU_STALL_REASON_SLOTS];
	char text[PC_NAME_MAX];
};

struct stall_map_event {
	struct header h;
	__u32 count;
	__u32 names_read;
	char names[PARCAGPU_STALL_REASON_SLOTS * PARCAGPU_STALL_REASON_NAME_LEN];
};

struct gpu_config_event {
	struct header h;
	__u32 device_id;
	__u32 sampling_factor;
	__u32 clock_khz;
	__u32 sm_count;
};

struct cubin_event {
	struct header h;
	__u64 crc;
	__u64 address;
	__u64 size;
};

struct error_event {
	struct header h;
	__s32 code;
	__u32 text_len;
	__u32 component_len;
	__u32 pad;
	char text[TEXT_MAX];
	char component[COMPONENT_MAX];
};

struct nvtx_event {
	struct header h;
	__u8 body[48]; /* event bytes 0..48 */
	__u32 text_len;
	__u32 pad;
	char text[TEXT_MAX];
};

struct resource_event {
	struct header h;
	__u64 id;
	__u32 kind;
	__u32 text_len;
	char text[TEXT_MAX];
};

// Of struct Status (crate parcagpu-abi): up to and including the counters, and all of it.
#define STATUS_COUNTERS_END 632
#define STATUS_END 2440

struct process_key {
	__u64 start_ns;
	__u32 pid;
	__u32 pad;
};

struct process {
	char comm[16];
	__u8 status[STATUS_END];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct process_key);
	__type(value, struct process);
} processes SEC(".maps");

// All zero: what a new entry of `processes` starts from.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct process);
} blank SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} wanted_pids SEC(".maps");

// Per probe: [2 * probe] events lost to a full ring, [2 * probe + 1] records that could not be read.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * PROBES);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

// Inode number of our PID namespace, 0 for the initial one.
const volatile __u32 own_pid_ns = 0;
const volatile bool filter_pids = false;
const volatile bool take_stacks = false;
// Stacks are copied as long as less than this waits in the ring buffer: they must not crowd out events.
const volatile __u64 room_for_copies = 0;

struct who {
	__u64 start_ns;
	__u32 pid;
	__u32 tid;
};

static __always_inline void lose(__u32 slot)
{
	__u64 *n = bpf_map_lookup_elem(&losses, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void lose_event(__u32 probe)
{
	lose(2 * probe);
}

static __always_inline void lose_record(__u32 probe)
{
	lose(2 * probe + 1);
}

// The number of a process or thread in our PID namespace, 0 if it is not in it.
static __always_inline __u32 number_in_own_ns(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	unsigned int level = BPF_CORE_READ(pid, level);
	const char *numbers = (const char *)pid + bpf_core_field_offset(struct pid, numbers);

	for (int i = 0; i < MAX_PID_LEVELS; i++) {
		if (i > level)
			break;
		struct upid *upid = (struct upid *)(numbers + i * bpf_core_type_size(struct upid));
		struct pid_namespace *ns = BPF_CORE_READ(upid, ns);
		if (BPF_CORE_READ(ns, ns.inum) == own_pid_ns)
			return BPF_CORE_READ(upid, nr);
	}
	return 0;
}

// Says who fired the probe; false if it is not to be watched.
static __always_inline bool identify(struct who *who)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct task_struct *leader = BPF_CORE_READ(task, group_leader);

	if (own_pid_ns) {
		who->pid = number_in_own_ns(leader);
		who->tid = number_in_own_ns(task);
	} else {
		__u64 both = bpf_get_current_pid_tgid();
		who->pid = both >> 32;
		who->tid = (__u32)both;
	}
	if (!who->pid)
		return false;
	if (filter_pids) {
		__u32 pid = who->pid;
		if (!bpf_map_lookup_elem(&wanted_pids, &pid))
			return false;
	}
	who->start_ns = BPF_CORE_READ(leader, start_boottime);
	return true;
}

static __always_inline void fill(struct header *h, __u32 probe, const struct who *who)
{
	h->probe = probe;
	h->pid = who->pid;
	h->tid = who->tid;
	h->text_flags = 0;
	h->time_ns = bpf_ktime_get_ns();
	h->start_ns = who->start_ns;
}

// Reads a text of at most max - 1 bytes; the length without the NUL, and why it is not whole.
static __always_inline __u32 read_text(char *to, __u32 max, __u64 from, __u32 *flags)
{
	long n;
	char last;

	if (!from) {
		*flags |= TEXT_NULL;
		return 0;
	}
	n = bpf_probe_read_user_str(to, max, (const void *)from);
	if (n <= 0) {
		*flags |= TEXT_UNREADABLE;
		return 0;
	}
	if (n >= max && (bpf_probe_read_user(&last, 1, (const void *)(from + max - 1)) || last))
		*flags |= TEXT_CUT;
	return n > max ? max - 1 : n - 1;
}

// Keeps what the process says about itself; survives its exit.
// A function of its own, so that its stack is gone when records are read.
static __attribute__((noinline)) int read_status(struct pt_regs *ctx, __u64 start_ns, __u32 pid, bool whole)
{
	struct process_key key = {.start_ns = start_ns, .pid = pid};
	// The distance from the probe site to the block, found in the ELF file; 0: it has none.
	long distance = bpf_usdt_cookie(ctx);
	struct process *process;
	const void *block;

	process = bpf_map_lookup_elem(&processes, &key);
	if (!process) {
		__u32 zero = 0;
		struct process *start = bpf_map_lookup_elem(&blank, &zero);
		if (!start)
			return 0;
		bpf_map_update_elem(&processes, &key, start, BPF_NOEXIST);
		process = bpf_map_lookup_elem(&processes, &key);
		if (!process)
			return 0;
	}
	struct task_struct *task = (void *)bpf_get_current_task();
	struct task_struct *leader = BPF_CORE_READ(task, group_leader);
	BPF_CORE_READ_STR_INTO(&process->comm, leader, comm);
	if (!distance)
		return 0;
	block = (const void *)(PT_REGS_IP(ctx) + distance);
	if (whole)
		bpf_probe_read_user(process->status, STATUS_END, block);
	else
		bpf_probe_read_user(process->status, STATUS_COUNTERS_END, block);
	return 0;
}

typedef int (*emit_fn)(__u64 record, __u64 ids, __u64 start_ns, __u64 time_ns, __u64 flags);

// Hands each record of a batch on; only the last one wakes the reader. ids: pid << 32 | tid.
static __always_inline int each_record(const struct who *who, __u32 probe, __u64 ptrs, __u32 count,
				       __u32 max, emit_fn emit)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 ids = (__u64)who->pid << 32 | who->tid;

	for (__u32 i = 0; i < max; i++) {
		__u64 record;
		if (i >= count)
			break;
		if (bpf_probe_read_user(&record, sizeof(record), (const void *)(ptrs + i * 8)))
			lose_record(probe);
		else
			emit(record, ids, who->start_ns, now, i + 1 < count ? BPF_RB_NO_WAKEUP : 0);
	}
	return 0;
}

static __always_inline void fill_launch(struct correlation_event *e, const struct who *who, __u64 id,
					__u64 cbid, __u64 name)
{
	fill(&e->h, CUDA_CORRELATION, who);
	e->correlation_id = id;
	e->cbid = cbid;
	e->text_len = read_text(e->text, TEXT_MAX, name, &e->h.text_flags);
}

// With the registers and what lies on the stack a reader finds the callers even where the program was built
// without frame pointers, as most are.
static __attribute__((noinline)) int output_launch_copied(struct pt_regs *ctx, const struct who *who,
							  __u64 id, __u64 cbid, __u64 name)
{
	struct copied_launch_event *l = bpf_ringbuf_reserve(&events, sizeof(*l), 0);
	int bytes = 0;

	if (!l)
		return 0;
	fill_launch(&l->e, who, id, cbid, name);
	l->ip = PT_REGS_IP(ctx);
	l->sp = PT_REGS_SP(ctx);
	l->fp = PT_REGS_FP(ctx);
	l->link = PT_REGS_RET(ctx);
#pragma unroll
	for (int i = 0; i < COPY_PARTS; i++) {
		// The end of the stack may come before the end of the room.
		if (bytes == i * COPY_PART &&
		    !bpf_probe_read_user(l->stack + i * COPY_PART, COPY_PART, (void *)(l->sp + i * COPY_PART)))
			bytes += COPY_PART;
	}
	l->e.h.text_flags |= STACK_COPIED;
	l->e.stack_bytes = bytes;
	bpf_ringbuf_submit(l, 0);
	return 1;
}

static __attribute__((noinline)) int output_launch(struct pt_regs *ctx, const struct who *who, __u64 id,
						   __u64 cbid, __u64 name)
{
	struct launch_event *l = bpf_ringbuf_reserve(&events, sizeof(*l), 0);

	if (!l) {
		lose_event(CUDA_CORRELATION);
		return 0;
	}
	fill_launch(&l->e, who, id, cbid, name);
	l->e.stack_bytes = bpf_get_stack(ctx, l->stack, sizeof(l->stack), BPF_F_USER_STACK);
	bpf_ringbuf_submit(l, 0);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_cuda_correlation, __u64 id, __s64 cbid, __u64 name)
{
	struct who who;

	if (!identify(&who))
		return 0;
	read_status(ctx, who.start_ns, who.pid, false);
	if (take_stacks) {
		if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < room_for_copies &&
		    output_launch_copied(ctx, &who, id, cbid, name))
			return 0;
		return output_launch(ctx, &who, id, cbid, name);
	}

	struct correlation_event e = {};
	fill(&e.h, CUDA_CORRELATION, &who);
	e.correlation_id = id;
	e.cbid = cbid;
	e.text_len = read_text(e.text, TEXT_MAX, name, &e.h.text_flags);
	__u64 n = e.text_len & 0xff;
	if (bpf_ringbuf_output(&events, &e, offsetof(struct correlation_event, text) + n, 0))
		lose_event(CUDA_CORRELATION);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_kernel_executed, __u64 start, __u64 end, __u64 id, __u64 device, __u64 stream,
	     __u64 graph, __u64 node, __u64 name)
{
	struct who who;

	if (!identify(&who))
		return 0;
	struct kernel_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(KERNEL_EXECUTED);
		return 0;
	}
	fill(&e->h, KERNEL_EXECUTED, &who);
	__builtin_memset(e->head, 0, sizeof(e->head));
	__builtin_memset(e->body, 0, sizeof(e->body));
	__builtin_memset(e->graph, 0, sizeof(e->graph));
#define AT(field) ((offsetof(struct parcagpu_kernel, field)) - 16)
	*(__u64 *)&e->body[AT(start)] = start;
	*(__u64 *)&e->body[AT(end)] = end;
	*(__u32 *)&e->body[AT(device_id)] = device;
	*(__u32 *)&e->body[AT(stream_id)] = stream;
	*(__u32 *)&e->body[AT(correlation_id)] = id;
	*(__u64 *)&e->graph[0] = node;
	*(__u32 *)&e->graph[12] = graph;
	e->text[0] = 0;
	read_text(e->text, TEXT_MAX, name, &e->h.text_flags);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

// One record of a batch.
__attribute__((noinline)) int emit_kernel(__u64 record, __u64 ids, __u64 start_ns, __u64 time_ns,
					  __u64 flags)
{
	struct kernel_event e = {};
	const char *from = (const char *)record;
	__u64 name, n;

	// The pointer to the name stands where the name will.
	if (bpf_probe_read_user(e.head, sizeof(e.head), from) ||
	    bpf_probe_read_user(e.body, sizeof(e.body), from + 16) ||
	    bpf_probe_read_user(e.graph, sizeof(e.graph), from + 144) ||
	    bpf_probe_read_user(e.text, sizeof(name), from + offsetof(struct parcagpu_kernel, name))) {
		lose_record(ACTIVITY_BATCH);
		return 0;
	}
	e.h.probe = ACTIVITY_BATCH;
	e.h.pid = ids >> 32;
	e.h.tid = (__u32)ids;
	e.h.time_ns = time_ns;
	e.h.start_ns = start_ns;
	name = *(__u64 *)e.text;
	n = read_text(e.text, TEXT_MAX, name, &e.h.text_flags) & 0xff;
	if (bpf_ringbuf_output(&events, &e, offsetof(struct kernel_event, text) + n, flags))
		lose_event(ACTIVITY_BATCH);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_activity_batch, __u64 ptrs, __u64 count)
{
	struct who who;

	if (!identify(&who))
		return 0;
	read_status(ctx, who.start_ns, who.pid, true);
	return each_record(&who, ACTIVITY_BATCH, ptrs, count, PARCAGPU_BATCH_MAX, emit_kernel);
}

__attribute__((noinline)) int emit_pc_sample(__u64 record, __u64 ids, __u64 start_ns, __u64 time_ns,
					     __u64 flags)
{
	struct parcagpu_pc_sample sample = {};
	struct pc_event *e;

	// Consumers of every CUPTI version read 60 bytes.
	if (bpf_probe_read_user(&sample, 60, (const void *)record)) {
		lose_record(PC_SAMPLE_BATCH);
		return 0;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(PC_SAMPLE_BATCH);
		return 0;
	}
	e->h.probe = PC_SAMPLE_BATCH;
	e->h.pid = ids >> 32;
	e->h.tid = (__u32)ids;
	e->h.text_flags = 0;
	e->h.time_ns = time_ns;
	e->h.start_ns = start_ns;
	e->cubin_crc = sample.cubin_crc;
	e->pc_offset = sample.pc_offset;
	e->reason_count = sample.stall_reason_count;
	e->function_index = sample.function_index;
	e->correlation_id = sample.correlation_id;
	e->reasons_read = !bpf_probe_read_user(e->reasons, sizeof(e->reasons),
					       (const void *)sample.stall_reasons);
	e->text_len = read_text(e->text, PC_NAME_MAX, sample.function_name, &e->h.text_flags);
	bpf_ringbuf_submit(e, flags);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_pc_sample_batch, __u64 ptrs, __u64 count)
{
	struct who who;

	if (!identify(&who))
		return 0;
	return each_record(&who, PC_SAMPLE_BATCH, ptrs, count, PARCAGPU_BATCH_MAX, emit_pc_sample);
}

SEC("usdt")
int BPF_USDT(on_stall_reason_map, __u64 names, __u64 count)
{
	struct who who;

	if (!identify(&who))
		return 0;
	struct stall_map_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(STALL_REASON_MAP);
		return 0;
	}
	fill(&e->h, STALL_REASON_MAP, &who);
	e->count = count;
	e->names_read = !bpf_probe_read_user(e->names, sizeof(e->names), (const void *)names);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_gpu_config, __u64 device, __u64 factor, __u64 clock, __u64 sms)
{
	struct who who;

	if (!identify(&who))
		return 0;
	struct gpu_config_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(GPU_CONFIG);
		return 0;
	}
	fill(&e->h, GPU_CONFIG, &who);
	e->device_id = device;
	e->sampling_factor = factor;
	e->clock_khz = clock;
	e->sm_count = sms;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline int emit_cubin(__u32 probe, __u64 crc, __u64 address, __u64 size)
{
	struct who who;

	if (!identify(&who))
		return 0;
	struct cubin_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(probe);
		return 0;
	}
	fill(&e->h, probe, &who);
	e->crc = crc;
	e->address = address;
	e->size = size;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_cubin_loaded, __u64 crc, __u64 address, __u64 size)
{
	return emit_cubin(CUBIN_LOADED, crc, address, size);
}

SEC("usdt")
int BPF_USDT(on_cubin_unloaded, __u64 crc)
{
	return emit_cubin(CUBIN_UNLOADED, crc, 0, 0);
}

SEC("usdt")
int BPF_USDT(on_error, __s64 code, __u64 message, __u64 component)
{
	struct who who;
	__u32 unused = 0;

	if (!identify(&who))
		return 0;
	read_status(ctx, who.start_ns, who.pid, true);
	struct error_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(ERROR);
		return 0;
	}
	fill(&e->h, ERROR, &who);
	e->code = code;
	e->pad = 0;
	e->text_len = read_text(e->text, TEXT_MAX, message, &e->h.text_flags);
	e->component_len = read_text(e->component, COMPONENT_MAX, component, &unused);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

__attribute__((noinline)) int emit_nvtx_event(__u64 record, __u64 ids, __u64 start_ns, __u64 time_ns,
					      __u64 flags)
{
	struct nvtx_event e = {};
	__u64 message;

	// The pointer to the message stands where the length will.
	if (bpf_probe_read_user(e.body, sizeof(e.body) + sizeof(message), (const void *)record)) {
		lose_record(NVTX_EVENT_BATCH);
		return 0;
	}
	e.h.probe = NVTX_EVENT_BATCH;
	e.h.pid = ids >> 32;
	e.h.tid = (__u32)ids;
	e.h.time_ns = time_ns;
	e.h.start_ns = start_ns;
	message = *(__u64 *)&e.text_len;
	e.pad = 0;
	e.text_len = read_text(e.text, TEXT_MAX, message, &e.h.text_flags);
	__u64 n = e.text_len & 0xff;
	if (bpf_ringbuf_output(&events, &e, offsetof(struct nvtx_event, text) + n, flags))
		lose_event(NVTX_EVENT_BATCH);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_nvtx_event_batch, __u64 ptrs, __u64 count)
{
	struct who who;

	if (!identify(&who))
		return 0;
	return each_record(&who, NVTX_EVENT_BATCH, ptrs, count, PARCAGPU_NVTX_BATCH_MAX, emit_nvtx_event);
}

SEC("usdt")
int BPF_USDT(on_nvtx_resource_name, __u64 kind, __u64 id, __u64 name)
{
	struct who who;

	if (!identify(&who))
		return 0;
	struct resource_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose_event(NVTX_RESOURCE_NAME);
		return 0;
	}
	fill(&e->h, NVTX_RESOURCE_NAME, &who);
	e->id = id;
	e->kind = kind;
	e->text_len = read_text(e->text, TEXT_MAX, name, &e->h.text_flags);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
