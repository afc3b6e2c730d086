//! `parcagpu status`: the block of a process, and who listens to it.

mod common;

use std::fs;
use std::process::Command;

use common::{App, PARCAGPU, View, bpf_or_skip, fixture, own_copy, parcagpu, stderr};
use serde_json::Value;

#[test]
fn status_prints_the_block_and_who_listens() {
    let Some(_turn) = bpf_or_skip("status_prints_the_block_and_who_listens") else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    app.obey("launch 1500 100 k");
    let pid = app.pid().to_string();
    let read = || {
        let out = parcagpu(&["status", "--json", "--pid", &pid]);
        assert!(out.status.success(), "{}", stderr(&out));
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        json[0].clone()
    };
    let quiet = read();
    assert_eq!(
        (&quiet["state"], &quiet["reason"]),
        (&"dormant".into(), &"the fixture rests".into())
    );
    assert_eq!(quiet["counters"]["eager_launches_seen"], 1500);
    assert_eq!(quiet["semaphores"], serde_json::json!({}));
    let view = View::start(&["top", "--pid", &pid]);
    let heard = read();
    assert_eq!(heard["semaphores"]["activity_batch"], 1);
    // Who listens, or that it cannot be known (before Linux 6.16).
    let raised = heard["semaphores"].as_object().unwrap().len();
    if heard["attachments_of_unknown_consumers"] == 0 {
        let who = serde_json::json!({"pid": view.pid(), "comm": "parcagpu", "attachments": raised});
        assert_eq!(heard["consumers"], serde_json::json!([who]));
    } else {
        assert_eq!(heard["attachments_of_unknown_consumers"], raised);
    }
    assert_eq!(heard["semaphores"].get("cubin_loaded"), None);
    view.end();
    let text = parcagpu(&["status", "--pid", &pid]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("dormant") && text.contains("1,500"), "{text}");
    assert!(!text.contains("buffers_requested"), "{text}");
    let all = parcagpu(&["status", "--verbose", "--pid", &pid]);
    let all = String::from_utf8(all.stdout).unwrap();
    for counter in parcagpu_abi::status::COUNTER_NAMES {
        assert!(all.contains(counter), "{counter}: {all}");
    }
    // A reader that goes away is no failure.
    let script = format!("{PARCAGPU} status --json --pid {pid} | true; echo ${{PIPESTATUS[0]}}");
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(out.stdout, b"0\n", "{}", stderr(&out));
    fs::remove_file(&copy).unwrap();
    assert_eq!(read()["library_deleted"], true);
    drop(app);
    assert_eq!(parcagpu(&["status", "--pid", &pid]).status.code(), Some(2));
}
