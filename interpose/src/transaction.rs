//! One transaction: all functions of a library that can be replaced, or none.

use std::ptr;

use crate::code::Refusal;
use crate::engine::{Engine, PrepareError};
use crate::hooks::Hook;

/// A function to be replaced, and its address.
pub(crate) type Target = (&'static Hook, usize);

/// Replaces functions, each original published first. Returns what was
/// replaced, or, all being as it was, the engine's words; functions that it
/// refuses do not spoil the others.
///
/// # Safety
/// The targets are functions of the types that `hooks!` was told, and nobody
/// runs them yet.
pub(crate) unsafe fn transact(
    engine: &mut dyn Engine,
    targets: &[Target],
    copy: usize,
    refused: &mut Vec<(&'static str, Refusal)>,
) -> Result<Vec<Target>, String> {
    let addresses: Vec<usize> = targets.iter().map(|&(_, address)| address).collect();
    // SAFETY: promised by our caller.
    unsafe { engine.forget_unmapped(&addresses) };
    let mut installed: Vec<Target> = Vec::new();
    let mut prepare = || {
        for &(hook, address) in targets {
            // SAFETY: promised by our caller; the entry is of the same type.
            match unsafe { engine.prepare(address, hook.entry(copy)) } {
                Ok(original) => {
                    hook.publish(copy, original);
                    installed.push((hook, address));
                }
                Err(PrepareError::Refused(words)) => {
                    refused.push((hook.name(), Refusal::Engine(words)));
                }
                Err(PrepareError::Fatal(words)) => return Err(words),
            }
        }
        Ok(())
    };
    let prepared = prepare();
    let result = match prepared {
        Ok(()) => engine.commit(),
        Err(words) => {
            engine.cancel();
            Err(words)
        }
    };
    if result.is_err() {
        for (hook, _) in &installed {
            hook.publish(copy, ptr::null_mut());
        }
    }
    result.map(|()| installed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{COPIES, Originals};

    /// An engine whose `prepare` gives what the address asks for.
    #[derive(Default)]
    struct Scripted {
        commit_fails: bool,
        told: Vec<&'static str>,
    }

    const REFUSED: usize = 1;
    const FATAL: usize = 2;

    impl Engine for Scripted {
        unsafe fn prepare(
            &mut self,
            target: usize,
            _replacement: *const (),
        ) -> Result<*mut (), PrepareError> {
            self.told.push("prepare");
            match target {
                REFUSED => Err(PrepareError::Refused("no".to_owned())),
                FATAL => Err(PrepareError::Fatal("never".to_owned())),
                _ => Ok(ptr::without_provenance_mut(target)),
            }
        }

        fn commit(&mut self) -> Result<(), String> {
            self.told.push("commit");
            if self.commit_fails {
                return Err("failed".to_owned());
            }
            Ok(())
        }

        fn cancel(&mut self) {
            self.told.push("cancel");
        }
    }

    /// Runs a transaction in the last copy's slots.
    fn run(
        engine: &mut Scripted,
        addresses: &[usize],
    ) -> (Result<usize, String>, usize, Vec<*mut ()>) {
        const COPY: usize = COPIES - 1;
        let originals: Vec<&'static Originals> = addresses
            .iter()
            .map(|_| &*Box::leak(Box::new(Originals::new())))
            .collect();
        let targets: Vec<Target> = addresses
            .iter()
            .zip(&originals)
            .map(|(&address, originals)| {
                let hook = Hook::new("f", [ptr::null(); COPIES], originals);
                (&*Box::leak(Box::new(hook)), address)
            })
            .collect();
        let mut refused = Vec::new();
        // SAFETY: the engine changes nothing.
        let result = unsafe { transact(engine, &targets, COPY, &mut refused) };
        let published = originals.iter().map(|o| o.get::<COPY>()).collect();
        (result.map(|i| i.len()), refused.len(), published)
    }

    #[test]
    fn one_refusal_spoils_nothing() {
        let mut engine = Scripted::default();
        let (result, refused, published) = run(&mut engine, &[100, REFUSED, 300]);
        assert_eq!((result, refused), (Ok(2), 1));
        let addresses: Vec<usize> = published.iter().map(|p| p.addr()).collect();
        assert_eq!(addresses, [100, 0, 300]);
        assert_eq!(engine.told, ["prepare", "prepare", "prepare", "commit"]);
    }

    #[test]
    fn failures_take_everything_back() {
        let mut engine = Scripted::default();
        let (result, _, published) = run(&mut engine, &[100, FATAL, 300]);
        assert_eq!(result, Err("never".to_owned()));
        assert!(published.iter().all(|p| p.is_null()));
        assert_eq!(engine.told, ["prepare", "prepare", "cancel"]);

        let mut engine = Scripted {
            commit_fails: true,
            ..Scripted::default()
        };
        let (result, _, published) = run(&mut engine, &[100, 300]);
        assert_eq!(result, Err("failed".to_owned()));
        assert!(published.iter().all(|p| p.is_null()));
    }
}
