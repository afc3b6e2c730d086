//! `scripts/parcagpu-entrypoint.sh` and the library: where it is found, and that nothing is harmed where there is none for
//! the command.

mod wrapper_common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;
use goblin::elf::program_header::PT_INTERP;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::Program;
use parcagpu_tests::{artefacts, need};
use wrapper_common::{LIMIT, TELL, gcc, install, script, with_each_shell};

#[test]
fn places_of_the_library() {
    with_each_shell("places_of_the_library", |wrapped| {
        let root = wrapped.lab.file("root");
        let elsewhere = wrapped.lab.file("odd;na'me");
        let preloaded = |script: &Path| {
            let program =
                Program::new(wrapped.shell[0], wrapped.lab.path()).args(&wrapped.shell[1..]);
            program.arg_path(script).args(TELL).run(LIMIT).ok().stdout
        };
        let expected = |library: &Path| {
            let library = library.canonicalize().expect("it is there");
            format!("ran, preloaded: {}\n", library.display())
        };

        for (script, library) in [
            ("bin/parcagpu-entrypoint.sh", "lib/libparcagpu.so"),
            (
                "usr/bin/parcagpu-entrypoint.sh",
                "usr/lib/parcagpu/libparcagpu.so",
            ),
        ] {
            let [script, library] = [script, library].map(|name| root.join(name));
            install(&wrapper_common::script(), &script);
            install(&artefacts::library(), &library);
            assert_eq!(preloaded(&script), expected(&library));
            // Through a link, with a relative path and from elsewhere.
            let link = wrapped.lab.file("link.sh");
            let _ = fs::remove_file(&link);
            symlink(&script, &link).expect("link made");
            assert_eq!(preloaded(&link), expected(&library));
            let mut program = Program::new(wrapped.shell[0], wrapped.lab.path())
                .args(&wrapped.shell[1..])
                .args(["./parcagpu-entrypoint.sh"])
                .args(TELL);
            program
                .command()
                .current_dir(script.parent().expect("a folder"));
            assert_eq!(program.run(LIMIT).ok().stdout, expected(&library));
        }

        // The variable comes before what is beside the script, and a relative path is made absolute.
        install(&artefacts::library(), &elsewhere.join("mine.so"));
        for named in [
            elsewhere.join("mine.so"),
            PathBuf::from("mine.so"),
            PathBuf::from("./mine.so"),
        ] {
            let mut program = wrapped.command(&TELL).env("PARCAGPU_LIB", &named);
            program.command().current_dir(&elsewhere);
            assert_eq!(
                program.run(LIMIT).ok().stdout,
                expected(&elsewhere.join("mine.so"))
            );
        }
    });
}

#[test]
fn found_by_the_search_path() {
    let lab = Lab::new();
    install(&script(), &lab.file("parcagpu-entrypoint.sh"));
    let path = format!(
        "{}:{}",
        lab.path().display(),
        std::env::var("PATH").expect("UTF-8")
    );
    let ended = Program::new("sh", lab.path())
        .env("PATH", path)
        .args(["-c", "exec parcagpu-entrypoint.sh \"$@\"", "x"])
        .args(TELL)
        .run(LIMIT)
        .ok();
    let library = lab.library().canonicalize().expect("it is there");
    assert_eq!(
        ended.stdout,
        format!("ran, preloaded: {}\n", library.display())
    );
}

#[test]
fn a_library_that_is_not_there() {
    with_each_shell("a_library_that_is_not_there", |wrapped| {
        let program = wrapped.command(&TELL).env("PARCAGPU_LIB", "/none/lib.so");
        assert!(
            wrapped
                .complaint(program)
                .contains("/none/lib.so is not there")
        );
        fs::remove_file(wrapped.lab.library()).expect("removed");
        let said = wrapped.complaint(wrapped.command(&TELL));
        assert!(said.contains("libparcagpu.so is not there"), "{said}");
        // Nor is anything said when it is not wanted.
        let off = wrapped.command(&TELL).env("PARCAGPU_DISABLE", "1");
        assert_eq!(off.run(LIMIT).ok().stderr, "");
    });
}

/// The loader may only complain about a library, or end the program because of it.
#[test]
fn a_library_that_cannot_be_loaded() {
    with_each_shell("a_library_that_cannot_be_loaded", |wrapped| {
        let text = wrapped.lab.file("text.so");
        fs::write(&text, "not a library").expect("written");
        let said = wrapped.complaint(wrapped.command(&TELL).env("PARCAGPU_LIB", &text));
        assert!(said.contains("text.so cannot be loaded here"), "{said}");

        let [other, dependent, source] =
            ["other.so", "dependent.so", "empty.c"].map(|f| wrapped.lab.file(f));
        fs::write(&source, "int parcagpu_test;").expect("written");
        let path = |file: &'static str| wrapped.lab.file(file).display().to_string();
        gcc(&[
            "-shared",
            "-fPIC",
            "-o",
            &path("other.so"),
            &path("empty.c"),
        ]);
        gcc(&[
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            "-o",
            &path("dependent.so"),
            &path("empty.c"),
            &path("other.so"),
        ]);
        fs::remove_file(&other).expect("removed");
        let dies = Program::new("sh", wrapped.lab.path())
            .args(["-c", ":"])
            .env("LD_PRELOAD", &dependent);
        assert_eq!(dies.run(LIMIT).code(), 127, "such a library ends programs");
        let said = wrapped.complaint(wrapped.command(&TELL).env("PARCAGPU_LIB", &dependent));
        assert!(said.contains("other.so"), "{said}");
        assert!(source.exists());

        for odd in ["a b.so", "a:b.so", "a$LIB.so"] {
            install(&artefacts::library(), &wrapped.lab.file(odd));
            let program = wrapped
                .command(&TELL)
                .env("PARCAGPU_LIB", wrapped.lab.file(odd));
            let said = wrapped.complaint(program);
            assert!(said.contains("LD_PRELOAD cannot hold"), "{said}");
        }
    });
}

/// A system whose programs are linked with nothing or with musl: busybox alone in a root of its own.
#[test]
fn without_glibc() {
    let name = "without_glibc";
    let Some(busybox) = static_busybox() else {
        return need::skip(
            name,
            "busybox",
            "no busybox that is linked statically (busybox-static)",
        );
    };
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return need::skip(name, "root", "not root: a root of its own cannot be had");
    }
    let lab = Lab::new();
    let root = lab.file("root");
    install(&busybox, &root.join("bin/busybox"));
    for applet in ["sh", "grep", "readlink", "env"] {
        symlink("busybox", root.join("bin").join(applet)).expect("link made");
    }
    install(&script(), &root.join("opt/parcagpu-entrypoint.sh"));
    install(&artefacts::library(), &root.join("opt/libparcagpu.so"));
    let run = |command: &[&str], environment: &[(&str, &str)]| {
        // `chroot` and not the standard library's: it is to work wherever coreutils are.
        Program::new("chroot", lab.path())
            .bare_environment()
            .env("PATH", "/bin:/usr/sbin:/sbin:/usr/bin")
            .envs(environment.iter().copied())
            .arg_path(&root)
            .args(["/opt/parcagpu-entrypoint.sh"])
            .args(command)
            .run(LIMIT)
    };
    let check = |why: &str| {
        let ended = run(
            &[
                "sh",
                "-c",
                "echo \"ran, preloaded: $LD_PRELOAD$CUDA_INJECTION64_PATH\"; exit 5",
            ],
            &[],
        );
        assert_eq!(ended.code(), 5, "{}", ended.stderr);
        assert_eq!(ended.stdout, "ran, preloaded: \n");
        assert_eq!(
            ended.stderr,
            format!(
                "parcagpu: /opt/libparcagpu.so needs glibc, which this system has not{why}; the command runs without it\n"
            )
        );
        assert_eq!(run(&["/none"], &[]).code(), 127);
        let off = run(&["sh", "-c", "exit 6"], &[("PARCAGPU_DISABLE", "1")]);
        assert_eq!((off.code(), off.stderr.as_str()), (6, ""));
    };
    check("");
    fs::create_dir_all(root.join("lib")).expect("folder made");
    fs::write(root.join("lib/ld-musl-x86_64.so.1"), "").expect("written");
    check(": it has musl");
}

fn static_busybox() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join("busybox"))
        .find(|file| {
            let bytes = fs::read(file).unwrap_or_default();
            Elf::parse(&bytes)
                .is_ok_and(|elf| !elf.program_headers.iter().any(|h| h.p_type == PT_INTERP))
        })
}
