//! Cubins made by NVIDIA's compilers, and what `nvdisasm` says about them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::skip;

/// The compilers of `scripts/fetch-cuda-compilers`.
pub struct Tools {
    pub nvcc: PathBuf,
    /// Of the same release as nvcc: OSABI 0x41.
    pub ptxas_new: PathBuf,
    /// OSABI 0x33 for the older GPUs.
    pub ptxas_old: PathBuf,
    pub nvdisasm: PathBuf,
    pub folder: PathBuf,
}

/// How a cubin is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debug {
    Plain,
    LineInfo,
    Full,
}

/// The tools, or `None`: says aloud that the test is skipped.
pub fn tools(test: &str) -> Option<&'static Tools> {
    static TOOLS: OnceLock<Result<Tools, String>> = OnceLock::new();
    match TOOLS.get_or_init(fetch) {
        Ok(tools) => Some(tools),
        Err(reason) => {
            let required = std::env::var("PARCAGPU_REQUIRE").unwrap_or_default();
            assert!(!required.contains("compilers"), "{test}: {reason}");
            skip(test, reason);
            None
        }
    }
}

fn fetch() -> Result<Tools, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fetch-cuda-compilers");
    if Command::new("g++").arg("--version").output().is_err() {
        return Err("g++ is not installed".to_owned());
    }
    let out = Command::new(&script)
        .args(["nvcc", "ptxas", "nvdisasm"])
        .output()
        .map_err(|e| format!("{}: {e}", script.display()))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(said.lines().next().unwrap_or("no compilers").to_owned());
    }
    let said = String::from_utf8(out.stdout).unwrap();
    let paths: Vec<PathBuf> = said.lines().map(PathBuf::from).collect();
    let [nvcc, ptxas_old, nvdisasm] = paths.try_into().unwrap();
    // Kept from run to run: what was built of the same sources is not built again.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins");
    fs::create_dir_all(&folder).unwrap();
    Ok(Tools {
        ptxas_new: nvcc.with_file_name("ptxas"),
        nvcc,
        ptxas_old,
        nvdisasm,
        folder,
    })
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernels")
        .join(name)
}

/// Makes a file with a command that takes its name last, unless it is there and newer than the sources and tools.
fn make(to: &Path, command: &mut Command) {
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let sources = [source("lines.cu"), source("inlined.h")];
    let newest = sources.iter().filter_map(|s| changed(s)).max();
    if changed(to).is_some_and(|at| Some(at) > newest) {
        return;
    }
    // Whole or not at all: other tests make the same file at the same time.
    let new = tempfile::NamedTempFile::new_in(to.parent().unwrap()).unwrap();
    let out = command.arg("-o").arg(new.path()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {said}");
    new.persist(to).unwrap();
}

impl Tools {
    fn nvcc(&self, debug: Debug) -> Command {
        let mut nvcc = Command::new(&self.nvcc);
        nvcc.arg("-I")
            .arg(self.nvcc.parent().unwrap().with_file_name("include"));
        match debug {
            Debug::Plain => {}
            Debug::LineInfo => drop(nvcc.arg("-lineinfo")),
            Debug::Full => drop(nvcc.arg("-G")),
        }
        nvcc
    }

    /// A cubin by nvcc itself.
    pub fn cubin(&self, sm: u32, debug: Debug) -> Vec<u8> {
        let to = self.folder.join(format!("nvcc-{sm}-{debug:?}.cubin"));
        let mut nvcc = self.nvcc(debug);
        nvcc.args(["-cubin", &format!("-arch=sm_{sm}")]);
        make(&to, nvcc.arg(source("lines.cu")));
        fs::read(to).unwrap()
    }

    /// PTX for every GPU since Turing.
    fn ptx(&self, debug: Debug) -> String {
        let to = self.folder.join(format!("{debug:?}.ptx"));
        let mut nvcc = self.nvcc(debug);
        nvcc.args(["-ptx", "-arch=compute_75"]);
        make(&to, nvcc.arg(source("lines.cu")));
        fs::read_to_string(to).unwrap()
    }

    /// Cubins for each of these GPUs by both assemblers: SM, a name, bytes.
    pub fn assembled(&self, sms: &[u32], debug: Debug) -> Vec<(u32, String, Vec<u8>)> {
        let ptx = self.ptx(debug);
        let mut cubins = Vec::new();
        for (age, ptxas) in [("new", &self.ptxas_new), ("old", &self.ptxas_old)] {
            // The older one knows neither the newest version of PTX nor needs it here.
            let version = if age == "old" {
                ".version 8.0"
            } else {
                ".version 9.0"
            };
            let input = tempfile::NamedTempFile::new_in(&self.folder).unwrap();
            fs::write(input.path(), ptx.replace(".version 9.0", version)).unwrap();
            for sm in sms {
                let name = format!("{age}-{sm}-{debug:?}");
                let to = self.folder.join(format!("{name}.cubin"));
                let mut ptxas = Command::new(ptxas);
                match debug {
                    Debug::Plain => {}
                    Debug::LineInfo => drop(ptxas.arg("-lineinfo")),
                    Debug::Full => drop(ptxas.arg("-g")),
                }
                make(&to, ptxas.arg(format!("-arch=sm_{sm}")).arg(input.path()));
                cubins.push((*sm, name, fs::read(to).unwrap()));
            }
        }
        cubins
    }

    /// What `nvdisasm -g` says: section of code and offset to mnemonic, file and line.
    pub fn disassembly(&self, cubin: &[u8]) -> BTreeMap<(String, u64), Instruction> {
        let file = tempfile::NamedTempFile::new_in(&self.folder).unwrap();
        fs::write(file.path(), cubin).unwrap();
        let out = Command::new(&self.nvdisasm)
            .args(["-g", "-c"])
            .arg(file.path())
            .output()
            .unwrap();
        assert!(out.status.success());
        let mut section = String::new();
        let mut line = None;
        let mut all = BTreeMap::new();
        for text in String::from_utf8(out.stdout).unwrap().lines() {
            let text = text.trim();
            if let Some(rest) = text.strip_prefix(".section\t") {
                section = rest.trim().split(',').next().unwrap().to_owned();
                line = None;
            } else if let Some(rest) = text.strip_prefix("//## File \"") {
                let (file, rest) = rest.split_once("\", line ").unwrap();
                let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
                line = Some((file.to_owned(), number.parse().unwrap()));
            } else if !section.starts_with(".text.") {
                // Data in the same form.
            } else if let Some((offset, code)) =
                text.strip_prefix("/*").and_then(|t| t.split_once("*/"))
            {
                let mut words = code.split_whitespace().skip_while(|w| w.starts_with('@'));
                let mnemonic = words.next().unwrap().trim_end_matches(';').to_owned();
                let offset = u64::from_str_radix(offset, 16).unwrap();
                let instruction = Instruction {
                    mnemonic,
                    line: line.clone(),
                };
                all.insert((section.clone(), offset), instruction);
            }
        }
        all
    }
}

/// One instruction, as `nvdisasm` tells it.
#[derive(Debug)]
pub struct Instruction {
    pub mnemonic: String,
    pub line: Option<(String, u32)>,
}
