//! Which processes are watched: by name, cgroup, container, in other mount namespaces; they come and go.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{App, PATIENCE, View, bpf_or_skip, fixture, of, own_copy, parcagpu, skip};
use serde_json::Value;
use tempfile::TempDir;

/// The app under another name.
fn app_called(name: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join(name);
    fs::copy(&fixture().app, &file).unwrap();
    (dir, file)
}

fn start(file: &Path) -> App {
    App::of(Command::new(file).arg(&fixture().lib).arg("-"))
}

#[test]
fn processes_of_a_name_are_followed_and_no_others() {
    let Some(_turn) = bpf_or_skip("processes_of_a_name_are_followed_and_no_others") else {
        return;
    };
    // The kernel cuts the first to 15 bytes.
    let name = "followed-by-its-name";
    let (_dir, file) = app_called(name);
    let mut other = App::start(&fixture().lib);
    let view = View::start(&["trace", "--json", "--comm", name]);
    let mut pids = Vec::new();
    for kernel in ["first", "second"] {
        let mut app = start(&file);
        app.await_consumer();
        app.obey(&format!("launch 3 100 {kernel}"));
        pids.push(app.pid());
        assert_eq!(other.semaphores(), [0, 0, 0, 0]);
    }
    other.obey("launch 5 100 stranger");
    let (lines, err) = view.end_json();
    for pid in &pids {
        assert_eq!(of(&lines, *pid, "activity_batch").len(), 3, "{err}");
    }
    assert!(of(&lines, other.pid(), "activity_batch").is_empty());
    let cut = &name[..15];
    let mut app = start(&file);
    let view = View::start(&["trace", "--json", "--comm", cut]);
    app.await_consumer();
    app.obey("launch 2 100 k");
    assert_eq!(of(&view.end_json().0, app.pid(), "activity_batch").len(), 2);
}

/// A cgroup folder of our own, removed at the end.
struct Cgroup {
    folder: PathBuf,
    name: String,
}

impl Cgroup {
    /// In the first hierarchy that lets us; `None` where none does.
    fn new(name: &str) -> Option<Self> {
        let roots = [
            "/sys/fs/cgroup/pids",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/freezer",
            "/sys/fs/cgroup",
        ];
        roots.iter().map(Path::new).find_map(|root| {
            let folder = root.join(name);
            let procs = root.join("cgroup.procs").exists();
            (procs && fs::create_dir(&folder).is_ok()).then(|| Self {
                folder,
                name: name.to_owned(),
            })
        })
    }

    fn take(&self, pid: u32) {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.folder.join("cgroup.procs"));
        write!(file.unwrap(), "{pid}").unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that were killed just now may still be in it.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn processes_of_a_cgroup_or_container_are_followed() {
    const TEST: &str = "processes_of_a_cgroup_or_container_are_followed";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    // Different from run to run: another checkout may be tested at the same time.
    let id = format!(
        "{:064x}",
        0xabc0_0000_0000u64 + u64::from(std::process::id())
    );
    let id: String = id.chars().rev().collect();
    let Some(cgroup) = Cgroup::new(&format!("docker-{id}.scope")) else {
        return skip(TEST, "no cgroup can be made");
    };
    let mut apps: Vec<App> = (0..3).map(|_| App::start(&fixture().lib)).collect();
    cgroup.take(apps[0].pid());
    let by_folder = View::start(&[
        "trace",
        "--json",
        "--cgroup",
        cgroup.folder.to_str().unwrap(),
    ]);
    let by_path = View::start(&["trace", "--json", "--cgroup", &cgroup.name]);
    let by_id = View::start(&["trace", "--json", "--container", &id[..12]]);
    // The first was there, the second comes, the third stays outside.
    cgroup.take(apps[1].pid());
    // Until every view has noticed both.
    for view in [&by_folder, &by_path, &by_id] {
        for app in &mut apps[..2] {
            let mark = format!("mark_of_{}", app.pid());
            view.await_text(&mark, || drop(app.obey(&format!("launch 1 100 {mark}"))));
        }
    }
    for app in &mut apps {
        app.obey("launch 4 100 k");
    }
    assert_eq!(apps[2].semaphores(), [0, 0, 0, 0]);
    let status = parcagpu(&["status", "--json", "--container", &id]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status.as_array().map(Vec::len), Some(2), "{status}");
    for view in [by_folder, by_path, by_id] {
        let (lines, err) = view.end_json();
        let seen: Vec<usize> = apps
            .iter()
            .map(|app| {
                let batches = of(&lines, app.pid(), "activity_batch");
                batches.iter().filter(|batch| batch["name"] == "k").count()
            })
            .collect();
        assert_eq!(seen, [4, 4, 0], "{err}");
    }
    apps.clear();
}

#[test]
fn a_library_that_only_another_mount_namespace_has() {
    const TEST: &str = "a_library_that_only_another_mount_namespace_has";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let hidden = dir.path().join("libhidden.so");
    let script = format!(
        "mount -t tmpfs none {dir} && cp {lib} {hidden} && exec {app} {hidden} -",
        dir = dir.path().display(),
        lib = fixture().lib.display(),
        hidden = hidden.display(),
        app = fixture().app.display(),
    );
    if !Command::new("unshare")
        .args(["-m", "true"])
        .status()
        .is_ok_and(|s| s.success())
    {
        return skip(TEST, "unshare -m does not work");
    }
    // Each as its own view, and one that sees all processes; none of them can see the file.
    let mut app = App::of(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    assert!(!hidden.exists());
    let pid = app.pid().to_string();
    let (_copy_dir, copy) = own_copy(&fixture().lib);
    for options in [
        vec!["--pid", &pid],
        vec!["--comm", "app"],
        vec![],
        // Without the right to open mapped files by /proc/PID/map_files.
        vec!["--pid", &pid, "through-root"],
    ] {
        let mut command = Command::new(common::PARCAGPU);
        let through_root = options.last() == Some(&"through-root");
        let options = &options[..options.len() - usize::from(through_root)];
        if through_root {
            command = Command::new("setpriv");
            let caps =
                "-all,+bpf,+perfmon,+sys_ptrace,+dac_override,+dac_read_search,+sys_resource";
            command.args(["--bounding-set", caps, common::PARCAGPU]);
        }
        command.args(["trace", "--json"]).args(options);
        command.env("PARCAGPU_LIB", &copy);
        let view = View::of(&mut command);
        app.await_consumer();
        if options.first() == Some(&"--pid") && links_tell() {
            let heard = consumers_of(app.pid());
            let who: Vec<&Value> = heard["consumers"].as_array().unwrap().iter().collect();
            assert!(who.iter().any(|c| c["pid"] == view.pid()), "{heard}");
            assert_eq!(heard["attachments_of_unknown_consumers"], 0, "{heard}");
        }
        app.obey("launch 2 100 hidden");
        let (lines, err) = view.end_json();
        assert_eq!(
            of(&lines, app.pid(), "activity_batch").len(),
            2,
            "{options:?}: {err}"
        );
        app.await_semaphores(&[0, 0, 0, 0]);
    }
}

/// What `status` says of the consumers of a process.
fn consumers_of(pid: u32) -> Value {
    let out = parcagpu(&["status", "--json", "--pid", &pid.to_string()]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    json[0].clone()
}

/// Links tell what they are attached to since Linux 6.16.
fn links_tell() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    parcagpu_cli::preflight::version(&release).unwrap() >= (6, 16)
}

#[test]
fn consumers_of_a_library_whose_path_leads_nowhere_are_named() {
    const TEST: &str = "consumers_of_a_library_whose_path_leads_nowhere_are_named";
    let Some(_turn) = bpf_or_skip(TEST) else {
        return;
    };
    if !links_tell() {
        return skip(TEST, "this kernel does not tell what links are attached to");
    }
    // Deleted, as a library that was built again is.
    let (_dir, copy) = own_copy(&fixture().lib);
    let app = App::start(&copy);
    let pid = app.pid().to_string();
    for options in [&["--pid", &pid][..], &[]] {
        // The first is there before the file goes, the second comes after.
        let view = View::start(&[&["top"], options].concat());
        let _ = fs::remove_file(&copy);
        let heard = consumers_of(app.pid());
        assert_eq!(
            heard["attachments_of_unknown_consumers"], 0,
            "{options:?}: {heard}"
        );
        let who: Vec<&Value> = heard["consumers"].as_array().unwrap().iter().collect();
        assert!(
            who.iter().any(|c| c["pid"] == view.pid()),
            "{options:?}: {heard}"
        );
        view.end();
    }
}

/// A process that is not our child and is ended at the end of its test.
struct Killed(u32);

impl Drop for Killed {
    fn drop(&mut self) {
        // SAFETY: it goes on for longer than any test, so the number is its own.
        unsafe { libc::kill(self.0.cast_signed(), libc::SIGKILL) };
    }
}

#[test]
fn a_forked_child_has_its_parents_semaphores_and_no_consumer() {
    let Some(_turn) = bpf_or_skip("a_forked_child_has_its_parents_semaphores_and_no_consumer")
    else {
        return;
    };
    let (_dir, copy) = own_copy(&fixture().lib);
    let mut app = App::start(&copy);
    let pid = app.pid().to_string();
    let view = View::start(&["top", "--pid", &pid]);
    app.begin("fork sleep 600000");
    let children = format!("/proc/{pid}/task/{pid}/children");
    let began = Instant::now();
    let child: u32 = loop {
        let children = fs::read_to_string(&children).unwrap();
        match children.split_whitespace().next() {
            Some(child) => break child.parse().unwrap(),
            None => assert!(began.elapsed() < PATIENCE, "no child"),
        }
    };
    let _child = Killed(child);
    let heard = consumers_of(child);
    assert_eq!(heard["semaphores"]["activity_batch"], 1, "{heard}");
    let text = parcagpu(&["status", "--pid", &child.to_string()]);
    let text = String::from_utf8(text.stdout).unwrap();
    if links_tell() {
        assert_eq!(heard["consumers"], serde_json::json!([]));
        assert_eq!(heard["attachments_inherited_from"], app.pid(), "{heard}");
        assert_eq!(heard["attachments_of_unknown_consumers"], 0, "{heard}");
        assert!(
            text.contains(&format!("none of its own: forked from PID {pid}")),
            "{text}"
        );
    } else {
        assert!(text.contains("of unknown holders: Linux "), "{text}");
    }
    view.end();
}

#[test]
fn consumers_out_of_sight_are_counted_with_the_reason() {
    let Some(_turn) = bpf_or_skip("consumers_out_of_sight_are_counted_with_the_reason") else {
        return;
    };
    let (dir, copy) = own_copy(&fixture().lib);
    let view = View::start(&["top", "--lib", copy.to_str().unwrap()]);
    let script = format!(
        "'{app}' '{copy}' 'await 1' 'echo 1' 'sleep 600000' >'{said}' & \
         until grep -q 'echo 1' '{said}'; do kill -0 $! || exit; sleep 0.02; done; \
         '{parcagpu}' status | grep -A9 '{copy}' | grep consumers; kill $!",
        app = fixture().app.display(),
        copy = copy.display(),
        said = dir.path().join("said").display(),
        parcagpu = common::PARCAGPU,
    );
    let out = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.contains("3 attachments of unknown holders: "),
        "{text}"
    );
    let reason = if links_tell() {
        "no process of this PID namespace has them"
    } else {
        "does not tell what a BPF link is attached to"
    };
    assert!(text.contains(reason), "{text}");
    view.end();
}

#[test]
fn choices_that_cannot_be_meant_are_refused() {
    for option in ["--container", "--comm", "--cgroup"] {
        let empty = parcagpu(&["status", option, ""]);
        assert_eq!(empty.status.code(), Some(2));
        let said = String::from_utf8(empty.stderr).unwrap();
        assert!(
            said.contains(&format!("{option} is given an empty word")),
            "{said}"
        );
    }
    let nobody = parcagpu(&["status", "--comm", "nobody-is-called-so"]);
    assert!(nobody.status.success());
    let said = String::from_utf8(nobody.stdout).unwrap();
    assert!(
        said.starts_with("no chosen process has a library"),
        "{said}"
    );
}

#[test]
fn a_number_that_was_used_again_is_another_process() {
    let Some(_turn) = bpf_or_skip("a_number_that_was_used_again_is_another_process") else {
        return;
    };
    let file = Path::new("/proc/sys/kernel/ns_last_pid");
    let (_dir, called) = app_called("comes-again");
    let view = View::start(&["trace", "--json", "--comm", "comes-again"]);
    let mut first = start(&called);
    let pid = first.pid();
    first.await_consumer();
    first.obey("launch 3 100 first");
    drop(first);
    // Numbers are given in order from the one that was given last.
    let mut again = None;
    for _ in 0..20 {
        if fs::write(file, (pid - 1).to_string()).is_err() {
            break;
        }
        let mut command = Command::new(&called);
        let app = App::of(command.arg0("comes-again").arg(&fixture().lib).arg("-"));
        if app.pid() == pid {
            again = Some(app);
            break;
        }
    }
    let Some(mut app) = again else {
        return skip(
            "a_number_that_was_used_again_is_another_process",
            "the kernel does not give the number again",
        );
    };
    app.await_consumer();
    app.obey("launch 4 100 second");
    let (lines, err) = view.end_json();
    let kernels = of(&lines, pid, "activity_batch");
    let of_name = |name: &str| kernels.iter().filter(|k| k["name"] == name).count();
    assert_eq!((of_name("first"), of_name("second")), (3, 4), "{err}");
}
