//! CUPTI that is not to be had: held from the start, for ever, or against us; and ends and forks
//! while it is.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use parcagpu_abi::status::State;
use parcagpu_tests::artefacts::sim;
use parcagpu_tests::block;
use parcagpu_tests::cut_short::Error;
use parcagpu_tests::full;
use parcagpu_tests::hosts::{Case, Consumer, Seen, compile, lab, one_error};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::mock_log;
use parcagpu_tests::need;
use parcagpu_tests::program::WATCHDOG;
use parcagpu_tests::together::at_once;

const LOAD: &str = "init launch 10 load libcupti.so.13";
const SHORT: Duration = Duration::from_secs(20);

fn tool(lab: &Lab) -> PathBuf {
    compile(lab, "coexist/tool.c", "tool", &[])
}

/// Calls of ours that would reach into what another tool set up.
fn activity_calls(seen: &Seen) -> usize {
    let touch = |c: &&mock_log::Call| {
        c.name.starts_with("cuptiActivity") || c.name.starts_with("cuptiEnable")
    };
    let with = seen.with.calls.iter().filter(touch).count();
    with - seen.bare.calls.iter().filter(touch).count()
}

/// Error 39 the first time: told once, nothing touched, and asked again a second later.
#[test]
fn refused_once() {
    if !need::bpf("refused_once") {
        return;
    }
    let lab = lab();
    let words = "init launch 10 gate launch 20 sync";
    let seen = Case::new(&lab, tool(&lab), words)
        .env("MOCK_FAIL", "cuptiSubscribe=39@1")
        .back_at_gates(1)
        .check();
    // The first ten come before it is asked again, unless the program stands still for as long.
    let count = seen.events.launches().len();
    assert!((20..=30).contains(&count), "{count}");
    seen.launches(count);
    let errors = seen.events.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].0, 39);
    assert_eq!(mock_log::count(&seen.with.calls, "cuptiSubscribe"), 2);
}

/// Error 39 for ever: a thousand launches touch nothing, and the pauses grow.
#[test]
fn refused_for_ever() {
    if !need::bpf("refused_for_ever") {
        return;
    }
    let lab = lab();
    let words = "init launch 1000 sync gate launch 10 sync exit 3";
    let asked = || {
        mock_log::count(
            &mock_log::read(&lab.file("calls.Preload")),
            "cuptiSubscribe",
        )
    };
    let deadline = Instant::now() + WATCHDOG;
    let case = Case::new(&lab, tool(&lab), words)
        .env("MOCK_FAIL", "cuptiSubscribe=39")
        .at_gate(|_| {
            while asked() < 3 {
                assert!(Instant::now() < deadline, "asked {} times", asked());
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    let seen = case.check_against(case.bare());
    assert_eq!(seen.with.ended.code(), 3);
    seen.launches(0);
    let errors = seen.events.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].0, 39);
    // At once, after 1 s and after 2 s more.
    assert!(seen.with.ended.took >= Duration::from_secs(3));
    assert_eq!(activity_calls(&seen), 0, "{:?}", seen.with.calls.last());

    let mut host = Case::new(&lab, lab.file("tool"), "init launch 10 gate")
        .env("MOCK_FAIL", "cuptiSubscribe=39")
        .build(Mode::Preload)
        .start();
    let consumer = Consumer::new(&lab);
    block::wait_state(host.pid(), &lab.library(), State::Yielded);
    let status = block::read(host.pid(), &lab.library()).unwrap();
    assert!(
        status.reason.load().contains("CUPTI"),
        "{}",
        status.reason.load()
    );
    assert!(!status.cupti_holder.load().is_empty());
    // It may have been told to the consumer of before, who is still leaving.
    consumer.wait_error();
    host.open_gate(1);
    host.wait(SHORT).ok();
    one_error(&consumer.end(), "");
}

/// A tool that subscribed where no hook of ours could see it: error 39 at the start, its records stay
/// its own, and when it lets go we come.
#[test]
fn held_where_no_hook_sees_it() {
    if !need::bpf("held_where_no_hook_sees_it") {
        return;
    }
    let lab = lab();
    let words = "load libcupti.so.13 subscribe register on init launch 50 sync flush 0 report off unsubscribe \
                 gate launch 5 sync";
    let seen = Case::new(&lab, tool(&lab), words)
        .with("PARCAGPU_HOOK_ENGINE", "none")
        .back_at_gates(1)
        .check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("records 50 foreign 0"), "{stdout}");
    seen.launches(5);
    let errors = seen.events.errors();
    assert_eq!(errors.iter().filter(|e| e.0 == 39).count(), 1, "{errors:?}");
}

/// A host that subscribes when it is loaded, never traces and never lets go.
#[test]
fn subscribed_at_import() {
    if !need::bpf("subscribed_at_import") {
        return;
    }
    let lab = lab();
    let import = compile(&lab, "coexist/tool.c", "importer", &["-DIMPORT"]);
    let words = "init launch 20 sync sleep 4000 launch 20 sync report";
    let seen = Case::new(&lab, &import, words).check();
    seen.launches(0);
    let errors = seen.events.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].0, 39);
    assert!(errors[0].2.contains("importer"), "who it is: {errors:?}");
    assert_eq!(activity_calls(&seen), 0);

    let command = format!(
        "run --lib {} -- env LD_LIBRARY_PATH={} {} init launch 20 sync sleep 500",
        lab.library().display(),
        sim().display(),
        import.display()
    );
    let ended = lab.parcagpu(&command).run(SHORT).ok();
    assert!(
        ended.stderr.contains("CUPTI is held by") && ended.stderr.contains("importer"),
        "the reason of the empty table: {}",
        ended.stderr
    );

    let mut host = Case::new(&lab, &import, "init launch 5 gate")
        .build(Mode::Preload)
        .start();
    let consumer = Consumer::new(&lab);
    block::wait_state(host.pid(), &lab.library(), State::Yielded);
    let holder = block::read(host.pid(), &lab.library())
        .unwrap()
        .cupti_holder
        .load();
    assert!(holder.ends_with("/importer"), "{holder}");
    host.open_gate(1);
    host.wait(SHORT).ok();
    consumer.end();
}

/// PARCAGPU_YIELD=never: what we have we keep; the program is refused, and gets through once nobody
/// listens.
#[test]
fn never_yield() {
    if !need::bpf("never_yield") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register on launch 50 sync flush 0 report gate subscribe register on launch 5 sync \
         flush 0 report off unsubscribe"
    );
    let case = Case::new(&lab, tool(&lab), &words).with("PARCAGPU_YIELD", "never");
    let consumer = Consumer::new(&lab);
    let mut host = case.build(Mode::Preload).start();
    host.wait_gate(1);
    let stdout = host.stdout();
    assert!(
        stdout.starts_with("subscribe 39\nregister 39\non 39\n"),
        "{stdout}"
    );
    assert!(
        stdout.contains("records 0 foreign 0 driver 0 other 0"),
        "{stdout}"
    );
    let status = block::read(host.pid(), &lab.library()).unwrap();
    assert_eq!(block::state(&status), State::Active);
    let told = consumer.end();
    assert_eq!(told.launches().len(), 60);
    block::wait_state(host.pid(), &lab.library(), State::Dormant);
    host.open_gate(1);
    let ended = host.wait(SHORT).ok();
    assert!(
        ended.stdout.contains("subscribe 0\nregister 0\non 0\n"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("records 5 foreign 0"),
        "{}",
        ended.stdout
    );
}

/// The program calls CUPTI from inside CUPTI's callback: a second subscriber, and one in the place of
/// the first.
#[test]
fn re_entrant() {
    if !need::bpf("re_entrant") {
        return;
    }
    let cases = [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")];
    at_once(cases, |(lock, what)| {
        let lab = lab();
        let words = format!(
            "{LOAD} subscribe register launches 1 on launch 5 inside {what} launch 5 launches 1 launch 5 \
             sync flush 0 off report unsubscribe gate launch 5 sync"
        );
        let seen = Case::new(&lab, tool(&lab), &words)
            .back_at_gates(1)
            .env("MOCK_CUPTI_LOCK", lock)
            .env("MOCK_CUPTI_STRICT", "1")
            .check();
        let stdout = &seen.with.ended.stdout;
        assert!(stdout.contains("records 15 foreign 0"), "{stdout}");
        assert!(stdout.contains("inside"), "{stdout}");
        seen.launches(15);
    });
}

/// A tool that was quiet, so that we were its guest, switches kernel records on from inside its callback: CUPTI is
/// not flushed there by us, and the tool gets every record.
#[test]
fn traced_from_a_callback() {
    if !need::bpf("traced_from_a_callback") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register launches 1 on launch 5 sync flush 0 off report gate launch 3 inside 3 \
         launch 20 sync flush 0 off report unsubscribe gate launch 5 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words)
        .back_at_gates(2)
        .env("MOCK_CUPTI_STRICT", "1")
        .check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("inside, on 0"), "{stdout}");
    assert!(stdout.contains("records 20 foreign 0"), "{stdout}");
}

/// The program finalises CUPTI, after a trace and out of the blue.
#[test]
fn finalized_by_the_program() {
    if !need::bpf("finalized_by_the_program") {
        return;
    }
    let own = [
        "subscribe register on launch 5 sync flush 0 report off finalize",
        "subscribe register on launch 5 sync flush 1 finalize report",
        "finalize finalize",
    ];
    at_once(own, |own| {
        let lab = lab();
        let words = format!("{LOAD} {own} gate launch 5 sync say done exit 4");
        let case = Case::new(&lab, tool(&lab), &words).back_at_gates(1);
        let bare = case.bare();
        assert_eq!(bare.ended.code(), 4, "{}", bare.ended.stderr);
        let seen = case.check_against(bare);
        let count = seen.events.launches().len();
        assert_eq!(count, 15, "{own}: {:?}", seen.events.errors());
    });
}

/// Ends while the tool holds CUPTI: the status is the program's, and nothing waits for us.
#[test]
fn ends_while_yielded() {
    if !need::bpf("ends_while_yielded") {
        return;
    }
    let lab = lab();
    let tool = tool(&lab);
    for (end, status) in [("exit 7", 7), ("unsubscribe exit 8", 8), ("", 0)] {
        let words = format!("{LOAD} subscribe register on launch 5 sync flush 0 report {end}");
        let case = Case::new(&lab, &tool, &words);
        let bare = case.bare();
        assert_eq!(bare.ended.code(), status);
        let took = bare.ended.took;
        let seen = case.check_against(bare);
        assert!(
            seen.with.ended.took < took + SHORT,
            "{:?}",
            seen.with.ended.took
        );
        seen.launches(10);
    }
}

/// A child forked while the tool holds CUPTI ends as bare, and the parent goes on.
#[test]
fn forks_while_yielded() {
    if !need::bpf("forks_while_yielded") {
        return;
    }
    let lab = lab();
    let words = format!(
        "{LOAD} subscribe register on launch 5 fork say child sleep 300 exit 5 end launch 5 sync flush 0 report off \
         fork say quiet end unsubscribe gate launch 5 sync"
    );
    let seen = Case::new(&lab, tool(&lab), &words).back_at_gates(1).check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("child exited 5"), "{stdout}");
    assert!(stdout.contains("records 10 foreign 0"), "{stdout}");
    seen.launches(15);
}

/// A child forked while we hold CUPTI has a copy of that, and can subscribe as bare.
#[test]
fn child_subscribes() {
    if !need::bpf("child_subscribes") {
        return;
    }
    let lab = lab();
    let tool = tool(&lab);
    for how in [
        "subscribe unsubscribe",
        "subscribe2 launches 1 unsubscribe subscribe",
    ] {
        let words = format!("{LOAD} fork {how} say child exit 5 end launch 5 sync");
        let seen = Case::new(&lab, &tool, &words).check();
        assert!(seen.with.ended.stdout.contains("child exited 5"));
        seen.launches(15).no_errors();
    }
}

/// A thread that subscribes and lets go as fast as it can, launching threads, and a consumer that comes
/// and goes: nothing hangs, CUPTI is never refused, and where it is free in between, launches are seen.
#[test]
fn race() {
    if !need::bpf("race") {
        return;
    }
    const LONG: Duration = Duration::from_secs(10);
    let least = Duration::from_secs(full::pick(3, 5));
    let lab = lab();
    let tool = tool(&lab);
    for (lock, pause) in [("0", ""), ("1", "sleep 1"), ("0", "sleep 150")] {
        let words = format!(
            "{LOAD} thread until 3600 attempt {pause} end end thread until 3600 launch 1 end end \
             thread until 3600 launch 1 end end gate stop join sync refused say done"
        );
        let mut host = Case::new(&lab, &tool, &words)
            .unlogged()
            .env("MOCK_CUPTI_LOCK", lock)
            .with("PARCAGPU_RATE_LIMIT", "100")
            .build(Mode::Preload)
            .start();
        host.wait_gate(1);
        let free = pause == "sleep 150";
        let (end, deadline) = (Instant::now() + least, Instant::now() + WATCHDOG);
        let (mut seen, mut others) = (0, Vec::new());
        while Instant::now() < end {
            let consumer = Consumer::new(&lab);
            let stay = Instant::now() + Duration::from_millis(250);
            // The first one stays until it was free for long enough.
            let sees = || seen > 0 || !consumer.so_far().launches().is_empty();
            while Instant::now() < stay || free && !sees() && Instant::now() < deadline {
                consumer.poll();
            }
            let told = consumer.end();
            seen += told.launches().len();
            let turn = |e: &Error| e.0 == 39 && e.1 == "yield";
            others.extend(told.errors().into_iter().filter(|e| !turn(e)));
            std::thread::sleep(Duration::from_millis(120));
        }
        host.open_gate(1);
        let ended = host.wait(LONG).ok();
        others.dedup();
        let what = format!("lock {lock}, {pause}: {others:?}");
        assert_eq!(ended.stdout, "gate\nrefused 0\ndone 0\n", "{what}");
        assert_eq!(ended.stderr, "", "{what}");
        assert!(others.is_empty(), "{what}");
        println!("{seen} launches seen");
        assert!(seen > 0 || !free, "in its pauses CUPTI is free");
    }
}
