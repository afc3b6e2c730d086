//! What becomes of contexts and modules, as CUPTI's events tell it on the program's threads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::contexts::Phase;
use super::sampling::{Sampling, TURN_LIMIT};
use super::{refusal, setup};
use crate::cupti::api::Api;
use crate::cupti::sys::CUcontext;
use crate::patience::Patience;
use crate::session::Session;

/// Longest time that a thread which destroys a context waits for one that sets it up or is inside CUPTI with it.
const SET_UP_LIMIT: Duration = Duration::from_millis(500);

impl Sampling {
    /// A context was created, and this is the thread that did it: nothing of it is missed, where it is likely the one
    /// that the program works on.
    pub fn created(&self, session: &Session, context: CUcontext) {
        self.contexts.created(context);
        if self.on.load(Ordering::Relaxed)
            && let Some(api) = session.api()
            && let Some(functions) = self.functions(session, api)
            && self.is_sure_to_launch(session)
            && self.contexts.take(context)
            && self.set_up(session, api, functions, context)
        {
            // Nobody can be inside a launch of it yet.
            match setup::take_down(functions, context) {
                Ok(_) => self.contexts.release(context),
                Err(error) => refusal::tell(error),
            }
        }
    }

    /// A context is about to be destroyed by this thread: its last samples are taken.
    pub fn destroyed(&self, session: &Session, context: CUcontext) {
        let mut patience = Patience::new(SET_UP_LIMIT);
        let stale = self.contexts.take_stale(context);
        let phase = loop {
            match self.contexts.destroyed(context) {
                Some(Phase::SettingUp) if !patience.is_over() => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                phase => break phase,
            }
        };
        // It may have got on meanwhile.
        let phase = self.contexts.forget(context).or(phase);
        self.serial.destroyed(session, context);
        // Who is setting it up still tells the end of that.
        if phase != Some(Phase::SettingUp) && self.contexts.is_sampled(context) {
            let wanted = phase == Some(Phase::On) && !stale;
            self.ended(session, context, wanted, &mut patience);
            self.contexts.release(context);
        }
    }

    /// The last samples of a context that nobody knows any more, and the end of its sampling.
    fn ended(&self, session: &Session, context: CUcontext, wanted: bool, patience: &mut Patience) {
        let Some(Ok(functions)) = session.api().map(Api::pc_sampling) else {
            return;
        };
        let mut turns = self.turns_within(TURN_LIMIT);
        while turns.is_none() && self.contexts.is_used(context) && !patience.is_over() {
            turns = self.turns_within(Duration::from_millis(1));
        }
        let in_window = turns.as_ref().is_some_and(|t| t.window) || self.is_serialized();
        let deliver = in_window && wanted && self.on.load(Ordering::Relaxed);
        if let Some(turns) = turns.as_mut().filter(|_| wanted) {
            self.fetch_one(turns, functions, context, deliver);
        }
        let left = match setup::take_down(functions, context) {
            Ok(left) => left,
            // CUPTI lets it go when it is destroyed, which is now.
            Err(error) => {
                refusal::tell(error);
                None
            }
        };
        if let (Some(turns), Some(left)) = (&mut turns, left) {
            let known = self.serial.known(self.is_serialized());
            turns.pairs += turns.drain.left_behind(*left, known, deliver).pairs;
        }
    }

    /// A module of a context goes, and the meaning of its PCs with it.
    pub fn unloading(&self, session: &Session, context: CUcontext) {
        if !self.contexts.is_on(context) {
            return;
        }
        let Some(Ok(functions)) = session.api().map(Api::pc_sampling) else {
            return;
        };
        if let Some(mut turns) = self.turns_within(TURN_LIMIT) {
            let stale = self.contexts.take_stale(context);
            let in_window = turns.window || self.is_serialized();
            let deliver = in_window && !stale && self.on.load(Ordering::Relaxed);
            self.fetch_one(&mut turns, functions, context, deliver);
        }
    }

    /// A sampled launch was in this context.
    #[inline]
    pub fn launched(&self, context: CUcontext, uid: u32) {
        if self.on.load(Ordering::Relaxed) {
            self.contexts.launched(context, uid);
        }
    }
}
