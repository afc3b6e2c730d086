//! SASS mnemonics, from NVIDIA's `nvdisasm` where it is installed.
//!
//! The program gets bytes that come from another process. It is therefore run as user `nobody` when we are root,
//! with limits on time, memory and output, without a right to gain others, and it dies with us. What it prints before
//! its time is up counts.

use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const NAME: &str = "nvdisasm";
/// User and group that own nothing.
const NOBODY: u32 = 65534;
/// Memory that it may have.
const MEMORY_MAX: u64 = 8 << 30;
/// Bytes of its complaints that are kept.
const COMPLAINT_MAX: u64 = 1 << 16;
/// Instructions kept of one run.
const INSTRUCTIONS_MAX: usize = 16 << 20;
/// Bytes of a line that are looked at.
const LINE_MAX: usize = 16 << 10;
/// Distinct mnemonics of one cubin.
const MNEMONICS_MAX: usize = 1 << 16;

/// Finds the program: the one that was named, else in `PATH`, `$CUDA_HOME/bin`, `/usr/local/cuda/bin`.
pub fn find(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        if !runnable(path) {
            bail!("{} is no program", path.display());
        }
        return Ok(path.to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let home = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    env::split_paths(&path)
        .chain(home)
        .chain(["/usr/local/cuda/bin".into()])
        // A relative one would depend on where we were started.
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(NAME))
        .find(|path| runnable(path))
        .with_context(|| format!("no {NAME} in PATH, CUDA_HOME or /usr/local/cuda"))
}

fn runnable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Mnemonics of a cubin, or of some of its functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sass {
    mnemonics: Vec<Arc<str>>,
    /// By the name of the section: offset and index into `mnemonics`, in growing order.
    sections: HashMap<Box<[u8]>, Vec<(u32, u32)>>,
}

impl Sass {
    /// The mnemonic of the instruction at an offset of a section, with its modifiers: `LDG.E.64`.
    pub fn at(&self, section: &[u8], offset: u64) -> Option<&Arc<str>> {
        let offset = u32::try_from(offset).ok()?;
        let instructions = self.sections.get(section)?;
        let at = instructions.binary_search_by_key(&offset, |i| i.0).ok()?;
        self.mnemonics.get(instructions[at].1 as usize)
    }

    /// Adds what another run found.
    pub fn merge(&mut self, other: Self) {
        let mut known: HashMap<Arc<str>, u32> = (0..)
            .zip(&self.mnemonics)
            .map(|(i, m)| (Arc::clone(m), i))
            .collect();
        for (section, mut instructions) in other.sections {
            for (_, mnemonic) in &mut instructions {
                let text = &other.mnemonics[*mnemonic as usize];
                *mnemonic = *known.entry(Arc::clone(text)).or_insert_with(|| {
                    self.mnemonics.push(Arc::clone(text));
                    (self.mnemonics.len() - 1) as u32
                });
            }
            self.sections.insert(section, instructions);
        }
    }
}

/// Runs the program over a cubin: all its functions, or those with these symbols.
pub fn disassemble(program: &Path, cubin: &[u8], symbols: &[u32], limit: Duration) -> Result<Sass> {
    run(program, cubin, symbols, limit, |end| {
        end.recv_timeout(limit).is_ok()
    })
}

/// [`disassemble`] until `wait` returns, which says whether the end was told.
fn run(
    program: &Path,
    cubin: &[u8],
    symbols: &[u32],
    limit: Duration,
    wait: impl FnOnce(&mpsc::Receiver<()>) -> bool,
) -> Result<Sass> {
    let mut input = tempfile::tempfile().context("no temporary file")?;
    input.write_all(cubin)?;
    let mut complaints = tempfile::tempfile().context("no temporary file")?;
    let mut child = start(program, &input, &complaints, symbols, limit)
        .with_context(|| format!("failed to run {}", program.display()))?;
    let output = child.stdout.take().context("no output")?;
    let (done, end) = mpsc::channel();
    let (sass, in_time) = std::thread::scope(|scope| {
        let parser = scope.spawn(move || {
            let sass = parse(BufReader::with_capacity(1 << 16, output));
            // The other end waits for this or has given up.
            let _ = done.send(());
            sass
        });
        let in_time = wait(&end);
        // Ends the output, if it has not ended.
        let _ = child.kill();
        (parser.join(), in_time)
    });
    let status = child.wait()?;
    let sass = sass.ok().context("the output was not understood")?;
    if sass.sections.is_empty() {
        let mut said = String::new();
        complaints.rewind()?;
        // Whatever bytes it said, the first line is shown.
        let _ = complaints.take(COMPLAINT_MAX).read_to_string(&mut said);
        let said = said.lines().next().unwrap_or_default().trim().to_owned();
        if !in_time {
            bail!("{NAME} did not end within {} s", limit.as_secs());
        }
        bail!("{NAME} failed ({status}): {said}");
    }
    Ok(sass)
}

fn start(
    program: &Path,
    input: &File,
    complaints: &File,
    symbols: &[u32],
    limit: Duration,
) -> Result<Child> {
    let command = || -> io::Result<Command> {
        let mut command = Command::new(program);
        command.args(["-c", "-ndf"]);
        if !symbols.is_empty() {
            let list: Vec<String> = symbols.iter().map(u32::to_string).collect();
            command.args(["-fun", &list.join(",")]);
        }
        command
            .arg("/proc/self/fd/0")
            .stdin(input.try_clone()?)
            .stdout(Stdio::piped())
            .stderr(complaints.try_clone()?)
            .process_group(0);
        let seconds = limit.as_secs() + 1;
        // SAFETY: only system calls are made, which are allowed between fork and exec.
        unsafe { command.pre_exec(move || restrict(seconds)) };
        Ok(command)
    };
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        // It opens its input by name.
        fchown(input, Some(NOBODY), Some(NOBODY))?;
        match command()?.uid(NOBODY).gid(NOBODY).spawn() {
            // Its folder may be closed to others, or our rights not reach to become another user.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            other => return Ok(other?),
        }
        fchown(input, Some(0), Some(0))?;
    }
    Ok(command()?.spawn()?)
}

/// Limits for the process that calls it, and the promise to die with its parent.
fn restrict(seconds: u64) -> io::Result<()> {
    let limits = [
        (libc::RLIMIT_CPU, seconds),
        (libc::RLIMIT_AS, MEMORY_MAX),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_FSIZE, COMPLAINT_MAX),
    ];
    for (what, most) in limits {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: the limit lives through the call.
        if unsafe { libc::setrlimit(what, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: these take numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::nice(10);
    }
    Ok(())
}

/// Reads what the program prints about code.
pub fn parse(mut output: impl BufRead) -> Sass {
    let mut sass = Sass::default();
    let mut known: HashMap<Arc<str>, u32> = HashMap::new();
    let mut section: Option<Box<[u8]>> = None;
    let mut count = 0;
    let mut line = Vec::new();
    while next_line(&mut output, &mut line) {
        if let Some(name) = section_of(&line) {
            section = name.starts_with(b".text.").then(|| name.into());
            continue;
        }
        let (Some(section), Some((offset, mnemonic))) = (&section, instruction(&line)) else {
            continue;
        };
        let id = match known.get(mnemonic) {
            Some(id) => *id,
            None if known.len() == MNEMONICS_MAX => continue,
            None => {
                let text: Arc<str> = mnemonic.into();
                let id = sass.mnemonics.len() as u32;
                sass.mnemonics.push(Arc::clone(&text));
                known.insert(text, id);
                id
            }
        };
        if !sass.sections.contains_key(section) {
            sass.sections.insert(section.clone(), Vec::new());
        }
        let instructions = sass
            .sections
            .get_mut(section)
            .expect("present or just put in");
        // In order, as `at` needs them.
        if instructions.last().is_none_or(|last| last.0 < offset) {
            instructions.push((offset, id));
            count += 1;
        }
        if count == INSTRUCTIONS_MAX {
            break;
        }
    }
    sass
}

/// The beginning of the next line, without its end; false at the end of the output.
fn next_line(output: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    line.clear();
    loop {
        let bytes = match output.fill_buf() {
            Ok(bytes) => bytes,
            // By Ctrl-C, which may come to any thread.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return false,
        };
        if bytes.is_empty() {
            return !line.is_empty();
        }
        let end = bytes.iter().position(|b| *b == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        line.extend(&part[..part.len().min(LINE_MAX - line.len())]);
        let taken = end.map_or(bytes.len(), |end| end + 1);
        output.consume(taken);
        if end.is_some() {
            return true;
        }
    }
}

/// `.section <tab> NAME,"ax",...`
fn section_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.trim_ascii().strip_prefix(b".section\t")?.trim_ascii();
    rest.split(|b| *b == b',').next()
}

/// `/*OFFSET*/ [@PREDICATE] MNEMONIC OPERANDS ;`
fn instruction(line: &[u8]) -> Option<(u32, &str)> {
    let line = std::str::from_utf8(line).ok()?;
    let (offset, code) = line.trim().strip_prefix("/*")?.split_once("*/")?;
    let offset = u32::from_str_radix(offset, 16).ok()?;
    let mnemonic = code
        .split_ascii_whitespace()
        .find(|word| !word.starts_with(['@', '{']))?
        .trim_end_matches(';');
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    (!mnemonic.is_empty() && mnemonic.chars().all(plain)).then_some((offset, mnemonic))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
\t.target\tsm_90

\t.section\t.text._Z1kPf,\"ax\",@progbits
\t.sectioninfo\t@\"SHI_REGISTERS=14\"
_Z1kPf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @!P0 LDG.E.64 R4, desc[UR4][R2.64] ;
.L_x_0:
        /*0020*/                   BRA `(.L_x_0);
        /*0030*/                   NOP;
\t.section\t.nv.constant0._Z1kPf,\"a\",@progbits
        /*0000*/ \t.byte 0x00
";

    #[test]
    fn printed_code_is_read() {
        let sass = parse(PRINTED.as_bytes());
        let at = |offset| sass.at(b".text._Z1kPf", offset).map(|m| &**m);
        assert_eq!(at(0), Some("LDC"));
        assert_eq!(at(0x10), Some("LDG.E.64"));
        assert_eq!(at(0x20), Some("BRA"));
        assert_eq!(at(0x30), Some("NOP"));
        assert_eq!((at(8), at(0x40), at(u64::MAX)), (None, None, None));
        assert_eq!(sass.sections.len(), 1);
    }

    #[test]
    fn runs_add_up() {
        let mut sass = parse(PRINTED.as_bytes());
        sass.merge(parse(PRINTED.replace("_Z1kPf", "other").as_bytes()));
        assert_eq!(sass.mnemonics.len(), 4);
        for name in [b".text._Z1kPf".as_slice(), b".text.other"] {
            assert_eq!(sass.at(name, 0x10).map(|m| &**m), Some("LDG.E.64"));
        }
    }

    #[test]
    fn any_output_is_survived() {
        let mut long = vec![b'x'; 1 << 20];
        long.extend(b"\n\t.section\t.text.k,\n/*0*/ NOP;");
        assert_eq!(
            parse(long.as_slice()).at(b".text.k", 0).map(|m| &**m),
            Some("NOP")
        );
        assert_eq!(
            parse(&b"\xff\xfe\n/*zz*/ X\n/**/\n/*0*/\n"[..]),
            Sass::default()
        );
    }

    #[test]
    fn a_signal_does_not_end_the_output() {
        /// A byte at a time, and a signal before each.
        struct Signals<'a>(&'a [u8], bool);
        impl Read for Signals<'_> {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                self.1 = !self.1;
                match self.1 {
                    true => Err(io::ErrorKind::Interrupted.into()),
                    false => self.0.read(&mut to[..1]),
                }
            }
        }
        let output = BufReader::new(Signals(PRINTED.as_bytes(), false));
        assert_eq!(parse(output), parse(PRINTED.as_bytes()));
    }

    /// Written by a process of its own: a child of another test that had our descriptor would keep it from being run.
    fn script(text: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(dir.path().join(NAME))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(shell.wait().unwrap().success());
        dir
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let print = "printf '\\t.section\\t.text.k,\\n/*0000*/ NOP;\\n'";
        let dir = script(&format!(
            "#!/bin/sh\n{print}\n: >\"${{0%/*}}/printed\"\nexec sleep 600\n"
        ));
        // Run as root, the program is somebody else.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let began = std::time::Instant::now();
        let printed = dir.path().join("printed");
        let limit = Duration::from_millis(300);
        let sass = run(&dir.path().join(NAME), b"x", &[], limit, |_| {
            while !printed.exists() {
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        });
        assert!(
            sass.unwrap().at(b".text.k", 0).is_some(),
            "what it had printed counts"
        );
        let dir = script("#!/bin/sh\nexec sleep 600\n");
        let failed = disassemble(&dir.path().join(NAME), b"x", &[], limit).unwrap_err();
        assert!(failed.to_string().contains("did not end"), "{failed:#}");
        assert!(began.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn what_it_complains_of_is_told() {
        let dir = script("#!/bin/sh\necho \"no good: $*\" >&2\ncat <&0 >/dev/null\nexit 3\n");
        let failed = disassemble(
            &dir.path().join(NAME),
            b"x",
            &[4, 5],
            Duration::from_secs(20),
        );
        let failed = failed.unwrap_err().to_string();
        assert!(
            failed.contains("no good: -c -ndf -fun 4,5 /proc/self/fd/0"),
            "{failed}"
        );
        assert!(disassemble(Path::new("/no/such"), b"x", &[], Duration::from_secs(1)).is_err());
    }

    /// Run as root, the program is somebody else and can still read its input.
    #[test]
    fn the_program_has_no_rights() {
        let dir = script(
            "#!/bin/sh\nprintf '\\t.section\\t.text.%s.%s,\\n/*0*/ NOP;\\n' \"$(id -u)\" \"$(cat /proc/self/fd/0)\"\n",
        );
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let sass = disassemble(
            &dir.path().join(NAME),
            b"bytes",
            &[],
            Duration::from_secs(20),
        )
        .unwrap();
        // SAFETY: no preconditions.
        let own = unsafe { libc::geteuid() };
        let user = if own == 0 { NOBODY } else { own };
        let section = format!(".text.{user}.bytes");
        assert!(
            sass.at(section.as_bytes(), 0).is_some(),
            "{:?}",
            sass.sections
        );
    }
}
