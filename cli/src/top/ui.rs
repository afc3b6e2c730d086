//! The live view: keys in, screen out.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::NVTX_PROBES;
use super::draw::{self, Paint};
use super::screen::{Screen, Tab, Wish};
use super::sums::{Pc, Sums};
use super::terminal::Terminal;
use super::view::{self, Facts};
use crate::colour;
use crate::ledger::Ledger;
use crate::nvtx::Ranges;
use crate::options::{CodeArgs, TopOptions};
use crate::pc::samples::Samples;
use crate::session::Session;
use crate::watch;

/// Keys are looked for at least so far apart: with many events a turn of the loop is short.
const KEYS_EVERY: Duration = Duration::from_millis(20);

/// See the module.
pub struct Ui {
    terminal: Terminal,
    screen: Screen,
    paint: Paint,
    raw_names: bool,
    next_look: Instant,
    next_keys: Instant,
    notes: Vec<String>,
    code: CodeArgs,
    samples_refused: bool,
}

impl Ui {
    /// Takes the terminal.
    pub fn take(options: &TopOptions) -> Result<Self> {
        let tab = match (options.nvtx, options.pc) {
            (true, _) => Tab::Ranges,
            (_, true) => Tab::Samples,
            _ => Tab::Kernels,
        };
        Ok(Self {
            terminal: Terminal::take()?,
            screen: Screen::new(tab),
            paint: Paint {
                colours: colour::wanted(),
            },
            raw_names: options.raw_names,
            next_look: Instant::now(),
            next_keys: Instant::now(),
            notes: Vec::new(),
            code: options.code.clone(),
            samples_refused: false,
        })
    }

    /// A turn of the loop; false: end.
    pub fn tick(
        &mut self,
        session: &mut Session,
        sums: &Rc<RefCell<Sums>>,
        ledger: &mut Ledger,
    ) -> bool {
        let now = Instant::now();
        if now < self.next_keys {
            return true;
        }
        self.next_keys = now + KEYS_EVERY;
        let mut draw = false;
        loop {
            match self.terminal.input() {
                Ok(None) => break,
                Ok(Some(None)) => draw = true,
                Ok(Some(Some(key))) => match self.screen.key(key) {
                    Wish::Quit => return false,
                    Wish::Draw => draw = true,
                    Wish::None => {}
                },
                // The terminal is gone.
                Err(_) => return false,
            }
        }
        match self.screen.tab {
            Tab::Ranges => self.want_ranges(session, &mut sums.borrow_mut()),
            Tab::Samples => self.want_samples(session, &mut sums.borrow_mut()),
            _ => {}
        }
        if now >= self.next_look {
            self.next_look = now + watch::REFRESH;
            draw = true;
            watch::refresh(session, ledger);
            let mut sums = sums.borrow_mut();
            let Sums { accounts, live, .. } = &mut *sums;
            if let Some(live) = live {
                live.look(accounts, ledger);
            }
        }
        !draw || self.draw(session, &mut sums.borrow_mut(), ledger)
    }

    /// Ranges cost the watched programs something: their probes are taken when they are looked at first.
    fn want_ranges(&mut self, session: &mut Session, sums: &mut Sums) {
        if sums.ranges.is_some() {
            return;
        }
        sums.ranges = Some(Ranges::default());
        if let Err(e) = session.attach_more(&NVTX_PROBES) {
            self.notes.push(format!("NVTX ranges: {e:#}"));
        }
    }

    /// So do PC samples: programs that were started for it begin to sample.
    fn want_samples(&mut self, session: &mut Session, sums: &mut Sums) {
        if sums.pc.is_some() || self.samples_refused {
            return;
        }
        let started = self.code.start().map(|code| {
            sums.pc = Some(Pc {
                samples: Samples::default(),
                code,
            });
        });
        if let Err(e) = started.and_then(|()| session.attach_more(&super::pc_probes())) {
            self.samples_refused = true;
            self.notes.push(format!("PC samples: {e:#}"));
        }
    }

    fn draw(&mut self, session: &Session, sums: &mut Sums, ledger: &Ledger) -> bool {
        let samples = match self.screen.tab {
            Tab::Samples => view::samples(sums.pc.as_mut(), &self.screen.filter, self.raw_names),
            _ => Vec::new(),
        };
        let sums = &*sums;
        let Some(live) = &sums.live else {
            return false;
        };
        let losses = session.losses().unwrap_or_default();
        let facts = Facts {
            sums,
            ledger,
            live,
            dropped: losses.iter().map(|l| l.dropped).sum(),
            raw_names: self.raw_names,
        };
        let errors = sums.accounts.errors.iter();
        let errors = errors.map(|e| format!("PID {}: {} (code {})", e.pid, e.text, e.code));
        let warnings = session.warnings().iter().cloned();
        let troubles = sums.pc.iter().flat_map(|pc| pc.code.troubles());
        let notes: Vec<String> = errors
            .chain(warnings)
            .chain(troubles.map(ToString::to_string))
            .chain(self.notes.iter().cloned())
            .collect();
        let (screen, paint) = (&mut self.screen, self.paint);
        self.terminal
            .screen()
            .draw(|frame| draw::draw(frame, screen, &facts, samples, &notes, paint))
            .is_ok()
    }
}
