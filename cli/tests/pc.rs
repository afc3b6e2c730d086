//! PC samples of real cubins through real eBPF: the fixture has the cubins in its memory and fires the probes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use parcagpu_cli::code::Cubin;
use serde_json::Value;

use common::cuda::{self, Debug, Tools};
use common::{App, View, bpf_or_skip, fixture, of, own_copy, parcagpu};

mod common;

/// As a Hopper GPU names them, in no order.
const STALLS: [&str; 6] = [
    "smsp__pcsamp_sample_count",
    "smsp__pcsamp_samples_data_dropped",
    "smsp__pcsamp_warps_issue_stalled_selected",
    "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
    "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
    "smsp__pcsamp_warps_issue_stalled_barrier",
];

/// A cubin in a file, what a sample says of one of its instructions, and what nvdisasm says of that.
struct Code {
    file: PathBuf,
    crc: u32,
    bytes: Vec<u8>,
}

impl Code {
    fn new(tools: &Tools, debug: Debug) -> Self {
        let bytes = tools.cubin(90, debug);
        let file = tools
            .folder
            .join(format!("pc-{debug:?}-{}", std::process::id()));
        fs::write(&file, &bytes).unwrap();
        Self {
            file,
            crc: crc32fast::hash(&bytes),
            bytes,
        }
    }

    fn load(&self, app: &mut App) {
        app.obey(&format!("cubin {:x} {}", self.crc, self.file.display()));
    }

    /// `pc` and what the fixture wants of a sample: function and offset of the n-th instruction with that mnemonic.
    fn sample(&self, tools: &Tools, kernel: &str, mnemonic: &str) -> (String, String, u32) {
        let cubin = Cubin::parse(&self.bytes).unwrap();
        let told = tools.disassembly(&self.bytes);
        let ((section, offset), instruction) = told
            .iter()
            .find(|((section, _), i)| section.contains(kernel) && i.mnemonic.starts_with(mnemonic))
            .unwrap();
        let name = section.strip_prefix(".text.").unwrap();
        let function = cubin
            .functions()
            .iter()
            .find(|f| *f.name == *name.as_bytes())
            .unwrap();
        let (file, line) = instruction.line.clone().unwrap_or_default();
        let words = format!("pc {:#x} {} {offset} {name}", self.crc, function.index);
        (words, file, line)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn metadata(app: &mut App) {
    app.obey(&format!("stalls {}", STALLS.join(" ")));
    app.obey("config 0 20 1980000 132");
}

fn nvdisasm(tools: &Tools) -> [&str; 2] {
    ["--nvdisasm", tools.nvdisasm.to_str().unwrap()]
}

#[test]
fn top_shows_kernels_their_lines_and_what_they_wait_for() {
    let Some(tools) = cuda::tools("top_shows_kernels_their_lines_and_what_they_wait_for") else {
        return;
    };
    let Some(_turn) = bpf_or_skip("top_shows_kernels_their_lines_and_what_they_wait_for") else {
        return;
    };
    let with = Code::new(tools, Debug::LineInfo);
    let without = Code::new(tools, Debug::Plain);
    let (_dir, lib) = own_copy(&fixture().lib);
    let lib = lib.to_str().unwrap();
    let mut app = App::start(lib.as_ref());
    let pid = app.pid().to_string();
    let view = |more: &[&str]| {
        let args = ["top", "--pc", "--pid", &pid].into_iter();
        View::start(
            &args
                .chain(nvdisasm(tools))
                .chain(more.iter().copied())
                .collect::<Vec<_>>(),
        )
    };
    let views = [view(&["--json"]), view(&[])];
    app.await_consumer_of_samples();
    with.load(&mut app);
    metadata(&mut app);
    let (load, file, line) = with.sample(tools, "long_name", "LDG");
    assert!(file.ends_with("kernels/lines.cu") && line > 0);
    app.obey(&format!("{load} 0:99 2:10 3:90 4:80"));
    let (sync, _, _) = with.sample(tools, "shared_sum", "BAR.SYNC");
    app.obey(&format!("{sync} 1:1 5:40 2:10"));
    let (unknown, _, _) = without.sample(tools, "shared_sum", "BAR.SYNC");
    // Announced after its samples, and without lines; the other never.
    app.obey(&format!("{unknown} 3:25"));
    without.load(&mut app);
    app.obey("pc 0x77 3 16 never_announced 3:25");
    let [(json, _), (text, _)] = views.map(View::end);
    check_json(
        &serde_json::from_str(&json).unwrap(),
        app.pid(),
        &file,
        line,
    );
    println!("{text}");
    for wanted in [
        "200 PC samples, 105.92 ms of SM time; 10.0 % issued",
        "long_scoreboard 70.0 %",
        "25 samples without a line: no line information: compile with -lineinfo",
        "25 samples without a line: the code was not announced",
        "1 sample dropped by the hardware",
        "  long_name\n",
        "kernels/lines.cu:",
        "LDG.E",
        "never_announced",
    ] {
        assert!(text.contains(wanted), "{wanted}");
    }
}

fn check_json(json: &Value, pid: u32, file: &str, line: u32) {
    let pc = &json["pc"][0];
    assert_eq!(pc["pid"], pid, "{json:#}");
    assert_eq!((&pc["samples"], &pc["issued"]), (&200.into(), &20.into()));
    assert_eq!(pc["dropped"], 1);
    assert_eq!(pc["states"]["long_scoreboard"], 140);
    assert_eq!(pc["unknown"]["no_line_info"], 25);
    assert_eq!(pc["unknown"]["not_announced"], 25);
    assert_eq!(json["code_troubles"], serde_json::json!([]));
    let kernel = &pc["kernels"][0];
    let name = kernel["kernel"].as_str().unwrap();
    assert!(
        name.starts_with("long_name(a_type") && name.ends_with("*)"),
        "{name}"
    );
    assert_eq!(
        (&kernel["samples"], &kernel["issued"]),
        (&100.into(), &10.into())
    );
    let row = &kernel["lines"][0];
    assert_eq!(row["file"], file);
    assert_eq!(row["line"], line);
    assert_eq!(row["place"], "line");
    assert_eq!(row["sm_time_ns"].as_u64().unwrap() / 1_000_000, 52);
    let mnemonics = row["mnemonics"].as_object().unwrap();
    assert!(mnemonics.keys().all(|m| m.starts_with("LDG")) && mnemonics.len() == 1);
    // The kernel of both cubins is one row, with lines from one of them.
    let both = &pc["kernels"][1];
    assert_eq!(
        (&both["kernel"], &both["samples"]),
        (&"shared_sum".into(), &75.into())
    );
    assert_eq!(both["lines"][0]["states"]["barrier"], 40);
    assert_eq!(both["lines"][1]["place"], "no_line_info");
    assert_eq!(both["lines"][1]["file"], Value::Null);
}

/// Each sample of a trace has its line; the code of a process that came before us is found by its next announcement.
#[test]
fn trace_tells_lines_and_instructions() {
    let Some(tools) = cuda::tools("trace_tells_lines_and_instructions") else {
        return;
    };
    let Some(_turn) = bpf_or_skip("trace_tells_lines_and_instructions") else {
        return;
    };
    let code = Code::new(tools, Debug::LineInfo);
    let (sample, file, line) = code.sample(tools, "inlinesIf", "FFMA");
    assert!(file.ends_with("inlined.h"), "{file}");
    let view = |more: &[&str]| {
        let args = ["trace", "--probe", "pc_sample_batch"].into_iter();
        View::start(
            &args
                .chain(nvdisasm(tools))
                .chain(more.iter().copied())
                .collect::<Vec<_>>(),
        )
    };
    let (json, text) = (view(&["--json"]), view(&[]));
    let mut app = App::start(&fixture().lib);
    app.await_consumer_of_samples();
    code.load(&mut app);
    metadata(&mut app);
    // The first asks for the instructions, which come later.
    let place = format!("at={file}:{line} FFMA void inlines<float>(float*, int)");
    let mut fire = || {
        app.obey(&format!("{sample} 3:7 2:1"));
        app.obey("sleep 200");
    };
    text.await_text(&place, &mut fire);
    json.await_text("FFMA", &mut fire);
    let (out, _) = text.end();
    // Other programs of the machine are seen too.
    let last = out.lines().rfind(|line| line.contains(&place)).unwrap();
    assert!(
        last.contains("reasons=long_scoreboard:7,selected:1 "),
        "{last}"
    );
    let (lines, err) = json.end_json();
    assert!(
        lines.iter().all(|l| l["probe"] == "pc_sample_batch"),
        "{lines:?}"
    );
    let all = of(&lines, app.pid(), "pc_sample_batch");
    let last = all.last().expect(&err);
    assert_eq!(last["place"], "line");
    assert_eq!(last["file"], file);
    assert_eq!(last["line"], line);
    assert_eq!(last["mnemonic"], "FFMA");
    assert_eq!(last["function"], "_Z7inlinesIfEvPT_i");
    assert_eq!(last["stall_reasons"][0]["name"], "long_scoreboard");
}

/// What lies about its code is told of, and harms neither the view nor other processes.
#[test]
fn a_liar_is_told_of() {
    let Some(tools) = cuda::tools("a_liar_is_told_of") else {
        return;
    };
    let Some(_turn) = bpf_or_skip("a_liar_is_told_of") else {
        return;
    };
    let code = Code::new(tools, Debug::LineInfo);
    let (sample, ..) = code.sample(tools, "shared_sum", "BAR.SYNC");
    let (_dir, lib) = own_copy(&fixture().lib);
    let mut args = vec!["top", "--pc", "--json", "--lib", lib.to_str().unwrap()];
    args.extend(nvdisasm(tools));
    let view = View::start(&args);
    let mut liar = App::start(&lib);
    let mut honest = App::start(&lib);
    honest.await_consumer();
    metadata(&mut liar);
    liar.obey(&format!("cubin {:x} {}", code.crc ^ 1, code.file.display()));
    liar.obey("all");
    liar.obey(&format!("pc {:#x} 1 16 lies 3:5", code.crc ^ 1));
    metadata(&mut honest);
    code.load(&mut honest);
    honest.obey(&format!("{sample} 3:5"));
    let (out, _) = view.end();
    let json: Value = serde_json::from_str(&out).unwrap();
    let of = |pid: u32| {
        let all = json["pc"].as_array().unwrap();
        all.iter().find(|p| p["pid"] == pid).unwrap()
    };
    assert_eq!(of(liar.pid())["unknown"]["unread"], 47, "{json:#}");
    assert_eq!(of(honest.pid())["unknown"], serde_json::json!({}));
    let troubles = json["code_troubles"].to_string();
    assert!(
        troubles.contains("its bytes have the checksum"),
        "{troubles}"
    );
}

/// A process that does not sample is told how to.
#[test]
fn without_samples_the_reason_is_told() {
    let Some(_turn) = bpf_or_skip("without_samples_the_reason_is_told") else {
        return;
    };
    let app = App::start(&fixture().lib);
    let view = View::start(&["top", "--pc", "--pid", &app.pid().to_string()]);
    let (out, err) = view.end();
    assert!(out.contains("no PC samples: "), "{out}\n{err}");
}

/// A recording that kept the code tells lines and instructions when it is reported.
#[test]
fn a_recording_with_code_is_reported_with_lines() {
    const TEST: &str = "a_recording_with_code_is_reported_with_lines";
    let Some(tools) = cuda::tools(TEST) else {
        return;
    };
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let code = Code::new(tools, Debug::LineInfo);
    let (sample, file, line) = code.sample(tools, "long_name", "LDG");
    let dir = tempfile::tempdir().unwrap();
    for (kept, name) in [(true, "with.pgpu"), (false, "without.pgpu")] {
        let path = dir.path().join(name);
        let mut app = App::start(&fixture().lib);
        let pid = app.pid().to_string();
        let mut args = vec!["record", "--pid", &pid, "-o", path.to_str().unwrap()];
        args.extend(kept.then_some("--cubins"));
        let view = View::start(&args);
        app.await_consumer_of_samples();
        code.load(&mut app);
        metadata(&mut app);
        app.obey(&format!("{sample} 3:7 2:1"));
        app.obey("sleep 500");
        view.end();
        notes_are_told_where_they_matter(&path, kept);
        let mut args = vec!["report", "--format", "jsonl", path.to_str().unwrap()];
        args.extend(nvdisasm(tools));
        let out = parcagpu(&args);
        let text = String::from_utf8(out.stdout).unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str(l).unwrap());
        let samples: Vec<Value> = lines.filter(|l: &Value| l["type"] == "pc_sample").collect();
        assert_eq!(samples.len(), 1, "{text}{err}");
        if !kept {
            assert!(err.contains("record --cubins"), "{err}");
            continue;
        }
        assert_eq!(samples[0]["file"], file, "{text}{err}");
        assert_eq!(samples[0]["line"], line);
        assert!(samples[0]["mnemonic"].as_str().unwrap().starts_with("LDG"));
        let function = samples[0]["function"].as_str().unwrap();
        assert!(
            function.ends_with("*)") || function.ends_with("function"),
            "{function}"
        );
    }
}

/// That code or nvdisasm is not there is told once, and only for what would show lines or instructions.
fn notes_are_told_where_they_matter(recording: &Path, code_kept: bool) {
    for (format, shows_instructions, tells_itself) in [
        ("text", false, true),
        ("html", false, true),
        ("jsonl", true, false),
        ("pprof", false, false),
        ("folded", false, true),
        ("flamegraph", false, true),
        ("perfetto", false, true),
    ] {
        let out = Command::new(common::PARCAGPU)
            .args(["report", "--format", format, "-o", "-"])
            .arg(recording)
            .env("PATH", "/nowhere")
            .env_remove("CUDA_HOME")
            .output()
            .unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{format}: {err}");
        let told = |what: &str| err.matches(what).count();
        if !Path::new("/usr/local/cuda/bin/nvdisasm").exists() {
            let wanted = usize::from(code_kept && shows_instructions);
            assert_eq!(told("no instructions named"), wanted, "{format}: {err}");
        }
        let wanted = usize::from(!code_kept && !tells_itself);
        assert_eq!(told("record --cubins"), wanted, "{format}: {err}");
        let shown = String::from_utf8_lossy(&out.stdout)
            .matches("record with --cubins")
            .count();
        let wanted = usize::from(!code_kept && ["text", "html"].contains(&format));
        assert_eq!(shown, wanted, "{format}");
    }
}
