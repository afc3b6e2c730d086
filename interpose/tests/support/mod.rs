//! Programs and libraries in C, built in a folder of their own, and runs of
//! them without and with the fixture library preloaded.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A folder with the program `host` in it.
pub struct Lab {
    dir: TempDir,
}

/// What one hooked run left in the fixture's log.
#[derive(Debug)]
pub struct Log {
    pub reports: Vec<Report>,
    /// Calls of `targetInit`, of the other functions, and panics, by process.
    pub ends: Vec<[usize; 3]>,
}

/// A line of the fixture's `report`.
#[derive(Debug)]
pub struct Report {
    pub outcome: String,
    pub copy: String,
    pub engine: String,
    pub reason: String,
    pub hooked: Vec<String>,
    pub refused: String,
}

/// The one engine that these tests run with.
pub fn engine() -> &'static str {
    if cfg!(feature = "gum") {
        "gum"
    } else {
        "detour"
    }
}

impl Lab {
    pub fn new() -> Lab {
        let lab = Lab {
            dir: TempDir::new().expect("a temporary folder"),
        };
        lab.program("host", &[]);
        lab
    }

    pub fn path(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// The target library, at a path in the folder; returns that path.
    pub fn target(&self, name: &str, id: u32, flags: &[&str]) -> String {
        let id = format!("-DID={id}");
        let mut all = vec![id.as_str(), "-Wl,-soname,libtarget.so.1"];
        all.extend(flags);
        self.library("target.c", name, &all)
    }

    /// A library from one of the C files.
    pub fn library(&self, source: &str, name: &str, flags: &[&str]) -> String {
        let mut all = vec!["-fPIC", "-shared"];
        all.extend(flags);
        self.compile(source, name, &all)
    }

    /// The host program under another name, or linked otherwise.
    pub fn program(&self, name: &str, flags: &[&str]) -> String {
        self.compile("host.c", name, flags)
    }

    fn compile(&self, source: &str, name: &str, flags: &[&str]) -> String {
        let out = self.path(name);
        let folder = Path::new(&out).parent().expect("in the folder");
        std::fs::create_dir_all(folder).expect("folder made");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/c")
            .join(source);
        let status = Command::new("gcc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o", &out])
            .arg(source)
            .args(flags)
            .status()
            .expect("gcc runs");
        assert!(status.success(), "gcc built {name}");
        out
    }

    fn run(&self, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new("timeout")
            .args(["-k", "1", "60", "env"])
            .args(environment.iter().map(|(k, v)| format!("{k}={v}")))
            .arg(self.path(program))
            .args(arguments)
            .current_dir(self.dir.path())
            .output()
            .expect("the program starts")
    }

    /// Runs `host` bare and with the fixture, wants the same exit status and
    /// output, and returns the fixture's log.
    pub fn compare(&self, arguments: &[&str]) -> Log {
        self.compare_as("host", arguments, &[])
    }

    /// As [`Lab::compare`], with another program and more environment.
    pub fn compare_as(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Log {
        let fixture = fixture();
        let fixture = fixture.to_str().expect("UTF-8");
        let bare = self.run(program, arguments, &[]);
        let mut environment = environment.to_vec();
        environment.push(("LD_PRELOAD", fixture));
        let (hooked, log) = self.logged(program, arguments, &environment);
        assert_eq!(hooked.status, bare.status, "{hooked:?}\nbare: {bare:?}");
        assert_eq!(text(&hooked.stdout), text(&bare.stdout));
        assert_eq!(text(&hooked.stderr), text(&bare.stderr));
        log
    }

    /// Runs a program in which the fixture's log goes to a file, and reads it.
    pub fn logged(
        &self,
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (Output, Log) {
        let path = self.path("log");
        let _ = std::fs::remove_file(&path);
        let mut all = vec![("FIXTURE_LOG", path.as_str())];
        all.extend(environment);
        let output = self.run(program, arguments, &all);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        (output, parse(&text))
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn parse(text: &str) -> Log {
    let mut log = Log {
        reports: Vec::new(),
        ends: Vec::new(),
    };
    for line in text.lines() {
        let fields: Vec<&str> = line.split(" | ").collect();
        if fields[0] == "end" {
            let number = |i: usize| fields[i].parse().expect("a number");
            log.ends.push([number(1), number(2), number(3)]);
        } else {
            log.reports.push(Report {
                outcome: fields[1].to_owned(),
                copy: fields[2].to_owned(),
                engine: fields[3].to_owned(),
                reason: fields[4].to_owned(),
                hooked: fields[5].split_whitespace().map(str::to_owned).collect(),
                refused: fields[6].to_owned(),
            });
        }
    }
    log
}

impl Log {
    /// Wants exactly so many copies hooked and nothing else found; and so many
    /// calls of `targetInit` seen, in all processes together.
    #[track_caller]
    pub fn expect(&self, copies: usize, calls: usize) {
        assert_eq!(self.reports.len(), copies, "{self:?}");
        for report in &self.reports {
            assert_eq!(report.outcome, "hooked", "{report:?}");
            assert_eq!(report.engine, engine(), "{report:?}");
            assert!(report.hooked.iter().any(|name| name == "targetInit"));
        }
        assert_eq!(self.calls(), calls, "{self:?}");
    }

    pub fn calls(&self) -> usize {
        self.ends.iter().map(|end| end[0]).sum()
    }
}

/// The fixture, built as these tests were.
pub fn fixture() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")]);
        build.args(["--example", "interpose_fixture"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        if cfg!(feature = "gum") {
            build.args(["--features", "gum"]);
        }
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().expect("cargo runs").success());
        let test = std::env::current_exe().expect("this test's path");
        let profile = test.ancestors().nth(2).expect("in PROFILE/deps");
        let path = profile.join("examples/libinterpose_fixture.so");
        assert!(path.exists(), "{} was built", path.display());
        path
    })
    .clone()
}
