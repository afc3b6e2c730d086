//! Threads that end, are cancelled or jump while the library is in the program.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use parcagpu_tests::compare::{transparent, transparent_at_gates};
use parcagpu_tests::hosts::{Consumer, compile, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::{mock_log, need};

const LIMIT: Duration = Duration::from_secs(8);

/// What the program does is its first argument.
const HOST: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int (*init)(unsigned);

static void *worker(void *unused)
{
	(void)unused;
	return init(0) ? (void *)1 : NULL;
}

static void *cancelled(void *unused)
{
	(void)unused;
	pthread_cancel(pthread_self());
	if (!dlopen("libcuda.so.1", RTLD_NOW))
		return (void *)1;
	pthread_testcancel();
	return (void *)2;
}

int main(int count, char **word)
{
	pthread_t thread;
	void *result;

	if (count > 1 && !strcmp(word[1], "cancel")) {
		pthread_create(&thread, NULL, cancelled, NULL);
		pthread_join(thread, &result);
		return result != PTHREAD_CANCELED;
	}
	*(void **)&init = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
	pthread_create(&thread, NULL, worker, NULL);
	pthread_exit(NULL);
}
"#;

fn host(lab: &Lab) -> PathBuf {
    let source = lab.file("threads.c");
    fs::write(&source, HOST).expect("room for a file");
    compile(lab, source.to_str().expect("a plain path"), "threads", &[])
}

/// A process ends with the last of its own threads; ours is none of them.
#[test]
fn the_last_thread_of_the_program_ends_it() {
    let lab = lab();
    let host = host(&lab);
    // In injection mode another thread than the first one loads us.
    for mode in [Mode::Bare, Mode::Preload, Mode::Injection] {
        let ended = lab.program(mode, &host).words("last").run(LIMIT);
        assert_eq!(ended.code(), 0, "{mode:?}: {}", ended.stderr);
    }
}

/// Somebody jumps out of a sampled launch, and goes on: the thread can be cancelled as before, further
/// launches are told, and the switch goes off as often as on.
#[test]
fn a_launch_is_left_by_a_jump() {
    if !need::bpf("a_launch_is_left_by_a_jump") {
        return;
    }
    let lab = lab();
    let words = "init onsignal jump launch 3 jumpout cancelstate launch 5 jumpout cancelstate launch 1 sync count";
    for engine in ["detour", "none"] {
        let consumer = Consumer::new(&lab);
        for (run, mode) in transparent(&lab, words, LIMIT, |p| {
            // Nearly every launch is sampled, each with the switch going on and off.
            p.env("MOCK_RAISE", "cuLaunchKernel=10@4,cuLaunchKernel=10@10")
                .env("PARCAGPU_HOOK_ENGINE", engine)
                .env("PARCAGPU_RATE_LIMIT", "50000")
        })
        .iter()
        .zip(Mode::WITH)
        {
            assert_eq!(run.ended.stdout.matches("jumped out").count(), 2);
            assert_eq!(run.ended.stdout.matches("cancellation on").count(), 2);
            let switched = mock_log::count(&run.calls, "cuptiActivityEnable");
            // Without a hook the one that was left stays open until its thread ends.
            let hooked = engine != "none" && mode == Mode::Preload;
            assert!(!hooked || switched >= 7, "on {switched} times");
        }
        let told = consumer.end();
        assert!(told.launches().len() >= 4, "{engine}");
        assert_eq!(told.errors(), [], "{engine}");
    }
}

/// A thread ends inside its sampled launch, as by cancellation; others go on, and kernel activity does not
/// stay on for it.
#[test]
fn a_thread_ends_in_its_launch() {
    if !need::bpf("a_thread_ends_in_its_launch") {
        return;
    }
    let lab = lab();
    let words =
        "init onsignal exit thread launch 1 launch 1 end join gate launch 3 sync gate count";
    let consumer = Consumer::new(&lab);
    // At the gates our thread looks, and sees what was left on.
    for run in transparent_at_gates(&lab, words, 2, LIMIT, |p| {
        // The first launch of a thread is sampled, and no other, however long they take.
        p.env("MOCK_RAISE", "cuLaunchKernel=10@1")
            .env("PARCAGPU_RATE_LIMIT", "0.0001")
    }) {
        assert_eq!(run.ended.stdout, "gate\ngate\nlaunched 3 replayed 0\n");
        // For the thread that ended, and for the first of the others: it went off in between.
        let switched = mock_log::count(&run.calls, "cuptiActivityEnable");
        assert_eq!(switched, 2);
    }
    assert!(!consumer.end().launches().is_empty());
}

/// Looking at a library that is being loaded is no cancellation point.
#[test]
fn a_cancelled_thread_loads_the_driver() {
    let lab = lab();
    let host = host(&lab);
    for mode in [Mode::Bare, Mode::Preload] {
        let ended = lab.program(mode, &host).words("cancel").run(LIMIT);
        assert_eq!(ended.code(), 0, "{mode:?}: {}", ended.stderr);
    }
}
