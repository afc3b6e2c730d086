//! The server of `--listen`: one thread for a few connections, none of which can hold it up.
//!
//! A connection has [`PATIENCE`] from its first byte to its last, whatever it does; when there are too many, the oldest goes.
//! The thread ends when the [`Server`] is dropped.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::request::{Answer, HEAD_MAX, Parsed, Request, parse};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a client may still send after its answer, bytes; closing before it was read would take the answer away.
const REST_MAX: usize = 64 << 10;
/// When connections cannot be taken (no descriptors are left), it is tried again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);

/// A listening socket that is not served yet.
pub struct Bound {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    patience: Duration,
}

impl Bound {
    /// Takes the address; port 0: a free one.
    pub fn to(address: SocketAddr) -> io::Result<Self> {
        let mut listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener,
            address,
            patience: PATIENCE,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests from now on, on a thread of its own.
    pub fn serve(
        self,
        answer: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> io::Result<Server> {
        let stop = Arc::new(AtomicBool::new(false));
        let waker = Waker::new(self.poll.registry(), WAKER)?;
        let mut serving = Serving {
            poll: self.poll,
            listener: self.listener,
            patience: self.patience,
            accept_in: None,
            connections: BTreeMap::new(),
            next: WAKER.0 + 1,
            answer,
        };
        let ended = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || while !ended.load(Ordering::Acquire) && serving.turn().is_ok() {})?;
        Ok(Server {
            stop,
            waker,
            thread: Some(thread),
        })
    }
}

/// A running server.
pub struct Server {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Where it cannot be woken, it is left to the end of the process.
        if self.waker.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

struct Serving<A> {
    poll: Poll,
    listener: TcpListener,
    patience: Duration,
    /// More may wait to be accepted, without another event saying so.
    accept_in: Option<Duration>,
    /// By number, which is their order.
    connections: BTreeMap<usize, Connection>,
    next: usize,
    answer: A,
}

impl<A: FnMut(&Request) -> Answer> Serving<A> {
    /// Waits for something to happen and does what there is to do.
    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let ends = self.connections.values().map(|c| c.until);
        let again = self.accept_in.map(|wait| now + wait);
        let until = ends.chain(again).min();
        let mut events = Events::with_capacity(CONNECTIONS_MAX + 2);
        let timeout = until.map(|t| t.saturating_duration_since(now));
        match self.poll.poll(&mut events, timeout) {
            Err(e) if e.kind() != ErrorKind::Interrupted => return Err(e),
            _ => {}
        }
        for event in &events {
            let number = event.token().0;
            if let Some(connection) = self.connections.get_mut(&number)
                && !connection.advance(&mut self.answer)
            {
                self.connections.remove(&number);
            }
        }
        if self.accept_in.is_some() || events.iter().any(|e| e.token() == LISTENER) {
            self.accept();
        }
        let now = Instant::now();
        self.connections.retain(|_, c| c.until > now);
        Ok(())
    }

    fn accept(&mut self) {
        self.accept_in = None;
        // No more than these, so that those that come without end do not keep us from the others.
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // It left before we came, or there is no room for it.
                Err(_) => {
                    self.accept_in = Some(ACCEPT_AGAIN);
                    return;
                }
            };
            if self.connections.len() >= CONNECTIONS_MAX {
                self.connections.pop_first();
            }
            let number = self.next;
            self.next += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            if registry
                .register(&mut stream, Token(number), interest)
                .is_ok()
            {
                let until = Instant::now() + self.patience;
                self.connections
                    .insert(number, Connection::new(stream, until));
            }
        }
        self.accept_in = Some(Duration::ZERO);
    }
}

enum Stage {
    Asked(Vec<u8>),
    Answered { bytes: Vec<u8>, sent: usize },
    Over { read: usize },
}

struct Connection {
    stream: TcpStream,
    stage: Stage,
    until: Instant,
}

impl Connection {
    fn new(stream: TcpStream, until: Instant) -> Self {
        Self {
            stream,
            stage: Stage::Asked(Vec::new()),
            until,
        }
    }

    /// Does what can be done without waiting; false: it is over.
    fn advance(&mut self, answer: &mut impl FnMut(&Request) -> Answer) -> bool {
        loop {
            match self.step(answer) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn step(&mut self, answer: &mut impl FnMut(&Request) -> Answer) -> io::Result<bool> {
        let mut chunk = [0; 1024];
        match &mut self.stage {
            Stage::Asked(head) => {
                let room = (HEAD_MAX - head.len()).min(chunk.len());
                let n = self.stream.read(&mut chunk[..room])?;
                head.extend_from_slice(&chunk[..n]);
                let bytes = match parse(head) {
                    Parsed::Partly => return Ok(n > 0),
                    Parsed::Refused(said) => said.bytes(false),
                    Parsed::Request(request) => answer(&request).bytes(request.head_only),
                };
                self.stage = Stage::Answered { bytes, sent: 0 };
            }
            Stage::Answered { bytes, sent } if *sent < bytes.len() => {
                let n = self.stream.write(&bytes[*sent..])?;
                *sent += n;
                return Ok(n > 0);
            }
            Stage::Answered { .. } => {
                self.stream.shutdown(Shutdown::Write)?;
                self.stage = Stage::Over { read: 0 };
            }
            Stage::Over { read } => {
                let n = self.stream.read(&mut chunk)?;
                *read += n;
                return Ok(n > 0 && *read < REST_MAX);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream as Client;

    fn server(patience: Duration) -> (Server, SocketAddr) {
        let mut bound = Bound::to("127.0.0.1:0".parse().unwrap()).unwrap();
        bound.patience = patience;
        let address = bound.address();
        let answer = |request: &Request| Answer::line("200 OK", &request.path);
        (bound.serve(answer).unwrap(), address)
    }

    fn ask(address: SocketAddr, text: &str) -> String {
        let mut client = Client::connect(address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        client.write_all(text.as_bytes()).unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn those_that_hang_or_send_rubbish_do_not_keep_others_from_an_answer() {
        // Who waits for one of them is told apart from a machine that stands still.
        let patience = Duration::from_secs(120);
        let (server, address) = server(patience);
        let mut hang = Vec::new();
        for i in 0..3 * CONNECTIONS_MAX {
            let mut client = Client::connect(address).unwrap();
            let part: &[u8] = if i % 2 == 0 { b"GET /" } else { b"" };
            client.write_all(part).unwrap();
            hang.push(client);
            let began = Instant::now();
            let said = ask(address, &format!("GET /{i} HTTP/1.1\r\n\r\n"));
            assert!(said.ends_with(&format!("\r\n\r\n/{i}\n")), "{said}");
            assert!(began.elapsed() < patience / 2);
        }
        let rubbish = "\0".repeat(10_000);
        assert!(ask(address, &rubbish).starts_with("HTTP/1.1 400 "));
        let body = format!("GET /b HTTP/1.1\r\n\r\n{}", "x".repeat(20_000));
        assert!(ask(address, &body).ends_with("/b\n"));
        let began = Instant::now();
        drop(server);
        assert!(began.elapsed() < patience / 2, "it waits for clients");
        assert!(Client::connect(address).is_err());
    }

    #[test]
    fn a_connection_has_so_much_time_and_no_more() {
        let patience = Duration::from_millis(400);
        let (_server, address) = server(patience);
        let mut slow = Client::connect(address).unwrap();
        let began = Instant::now();
        let timeout = Some(Duration::from_millis(50));
        slow.set_read_timeout(timeout).unwrap();
        // Something comes all the time, and never all of it.
        let ended = loop {
            let sent = slow.write_all(b"G");
            match slow.read(&mut [0]) {
                Ok(0) => break true,
                Err(e) if e.kind() == ErrorKind::WouldBlock && sent.is_ok() => {}
                other => break other.is_err(),
            }
            assert!(began.elapsed() < Duration::from_secs(20));
        };
        assert!(ended && began.elapsed() >= patience);
    }
}
