//! The terminal while the live view has it: raw, on its other screen; given back on every way out.
//!
//! An ordinary end drops [`Terminal`]; a panic runs ratatui's hook before its message is printed; the last
//! resort of the signal handlers restores the modes itself.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent};

use crate::{colour, signals};

/// Whether there is a terminal to draw on and to take keys from.
pub fn is_there() -> bool {
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && colour::capable()
}

/// The terminal, taken.
pub struct Terminal(DefaultTerminal);

impl Terminal {
    /// Takes it.
    pub fn take() -> Result<Self> {
        signals::remember_terminal();
        let terminal = ratatui::try_init().context("failed to set up the terminal")?;
        Ok(Self(terminal))
    }

    /// To draw with.
    pub fn screen(&mut self) -> &mut DefaultTerminal {
        &mut self.0
    }

    /// A key, if one was pressed; `Some(None)` after a change of size.
    pub fn input(&self) -> Result<Option<Option<KeyEvent>>> {
        if !event::poll(Duration::ZERO)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) => Some(Some(key)),
            Event::Resize(..) => Some(None),
            _ => None,
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The hook has done it, and leaving the other screen once more would move the cursor into the
        // panic's message. A terminal that is gone needs nothing.
        if !std::thread::panicking() {
            let _ = ratatui::try_restore();
        }
        signals::forget_terminal();
    }
}
