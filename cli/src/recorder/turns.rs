//! Between events: what the threads have done is taken, and what is staged is written.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::Recorder;
use super::clock::Reading;
use super::cubins::{Cubins, Said};
use super::stackless::Why;
use crate::symbols::Frames;
use crate::symbols::thread::{Answer, Found, Resolver};

/// What is staged is written this often.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Events between two looks at the clock.
const LOOK_AFTER: u32 = 256;

impl<W: Write> Recorder<W> {
    pub(super) fn read_clock(&mut self) {
        let r = Reading::take();
        self.writer
            .clock(r.monotonic_ns, r.offset_ns, r.uncertainty_ns);
    }

    /// After each event: a flood must not keep us from writing.
    pub(super) fn look_at_the_clock(&mut self) {
        self.since_look += 1;
        if self.since_look >= LOOK_AFTER {
            self.since_look = 0;
            self.fetch();
            if self.flushed.elapsed() >= FLUSH_EVERY {
                self.write();
            }
        }
    }

    pub(super) fn write(&mut self) {
        self.flushed = Instant::now();
        self.read_clock();
        self.say_gaps();
        // The error stays until somebody asks for it.
        let _ = self.writer.flush();
    }

    /// Takes what the threads have done.
    pub(super) fn fetch(&mut self) {
        while let Some(answer) = self.resolver.as_mut().and_then(Resolver::answer) {
            self.write_stack(answer);
        }
        while let Some(said) = self.cubins.as_mut().and_then(Cubins::next_said) {
            if let Said::Part {
                crc,
                offset,
                size,
                bytes,
            } = said
            {
                self.writer.cubin(crc, offset, size, &bytes);
            }
        }
    }

    fn write_stack(&mut self, answer: Answer) {
        let nowhere = |frames: &Vec<Frames>| frames.iter().all(|at| at.is_empty());
        let nothing = match &answer.found {
            Found::Frames(frames) => nowhere(frames).then_some(Why::Nowhere),
            Found::SameAs(_) => None,
            Found::Gone => Some(Why::Gone),
        };
        self.stackless.answered(answer.stack, nothing);
        let frames = match answer.found {
            _ if nothing.is_some() => return,
            Found::Frames(frames) => frames,
            Found::SameAs(earlier) => return self.writer.same_stack(answer.stack, earlier),
            Found::Gone => return,
        };
        let mut stack = Vec::with_capacity(frames.len());
        for frame in frames.iter().flat_map(|frames| frames.iter()) {
            let mut name = |text: &str| self.writer.name(text.as_bytes(), false);
            let row = [
                name(&frame.function),
                name(&frame.module),
                name(&frame.file),
                frame.line.into(),
            ];
            stack.push(self.writer.frame(row));
        }
        self.writer.stack(answer.stack, &stack);
    }

    /// Between events, ten times a second or so: the error of writing, if there was one.
    pub fn tick(&mut self) -> io::Result<()> {
        self.fetch();
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.write();
            return self.writer.flush();
        }
        Ok(())
    }
}
