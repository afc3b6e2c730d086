//! `scripts/parcagpu-entrypoint.sh`, under every shell that is here: the command gets its arguments, its environment and
//! the script's place, and its exit status comes back.

mod wrapper_common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use goblin::elf::Elf;
use parcagpu_tests::artefacts;
use wrapper_common::{LIMIT, gcc, with_each_shell};

#[test]
fn arguments_arrive_as_they_are() {
    with_each_shell("arguments_arrive_as_they_are", |wrapped| {
        let odd = [
            "",
            "a b",
            "*",
            "$HOME",
            "`id`",
            "'\"\\",
            "two\nlines",
            "-n",
            "--",
            "A=b",
            "é",
            "",
        ];
        let print = ["sh", "-c", "for a; do printf '<%s>' \"$a\"; done", "x"];
        let command: Vec<&str> = print.into_iter().chain(odd).collect();
        let ended = wrapped.run(&command).ok();
        let expected: String = odd.iter().map(|a| format!("<{a}>")).collect();
        assert_eq!(ended.stdout, expected);
        assert_eq!(ended.stderr, "");
    });
}

#[test]
fn environment_is_the_programs_and_ours() {
    with_each_shell("environment_is_the_programs_and_ours", |wrapped| {
        let library = wrapped.library();
        let own = |with: &[(&str, &str)]| {
            let mut expected: BTreeMap<String, String> = with
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            expected.insert("PATH".to_owned(), std::env::var("PATH").expect("UTF-8"));
            expected
        };
        let nvtx = has_nvtx(&artefacts::library()).then_some(("NVTX_INJECTION64_PATH", &*library));
        let ours: Vec<(&str, &str)> = [
            ("LD_PRELOAD", &*library),
            ("CUDA_INJECTION64_PATH", &*library),
        ]
        .into_iter()
        .chain(nvtx)
        .collect();
        assert_eq!(wrapped.environment(&[]), own(&ours));

        // Names that the script might use itself.
        let theirs = [
            ("self", "1"),
            ("here", "2"),
            ("folder", "3"),
            ("words", "4"),
            ("musl", "5"),
            ("CDPATH", "/usr"),
        ];
        let both: Vec<(&str, &str)> = ours.iter().copied().chain(theirs).collect();
        assert_eq!(wrapped.environment(&theirs), own(&both));

        for held in ["libm.so.6", "libm.so.6 libdl.so.2", "libm.so.6:libdl.so.2"] {
            let seen = wrapped.environment(&[("LD_PRELOAD", held)]);
            assert_eq!(seen["LD_PRELOAD"], format!("{library}:{held}"));
        }
        // As left by a script that ran before this one.
        for held in [
            library.clone(),
            format!("libm.so.6 {library}"),
            format!("{library}:libm.so.6"),
        ] {
            let seen = wrapped.environment(&[("LD_PRELOAD", &held)]);
            assert_eq!(seen["LD_PRELOAD"], held);
        }
        for name in ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"] {
            for held in ["/another.so", ""] {
                assert_eq!(wrapped.environment(&[(name, held)])[name], held);
            }
        }

        let off = [("PARCAGPU_DISABLE", "1"), ("LD_PRELOAD", "libm.so.6")];
        assert_eq!(wrapped.environment(&off), own(&off));
    });
}

fn has_nvtx(library: &Path) -> bool {
    let bytes = fs::read(library).expect("readable");
    let elf = Elf::parse(&bytes).expect("an ELF file");
    elf.dynsyms
        .iter()
        .any(|s| elf.dynstrtab.get_at(s.st_name) == Some("InitializeInjectionNvtx2"))
}

/// NVTX's variable ends the search of an NVTX client: it is set for a library that takes NVTX only.
#[test]
fn nvtx_with_a_library_that_takes_it() {
    with_each_shell("nvtx_with_a_library_that_takes_it", |wrapped| {
        for (name, expected) in [
            ("InitializeInjectionNvtx2", true),
            ("InitializeInjection", false),
        ] {
            let library = wrapped.lab.file(&format!("{name}.so"));
            let source = wrapped.lab.file("nvtx.c");
            fs::write(&source, format!("int {name}(void *f) {{ return f != 0; }}"))
                .expect("written");
            let [library, source] = [&library, &source].map(|p| p.to_str().expect("UTF-8"));
            gcc(&["-shared", "-fPIC", "-o", library, source]);
            let seen = wrapped.environment(&[("PARCAGPU_LIB", library)]);
            assert_eq!(
                seen.get("NVTX_INJECTION64_PATH").map(String::as_str),
                expected.then_some(library)
            );
            assert_eq!(seen["CUDA_INJECTION64_PATH"], library);
        }
    });
}

#[test]
fn exit_statuses_are_the_commands() {
    with_each_shell("exit_statuses_are_the_commands", |wrapped| {
        let text = wrapped.lab.file("text");
        fs::write(&text, "no program").expect("written");
        let text = text.to_str().expect("UTF-8");
        for (command, code) in [
            (vec!["true"], 0),
            (vec!["sh", "-c", "exit 7"], 7),
            (vec!["sh", "-c", "kill -TERM $$"], -libc::SIGTERM),
            (vec!["/no/such/program"], 127),
            (vec!["no-such-program"], 127),
            (vec!["--no-such-option"], 127),
            (vec![text], 126),
            (vec![], 2),
        ] {
            let ended = wrapped.run(&command);
            assert_eq!(ended.code(), code, "{command:?}: {}", ended.stderr);
            let quiet = matches!(code, 0 | 7) || code < 0;
            assert_eq!(
                ended.stderr.is_empty(),
                quiet,
                "{command:?}: {}",
                ended.stderr
            );
        }
    });
}

/// The command is the process that was started, so that signals and waits reach it.
#[test]
fn the_command_takes_the_scripts_place() {
    with_each_shell("the_command_takes_the_scripts_place", |wrapped| {
        let mut running = wrapped
            .command(&["sh", "-c", "echo pid $$; exec sleep 30"])
            .start();
        let pid = running.pid();
        running.wait_stdout(&format!("pid {pid}\n"));
    });
}

#[test]
fn a_program_on_the_simulated_driver_is_hooked() {
    with_each_shell("a_program_on_the_simulated_driver_is_hooked", |wrapped| {
        let demo = artefacts::demo();
        let command = [demo.to_str().expect("UTF-8"), "--launches", "3"];
        let ended = wrapped
            .command(&command)
            .env("LD_LIBRARY_PATH", artefacts::sim())
            .env("PARCAGPU_DEBUG", "1")
            .run(LIMIT)
            .ok();
        assert!(ended.stdout.contains("eager=3"), "{}", ended.stdout);
        assert!(
            ended.stderr.contains("parcagpu: state dormant"),
            "{}",
            ended.stderr
        );
    });
}
