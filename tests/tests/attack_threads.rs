//! Threads that end, are cancelled or jump while the library is in the program.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use parcagpu_tests::hosts::{compile, lab};
use parcagpu_tests::lab::{Lab, Mode};

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
    // In injection mode the library comes too late to learn that the first thread leaves (README, limits).
    for mode in [Mode::Bare, Mode::Preload] {
        let ended = lab.program(mode, &host).words("last").run(LIMIT);
        assert_eq!(ended.code(), 0, "{mode:?}: {}", ended.stderr);
    }
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
