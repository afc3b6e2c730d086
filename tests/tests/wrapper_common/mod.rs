//! What the tests of `scripts/parcagpu-entrypoint.sh` share: a library with the script beside it, under each shell.
#![allow(dead_code, reason = "each suite uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use parcagpu_tests::lab::Lab;
use parcagpu_tests::program::{Ended, Program};
use parcagpu_tests::{artefacts, need};

pub const LIMIT: Duration = Duration::from_secs(20);

/// Shells to run the script with, each with its options.
const SHELLS: [&[&str]; 3] = [&["dash"], &["bash", "--posix"], &["busybox", "sh"]];

/// A folder with copies of the library and, in `bin`, of the script.
pub struct Wrapped {
    pub lab: Lab,
    pub shell: Vec<&'static str>,
    script: PathBuf,
}

impl Wrapped {
    /// A command under the script.
    pub fn command(&self, command: &[&str]) -> Program {
        let program = Program::new(self.shell[0], self.lab.path()).bare_environment();
        program
            .env("PATH", std::env::var_os("PATH").expect("a PATH"))
            .args(&self.shell[1..])
            .arg_path(&self.script)
            .args(command)
    }

    pub fn run(&self, command: &[&str]) -> Ended {
        self.command(command).run(LIMIT)
    }

    /// The library beside the script.
    pub fn library(&self) -> String {
        let folder = self.script.parent().expect("a folder");
        let folder = folder.canonicalize().expect("it is there");
        folder.join("libparcagpu.so").display().to_string()
    }

    /// What `env` says under the script.
    pub fn environment(&self, variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        let ended = self
            .command(&["env"])
            .envs(variables.iter().copied())
            .run(LIMIT)
            .ok();
        assert_eq!(ended.stderr, "");
        variables_of(&ended.stdout)
    }

    /// Runs a command that succeeds, and returns the one line that the script said.
    pub fn complaint(&self, program: Program) -> String {
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
pub const TELL: [&str; 3] = ["sh", "-c", "echo \"ran, preloaded: $LD_PRELOAD\""];

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
pub fn install(from: &Path, to: &Path) {
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

/// Where the repository has it.
pub fn script() -> PathBuf {
    artefacts::root().join("scripts/parcagpu-entrypoint.sh")
}

/// Runs the test with each shell that is installed.
pub fn with_each_shell(test: &str, check: impl Fn(&Wrapped)) {
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

/// Compiles something.
pub fn gcc(arguments: &[&str]) {
    let status = Command::new("gcc").args(arguments).status();
    assert!(status.is_ok_and(|s| s.success()), "gcc {arguments:?}");
}
