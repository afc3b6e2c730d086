//! What `run` and `record` say when nothing was seen.

mod common;

use common::{Held, bpf_or_skip, fixture, lib, own_copy, parcagpu, run, stderr};

#[test]
fn run_says_why_it_saw_nothing() {
    let Some(_turn) = bpf_or_skip("run_says_why_it_saw_nothing") else {
        return;
    };
    let app = fixture().app.to_str().unwrap();
    let held = |commands: &[&str], why: &str| {
        let args = [
            "run",
            "--every",
            "0.1",
            "--lib",
            lib(),
            "--",
            app,
            "preloaded",
        ];
        let mut held = Held::start(&[&args, commands, &["-"]].concat());
        // It is met while it lives.
        held.await_line("ready");
        held.await_told(why);
        let told = held.end();
        assert!(told.contains(why), "{told}");
        told
    };
    let idle = held(
        &[],
        "nothing seen: it initialised CUDA; it made no launch; the library is dormant: the fixture rests",
    );
    let untold = held(&["seen 3"], "it made 3 launches, of which none came here");
    // Launches that nobody told of are odd; none are not.
    assert!(!idle.contains("parcagpu doctor"), "{idle}");
    assert!(untold.contains("parcagpu doctor"), "{untold}");
    let quick = parcagpu(&["run", "--lib", lib(), "--", "true"]);
    assert!(quick.status.success());
    let quick = stderr(&quick);
    // It may live for long enough to be met.
    let met = quick.contains("nothing seen: it initialised CUDA; it made no launch;");
    let gone = quick.contains("nothing seen: no process of the command was met")
        || quick.contains(
            "nothing seen: the command started 1 process (true), as far as they were met",
        );
    assert!(
        met || (gone && quick.contains("parcagpu doctor") && !quick.contains("refused")),
        "{quick}"
    );
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("none.pgpu");
    let none = parcagpu(&[
        "record",
        "--lib",
        lib(),
        "-o",
        file.to_str().unwrap(),
        "--",
        "true",
    ]);
    assert!(
        stderr(&none).contains("nothing seen: "),
        "{}",
        stderr(&none)
    );
    let error = stderr(&run(&[], &["metadata"]));
    assert!(error.contains("cupti: something \"broke\""), "{error}");
    assert!(error.contains("warning: process"), "{error}");
}

#[test]
fn what_kept_the_library_out_is_told() {
    let Some(_turn) = bpf_or_skip("what_kept_the_library_out_is_told") else {
        return;
    };
    let (_dir, other) = own_copy(&fixture().lib);
    let app = fixture().app.to_str().unwrap();
    let in_front = format!(
        "LD_PRELOAD={}:$LD_PRELOAD '{app}' preloaded 'launch 5 100 k' -; true",
        other.display()
    );
    let dropped = format!(
        "env -u LD_PRELOAD '{app}' '{}' 'launch 5 100 k' -; true",
        lib()
    );
    let recording = tempfile::tempdir().unwrap();
    let file = recording.path().join("a.pgpu");
    let record = ["record", "--force", "-o", file.to_str().unwrap()];
    for command in [
        &["run"][..],
        &["run", "--trace", "-o", "/dev/null"],
        &record,
    ] {
        let rest = ["--lib", lib(), "--"];
        let shell = |options: &[&str], script: &str| {
            Held::start(&[command, options, &rest, &["sh", "-c", script]].concat())
        };
        let mut another = shell(&[], &in_front);
        another.await_line("ready");
        another.await_looks();
        let another = another.end();
        assert!(
            another.contains("  app: another copy of the library is in charge there, ")
                && another.contains(&other.display().to_string())
                && another.contains("the command started 2 processes (app, sh)"),
            "{another}"
        );
        if command != ["run"] {
            continue;
        }
        let mut none = shell(&["--every", "0.1"], &dropped);
        // The app loads the library itself, and not the private copy.
        none.await_told("  app: another copy of the library");
        let none = none.end();
        assert!(
            none.contains("  app: another copy of the library"),
            "{none}"
        );
        let mut none = shell(&["--every", "0.1"], "env -i cat; true");
        let why = "  cat: LD_PRELOAD in its environment does not name the library";
        none.await_echo();
        none.await_told(why);
        let none = none.end();
        assert!(
            none.contains(why) && none.contains("the command started 2 processes (cat, sh)"),
            "{none}"
        );
        let mut direct = Held::start(&[command, &rest, &["env", "-i", "cat"]].concat());
        direct.await_echo();
        direct.await_looks();
        let direct = direct.end();
        assert!(
            direct.contains("nothing seen: the command started 1 process (cat)")
                && direct.contains("none was seen with the library in charge")
                && direct.contains("parcagpu doctor"),
            "{direct}"
        );
        // Nothing of this where something came.
        let fine = format!("'{app}' preloaded 'launch 5 100 k' -; true");
        let mut fine = shell(&["--every", "0.1"], &fine);
        fine.await_told("all 5 launches");
        let fine = fine.end();
        assert!(
            fine.contains("all 5 launches") && !fine.contains("the command started"),
            "{fine}"
        );
    }
}
