//! OTLP profiles: what a collector gets is what the recording has, and what it answers is told.

#[path = "common/collector.rs"]
mod collector;
mod common;
#[path = "common/model/mod.rs"]
mod model;
#[path = "common/taken.rs"]
mod taken;
#[path = "common/tape.rs"]
mod tape;

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use collector::Collector;
use common::{PARCAGPU, PATIENCE, bpf_or_skip, fixture};
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::profiles::v1development::Sample;
use parcagpu_cli::recording::model::Recording;
use parcagpu_cli::recording::reader;
use parcagpu_cli::report::{Format, otlp, write};
use prost::Message;
use serde_json::Value;
use taken::{Taken, at};

const PROTOBUF: &str = "application/x-protobuf";
/// Where nobody listens: not a port that the kernel gives to who asks for any.
const NOBODY: &str = "127.0.0.1:1";

/// The request of a recording, by way of its bytes.
fn request(rec: &Recording) -> Taken {
    let bytes = otlp::request(rec).encode_to_vec();
    Taken(ExportProfilesServiceRequest::decode(&bytes[..]).unwrap())
}

fn about(rec: &Recording) -> Value {
    let mut out = Vec::new();
    write(rec, Format::Jsonl, 0, &mut out).unwrap();
    serde_json::from_slice(out.split(|b| *b == b'\n').next().unwrap()).unwrap()
}

#[test]
fn a_request_has_what_the_recording_has() {
    let rec = model::training(3_000);
    let taken = request(&rec);
    let about = about(&rec);
    for (kind, field) in [
        ("kernels", "kernels"),
        ("gpu_time", "gpu_ns"),
        ("pc_samples", "pc_samples"),
    ] {
        let wanted = about[field].as_u64().unwrap();
        assert!(wanted > 0);
        assert_eq!(taken.sum(kind), i128::from(wanted), "{kind}");
    }
    let mut by_process: BTreeMap<Option<i64>, i128> = BTreeMap::new();
    for kernel in rec.kernels.iter().filter(|k| k.start_ns > 0) {
        let pid = rec.processes[kernel.process as usize].pid;
        let ns = kernel.end_ns - kernel.start_ns;
        *by_process.entry(Some(pid.into())).or_default() += i128::from(ns);
    }
    assert_eq!(by_process.len(), 3);
    for (pid, ns) in by_process {
        assert_eq!(taken.sums()[&(pid, "gpu_time")], ns, "{pid:?}");
    }
    let tables = taken.dictionary();
    assert_eq!(tables.string_table[0], "");
    let mut texts = tables.string_table.clone();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), tables.string_table.len(), "each text once");
    let profiles = taken.profiles();
    let first = profiles[0];
    assert_eq!(first.1, "gpu_time", "what is shown by default");
    assert_eq!(first.2.time_unix_nano, rec.about.begin_ns);
    let stack = taken.frames(&first.2.samples[0]);
    assert!(
        stack.len() > 2 && stack.last() == Some(&"<module>"),
        "{stack:?}"
    );
    let waiting = profiles.iter().filter(|p| p.1 == "pc_samples");
    for sample in waiting.flat_map(|p| &p.2.samples) {
        assert!(taken.label(sample, "stall_reason").is_some());
    }
    let comment = at(&tables.attribute_table, first.2.attribute_indices[0]);
    assert_eq!(taken.text(comment.key_strindex), "pprof.profile.comment");
    let said = format!("{:?}", comment.value);
    assert!(said.contains("sampled: "), "{said}");
}

#[test]
fn hostile_names_and_numbers() {
    let rec = model::hostile();
    let taken = request(&rec);
    let kernels = about(&rec)["kernels"].as_u64().unwrap();
    assert_eq!(taken.sum("kernels"), i128::from(kernels));
    for text in &taken.dictionary().string_table {
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text:?}");
    }
    assert!(
        otlp::request(&Recording::default())
            .resource_profiles
            .is_empty()
    );
}

fn parcagpu(args: &[&str]) -> Output {
    Command::new(PARCAGPU)
        .args(args)
        .env_remove("http_proxy")
        .output()
        .unwrap()
}

/// Sends that recording; exit status, stderr, what came.
fn sent(status: &str, kind: &str, answer: &[u8]) -> (Option<i32>, String, collector::Received) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.pgpu");
    tape::write(&path);
    let collector = Collector::that_answers(status, kind, answer);
    let url = collector.url.clone();
    let run = parcagpu(&["report", path.to_str().unwrap(), "--otlp", &url]);
    assert!(run.stdout.is_empty());
    let err = String::from_utf8(run.stderr).unwrap();
    assert!(
        err.contains(&format!("{url}/v1development/profiles")),
        "{err}"
    );
    (run.status.code(), err, collector.received())
}

fn partial(rejected_profiles: i64, error_message: &str) -> Vec<u8> {
    let partial_success = Some(ExportProfilesPartialSuccess {
        rejected_profiles,
        error_message: error_message.to_owned(),
    });
    ExportProfilesServiceResponse { partial_success }.encode_to_vec()
}

#[test]
fn a_collector_takes_a_recording() {
    let (code, err, received) = sent("200 OK", PROTOBUF, b"");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("sent 2 profiles to "), "{err}");
    assert!(
        err.contains("7.00 us of GPU time in 1 kernel record"),
        "{err}"
    );
    assert!(err.contains("1 of 4 launches"), "{err}");
    assert_eq!(received.head[0], "POST /v1development/profiles HTTP/1.1");
    assert_eq!(received.header("content-type"), Some(PROTOBUF));
    let request = ExportProfilesServiceRequest::decode(&received.body[..]).unwrap();
    let taken = Taken(request);
    let sums = taken.sums();
    assert_eq!(sums[&(Some(77), "gpu_time")], 7_000);
    assert_eq!(sums[&(Some(77), "kernels")], 1);
    let profiles = taken.profiles();
    let name = "vectorAdd(float const*, float const*, float*, int)";
    let frames = taken.frames(&profiles[0].2.samples[0]);
    assert_eq!(frames, [name, "(stack not known)"]);
    let (code, err, _) = sent("200 OK", PROTOBUF, &partial(0, "old \x1b version"));
    assert_eq!(code, Some(0));
    assert!(err.contains("says: old \u{fffd} version"), "{err}");
}

#[test]
fn what_a_collector_refuses_is_told() {
    let (code, err, _) = sent("200 OK", PROTOBUF, &partial(2, "no room"));
    assert_eq!(code, Some(1));
    assert!(err.contains("rejected 2 of 2 profiles: no room"), "{err}");
    let (code, err, _) = sent("404 Not Found", "text/plain", b"404 page not found\n");
    assert_eq!(code, Some(1));
    assert!(
        err.contains("answered 404 Not Found: 404 page not found ("),
        "{err}"
    );
    assert!(err.contains("service.profilesSupport"), "{err}");
    // google.rpc.Status with code 3 and a message.
    let status = b"\x08\x03\x12\x09too large";
    let (code, err, _) = sent("413 Payload Too Large", PROTOBUF, status);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("answered 413 Payload Too Large: too large\n"),
        "{err}"
    );
    let (code, err, _) = sent("200 OK", "text/html", b"<html>a router</html>");
    assert_eq!(code, Some(1));
    assert!(err.contains("is no collector: <html>a router"), "{err}");
    let (code, err, _) = sent("302 Found", "text/plain", b"");
    assert_eq!(code, Some(1));
    assert!(err.contains("answered 302 Found"), "{err}");
}

#[test]
fn where_nobody_is_nothing_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.pgpu");
    tape::write(&path);
    let path = path.to_str().unwrap();
    let url = format!("http://{NOBODY}");
    let run = parcagpu(&["report", path, "--otlp", &url]);
    let err = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(
        err.contains(&url) && err.contains("Connection refused"),
        "{err}"
    );
    for (wrong, said) in [
        (&["--otlp", "https://a"][..], "https is not built in"),
        (&["--otlp", "a:4318"], "http://127.0.0.1:4318"),
        (
            &["--otlp", "http://a", "-o", "x.svg"],
            "cannot be used with",
        ),
    ] {
        let run = parcagpu(&[&["report", path], wrong].concat());
        let err = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(err.contains(said), "{err}");
    }
}

#[test]
fn what_may_be_a_secret_in_an_address_is_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.pgpu");
    tape::write(&path);
    for (url, code) in [
        ("http://me:hidden@a".to_owned(), 2),
        ("http://a/?key=hidden".to_owned(), 2),
        ("https://me:hidden@a".to_owned(), 2),
        ("me:hidden@a".to_owned(), 2),
        ("http://me:hidden@a b".to_owned(), 2),
        (format!("http://{NOBODY}/hidden"), 1),
    ] {
        let run = parcagpu(&["report", path.to_str().unwrap(), "--otlp", &url]);
        let err = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(code), "{err}");
        assert!(!err.contains("hidden"), "{err}");
        let told = if code == 2 { "--otlp: " } else { "refused" };
        assert!(err.contains(told), "{err}");
    }
}

#[test]
fn a_recording_is_sent_at_its_end() {
    let Some(_turn) = bpf_or_skip("a_recording_is_sent_at_its_end") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pgpu");
    let record = |url: &str| {
        let fixture = fixture();
        let mut args = vec!["record", "--force", "--otlp", url];
        args.extend(["--lib", fixture.lib.to_str().unwrap()]);
        args.extend(["-o", file.to_str().unwrap(), "--"]);
        args.extend([fixture.app.to_str().unwrap(), "preloaded"]);
        args.extend(["launch 1 20000 slow", "launch 300 1500 k", "notime 2", "-"]);
        let mut run = Command::new(PARCAGPU)
            .args(args)
            .env_remove("http_proxy")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Stacks are walked while the process is there.
        let began = Instant::now();
        let walked = |r: Recording| {
            let mut names = r.launches.iter().filter(|l| l.stack != 0);
            names.any(|l| r.names[l.name as usize] == "slow")
        };
        while !reader::read(&file).is_ok_and(walked) {
            assert!(began.elapsed() < PATIENCE, "{:?}", reader::read(&file));
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(run.stdin.take());
        let err = std::io::read_to_string(run.stderr.take().unwrap()).unwrap();
        (run.wait().unwrap().code(), err)
    };
    let collector = Collector::that_answers("200 OK", PROTOBUF, b"");
    let (code, err) = record(&collector.url);
    assert_eq!(code, Some(0), "{err}");
    let received = collector.received();
    let request = ExportProfilesServiceRequest::decode(&received.body[..]).unwrap();
    let taken = Taken(request);
    assert_eq!(taken.sum("gpu_time"), 300 * 1_500 + 20_000);
    assert_eq!(taken.sum("kernels"), 303);
    let profiles = taken.profiles();
    let of_slow = |s: &&Sample| taken.frames(s)[0] == "slow";
    let slow = profiles[0].2.samples.iter().find(of_slow).unwrap();
    assert!(
        taken.frames(slow).contains(&"main"),
        "{:?}",
        taken.frames(slow)
    );
    let (code, err) = record(&format!("http://{NOBODY}"));
    assert_eq!(code, Some(1));
    assert!(err.contains("a.pgpu is there, but was not sent: "), "{err}");
    assert!(file.exists());
}

#[test]
fn ctrl_c_ends_the_waiting_for_a_collector() {
    let Some(_turn) = bpf_or_skip("ctrl_c_ends_the_waiting_for_a_collector") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pgpu");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let fixture = fixture();
    let mut record = Command::new(PARCAGPU)
        .args(["record", "--otlp", &url, "--lib"])
        .arg(&fixture.lib)
        .arg("-o")
        .arg(&file)
        .arg("--")
        .arg(&fixture.app)
        .args(["preloaded", "launch 3 100 k"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    silent.set_nonblocking(true).unwrap();
    let began = Instant::now();
    let mut stream = loop {
        match silent.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(began.elapsed() < PATIENCE, "nobody came");
    };
    stream.set_nonblocking(false).unwrap();
    // The request is on its way, and nobody answers.
    stream.read_exact(&mut [0; 4]).unwrap();
    let began = Instant::now();
    // SAFETY: the child is ours and was not waited for.
    unsafe { libc::kill(record.id().cast_signed(), libc::SIGINT) };
    let mut err = String::new();
    let mut stderr = record.stderr.take().unwrap();
    stderr.read_to_string(&mut err).unwrap();
    assert_eq!(record.wait().unwrap().code(), Some(1), "{err}");
    // Who is not interrupted waits for half a minute.
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(err.contains("interrupted before http://"), "{err}");
    assert!(file.exists());
}
