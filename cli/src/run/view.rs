//! What `parcagpu run` shows, and where.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parcagpu_abi::probe;

use crate::accounts::{Accounts, ProcessAccount};
use crate::code::{Code, CodeOptions};
use crate::family::Family;
use crate::ledger::{DOCTOR, Ledger, nothing_at_all, switched_off};
use crate::options::RunOptions;
use crate::record::{Fan, Tape};
use crate::refusal;
use crate::session::{Session, Sink};
use crate::stdout;
use crate::table::{self, Layout};
use crate::top;
use crate::trace::{Style, Tracer};
use crate::watch;

/// See the module.
pub struct View {
    accounts: Rc<RefCell<Accounts>>,
    ledger: Ledger,
    tracer: Option<Rc<RefCell<Tracer>>>,
    tape: Option<Tape>,
    show: bool,
    out: Option<Box<dyn Write>>,
    json: bool,
    raw_names: bool,
    every: Option<Duration>,
    next: Instant,
    /// Results that were not written: the exit status where the command has none of its own.
    pub lost: Option<u8>,
    /// What the command started, as long as nothing came.
    family: Family,
}

impl View {
    pub fn new(
        options: &RunOptions,
        out: Box<dyn Write>,
        show: bool,
        tape: Option<Tape>,
        family: Family,
    ) -> Result<Self> {
        let style = Style {
            json: options.json,
            raw_names: options.raw_names,
            repeats: false,
        };
        let (tracer, out) = match options.trace {
            true => {
                let tracer = Tracer::new(out, style);
                let code = Code::start(&CodeOptions::default())?;
                tracer.borrow_mut().resolve_with(code, Vec::new());
                (Some(tracer), None)
            }
            false => (None, Some(out)),
        };
        let every = options.every.map(Duration::from_secs_f64);
        let accounts = if show {
            Accounts::default()
        } else {
            Accounts::that_count()
        };
        Ok(Self {
            accounts: Rc::new(RefCell::new(accounts)),
            ledger: Ledger::default(),
            tracer,
            tape,
            show,
            out,
            json: options.json,
            raw_names: options.raw_names,
            every,
            next: Instant::now() + every.unwrap_or_default(),
            lost: None,
            family,
        })
    }

    pub fn probes(&self) -> Vec<&'static str> {
        if self.tracer.is_some() || self.tape.is_some() {
            return probe::ALL.iter().map(|p| p.name).collect();
        }
        top::probes()
    }

    pub fn sink(&self) -> Rc<RefCell<dyn Sink>> {
        let mut sinks = vec![Rc::clone(&self.accounts) as Rc<RefCell<dyn Sink>>];
        if let Some(tracer) = &self.tracer {
            sinks.push(Rc::clone(tracer) as Rc<RefCell<dyn Sink>>);
        }
        sinks.extend(self.tape.as_ref().map(Tape::sink));
        Rc::new(RefCell::new(Fan(sinks)))
    }

    pub fn tick(&mut self, session: &Session) {
        watch::refresh(session, &mut self.ledger);
        if let Some(tape) = &mut self.tape
            && let Err(e) = tape.tick(session, &self.ledger)
        {
            // The command goes on.
            self.lose(&e.context("the recording ends here"));
            self.tape = None;
        }
        if let Some(tracer) = &self.tracer {
            tracer.borrow_mut().flush();
        }
        if let (Some(every), Some(_)) = (self.every, &self.out)
            && Instant::now() >= self.next
        {
            self.next = Instant::now() + every;
            let table = self.table(session);
            self.write(&table);
        }
    }

    fn table(&self, session: &Session) -> String {
        let accounts = self.accounts.borrow();
        if self.json {
            return table::json(&accounts, &self.ledger, session, self.raw_names).to_string()
                + "\n";
        }
        let layout = Layout {
            rows: usize::MAX,
            width: 0,
            raw_names: self.raw_names,
        };
        if self.ledger.entries().next().is_none() && self.saw_nothing() {
            let losses = crate::trace::loss_line(session);
            return format!("{}{losses}\n", self.why_nothing());
        }
        let table = table::text(&accounts, &self.ledger, session, layout);
        table + &self.why_nothing()
    }

    /// Looks at what the command has started, until something comes from it.
    pub fn meet(&mut self, child: u32) {
        if self.saw_nothing() {
            self.family.look(child);
        }
    }

    fn saw_nothing(&self) -> bool {
        let accounts = self.accounts.borrow();
        let quiet = |a: &ProcessAccount| a.launches == 0 && a.records == 0;
        accounts.processes.values().all(quiet)
    }

    /// What was started, and why nothing came from it; empty where something did, or had no reason to.
    fn why_nothing(&self) -> String {
        if !self.saw_nothing() {
            return String::new();
        }
        let nobody = self.ledger.entries().next().is_none();
        match self.family.text() {
            _ if nobody && switched_off() => nothing_at_all() + "\n",
            text if nobody && text.is_empty() => nothing_at_all() + "\n",
            text if nobody => format!("nothing seen: {text}{DOCTOR}\n"),
            text if self.family.is_odd() => text,
            _ => String::new(),
        }
    }

    /// On stderr, beside what is shown elsewhere.
    fn tell_coverage(&self) {
        for line in watch::coverage_lines(&self.accounts.borrow(), &self.ledger) {
            eprintln!("{line}");
        }
        eprint!("{}", self.why_nothing());
    }

    fn write(&mut self, text: &str) {
        if let Some(out) = &mut self.out {
            // A reader that went away must not change the command's status.
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if let Err(e) = stdout::heard(written) {
                self.out = None;
                self.lose(&anyhow::Error::new(e).context("failed to write the results"));
            }
        }
    }

    /// Says what could not be written, and remembers it for the exit status.
    fn lose(&mut self, error: &anyhow::Error) {
        eprintln!("parcagpu: {error:#}");
        self.lost.get_or_insert(refusal::status(error));
    }

    pub fn end(&mut self, session: &Session) {
        self.ledger.refresh(session);
        self.ledger.settle(&self.accounts.borrow(), session);
        if let Some(tape) = self.tape.take()
            && let Err(e) = tape.end(session, &self.ledger)
        {
            self.lose(&e);
        }
        if !self.show {
            self.tell_coverage();
        } else if let Some(tracer) = &self.tracer {
            let tracer = Rc::clone(tracer);
            tracer.borrow_mut().flush();
            eprintln!("{}", tracer.borrow().summary(session));
            self.tell_coverage();
            if let Err(e) = tracer.borrow_mut().error() {
                self.lose(&e);
            }
        } else {
            let table = self.table(session);
            self.write(&table);
        }
    }
}
