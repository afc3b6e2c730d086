//! `parcagpu top` on a terminal: what is drawn, what the keys do, and that the terminal is given back.

mod common;
#[path = "common/scrape.rs"]
#[expect(dead_code, reason = "pages are read in metrics.rs")]
mod scrape;

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{App, PARCAGPU, PATIENCE, bpf_or_skip, fixture};
use parcagpu_cli::top::terminal::Terminal;

/// Written behind what a program wrote, and not to be seen.
const MARK: &[u8] = b"\0\0\0";
const ROWS: u16 = 24;
const COLUMNS: u16 = 110;

/// What the other side of the terminal sees.
struct Seen {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

/// A program on a terminal of its own.
struct Pty {
    child: Child,
    master: File,
    // Keeps the terminal alive after its program, to look at its modes.
    slave: OwnedFd,
    before: Vec<u8>,
    seen: Arc<Mutex<Seen>>,
}

fn cells(n: u16) -> NonZero<u16> {
    NonZero::new(n).unwrap()
}

/// Sequences that set a colour.
fn colours(bytes: &str) -> usize {
    let sequences = bytes.split("\x1b[").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
        rest[end..].starts_with('m').then_some(&rest[..end])
    });
    let is_colour = |n: &str| matches!(n.parse(), Ok(30..=38 | 40..=48 | 90..=107));
    sequences.filter(|s| s.split(';').any(is_colour)).count()
}

/// The modes as bytes.
fn modes(fd: &impl AsRawFd) -> Vec<u8> {
    // SAFETY: termios is plain data, valid as zeros; the call fills it.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is a terminal and `modes` lives through the call.
    let rc = unsafe { libc::tcgetattr(fd.as_raw_fd(), &raw mut modes) };
    assert_eq!(rc, 0);
    format!(
        "{:?}",
        (modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag)
    )
    .into_bytes()
}

impl Pty {
    fn start(command: &mut Command) -> Self {
        let size = libc::winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: fills both numbers; no name and no modes are given.
        let rc = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &raw const size,
            )
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both were opened just now and belong to nobody else.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let end = || slave.try_clone().unwrap();
        let before = modes(&slave);
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: both calls may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let seen = Arc::new(Mutex::new(Seen {
            parser: vt100::Parser::new(cells(ROWS), cells(COLUMNS), 0),
            bytes: Vec::new(),
        }));
        let (shared, mut from) = (Arc::clone(&seen), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                let mut seen = shared.lock().unwrap();
                seen.parser.process(&buffer[..n]);
                seen.bytes.extend(&buffer[..n]);
            }
        });
        Self {
            child,
            master,
            slave,
            before,
            seen,
        }
    }

    fn top(options: &[&str]) -> Self {
        let mut command = Command::new(PARCAGPU);
        command.arg("top").args(options).env("TERM", "xterm");
        Self::start(
            command
                .env_remove("NO_COLOR")
                .env("PARCAGPU_LIB", &fixture().lib),
        )
    }

    fn screen(&self) -> String {
        self.seen.lock().unwrap().parser.screen().contents()
    }

    fn bytes(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().bytes).into_owned()
    }

    /// Waits until the screen is as it should be.
    #[track_caller]
    fn until(&self, what: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if what(&screen) {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "the screen stays:\n{screen}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    #[track_caller]
    fn shows(&self, text: &str) -> String {
        self.until(|screen| screen.contains(text))
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and was not waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.see_all();
                return status;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "it does not end:\n{}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until all that was written so far has come through the terminal and the thread that reads it.
    fn see_all(&self) {
        File::from(self.slave.try_clone().unwrap())
            .write_all(MARK)
            .unwrap();
        let began = Instant::now();
        while !self.seen.lock().unwrap().bytes.ends_with(MARK) {
            assert!(began.elapsed() < PATIENCE, "it is not read");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The program has ended and left the terminal as it was.
    #[track_caller]
    fn given_back(&mut self) -> ExitStatus {
        let status = self.wait();
        assert_eq!(modes(&self.slave), self.before, "the terminal's modes");
        let seen = self.seen.lock().unwrap();
        let screen = seen.parser.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        status
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TAB: &str = "\t";
const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";
const RIGHT: &str = "\x1b[C";
const LEFT: &str = "\x1b[D";

#[test]
fn kernels_processes_and_keys() {
    let Some(_turn) = bpf_or_skip("kernels_processes_and_keys") else {
        return;
    };
    let (mut one, mut two) = (App::start(&fixture().lib), App::start(&fixture().lib));
    let pids = [one.pid().to_string(), two.pid().to_string()];
    let mut top = Pty::top(&["--pid", &pids[0], "--pid", &pids[1]]);
    top.shows("no kernel yet");
    assert!(top.seen.lock().unwrap().parser.screen().alternate_screen());
    one.obey("launch 100 3000 _Z9vectorAddPKfS0_Pfi");
    one.obey("launch 300 500 short_one");
    two.obey("launch 10 1000 other");
    two.obey("seen 30");
    // 300 us and 150 us whole; 10 us of a quarter of the launches stand for 40 us.
    let row = |screen: &str, name: &str| -> Vec<String> {
        let row = screen.lines().find(|l| l.contains(name));
        let words = row.unwrap_or_default().split_whitespace();
        words.map(str::to_owned).collect()
    };
    let is = |screen: &str, name: &str, wanted: &str| {
        row(screen, name)
            .get(1..7)
            .is_some_and(|words| words.join(" ") == wanted)
    };
    let before = |screen: &str, first: &str, second: &str| {
        let position = |name: &str| screen.lines().position(|l| l.contains(name));
        position(first).is_some() && position(first) < position(second)
    };
    top.until(|s| {
        is(s, "vectorAdd(float", "% 100 300.00 us 3.00 us")
            && is(s, "other", "% 10 ~40.00 us 1.00 us")
            && row(s, "vectorAdd")[0].starts_with("61.2")
            && before(s, "vectorAdd", "short_one")
    });

    // Sorted by records, then the other way around.
    top.press(RIGHT);
    top.until(|s| s.contains("RECORDS▼") && before(s, "short_one", "vectorAdd"));
    top.press("r");
    top.until(|s| s.contains("RECORDS▲") && before(s, "other", "vectorAdd"));
    top.press("r");
    top.press(LEFT);
    top.shows("SHARE▼");

    // By process; the sampled share, and what is not whole is marked.
    top.press("1");
    top.until(|s| {
        let has = |pid: &str, text: &str| s.lines().any(|l| l.contains(pid) && l.contains(text));
        s.contains("COMMAND")
            && s.contains("25.0 %")
            && has(&pids[0], "100.0 %")
            && has(&pids[0], " 450.00 us")
            && has(&pids[1], "~40.00 us")
            && has(&pids[0], "dormant")
    });
    // The first has the most GPU time, so the cursor is on it.
    top.press(ENTER);
    top.until(|s| {
        s.contains("Esc: all")
            && s.contains("vectorAdd")
            && s.contains(&format!("only PID {}", pids[0]))
            && !s.contains("other")
    });
    top.press(ESCAPE);
    top.until(|s| s.contains("COMMAND") && !s.contains("Esc: all"));

    top.press("?");
    top.shows("column to sort by");
    top.press("?");
    top.until(|s| !s.contains("column to sort by"));

    // Ranges are taken once they are looked at, not before.
    assert!(one.obey("semaphores").starts_with("semaphores 1"));
    top.press("4");
    top.shows("no NVTX ranges yet");
    // So are PC samples, by line.
    top.press("5");
    top.shows("no PC samples yet");
    one.obey("all");
    top.until(|s| {
        let waits = |l: &str| l.contains("vectorAdd") && l.contains("stall_wait");
        s.contains("WAITS FOR") && s.lines().any(waits)
    });

    top.press("q");
    assert!(top.given_back().success());
    let screen = top.screen();
    assert!(
        screen.contains("all 400 launches") || screen.contains("10 of 40 launches"),
        "{screen}"
    );
}

#[test]
fn devices_meet_by_uuid_and_are_half_busy() {
    let Some(_turn) = bpf_or_skip("devices_meet_by_uuid_and_are_half_busy") else {
        return;
    };
    let mut apps = [(); 3].map(|()| App::start(&fixture().lib));
    // Two processes see one GPU under different numbers; the third has another under the same number.
    for (app, device) in apps
        .iter_mut()
        .zip(["device 1 171", "device 0 171", "device 0 205"])
    {
        app.obey(device);
    }
    let pids: Vec<String> = apps.iter().map(|a| a.pid().to_string()).collect();
    let mut top = Pty::top(&["--pid", &pids[0], "--pid", &pids[1], "--pid", &pids[2]]);
    top.shows("no kernel yet");
    // Sixteen seconds, half of them busy, on each of the first GPU's processes; they take turns.
    apps[0].obey("half 8000 1000000");
    apps[1].obey("half 8000 1000000");
    apps[2].obey("half 8000 1000000");
    apps[2].obey("seen 8000");
    top.press("2");
    let line = |screen: &str, text: &str| -> String {
        let line = screen.lines().find(|l| l.contains(text));
        line.unwrap_or_default().to_owned()
    };
    top.until(|s| {
        let shared = line(s, "GPU-00000000-0000-0000-0000-0000000000ab");
        let words: Vec<&str> = shared.split_whitespace().collect();
        line(s, "0000cd").contains("~16.00 s")
            && words
                .get(1..5)
                .is_some_and(|w| w == ["2", "16,000", "16.00", "s"])
    });
    // Two to seven seconds ago, once that lies after our beginning. Of the shared one 50 % and 50 %.
    top.until(|s| {
        let (sample, shared) = (line(s, "0000cd"), line(s, "0000ab"));
        sample.contains("100.0 %")
            && shared.contains(" 100.0 %")
            && !shared.contains('~')
            && sample.matches('~').count() == 2
    });
    top.press(TAB);
    top.shows("half");
    top.press("\x03");
    assert!(top.given_back().success());
}

#[test]
fn resizing_signals_and_colours() {
    let Some(_turn) = bpf_or_skip("resizing_signals_and_colours") else {
        return;
    };
    let mut app = App::start(&fixture().lib);
    let pid = app.pid().to_string();
    let mut top = Pty::top(&["--pid", &pid]);
    top.shows("no kernel yet");
    app.obey("launch 5 100 k");
    top.shows("500 ns");
    assert!(colours(&top.bytes()) > 0);
    let size = libc::winsize {
        ws_row: 10,
        ws_col: 60,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    top.seen
        .lock()
        .unwrap()
        .parser
        .screen_mut()
        .set_size(cells(10), cells(60));
    // SAFETY: the descriptor is a terminal and `size` lives through the call.
    unsafe { libc::ioctl(top.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    top.until(|s| {
        s.lines().count() <= 10 && s.lines().last().is_some_and(|l| l.starts_with("Tab 1-5"))
    });
    // Too small for anything: no panic.
    let size = libc::winsize {
        ws_row: 1,
        ws_col: 1,
        ..size
    };
    // SAFETY: as above.
    unsafe { libc::ioctl(top.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    std::thread::sleep(Duration::from_millis(300));
    top.signal(libc::SIGTERM);
    assert!(top.given_back().success());

    let mut command = Command::new(PARCAGPU);
    command
        .args(["top", "--pid", &pid])
        .env("NO_COLOR", "1")
        .env("TERM", "xterm");
    let mut top = Pty::start(&mut command);
    top.shows("no kernel yet");
    app.obey("launch 5 100 k");
    top.shows("500 ns");
    top.press("q");
    assert!(top.given_back().success());
    assert_eq!(colours(&top.bytes()), 0);
}

#[test]
fn a_terminal_that_cannot_do_more_gets_lines() {
    let Some(_turn) = bpf_or_skip("a_terminal_that_cannot_do_more_gets_lines") else {
        return;
    };
    let mut app = App::start(&fixture().lib);
    let pid = app.pid().to_string();
    let mut command = Command::new(PARCAGPU);
    let mut top = Pty::start(command.args(["top", "--pid", &pid]).env("TERM", "dumb"));
    top.shows("attached to");
    app.obey("launch 5 100 k");
    // Whoever looks in between is told of them in parts.
    let sum = |screen: &str, what: &str| -> u64 {
        let words: Vec<&str> = screen.split_whitespace().collect();
        let told = words.windows(3).filter(|w| w[1..].join(" ") == what);
        let numbers = told.filter_map(|w| w[0].strip_prefix('+')?.parse::<u64>().ok());
        numbers.sum()
    };
    let time = |screen: &str| -> u64 {
        let told = screen.split("kernel records of ").skip(1);
        let numbers = told.filter_map(|t| t.split_once(" ns;")?.0.parse::<u64>().ok());
        numbers.sum()
    };
    top.until(|s| {
        let last = s.lines().rfind(|l| l.contains("; so far "));
        last.is_some_and(|l| l.ends_with(" ns; so far all 5 launches"))
            && sum(s, "sampled launches,") == 5
            && sum(s, "kernel records") == 5
            && time(s) == 500
    });
    top.signal(libc::SIGINT);
    assert!(top.given_back().success());
    assert!(
        top.screen().contains("5 kernel records"),
        "{}",
        top.screen()
    );
    assert!(!top.bytes().contains('\x1b'), "{}", top.bytes());
}

/// Not a test: what the next one starts on a terminal.
#[test]
fn panics_when_told_to() {
    if std::env::var_os("PARCAGPU_TEST_PANIC").is_some() {
        let mut terminal = Terminal::take().unwrap();
        terminal
            .screen()
            .draw(|frame| frame.render_widget("drawn", frame.area()))
            .unwrap();
        panic!("as it was told");
    }
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_readable() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "panics_when_told_to", "--nocapture"]);
    command.env("PARCAGPU_TEST_PANIC", "1").env("TERM", "xterm");
    // A backtrace would scroll the message out of sight.
    command.env("RUST_BACKTRACE", "0");
    let mut program = Pty::start(&mut command);
    assert!(!program.given_back().success());
    assert!(
        program.bytes().contains("\x1b[?1049h"),
        "it was on the other screen"
    );
    assert!(
        program.screen().contains("as it was told"),
        "{}",
        program.screen()
    );
}

#[test]
fn metrics_are_served_beside_the_live_view() {
    let Some(_turn) = bpf_or_skip("metrics_are_served_beside_the_live_view") else {
        return;
    };
    let mut app = App::start(&fixture().lib);
    let pid = app.pid().to_string();
    let mut top = Pty::top(&["--pid", &pid, "--listen", "127.0.0.1:0"]);
    top.shows("no kernel yet");
    let told = top.bytes();
    let address = told.split("metrics at http://").nth(1).unwrap();
    let address = address.split("/metrics").next().unwrap().parse().unwrap();
    app.obey("launch 30 1000 k");
    let launches = format!("parcagpu_launches_sampled_total{{pid=\"{pid}\",comm=\"app\"}} 30\n");
    let began = Instant::now();
    while !scrape::get(address, "/metrics", "*/*")
        .1
        .contains(&launches)
    {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    top.press("q");
    assert!(top.given_back().success());
}
