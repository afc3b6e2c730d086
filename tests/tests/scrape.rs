//! `parcagpu top --listen` beside a program on the simulated driver: metrics count what it launched.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parcagpu_tests::block::wait_delivered;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::{Running, WATCHDOG};

#[path = "../../cli/tests/common/scrape.rs"]
mod scrape;

use scrape::{Page, get};

const SHORT: Duration = Duration::from_secs(10);

fn listening(lab: &Lab, pid: u32) -> (Running, SocketAddr) {
    let words = format!("top --listen 127.0.0.1:0 --pid {pid} --json");
    let mut top = lab.parcagpu(&words).start();
    top.wait_stderr("/metrics");
    let said = top.stderr();
    let address = said.split("metrics at http://").nth(1).expect("told");
    let address = address.split('/').next().expect("an address");
    (top, address.parse().expect("an address and port"))
}

#[track_caller]
fn until(address: SocketAddr, good: impl Fn(&Page) -> bool) -> Page {
    let began = Instant::now();
    loop {
        let text = get(address, "/metrics", "*/*").1;
        let page = Page::read(&text, false);
        if good(&page) {
            return page;
        }
        assert!(began.elapsed() < WATCHDOG, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn launches(lab: &Lab, rate: &str, complete: f64) -> f64 {
    let mut host = lab
        .host(Mode::Preload, "init gate launch 300 sync gate")
        .env("PARCAGPU_RATE_LIMIT", rate)
        .start();
    host.wait_gate(1);
    let pid = host.pid().to_string();
    let (top, address) = listening(lab, host.pid());
    let of = [("pid", pid.as_str()), ("comm", "host")];
    let active = [("pid", pid.as_str()), ("state", "active")];
    let state = "parcagpu_library_state";
    until(address, |page| page.value(state, &active) == Some(1.0));
    host.open_gate(1);
    host.wait_gate(2);
    wait_delivered(host.pid(), &lab.library());
    let page = until(address, |page| {
        let value = |name: &str| page.value(&format!("parcagpu_{name}_total"), &of);
        let sampled = value("launches_sampled");
        value("launches_seen") == Some(300.0)
            && sampled > Some(0.0)
            && value("kernels_recorded") == sampled
    });
    let value = |name: &str| page.value(&format!("parcagpu_{name}"), &of);
    assert_eq!(value("sample_complete"), Some(complete));
    assert!(value("sampled_gpu_time_seconds_total") > Some(0.0));
    let devices = page.find("parcagpu_kernels_recorded_total", &of);
    assert!(devices[0].0["uuid"].starts_with("GPU-"), "{devices:?}");
    let losses = page.find("parcagpu_losses_total", &of);
    assert!(losses.len() >= 6 && losses.iter().all(|(_, n)| *n == 0.0));
    let sampled = value("launches_sampled_total").expect("awaited");
    host.open_gate(2);
    host.wait(SHORT).ok();
    top.interrupt(SHORT).ok();
    sampled
}

/// All of them where all are sampled, and a part where not.
#[test]
fn metrics_of_the_simulated_driver() {
    if !need::bpf("metrics_of_the_simulated_driver") {
        return;
    }
    let lab = Lab::new();
    assert_eq!(launches(&lab, "1000000", 1.0), 300.0);
    let part = launches(&lab, "10", 0.0);
    assert!((1.0..300.0).contains(&part), "{part}");
}
