//! What `report` makes of recordings: the same GPU time everywhere, and nothing that a name could break.

#[path = "common/model.rs"]
mod model;
#[path = "common/protobuf.rs"]
mod protobuf;
#[path = "common/tape.rs"]
mod tape;

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};

use parcagpu_cli::recording::model::Recording;
use parcagpu_cli::recording::writer::{Beginning, Writer};
use parcagpu_cli::report::{Format, write};
use parcagpu_cli::text::{count, duration};
use protobuf::{all, field, packed};
use serde_json::Value;

fn made(rec: &Recording, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    write(rec, format, 0, &mut out).unwrap();
    out
}

fn text(rec: &Recording, format: Format) -> String {
    String::from_utf8(made(rec, format)).unwrap()
}

/// Written down a second time, so that a mistake in the one is not a mistake in the other.
fn gpu_time(rec: &Recording) -> u128 {
    let mut sum = 0;
    for kernel in &rec.kernels {
        if kernel.start_ns > 0 && kernel.end_ns >= kernel.start_ns {
            sum += u128::from(kernel.end_ns - kernel.start_ns);
        }
    }
    sum
}

fn pprof(rec: &Recording) -> Vec<u8> {
    let mut profile = Vec::new();
    flate2::read::GzDecoder::new(&made(rec, Format::Pprof)[..])
        .read_to_end(&mut profile)
        .unwrap();
    profile
}

/// Sum of each value over all samples of a profile.
fn pprof_sums(rec: &Recording) -> [u128; 3] {
    let mut sums = [0; 3];
    for sample in all(&pprof(rec), 2) {
        let values = packed(field(sample.bytes(), 2).unwrap().bytes());
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += u128::from(value);
        }
    }
    sums
}

/// The data beside the page.
fn page_data(html: &str) -> Value {
    let from = html.split("id=\"data\">").nth(1).unwrap();
    serde_json::from_str(from.split("</script>").next().unwrap()).unwrap()
}

/// Slices of the page's timeline: (kind of lane, start in it, duration).
fn page_slices(html: &str) -> Vec<(String, u64, Option<u64>)> {
    use base64::Engine;
    let data = page_data(html);
    let from = html.split("id=\"items\">").nth(1).unwrap();
    let packed_text = from.split("</script>").next().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(packed_text)
        .unwrap();
    let numbers = packed(&bytes);
    let mut numbers = numbers.chunks_exact(4);
    let mut out = Vec::new();
    for lane in data["timeline"]["lanes"].as_array().unwrap() {
        let mut start = 0;
        for _ in 0..lane["n"].as_u64().unwrap() {
            let slice = numbers.next().unwrap();
            start += slice[0];
            let kind = lane["kind"].as_str().unwrap().to_owned();
            out.push((kind, start, slice[1].checked_sub(1)));
        }
    }
    assert!(numbers.next().is_none());
    out
}

/// What a Perfetto trace says, checked for what its reader takes for granted.
#[derive(Default)]
struct Trace {
    /// By category.
    time: HashMap<String, u128>,
    slices: HashMap<String, u64>,
    /// Ends of arrows by number: (category, time), in order.
    arrows: HashMap<u64, Vec<(String, u64)>>,
    texts: Vec<String>,
}

fn trace(rec: &Recording) -> Trace {
    let bytes = made(rec, Format::Perfetto);
    let mut trace = Trace::default();
    let mut names: HashMap<(u64, u64), String> = HashMap::new();
    let mut tracks: HashMap<u64, Vec<(String, u64)>> = HashMap::new();
    let mut last = 0;
    for packet in all(&bytes, 1) {
        let packet = packet.bytes();
        if let Some(interned) = field(packet, 12) {
            for (kind, text) in protobuf::fields(interned.bytes()) {
                let iid = field(text.bytes(), 1).unwrap().number();
                let text = field(text.bytes(), 2).unwrap().text().to_owned();
                trace.texts.push(text.clone());
                assert!(names.insert((kind, iid), text).is_none(), "told twice");
            }
        }
        if let Some(descriptor) = field(packet, 60) {
            let uuid = field(descriptor.bytes(), 1).unwrap().number();
            if let Some(parent) = field(descriptor.bytes(), 5) {
                assert!(
                    tracks.contains_key(&parent.number()),
                    "a track before its parent"
                );
            }
            assert!(tracks.insert(uuid, Vec::new()).is_none());
        }
        let Some(event) = field(packet, 11).map(protobuf::Value::bytes) else {
            continue;
        };
        let time = field(packet, 8).unwrap().number();
        assert!(time >= last, "events in order of time");
        last = time;
        let track = field(event, 11).unwrap().number();
        let open = tracks.get_mut(&track).expect("a described track");
        match field(event, 9).unwrap().number() {
            2 => {
                let (category, start) = open.pop().expect("an end has a begin");
                *trace.time.entry(category).or_default() += u128::from(time - start);
            }
            kind => {
                let category = names[&(1, field(event, 3).unwrap().number())].clone();
                assert!(names.contains_key(&(2, field(event, 10).unwrap().number())));
                for note in all(event, 4) {
                    let note = note.bytes();
                    assert!(names.contains_key(&(3, field(note, 1).unwrap().number())));
                    if let Some(iid) = field(note, 17) {
                        assert!(names.contains_key(&(29, iid.number())));
                    }
                }
                for flow in all(event, 47) {
                    let ends = trace.arrows.entry(flow.number()).or_default();
                    ends.push((category.clone(), time));
                }
                if category.ends_with("kernel") || category == "launch" {
                    assert!(
                        open.is_empty(),
                        "{category} slices of a track do not overlap"
                    );
                }
                *trace.slices.entry(category.clone()).or_default() += 1;
                if kind == 1 {
                    open.push((category, time));
                }
            }
        }
    }
    for open in tracks.into_values().flatten() {
        assert_eq!(open.0, "nvtx", "only ranges stay open");
    }
    trace
}

fn assert_same_time_everywhere(rec: &Recording) {
    let time = gpu_time(rec);
    assert!(time > 0);
    assert!(text(rec, Format::Text).contains(&format!("GPU time {} in", duration(time))));

    let lines = text(rec, Format::Jsonl);
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines[0]["gpu_ns"], u64::try_from(time).unwrap());
    let kernels = lines.iter().filter(|l| l["type"] == "kernel");
    let sum: u64 = kernels.clone().filter_map(|k| k["gpu_ns"].as_u64()).sum();
    assert_eq!(u128::from(sum), time);
    assert_eq!(kernels.count(), rec.kernels.len());

    let folded = text(rec, Format::Folded);
    let stacks = folded.lines().filter(|l| !l.starts_with("# "));
    let sum: u128 = stacks
        .map(|l| l.rsplit(' ').next().unwrap().parse::<u128>().unwrap())
        .sum();
    assert_eq!(sum, time);

    let svg = text(rec, Format::Flamegraph);
    let all_frame = format!(
        "<title>all ({} ns of GPU time",
        count(u64::try_from(time).unwrap())
    );
    assert!(svg.contains(&all_frame), "no {all_frame}");

    let sums = pprof_sums(rec);
    assert_eq!(sums[..2], [rec.kernels.len() as u128, time]);

    let trace = trace(rec);
    let of = |category: &str| trace.time.get(category).copied().unwrap_or(0);
    assert_eq!(of("kernel") + of("graph kernel"), time);

    let html = text(rec, Format::Html);
    let data = page_data(&html);
    let total = |rows: &Value, field: &str| -> u128 {
        let rows = rows.as_array().unwrap();
        rows.iter()
            .map(|r| u128::from(r[field].as_u64().unwrap()))
            .sum()
    };
    assert_eq!(u128::from(data["total_ns"].as_u64().unwrap()), time);
    assert_eq!(total(&data["kernels"]["rows"], "total"), time);
    assert_eq!(
        u128::from(data["flame"]["nodes"][0][2].as_u64().unwrap()),
        time
    );
    let drawn = page_slices(&html)
        .into_iter()
        .filter(|(kind, ..)| kind == "kernel");
    assert_eq!(
        drawn.map(|(.., ns)| u128::from(ns.unwrap())).sum::<u128>(),
        time
    );
}

#[test]
fn gpu_time_is_the_same_in_all_outputs() {
    let rec = model::training(6_000);
    assert!(
        rec.kernels.iter().any(|k| k.start_ns == 0),
        "some without times"
    );
    assert_same_time_everywhere(&rec);
}

#[test]
fn pc_samples_are_the_same_in_all_outputs() {
    let rec = model::training(500);
    let samples = u64::try_from(pprof_sums(&rec)[2]).unwrap();
    assert!(samples > 0);
    assert!(text(&rec, Format::Text).contains(&format!("{} PC samples", count(samples))));
    let head: Value =
        serde_json::from_str(text(&rec, Format::Jsonl).lines().next().unwrap()).unwrap();
    assert_eq!(head["pc_samples"], samples);
    let stalls = &page_data(&text(&rec, Format::Html))["stalls"];
    let rows = stalls["rows"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|r| r["samples"].as_u64().unwrap()).sum();
    assert_eq!((sum, &stalls["samples"]), (samples, &samples.into()));
}

/// Where the reader of each output looks first.
#[test]
fn every_output_says_what_share_was_sampled() {
    let rec = model::training(600);
    let sampled: u64 = rec.processes.iter().map(|p| p.launches_sampled).sum();
    let seen: u64 = rec.processes.iter().map(|p| p.launches_seen.unwrap()).sum();
    let share = format!("sampled: {} of {} launches (", count(sampled), count(seen));
    assert!(text(&rec, Format::Text).contains(&format!("\n  {share}")));
    let html = text(&rec, Format::Html);
    let notes = html.split("<ul class=\"notes sample\">").nth(1).unwrap();
    assert!(notes.trim_start().starts_with(&format!("<li>{share}")));
    let svg = text(&rec, Format::Flamegraph);
    let subtitle = svg.split("id=\"subtitle\"").nth(1).unwrap();
    let subtitle = subtitle.split("</text>").next().unwrap();
    assert!(subtitle.contains(&share), "{subtitle}");
    let folded = text(&rec, Format::Folded);
    assert!(folded.starts_with(&format!("# {share}")));
    let head: Value =
        serde_json::from_str(text(&rec, Format::Jsonl).lines().next().unwrap()).unwrap();
    assert_eq!(
        (&head["launches_sampled"], &head["launches_seen"]),
        (&sampled.into(), &seen.into())
    );
    assert_eq!(
        (&head["type"], &head["whole"]),
        (&"recording".into(), &false.into())
    );
    assert!(head["notes"][0].as_str().unwrap().starts_with(&share));

    // Perfetto: a slice over the whole length, on a track of its own and on that of each process.
    let trace = trace(&rec);
    let slices = trace.texts.iter().filter(|t| t.starts_with("sampled: "));
    assert!(slices.clone().any(|t| t.starts_with(&share)));
    assert!(slices.count() > rec.processes.len());

    // pprof: a comment, and what its reports call the file of the profile.
    let profile = pprof(&rec);
    let strings = all(&profile, 6);
    let string = |i: u64| strings[usize::try_from(i).unwrap()].text();
    let comments = packed(field(&profile, 13).unwrap().bytes());
    assert!(string(comments[0]).starts_with(&share));
    let mapping = field(&profile, 3).unwrap();
    let file = string(field(mapping.bytes(), 5).unwrap().number());
    assert!(file.starts_with(&format!("GPU, {share}")), "{file}");

    let mut unknown = rec;
    unknown.processes[0].launches_seen = None;
    let not_known = text(&unknown, Format::Text);
    assert!(
        not_known.contains("of how many is not known"),
        "{not_known}"
    );
}

/// Programs that read folded stacks take every line for one that ends in a number.
#[test]
fn comments_in_folded_stacks_are_no_stacks() {
    let mut rec = model::training(600);
    rec.truncated = true;
    rec.damage = Some("at byte 7: 12".to_owned());
    let folded = text(&rec, Format::Folded);
    let as_stack = |line: &str| {
        let (stack, n) = line.rsplit_once(' ').unwrap();
        n.parse::<u64>().is_ok().then(|| stack.to_owned())
    };
    let stacks: Vec<String> = folded.lines().filter_map(as_stack).collect();
    assert!(stacks.iter().all(|stack| !stack.starts_with('#')));
    let comments = folded.lines().filter(|l| l.starts_with("# ")).count();
    assert_eq!(stacks.len() + comments, folded.lines().count());
    assert!(folded.contains("\n# the file is damaged"));
}

#[test]
fn the_head_says_when_and_where() {
    let rec = model::training(600);
    let told = text(&rec, Format::Text);
    let head: Vec<&str> = told.lines().take(4).collect();
    assert!(
        head[0].starts_with("recording of python train.py --steps 300, "),
        "{told}"
    );
    assert!(head[1].starts_with("  recorded 20"), "{told}");
    assert!(
        head[1].contains(" +01:00 on node-7, Linux 6.18.0, by parcagpu 0.1.0"),
        "{told}"
    );
    assert!(
        head[2].starts_with("  on GPU 0 NVIDIA H200 GPU-6f9d"),
        "{told}"
    );
    let html = text(&rec, Format::Html);
    assert!(html.contains(head[1].trim()) && html.contains("GPU 0 NVIDIA H200"));
}

/// The state that the first places wait in has the same share in the text, on the page and in the profile.
#[test]
fn stall_reasons_have_one_name_and_one_base() {
    let rec = model::training(500);
    let stalls = &page_data(&text(&rec, Format::Html))["stalls"];
    let told = text(&rec, Format::Text);
    let line = told
        .lines()
        .find(|l| l.starts_with("Where warps wait"))
        .unwrap();
    let total = stalls["samples"].as_u64().unwrap();
    let waiting = stalls["reasons"].as_array().unwrap().iter();
    let mut waiting = waiting.filter(|r| r[0] != "selected");
    let (first, n) = waiting
        .next()
        .map(|r| (r[0].as_str().unwrap(), r[1].as_u64().unwrap()))
        .unwrap();
    let share = (n as f64 * 1000.0 / total as f64).round() / 10.0;
    assert!(line.contains(&format!(": {first} {share:.1} %")), "{line}");
    assert!(!first.contains(' ') && !first.contains("smsp__"), "{first}");
    let row = &stalls["rows"][0];
    let words = row["words"].as_str().unwrap();
    assert!(told.contains(words), "{words}\n{told}");

    // So has every line: samples of all samples.
    let titles = told.lines().find(|l| l.contains("  LINE, WHAT")).unwrap();
    let titles: Vec<&str> = titles.split_whitespace().take(3).collect();
    assert_eq!(titles, ["SHARE", "SAMPLES", "WAITING"]);
    let place = row["place"].as_str().unwrap();
    let found = told.lines().find(|l| l.contains(&format!("  {place}: ")));
    let found: Vec<&str> = found.unwrap().split_whitespace().take(4).collect();
    let [samples, waiting] = ["samples", "waiting"].map(|field| row[field].as_u64().unwrap());
    let share = format!(
        "{:.1}",
        (samples as f64 * 1000.0 / total as f64).round() / 10.0
    );
    let separated = count;
    assert_eq!(
        found,
        [&share, "%", &separated(samples), &separated(waiting)]
    );
    assert!(waiting < samples, "the model issues too");

    let profile = pprof(&rec);
    let strings = all(&profile, 6);
    let string = |i: u64| strings[usize::try_from(i).unwrap()].text();
    let mut in_profile = 0;
    for sample in all(&profile, 2) {
        for label in all(sample.bytes(), 3) {
            let [key, text] = [1, 2].map(|f| string(field(label.bytes(), f).unwrap().number()));
            if (key, text) == ("stall_reason", first) {
                in_profile += packed(field(sample.bytes(), 2).unwrap().bytes())[2];
            }
        }
    }
    assert_eq!(in_profile, n);
}

/// Without lines there is a row per kernel, not per instruction, and what would give lines.
#[test]
fn samples_without_lines_are_a_row_per_kernel() {
    let mut rec = model::training(500);
    for (i, sample) in (0..).zip(&mut rec.pc_samples) {
        (sample.file, sample.line, sample.pc_offset) = (0, 0, 16 * i);
    }
    let told = text(&rec, Format::Text);
    let from = told.find("Where warps wait").unwrap();
    let part: Vec<&str> = told[from..].lines().take_while(|l| !l.is_empty()).collect();
    assert!(part[1].ends_with("WHERE NO LINE IS KNOWN"), "{part:#?}");
    assert!(part.len() < 50 && rec.pc_samples.len() > 100, "{part:#?}");
    assert!(part[3].contains(" instructions, most at +0x"), "{part:#?}");
    let why = part.iter().find(|l| l.contains("without a source line"));
    assert!(why.unwrap().contains("record with --cubins"), "{part:#?}");
}

#[test]
fn arrows_lead_from_launches_to_all_their_kernels() {
    let rec = model::training(3_000);
    let trace = trace(&rec);
    assert_eq!(trace.slices["launch"], rec.launches.len() as u64);
    let mut ends = 0;
    for arrow in trace.arrows.values() {
        let (first, rest) = arrow.split_first().unwrap();
        assert_eq!(first.0, "launch");
        assert!(
            rest.iter()
                .all(|(category, time)| category.ends_with("kernel") && *time >= first.1)
        );
        ends += rest.len();
    }
    let timed = rec.kernels.iter().filter(|k| k.start_ns > 0).count();
    // Kernels that seem to begin before the call before theirs returned get none.
    assert!(ends * 100 >= timed * 99, "{ends} of {timed}");
}

#[test]
fn hostile_names_stay_names() {
    let rec = model::hostile();
    assert_same_time_everywhere(&rec);
    let html = text(&rec, Format::Html);
    assert_eq!(html.matches("<script").count(), 2 + 5, "only our scripts");
    assert_eq!(html.matches("</script").count(), 2 + 5);
    assert!(!html.contains("<img") && !html.contains("<!--"));
    let svg = text(&rec, Format::Flamegraph);
    assert!(!svg.contains("<img") && svg.matches("<script").count() == 1);
    for format in [
        Format::Text,
        Format::Folded,
        Format::Html,
        Format::Flamegraph,
    ] {
        let text = text(&rec, format);
        let stray = text
            .chars()
            .find(|c| c.is_control() && !"\n\t\r".contains(*c));
        assert_eq!(stray, None, "{format:?}");
        assert!(
            !text.contains("\n34"),
            "{format:?}: a line broken by a name"
        );
    }
}

#[test]
fn nothing_gives_an_empty_report() {
    let rec = Recording::default();
    for format in Format::ALL {
        assert!(!made(&rec, format).is_empty() || format == Format::Pprof);
    }
    assert_eq!(pprof_sums(&rec), [0; 3]);
    trace(&rec);
    let told = text(&rec, Format::Text);
    assert!(told.contains("GPU time 0 ns in 0 kernel records"));
    assert!(told.contains("no process with the library was seen") && !told.contains("SHARE"));
}

fn parcagpu(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_parcagpu"))
        .current_dir(dir)
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_command_reads_a_file_and_writes_by_the_name_of_the_output() {
    let dir = tempfile::tempdir().unwrap();
    tape::write(&dir.path().join("run.pgpu"));
    let told = parcagpu(dir.path(), &["report", "run.pgpu"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("7.00 us") && told.contains("vectorAdd(float const*"),
        "{told}"
    );
    assert!(told.contains("1 of 4 launches"), "{told}");
    for (name, begins) in [
        ("out.html", &b"<!doctype html>"[..]),
        ("out.svg", b"<?xml"),
        ("out.pb.gz", &[0x1f, 0x8b]),
        ("out.pftrace", b"\n"),
        ("out.jsonl", b"{\"type\":\"recording\""),
        ("out.folded", b"# sampled: 1 of 4"),
    ] {
        let run = parcagpu(dir.path(), &["report", "run.pgpu", "-o", name]);
        assert!(run.status.success(), "{run:?}");
        let made = std::fs::read(dir.path().join(name)).unwrap();
        assert!(made.starts_with(begins), "{name}");
    }
    let piped = parcagpu(
        dir.path(),
        &["report", "run.pgpu", "--format", "pprof", "-o", "-"],
    );
    assert!(piped.stdout.starts_with(&[0x1f, 0x8b]));
}

#[test]
fn what_cannot_be_read_or_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    tape::write(&dir.path().join("run.pgpu"));
    std::fs::write(dir.path().join("no"), "not a recording").unwrap();
    for file in ["no", "absent"] {
        let run = parcagpu(dir.path(), &["report", file]);
        assert!(!run.status.success());
        assert!(String::from_utf8(run.stderr).unwrap().contains(file));
    }
    std::os::unix::fs::symlink("elsewhere", dir.path().join("link.html")).unwrap();
    let run = parcagpu(dir.path(), &["report", "run.pgpu", "-o", "link.html"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(!dir.path().join("elsewhere").exists());
}

/// A recorder that was killed at once leaves its beginning, or less.
#[test]
fn what_is_there_of_a_recording_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.pgpu");
    let about = Beginning {
        command: "./app --fast".to_owned(),
        ..Beginning::default()
    };
    let file = std::fs::File::create(&path).unwrap();
    let mut w = Writer::new(file, &about).unwrap();
    w.clock(50, 1_000, 4);
    w.flush().unwrap();
    let report = |format: &str| {
        let run = parcagpu(dir.path(), &["report", "cut.pgpu", "--format", format]);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (run.status.success(), text(&run.stdout), text(&run.stderr))
    };
    let (done, told, _) = report("text");
    assert!(
        done && told.starts_with("recording of ./app --fast, 0 ns\n"),
        "{told}"
    );
    assert!(
        told.contains("the recorder was killed") && told.contains("before any event"),
        "{told}"
    );
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 16, 30] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let (done, told, err) = report("html");
        assert!(!done && told.is_empty());
        assert!(
            err.contains("cut.pgpu") && err.contains("the recorder ended before"),
            "{err}"
        );
    }
}
