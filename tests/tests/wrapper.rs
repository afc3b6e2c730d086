//! `scripts/parcagpu-entrypoint.sh`, under every shell that is here: the command gets its arguments,
//! its environment and the library, and nothing is harmed where there is no library for it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use goblin::elf::Elf;
use goblin::elf::program_header::PT_INTERP;
use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::{Ended, Program};
use parcagpu_tests::{artefacts, need};

const LIMIT: Duration = Duration::from_secs(20);

/// Shells to run the script with, each with its options.
const SHELLS: [&[&str]; 3] = [&["dash"], &["bash", "--posix"], &["busybox", "sh"]];

/// A folder with copies of the library and, in `bin`, of the script.
struct Wrapped {
    lab: Lab,
    shell: Vec<&'static str>,
    script: PathBuf,
}

impl Wrapped {
    /// A command under the script.
    fn command(&self, command: &[&str]) -> Program {
        let program = Program::new(self.shell[0], self.lab.path()).bare_environment();
        program
            .env("PATH", std::env::var_os("PATH").expect("a PATH"))
            .args(&self.shell[1..])
            .arg_path(&self.script)
            .args(command)
    }

    fn run(&self, command: &[&str]) -> Ended {
        self.command(command).run(LIMIT)
    }

    /// The library beside the script.
    fn library(&self) -> String {
        let folder = self.script.parent().expect("a folder");
        let folder = folder.canonicalize().expect("it is there");
        folder.join("libparcagpu.so").display().to_string()
    }

    /// What `env` says under the script.
    fn environment(&self, variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        let ended = self
            .command(&["env"])
            .envs(variables.iter().copied())
            .run(LIMIT)
            .ok();
        assert_eq!(ended.stderr, "");
        variables_of(&ended.stdout)
    }

    /// Runs a command that succeeds, and returns the one line that the script said.
    fn complaint(&self, program: Program) -> String {
        let ended = program.run(LIMIT).ok();
        assert_eq!(ended.stdout, "ran, preloaded: \n", "{}", ended.stderr);
        let said = ended.stderr;
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("parcagpu: "), "{said}");
        assert!(said.ends_with("the command runs without it\n"), "{said}");
        said
    }
}

/// A command that tells what is preloaded, and needs nothing of the environment.
const TELL: [&str; 3] = ["sh", "-c", "echo \"ran, preloaded: $LD_PRELOAD\""];

fn variables_of(text: &str) -> BTreeMap<String, String> {
    // The shells' own.
    let own = ["PWD", "OLDPWD", "SHLVL", "_"];
    text.lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| !own.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Copies a file and makes it a program. Not in this process: another test may start a program at that moment, whose
/// copy of the descriptor keeps the file from being run (ETXTBSY).
fn install(from: &Path, to: &Path) {
    let status = Command::new("install")
        .args(["-D", "-m", "755"])
        .args([from, to])
        .status();
    assert!(
        status.is_ok_and(|s| s.success()),
        "install {}",
        to.display()
    );
}

fn script() -> PathBuf {
    artefacts::root().join("scripts/parcagpu-entrypoint.sh")
}

/// Runs the test with each shell that is installed.
fn with_each_shell(test: &str, check: impl Fn(&Wrapped)) {
    for shell in SHELLS {
        if !need::program(test, shell[0]) {
            continue;
        }
        let lab = Lab::new();
        let script = lab.file("parcagpu-entrypoint.sh");
        install(&self::script(), &script);
        eprintln!("shell: {shell:?}");
        check(&Wrapped {
            lab,
            shell: shell.to_vec(),
            script,
        });
    }
}

fn gcc(arguments: &[&str]) {
    let status = Command::new("gcc").args(arguments).status();
    assert!(status.is_ok_and(|s| s.success()), "gcc {arguments:?}");
}

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
            install(&self::script(), &script);
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
