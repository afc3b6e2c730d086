//! Engine `detour`: the crate of that name, on x86-64.
//!
//! A detour is never dropped: dropping writes to its target, which may have
//! been unmapped. One that was enabled runs for the life of the process.

use std::mem;

use detour::{Error, RawDetour, Threads, Transaction};

use super::{Engine, PrepareError};

#[derive(Default)]
pub(super) struct DetourEngine {
    prepared: Vec<RawDetour>,
}

impl Engine for DetourEngine {
    unsafe fn prepare(
        &mut self,
        target: usize,
        replacement: *const (),
    ) -> Result<*mut (), PrepareError> {
        // SAFETY: our caller promises matching signatures.
        let detour = unsafe { RawDetour::new(target as *const (), replacement) };
        let detour = detour.map_err(|error| {
            let words = describe(&error);
            match error {
                Error::Memory(_) | Error::NoNearbyMemory => PrepareError::Fatal(words),
                _ => PrepareError::Refused(words),
            }
        })?;
        let original = detour.trampoline().cast_mut();
        self.prepared.push(detour);
        Ok(original)
    }

    fn commit(&mut self) -> Result<(), String> {
        let mut transaction = Transaction::new();
        for detour in &self.prepared {
            transaction.enable(detour);
        }
        // SAFETY: nobody runs the targets yet (promise of `prepare`), so no
        // thread needs to be stopped. On error all are as they were.
        let result = unsafe { transaction.commit(Threads::None) };
        self.cancel();
        result.map_err(|error| describe(&error))
    }

    fn cancel(&mut self) {
        for detour in self.prepared.drain(..) {
            mem::forget(detour);
        }
    }
}

impl Drop for DetourEngine {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("detour: {error}: {cause}"),
        None => format!("detour: {error}"),
    }
}
