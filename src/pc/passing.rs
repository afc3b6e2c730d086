//! Launches and loads of code on their way past the gate of serialized mode; in continuous mode there is none.

use super::sampling::Sampling;
use super::serial::Tools;
use crate::session::Session;

/// How a launch is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Nobody keeps count of launches.
    Free,
    /// It is counted.
    Gate,
    /// It is counted, and inside a window: it has to be announced.
    Window,
}

impl Sampling {
    /// A launch begins on this thread. What this gives goes to [`Self::after_launch`].
    #[inline]
    pub fn before_launch(&self, session: &Session) -> Pass {
        if !self.is_serialized() {
            return Pass::Free;
        }
        let Some(tools) = Tools::of(session) else {
            return self.before_load();
        };
        match self
            .serial
            .before(tools, |context| self.contexts.is_on(context))
        {
            true => Pass::Window,
            false => Pass::Gate,
        }
    }

    /// The same for a load of code, and for launches that nobody wants to hear of.
    #[inline]
    pub fn before_load(&self) -> Pass {
        if !self.is_serialized() {
            return Pass::Free;
        }
        self.serial.enter();
        Pass::Gate
    }

    /// The thread of a launch or load that never returned has ended.
    pub fn abandoned(&self, pass: Pass) {
        if pass != Pass::Free {
            self.serial.leave();
        }
    }

    /// A launch that passed the gate got its id.
    #[inline]
    pub fn entered(&self, pass: Pass, id: u32) {
        if pass == Pass::Window {
            self.serial.entered(id);
        }
    }

    /// That launch returned.
    #[inline]
    pub fn after_launch(&self, session: &Session, pass: Pass) {
        if pass == Pass::Free {
            return;
        }
        self.serial.leave();
        if let Some(tools) = Tools::of(session) {
            self.serial.after(tools);
        }
    }
}
