//! What `parcagpu trace` prints, through real eBPF, against the fixture.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{App, View, bpf_or_skip, fixture, lib, of, parcagpu};

#[test]
fn every_probe_is_printed_with_its_fields() {
    let Some(_turn) = bpf_or_skip("every_probe_is_printed_with_its_fields") else {
        return;
    };
    let view = View::start(&["trace", "--json", "--kernel-executed", "--lib", lib()]);
    let mut app = App::start(&fixture().lib);
    app.obey("all");
    app.obey("metadata");
    let pid = app.pid();
    let (lines, err) = view.end_json();
    let one = |probe: &str| {
        let found = of(&lines, pid, probe);
        assert_eq!(found.len(), 1, "{probe}: {found:?}");
        found[0]
    };
    for probe in parcagpu_abi::probe::ALL {
        // Metadata fired again is not printed again, but a cubin that was unloaded is new.
        if *probe != parcagpu_abi::probe::CUBIN_LOADED {
            assert!(one(probe.name)["time_ns"].as_u64().unwrap() > 0);
        }
    }
    assert_eq!(of(&lines, pid, "cubin_loaded").len(), 2);
    let launch = one("cuda_correlation");
    assert_eq!(
        (&launch["correlation_id"], &launch["cbid"]),
        (&500.into(), &307.into())
    );
    assert_eq!(
        launch["demangled"],
        "vectorAdd(float const*, float const*, float*, int)"
    );
    for probe in ["activity_batch", "kernel_executed"] {
        let k = one(probe);
        assert_eq!(k["correlation_id"], 500);
        assert_eq!(
            k["end_ns"].as_u64().unwrap() - k["start_ns"].as_u64().unwrap(),
            250
        );
        assert_eq!((&k["device_id"], &k["stream_id"]), (&1.into(), &7.into()));
        assert_eq!(
            (&k["graph_id"], &k["graph_node_id"]),
            (&3.into(), &0x9_0000_0001u64.into())
        );
        assert_eq!(k["name"], "_Z9vectorAddPKfS0_Pfi");
    }
    let k = one("activity_batch");
    assert_eq!(
        (&k["grid"], &k["block"]),
        (&vec![4, 5, 6].into(), &vec![32, 2, 1].into())
    );
    assert_eq!((&k["registers"], &k["kind"]), (&32.into(), &10.into()));
    let s = one("pc_sample_batch");
    assert_eq!(
        (&s["cubin_crc"], &s["pc_offset"]),
        (&0xdead_beefu32.into(), &0x120.into())
    );
    assert_eq!(s["stall_reasons"].as_array().unwrap().len(), 2);
    assert_eq!(s["stall_reasons"][0]["samples"], 40);
    assert_eq!(one("stall_reason_map")["names"][1], "stall_wait");
    assert_eq!(one("gpu_config")["clock_khz"], 1_980_000);
    assert_eq!(one("error")["message"], "something \"broke\"\n");
    assert_eq!(
        (&one("error")["code"], &one("error")["component"]),
        (&(-5).into(), &"cupti".into())
    );
    let e = one("nvtx_event_batch");
    assert_eq!(
        (&e["kind"], &e["message"], &e["payload"]),
        (&"mark".into(), &"a mark".into(), &9.into())
    );
    assert_eq!(one("nvtx_resource_name")["id"], 0x1_0000_0002u64);
    assert!(err.contains("repetitions of metadata"), "{err}");
    assert!(err.contains("0 events dropped"), "{err}");
}

#[test]
fn batches_of_every_size_arrive_whole() {
    let Some(_turn) = bpf_or_skip("batches_of_every_size_arrive_whole") else {
        return;
    };
    let view = View::start(&["trace", "--json", "--lib", lib()]);
    let mut app = App::start(&fixture().lib);
    for n in [1, 2, 127, 128] {
        app.obey(&format!("launch {n} 100 size{n}"));
    }
    let pid = app.pid();
    let (lines, err) = view.end_json();
    for n in [1usize, 2, 127, 128] {
        let kernels = of(&lines, pid, "activity_batch");
        let mine = kernels.iter().filter(|k| k["name"] == format!("size{n}"));
        assert_eq!(mine.count(), n);
    }
    let ids: Vec<u64> = of(&lines, pid, "activity_batch")
        .iter()
        .map(|k| k["correlation_id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, (1..=258).collect::<Vec<_>>());
    assert!(err.contains("all 258 launches"), "{err}");
    assert!(of(&lines, pid, "kernel_executed").is_empty());
}

#[test]
fn odd_names_and_bad_pointers_are_told_as_such() {
    let Some(_turn) = bpf_or_skip("odd_names_and_bad_pointers_are_told_as_such") else {
        return;
    };
    let view = View::start(&["trace", "--json", "--lib", lib()]);
    let mut app = App::start(&fixture().lib);
    app.obey("odd");
    let pid = app.pid();
    let (lines, err) = view.end_json();
    let kernels = of(&lines, pid, "activity_batch");
    let states: Vec<&str> = kernels
        .iter()
        .take(6)
        .map(|k| k["name_state"].as_str().unwrap())
        .collect();
    assert_eq!(
        states,
        ["null", "unreadable", "whole", "whole", "whole", "cut"]
    );
    assert_eq!(kernels[2]["name"], "");
    assert_eq!(kernels[3]["name"], "caf\u{fffd}\u{fffd}");
    assert_eq!(kernels[4]["name"], "e".repeat(255));
    assert_eq!(kernels[5]["name"], "l".repeat(255));
    // The record after a bad pointer, and 128 of a count that claims four thousand million.
    assert_eq!(kernels.len(), 6 + 1 + 128);
    assert!(
        kernels[6..]
            .iter()
            .all(|k| k["name"] == "after_a_bad_pointer")
    );
    assert!(err.contains("1 record unreadable"), "{err}");
}

#[test]
fn nvtx_lines_have_the_time_of_the_event() {
    let Some(_turn) = bpf_or_skip("nvtx_lines_have_the_time_of_the_event") else {
        return;
    };
    let view = View::start(&["trace", "--probe", "nvtx_event_batch,error", "--lib", lib()]);
    let mut app = App::start(&fixture().lib);
    // The fixture's event is of 0.123456789 s after the start of this machine's clock.
    let now = |clock: libc::clockid_t| parcagpu_cli::text::clock_ns(clock) as f64 / 1e9;
    let before = now(libc::CLOCK_REALTIME);
    app.obey("all");
    let passed = now(libc::CLOCK_REALTIME) - before;
    let (out, _) = view.end();
    let time = |probe: &str| {
        let line = out.lines().find(|l| l.contains(probe)).unwrap();
        let time = line.split(' ').next().unwrap().to_owned();
        let mut parts = time.split(':').map(|p| p.parse::<f64>().unwrap());
        let mut next = || parts.next().unwrap();
        next() * 3600.0 + next() * 60.0 + next()
    };
    let event = now(libc::CLOCK_REALTIME) - now(libc::CLOCK_MONOTONIC) + 0.123_456_789;
    // Days begin anew, and clocks are not read at the same moment.
    let since = |time: f64, begin: f64| (time - begin + 1.0).rem_euclid(86_400.0);
    let of_event = since(time("nvtx_event_batch"), event);
    assert!(of_event < 2.0, "{of_event} {out}");
    let of_error = since(time("error"), before);
    assert!(of_error < passed + 2.0, "{of_error} {passed} {out}");
}

#[test]
fn kernel_executed_stands_in_where_there_is_no_batch() {
    let Some(_turn) = bpf_or_skip("kernel_executed_stands_in_where_there_is_no_batch") else {
        return;
    };
    let old = &fixture().lib_without_batch;
    let view = View::start(&["trace", "--json", "--lib", old.to_str().unwrap()]);
    let mut app = App::start(old);
    app.obey("launch 7 100 single");
    let pid = app.pid();
    let (lines, _) = view.end_json();
    assert_eq!(of(&lines, pid, "kernel_executed").len(), 7);
}

#[test]
fn a_full_ring_buffer_is_counted() {
    let Some(_turn) = bpf_or_skip("a_full_ring_buffer_is_counted") else {
        return;
    };
    let mut view = Command::new(common::PARCAGPU)
        .args(["trace", "--json", "--ring-mib", "1", "--lib", lib()])
        .stdin(Stdio::null())
        // Nobody reads: the view stands still once the pipe is full.
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut err = BufReader::new(view.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("attached to ") {
        line.clear();
        assert_ne!(err.read_line(&mut line).unwrap(), 0);
    }
    let mut app = App::start(&fixture().lib);
    app.obey("launch 30000 100 flood");
    let pid = app.pid();
    let mut out = view.stdout.take().unwrap();
    let reader = std::thread::spawn(move || std::io::read_to_string(&mut out).unwrap());
    // SAFETY: the child is ours and was not waited for.
    unsafe { libc::kill(view.id().cast_signed(), libc::SIGINT) };
    let lines = reader.join().unwrap();
    let err = std::io::read_to_string(err).unwrap();
    assert!(view.wait().unwrap().success());
    let mine = format!("\"pid\":{pid},");
    let told = lines.lines().filter(|l| l.contains(&mine)).count() as u64;
    let line = err.lines().find(|l| l.contains("dropped because")).unwrap();
    let dropped: String = line
        .chars()
        .take_while(|c| *c != ' ')
        .filter(char::is_ascii_digit)
        .collect();
    let dropped: u64 = dropped.parse().unwrap();
    assert!(dropped > 0, "{err}");
    // Other tests run beside this one and may lose events too.
    assert!(told + dropped >= 60_000, "{told} told, {dropped} dropped");
    assert!(
        err.contains("of 30,000 launches; shares are of the sample"),
        "{err}"
    );
}

#[test]
fn refusals_end_with_status_2_and_say_why() {
    let Some(_turn) = bpf_or_skip("refusals_end_with_status_2_and_say_why") else {
        return;
    };
    let own = std::process::id().to_string();
    let cases: [(&[&str], &str); 5] = [
        (
            &["trace", "--lib", "/nowhere/lib.so"],
            "cannot open library",
        ),
        (
            &["trace", "--lib", "/proc/self/exe"],
            "has no probes of provider parcagpu",
        ),
        (
            &["trace", "--pid", "4194304"],
            "there is no process 4194304",
        ),
        (&["trace", "--pid", &own], "does not map a library"),
        (
            &["trace", "--probe", "nonsense"],
            "there is no probe 'nonsense'",
        ),
    ];
    for (args, expected) in cases {
        let out = parcagpu(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn without_rights_the_missing_ones_are_named() {
    let Some(_turn) = bpf_or_skip("without_rights_the_missing_ones_are_named") else {
        return;
    };
    let out = Command::new("setpriv")
        .args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            common::PARCAGPU,
            "trace",
            "--lib",
            lib(),
        ])
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{err}");
    assert!(
        err.contains("CAP_BPF") && err.contains("CAP_PERFMON"),
        "{err}"
    );
}

#[test]
fn the_old_name_still_works() {
    let Some(_turn) = bpf_or_skip("the_old_name_still_works") else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test/bpf/activity_parser");
    let out = Command::new(script)
        .env("PARCAGPU", common::PARCAGPU)
        .args(["-v", "-lib", lib(), "--seconds", "0"])
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && err.contains("attached to "),
        "{err}"
    );
}
