//! Engine `detour`: the crate of that name, on x86-64.
//!
//! A detour is never dropped: dropping writes to its target, which may have
//! been unmapped. One that was enabled runs for the life of the process.

use std::sync::Mutex;

use detour::{Error, RawDetour, Threads, Transaction};

use super::{Engine, PrepareError};

#[derive(Default)]
pub(super) struct DetourEngine {
    prepared: Vec<RawDetour>,
}

/// Addresses of the detours of all libraries.
static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

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
        // Never dropped, and not out of reach either: leak checkers of the program's would tell of them.
        let mut kept = KEPT.lock().unwrap_or_else(|e| e.into_inner());
        kept.extend(
            self.prepared
                .drain(..)
                .map(|detour| Box::into_raw(Box::new(detour)).expose_provenance()),
        );
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
