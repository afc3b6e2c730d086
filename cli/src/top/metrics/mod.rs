//! `top --listen`: what `top` adds up, as metrics for Prometheus.
//!
//! The thread of `top` makes a page once a second; the server's thread writes it for whoever asks. A page that is
//! being written is never changed.

mod facts;
mod families;
mod kernels;
mod page;
mod request;
mod server;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::sums::Sums;
use crate::ledger::Ledger;
use crate::options::TopOptions;
use crate::refusal::refuse;
use crate::session::{ProcessId, Session};
use crate::watch;
use facts::Facts;
use kernels::Kernels;
use page::{Format, Page};
use request::{Answer, Request};
use server::{Bound, Server};

/// How long a process is shown after it ended: scrapers come every minute or so.
const GONE_SHOWN: Duration = Duration::from_secs(300);

/// Reads an address of `--listen`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong =
        |why: &dyn fmt::Display| format!("not an address and port, such as 127.0.0.1:9464: {why}");
    let mut addresses = text.to_socket_addrs().map_err(|e| wrong(&e))?;
    addresses.next().ok_or_else(|| wrong(&"it has no address"))
}

/// See the module.
pub struct Exporter {
    page: Arc<Mutex<Arc<Page>>>,
    bound: Option<Bound>,
    server: Option<Server>,
    kernels: Option<Kernels>,
    gone: HashMap<ProcessId, Instant>,
    next: Instant,
}

impl Exporter {
    /// Takes the address, so that it is known to be free before anything is attached to.
    pub fn bind(options: &TopOptions) -> Result<Option<Self>> {
        let Some(address) = options.listen else {
            return Ok(None);
        };
        let bound =
            Bound::to(address).map_err(|e| refuse(format!("cannot listen on {address}: {e}")))?;
        if !address.ip().is_loopback() {
            eprintln!(
                "warning: {address} can be reached from other hosts: whoever does sees names of commands and what they do"
            );
        }
        let kernels = options.listen_kernels;
        Ok(Some(Self {
            page: Arc::default(),
            bound: Some(bound),
            server: None,
            kernels: kernels.map(|max| Kernels::new(max, options.raw_names)),
            gone: HashMap::new(),
            next: Instant::now(),
        }))
    }

    /// Makes a new page if it is time; the first one opens the server.
    pub fn tick(&mut self, session: &Session, sums: &Sums, ledger: &Ledger) -> Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + watch::REFRESH;
        let page = Arc::new(self.made(session, sums, ledger, now)?);
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
        if let Some(bound) = self.bound.take() {
            let address = bound.address();
            let page = Arc::clone(&self.page);
            let mut written = Written::default();
            let server = bound.serve(move |request| answer(request, &page, &mut written));
            self.server = Some(server.context("cannot start the server of metrics")?);
            eprintln!("metrics at http://{address}/metrics");
        }
        Ok(())
    }

    fn made(
        &mut self,
        session: &Session,
        sums: &Sums,
        ledger: &Ledger,
        now: Instant,
    ) -> Result<Page> {
        let losses = session.losses()?;
        let here: HashSet<u32> = session.found().iter().map(|found| found.pid).collect();
        let facts = Facts {
            accounts: &sums.accounts,
            samples: sums.pc.as_ref().map(|pc| &pc.samples),
            ledger,
            losses: &losses,
            undecodable: session.undecodable(),
            here: &here,
        };
        self.look_who_is_gone(&facts, now);
        let gone = &self.gone;
        let shown = |id: &ProcessId| {
            let since = gone.get(id).map(|since| now.duration_since(*since));
            since.is_none_or(|age| age < GONE_SHOWN)
        };
        if let Some(kernels) = &mut self.kernels {
            kernels.retain(shown);
        }
        Ok(facts::page(&facts, self.kernels.as_mut(), shown))
    }

    fn look_who_is_gone(&mut self, facts: &Facts<'_>, now: Instant) {
        let told = facts.accounts.processes.keys().copied();
        let listed = facts.ledger.entries().map(|(pid, entry)| ProcessId {
            pid,
            start_ns: entry.start_ns().unwrap_or(0),
        });
        // Number 0 stands for many.
        let away = |id: &ProcessId| id.pid != 0 && !facts.here.contains(&id.pid);
        let away: HashSet<ProcessId> = told.chain(listed).filter(away).collect();
        self.gone.retain(|id, _| away.contains(id));
        for id in away {
            self.gone.entry(id).or_insert(now);
        }
    }
}

/// What was written of the last page, by format: whoever asks again, and again, has it copied.
#[derive(Default)]
struct Written([Option<(Arc<Page>, Arc<str>)>; 2]);

impl Written {
    fn body(&mut self, format: Format, page: &Arc<Page>) -> Result<Arc<str>, fmt::Error> {
        let place = &mut self.0[usize::from(format == Format::OpenMetrics)];
        if let Some((of, body)) = place
            && Arc::ptr_eq(of, page)
        {
            return Ok(Arc::clone(body));
        }
        let body: Arc<str> = format.write(Arc::clone(page))?.into();
        *place = Some((Arc::clone(page), Arc::clone(&body)));
        Ok(body)
    }
}

fn answer(request: &Request, page: &Mutex<Arc<Page>>, written: &mut Written) -> Answer {
    match request.path.as_str() {
        "/metrics" => {}
        "/" => return Answer::line("200 OK", "parcagpu: metrics are at /metrics"),
        _ => return Answer::line("404 Not Found", "metrics are at /metrics"),
    }
    let page = Arc::clone(&page.lock().unwrap_or_else(PoisonError::into_inner));
    let format = Format::accepted(&request.accept);
    match written.body(format, &page) {
        Ok(body) => Answer {
            status: "200 OK",
            content_type: format.content_type(),
            body,
        },
        Err(e) => Answer::line("500 Internal Server Error", &e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_written_once_for_all_who_ask() {
        let (mut written, page) = (Written::default(), Arc::<Page>::default());
        for format in [Format::Prometheus, Format::OpenMetrics] {
            let first = written.body(format, &page).unwrap();
            assert!(Arc::ptr_eq(&first, &written.body(format, &page).unwrap()));
            assert_eq!(*first, format.write(Arc::clone(&page)).unwrap());
            let later = written.body(format, &Arc::default()).unwrap();
            assert!(!Arc::ptr_eq(&first, &later), "of another page");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(address("127.0.0.1:0").unwrap().port(), 0);
        assert!(address("[::1]:9464").unwrap().ip().is_loopback());
        assert!(address("localhost:9464").unwrap().ip().is_loopback());
        for wrong in ["9464", ":9464", "127.0.0.1", "127.0.0.1:99999", ""] {
            let said = address(wrong).unwrap_err();
            assert!(said.contains("127.0.0.1:9464"), "{wrong}: {said}");
        }
    }
}
