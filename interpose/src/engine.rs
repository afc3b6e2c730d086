//! The engines that replace code, behind one trait.

use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
mod detour;
#[cfg(feature = "gum")]
mod gum;

/// Which engine is asked for (`PARCAGPU_HOOK_ENGINE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best that is built in: gum, else detour.
    #[default]
    Auto,
    /// Gum, and `Auto` with the reason told where it is not built in.
    Gum,
    /// Detour, and `Auto` with the reason told where it is not built in.
    Detour,
    /// No code is changed.
    None,
}

impl FromStr for Choice {
    type Err = ();

    /// `auto`, `gum`, `detour` or `none`.
    fn from_str(text: &str) -> Result<Choice, ()> {
        match text {
            "auto" => Ok(Choice::Auto),
            "gum" => Ok(Choice::Gum),
            "detour" => Ok(Choice::Detour),
            "none" => Ok(Choice::None),
            _ => Err(()),
        }
    }
}

/// Which engine is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EngineKind {
    /// No function is replaced.
    None = 0,
    /// Frida's Gum.
    Gum = 1,
    /// The crate `detour`.
    Detour = 2,
}

impl EngineKind {
    /// Its name as in `PARCAGPU_HOOK_ENGINE`.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::None => "none",
            EngineKind::Gum => "gum",
            EngineKind::Detour => "detour",
        }
    }
}

impl EngineKind {
    /// How many first bytes of a function it overwrites, at least.
    pub(crate) fn needs(self) -> usize {
        match self {
            EngineKind::None => 0,
            // Room for its longest jump.
            EngineKind::Gum => 16,
            // A jump with a 32-bit distance, to a relay where that is too near.
            EngineKind::Detour => 5,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a replacement could not be prepared.
#[derive(Debug)]
pub(crate) enum PrepareError {
    /// This function cannot be hooked; others may.
    Refused(String),
    /// None will be: the whole transaction is to be taken back.
    Fatal(String),
}

/// Replaces functions in one transaction: any number of `prepare`, then one
/// `commit` or `cancel`.
pub(crate) trait Engine {
    /// Told of all targets before the first is prepared: what the engine still
    /// holds of an unmapped library at the same addresses is to be forgotten.
    ///
    /// # Safety
    /// All are mapped functions of at least [`EngineKind::needs`] bytes that nobody runs.
    unsafe fn forget_unmapped(&mut self, _targets: &[usize]) {}

    /// Gets ready to send calls of `target` to `replacement`, and returns what
    /// will then run the original. The target itself is not changed yet.
    ///
    /// # Safety
    /// Both are functions of the same signature; nobody runs `target`, and it
    /// stays mapped until the transaction ends.
    unsafe fn prepare(
        &mut self,
        target: usize,
        replacement: *const (),
    ) -> Result<*mut (), PrepareError>;

    /// Changes all prepared targets for ever; on error none is changed.
    fn commit(&mut self) -> Result<(), String>;

    /// Forgets what was prepared.
    fn cancel(&mut self);
}

const HAS_GUM: bool = cfg!(feature = "gum");
const HAS_DETOUR: bool = cfg!(target_arch = "x86_64");

/// The engine that a choice means here.
pub(crate) fn kind_of(choice: Choice) -> EngineKind {
    match choice {
        Choice::None => EngineKind::None,
        Choice::Detour if HAS_DETOUR => EngineKind::Detour,
        _ if HAS_GUM => EngineKind::Gum,
        _ if HAS_DETOUR => EngineKind::Detour,
        _ => EngineKind::None,
    }
}

/// Why that engine and not another.
pub(crate) fn reason(choice: Choice, kind: EngineKind) -> &'static str {
    match (choice, kind) {
        (Choice::None, _) => "switched off by PARCAGPU_HOOK_ENGINE=none",
        (Choice::Gum, EngineKind::Detour) => "gum was asked for, but is not built in (feature gum)",
        (Choice::Detour, EngineKind::Gum) => "detour was asked for, but is for x86-64 only",
        (Choice::Auto, EngineKind::Detour) => "gum is not built in (feature gum)",
        (Choice::Auto, EngineKind::Gum) => "gum is preferred",
        (_, EngineKind::None) => "gum is not built in (feature gum), detour is for x86-64 only",
        (Choice::Gum | Choice::Detour, _) => "chosen by PARCAGPU_HOOK_ENGINE",
    }
}

/// Starts an engine. Gum's runtime begins here, so only call this when
/// something is to be hooked and may be.
pub(crate) fn build(kind: EngineKind) -> Option<Box<dyn Engine>> {
    match kind {
        #[cfg(feature = "gum")]
        EngineKind::Gum => Some(Box::new(gum::GumEngine::new())),
        #[cfg(target_arch = "x86_64")]
        EngineKind::Detour => Some(Box::new(detour::DetourEngine::default())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_prefers_gum_and_says_why_not() {
        let kind = kind_of(Choice::Auto);
        if HAS_GUM {
            assert_eq!(kind, EngineKind::Gum);
        } else if HAS_DETOUR {
            assert_eq!(kind, EngineKind::Detour);
            assert!(reason(Choice::Auto, kind).contains("gum is not built in"));
            assert!(reason(Choice::Gum, kind_of(Choice::Gum)).contains("asked for"));
        }
        assert_eq!(kind_of(Choice::None), EngineKind::None);
        assert!(build(EngineKind::None).is_none());
    }

    #[test]
    fn names_are_those_of_the_variable() {
        for name in ["gum", "detour", "none"] {
            let choice: Choice = name.parse().expect("known");
            if choice == Choice::None {
                assert_eq!(kind_of(choice).name(), name);
            }
        }
        assert_eq!("Gum".parse::<Choice>(), Err(()));
    }
}
