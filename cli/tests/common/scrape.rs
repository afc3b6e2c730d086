//! A scraper that takes nothing for granted: both text formats, read by their grammar.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer: status line and headers, body.
pub fn get(address: SocketAddr, path: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n"
    )
    .unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").expect("no end of the head");
    let length = head
        .lines()
        .find_map(|l| l.strip_prefix("Content-Length: "));
    assert_eq!(length.unwrap().parse(), Ok(body.len()));
    (head.to_owned(), body.to_owned())
}

type Labels = BTreeMap<String, String>;

/// What a page says.
#[derive(Default)]
pub struct Page {
    /// By name.
    pub types: BTreeMap<String, String>,
    series: BTreeMap<(String, Labels), f64>,
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// `a="b",...}` and what follows.
fn labels(mut text: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        let (name, rest) = text.split_once("=\"").expect("no label");
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next().expect("a label without end") {
                (i, '"') => break i + 1,
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("no such escape: {c}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name}");
        match rest[end..].split_at(1) {
            (",", rest) => text = rest,
            ("}", rest) => return (labels, rest),
            (other, _) => panic!("behind a label: {other}"),
        }
    }
}

impl Page {
    /// Reads a page in Prometheus's text format or, `open`, in OpenMetrics.
    pub fn read(text: &str, open: bool) -> Self {
        let mut page = Self::default();
        let mut helped = BTreeSet::new();
        let mut family = String::new();
        assert!(text.ends_with('\n'));
        let body = match open {
            true => text.strip_suffix("# EOF\n").expect("no end"),
            false => text,
        };
        for line in body.lines() {
            if let Some(about) = line.strip_prefix("# ") {
                let mut words = about.splitn(3, ' ');
                let (what, name) = (words.next().unwrap(), words.next().unwrap());
                let rest = words.next().expect("nothing said").to_owned();
                match what {
                    "HELP" => assert!(helped.insert(name.to_owned()), "{name} twice"),
                    "UNIT" => assert!(open && name.ends_with(&format!("_{rest}"))),
                    "TYPE" => {
                        name.clone_into(&mut family);
                        assert!(helped.contains(name), "{name} has no help");
                        assert!(page.types.insert(family.clone(), rest).is_none());
                    }
                    _ => panic!("{line}"),
                }
                continue;
            }
            let end = line.find(['{', ' ']).unwrap();
            let (name, rest) = line.split_at(end);
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => labels(rest),
                None => (Labels::new(), rest),
            };
            let value: f64 = value.strip_prefix(' ').unwrap().parse().unwrap();
            assert!(is_name(name) && name.starts_with("parcagpu_"), "{name}");
            assert!(value.is_finite() && value >= 0.0);
            let counter = page.types.get(&family).expect("no type") == "counter";
            assert_eq!(counter, name.ends_with("_total"), "{line}");
            match open && counter {
                true => assert_eq!(name, format!("{family}_total")),
                false => assert_eq!(name, family),
            }
            let key = (name.to_owned(), labels);
            assert!(page.series.insert(key, value).is_none(), "twice: {line}");
        }
        page
    }

    /// The series that have these labels.
    pub fn find(&self, name: &str, wanted: &[(&str, &str)]) -> Vec<(&Labels, f64)> {
        let has = |labels: &Labels| {
            wanted
                .iter()
                .all(|(k, v)| labels.get(*k).is_some_and(|is| is == v))
        };
        self.series
            .iter()
            .filter(|((n, labels), _)| n == name && has(labels))
            .map(|((_, labels), value)| (labels, *value))
            .collect()
    }

    /// The value of the only such series; `None` if there is none.
    #[track_caller]
    pub fn value(&self, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let found = self.find(name, wanted);
        assert!(found.len() <= 1, "{name} {wanted:?}: {found:?}");
        found.first().map(|(_, value)| *value)
    }
}
