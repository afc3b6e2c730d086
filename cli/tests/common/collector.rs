//! A collector on loopback that takes one request, keeps it and gives a canned answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

/// A request as it came.
pub struct Received {
    /// Request line and headers, names in small letters.
    pub head: Vec<String>,
    /// Uncompressed.
    pub body: Vec<u8>,
}

impl Received {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let start = format!("{name}: ");
        self.head.iter().find_map(|line| line.strip_prefix(&start))
    }
}

/// See the module.
pub struct Collector {
    /// `http://127.0.0.1:PORT`
    pub url: String,
    thread: JoinHandle<Received>,
}

impl Collector {
    /// Answers with these bytes after `status`.
    pub fn that_answers(status: &str, kind: &str, body: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = [head.as_bytes(), body].concat();
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let patience = Some(Duration::from_secs(20));
            stream.set_read_timeout(patience).unwrap();
            let mut reader = BufReader::new(stream);
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                assert!(reader.read_line(&mut line).unwrap() > 0);
                match line.trim_end().split_once(": ") {
                    Some((name, value)) => head.push(format!("{}: {value}", name.to_lowercase())),
                    None if line.trim_end().is_empty() => break,
                    None => head.push(line.trim_end().to_owned()),
                }
            }
            let mut received = Received {
                head,
                body: Vec::new(),
            };
            let length = received.header("content-length").unwrap().parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            assert_eq!(received.header("content-encoding"), Some("gzip"));
            flate2::read::GzDecoder::new(&body[..])
                .read_to_end(&mut received.body)
                .unwrap();
            reader.get_mut().write_all(&answer).unwrap();
            received
        });
        Self { url, thread }
    }

    /// What came.
    pub fn received(self) -> Received {
        self.thread.join().unwrap()
    }
}
