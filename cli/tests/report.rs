//! What `report` makes of recordings: the same GPU time everywhere, and nothing that a name could break.

#[path = "common/model/mod.rs"]
mod model;
#[path = "common/outputs.rs"]
mod outputs;
#[path = "common/perfetto.rs"]
mod perfetto;
#[path = "common/protobuf.rs"]
mod protobuf;

use outputs::{made, page_data, page_slices, pprof, pprof_sums, text};
use parcagpu_cli::recording::model::Recording;
use parcagpu_cli::report::Format;
use parcagpu_cli::text::{count, duration};
use perfetto::trace;
use protobuf::{all, field, packed};
use serde_json::Value;

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
    let plain = text(&rec, Format::Text);
    assert!(plain.contains(&format!("\n  {share}")));
    assert!(
        plain.contains("too small a share"),
        "threads do not compare"
    );
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
