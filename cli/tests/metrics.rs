//! `parcagpu top --listen`: what a scraper reads is what the fixture did, and no client can harm it.

mod common;
#[path = "common/scrape.rs"]
mod scrape;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{App, PATIENCE, View, bpf_or_skip, fixture, own_copy, parcagpu};
use scrape::{Page, get};

const OPEN: &str = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";

/// A view that serves metrics, and where.
fn listening(options: &[&str]) -> (View, SocketAddr) {
    let mut view = View::start(&[&["top", "--listen", "127.0.0.1:0"], options].concat());
    let url = view.told("metrics at http://");
    let address = url.strip_suffix("/metrics").unwrap().parse().unwrap();
    (view, address)
}

fn scraped(address: SocketAddr) -> Page {
    let (head, body) = get(address, "/metrics", "*/*");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"));
    Page::read(&body, false)
}

/// Name, labels and value of a series.
type Series<'a> = (&'a str, Vec<(&'a str, &'a str)>, f64);

/// Scrapes until a page has these values.
#[track_caller]
fn until(address: SocketAddr, wanted: &[Series<'_>]) -> Page {
    let began = Instant::now();
    loop {
        let page = scraped(address);
        let value = |(name, labels, _): &Series<'_>| page.value(name, labels);
        if wanted.iter().all(|series| value(series) == Some(series.2)) {
            return page;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{:?} instead of {wanted:?}",
            wanted.iter().map(value).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_scrape_says_what_was_launched() {
    let Some(_turn) = bpf_or_skip("a_scrape_says_what_was_launched") else {
        return;
    };
    let mut app = App::start(&fixture().lib);
    app.obey("launch 40 100 before");
    app.obey("device 0 7");
    let pid = app.pid().to_string();
    let options = ["--pid", &pid, "--pc", "--listen-kernels", "2"];
    let (view, address) = listening(&options);
    let of = |more: &[(&'static str, &'static str)]| {
        let process = [("pid", pid.as_str()), ("comm", "app")];
        [&process[..], more].concat()
    };
    app.await_consumer_of_samples();
    app.obey("launch 1000 2000 _Z9vectorAddPKfS0_Pfi");
    let seen = "parcagpu_launches_seen_total";
    // Launches are counted before they are told.
    let sampled = "parcagpu_launches_sampled_total";
    let page = until(
        address,
        &[(seen, of(&[]), 1000.0), (sampled, of(&[]), 1000.0)],
    );
    assert_eq!(page.value("parcagpu_sample_complete", &of(&[])), Some(1.0));

    app.obey("launch 10 100000 slow");
    app.obey("launch 5 1000 third");
    app.obey("notime 3");
    app.obey("metadata");
    app.obey("stalls smsp__pcsamp_warps_issue_stalled_wait smsp__pcsamp_warps_issue_stalled_selected smsp__pcsamp_warps_issue_stalled_wait_not_issued");
    app.obey("pc 0x77 3 16 k 0:25 1:5 2:20");
    app.obey("pc 0x77 3 32 k 0:4");
    app.obey("seen 85");
    // The sample that was told last.
    let wait = of(&[("stall_reason", "wait")]);
    let page = until(
        address,
        &[
            (seen, of(&[]), 1100.0),
            ("parcagpu_pc_samples_total", wait, 29.0),
        ],
    );
    let value = |name: &str, more: &[(&'static str, &'static str)]| {
        page.value(&format!("parcagpu_{name}"), &of(more))
    };
    assert_eq!(value("launches_sampled_total", &[]), Some(1015.0));
    assert_eq!(value("sample_complete", &[]), Some(0.0));
    let uuid = "GPU-00000000-0000-0000-0000-000000000007";
    let gpu = [("device", "0"), ("uuid", uuid)];
    assert_eq!(value("kernels_recorded_total", &gpu), Some(1018.0));
    assert_eq!(value("kernels_without_time_total", &gpu), Some(3.0));
    assert_eq!(
        value("sampled_gpu_time_seconds_total", &gpu),
        Some(0.003_005)
    );
    let kernel = |name| [("kernel", name)];
    let recorded = "kernel_executions_recorded_total";
    let vector_add = "vectorAdd(float const*, float const*, float*, int)";
    assert_eq!(value(recorded, &kernel(vector_add)), Some(1000.0));
    let named = page.find(&format!("parcagpu_{recorded}"), &of(&[]));
    assert_eq!(named.len(), 3, "{named:?}");
    assert_eq!(named.iter().map(|(_, n)| n).sum::<f64>(), 1018.0);
    let times = page.find("parcagpu_kernel_sampled_gpu_time_seconds_total", &of(&[]));
    let sum: f64 = times.iter().map(|(_, s)| s).sum();
    assert!((sum - 0.003_005).abs() < 1e-9);
    assert_eq!(value("errors_total", &[("component", "cupti")]), Some(1.0));
    assert_eq!(value("library_state", &[("state", "dormant")]), Some(1.0));
    assert_eq!(value("library_state", &[("state", "active")]), Some(0.0));
    assert_eq!(value("losses_total", &[("kind", "ids_expired")]), Some(0.0));
    let reason = |name| [("stall_reason", name)];
    assert_eq!(value("pc_samples_total", &reason("wait")), Some(29.0));
    assert_eq!(value("pc_samples_total", &reason("selected")), Some(5.0));
    let reasons = page.find("parcagpu_pc_samples_total", &of(&[]));
    assert_eq!(reasons.len(), 2, "each sample counts once: {reasons:?}");
    assert_eq!(page.types["parcagpu_launches_seen_total"], "counter");
    let dropped = page.value(
        "parcagpu_events_dropped_total",
        &[("probe", "activity_batch")],
    );
    assert_eq!(dropped, Some(0.0));

    let (head, body) = get(address, "/metrics?x", OPEN);
    assert!(head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0"));
    let open = Page::read(&body, true);
    assert_eq!(open.value(seen, &of(&[])), Some(1100.0));
    assert_eq!(open.types["parcagpu_launches_seen"], "counter");
    assert!(get(address, "/", "").0.starts_with("HTTP/1.1 200 "));
    assert!(get(address, "/other", "").0.starts_with("HTTP/1.1 404 "));
    let (_, err) = view.end();
    assert!(!err.contains("warning"), "{err}");
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}

#[test]
fn clients_that_hang_do_not_keep_a_view_from_ending() {
    const TEST: &str = "clients_that_hang_do_not_keep_a_view_from_ending";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    let (view, address) = listening(&["--lib", copy.to_str().unwrap(), "--json"]);
    let hang: Vec<TcpStream> = (0..40)
        .map(|i| {
            let mut stream = TcpStream::connect(address).unwrap();
            let rubbish = ["GET /metrics HTTP/1.1\r\n", "\u{0}\u{1}\r\n\r\n", ""][i % 3];
            stream.write_all(rubbish.as_bytes()).unwrap();
            stream
        })
        .collect();
    app.obey("launch 20 100 k");
    let pid = app.pid().to_string();
    let of = [("pid", pid.as_str())];
    let sampled = "parcagpu_launches_sampled_total";
    until(address, &[(sampled, of.to_vec(), 20.0)]);
    drop(app);
    // It is shown after its end, but for its state.
    let began = Instant::now();
    loop {
        let page = scraped(address);
        assert_eq!(page.value(sampled, &of), Some(20.0));
        if page.find("parcagpu_library_state", &of).is_empty() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "its state stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    // That nobody waits for them is told apart from a slow machine where their patience can be chosen: beside the
    // server.
    let (out, _) = view.end();
    assert!(out.contains("\"launches_told\":20"), "{out}");
    drop(hang);
}

#[test]
fn where_it_cannot_listen_it_says_so_before_anything_else() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let out = parcagpu(&["top", "--listen", &address]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{err}");
    assert!(
        err.contains(&format!("cannot listen on {address}: ")),
        "{err}"
    );
    for wrong in [&["--listen", "9464"][..], &["--listen-kernels", "5"]] {
        let out = parcagpu(&[&["top"], wrong].concat());
        assert_eq!(out.status.code(), Some(2));
    }
}

#[test]
fn listening_for_other_hosts_is_told() {
    let Some(_turn) = bpf_or_skip("listening_for_other_hosts_is_told") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let options = ["--seconds", "0", "--lib", copy.to_str().unwrap()];
    let out = parcagpu(&[&["top", "--listen", "0.0.0.0:0"], &options[..]].concat());
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    assert!(err.contains("can be reached from other hosts"), "{err}");
    assert!(err.contains("metrics at http://0.0.0.0:"), "{err}");
}
