//! Finds the callers in a copy of a stack, by the tables that compilers leave for exceptions (`.eh_frame`): most
//! programs are built without frame pointers. Where a file has none, and in code made at run time, frame
//! pointers are followed.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{
    CacheAarch64 as Cache, UnwindRegsAarch64 as Regs, UnwinderAarch64 as Tool,
};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64 as Regs, UnwinderX86_64 as Tool};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};

use crate::discover::Mapping;
use crate::elf::{Mapped, UnwindTables};
use crate::events::Registers;

/// Longest stack, in frames.
const FRAMES_MAX: usize = 256;

/// A copy of a stack.
#[derive(Clone, Debug, Default)]
pub struct Copy {
    /// Of the leaf.
    pub registers: Registers,
    /// From the stack pointer on.
    pub bytes: Box<[u8]>,
}

impl Copy {
    fn word(&self, address: u64) -> Result<u64, ()> {
        let at = address.checked_sub(self.registers.sp).ok_or(())?;
        let at = usize::try_from(at).map_err(|_| ())?;
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|word| u64::from_le_bytes(*word)).ok_or(())
    }

    fn regs(&self) -> Regs {
        let Registers { ip, sp, fp, link } = self.registers;
        if cfg!(target_arch = "x86_64") {
            Regs::new(ip, sp, fp)
        } else {
            Regs::new(link, sp, fp)
        }
    }
}

/// The files of one process, as far as they were needed.
#[derive(Default)]
pub struct Unwinding {
    tool: Tool<Arc<[u8]>>,
    cache: Box<Cache>,
    /// Mappings by their beginning.
    added: HashSet<u64>,
}

impl fmt::Debug for Unwinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unwinding")
            .field("added", &self.added)
            .finish_non_exhaustive()
    }
}

impl Unwinding {
    /// Addresses, leaf first: where the leaf is, then where each returns to. `find` says what is mapped at an
    /// address.
    pub fn unwind<'a>(
        &mut self,
        copy: &Copy,
        mut find: impl FnMut(u64) -> Option<(&'a Mapping, Arc<UnwindTables>)>,
    ) -> Vec<u64> {
        let mut addresses = vec![copy.registers.ip];
        let mut regs = copy.regs();
        let mut at = FrameAddress::from_instruction_pointer(copy.registers.ip);
        while addresses.len() < FRAMES_MAX {
            if let Some((mapping, tables)) = find(at.address_for_lookup())
                && self.added.insert(mapping.start)
            {
                self.add(mapping, &tables);
            }
            let mut read = |address| copy.word(address);
            let caller = self
                .tool
                .unwind_frame(at, &mut regs, &mut self.cache, &mut read);
            let Ok(Some(caller)) = caller else {
                break;
            };
            let Some(next) = FrameAddress::from_return_address(caller) else {
                break;
            };
            addresses.push(caller);
            at = next;
        }
        addresses
    }

    fn add(&mut self, mapping: &Mapping, tables: &UnwindTables) {
        let Some(bias) = tables.bias(mapping.start, mapping.offset) else {
            return;
        };
        let range = |(address, size): (u64, u64)| address..address.saturating_add(size);
        let span = |s: &Mapped| range((s.address, s.bytes.len() as u64));
        let info = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: tables.text.map(range),
            got_svma: tables.got.map(range),
            eh_frame_svma: tables.eh_frame.as_ref().map(span),
            eh_frame: tables.eh_frame.as_ref().map(|s| Arc::clone(&s.bytes)),
            eh_frame_hdr_svma: tables.eh_frame_hdr.as_ref().map(span),
            eh_frame_hdr: tables.eh_frame_hdr.as_ref().map(|s| Arc::clone(&s.bytes)),
            ..ExplicitModuleSectionInfo::default()
        };
        let module = Module::new(mapping.path.clone(), mapping.start..mapping.end, bias, info);
        self.tool.add_module(module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_the_copy_are_not_there() {
        let copy = Copy {
            registers: Registers {
                sp: 0x1000,
                ..Registers::default()
            },
            bytes: (0..20).collect(),
        };
        assert_eq!(copy.word(0x1000), Ok(0x0706_0504_0302_0100));
        assert!(copy.word(0x100c).is_ok());
        for address in [0, 0xfff, 0x100d, 0x1014, u64::MAX] {
            assert_eq!(copy.word(address), Err(()));
        }
    }

    #[test]
    fn any_registers_and_bytes_end() {
        let mut unwinding = Unwinding::default();
        for sp in [0, 0x1000, u64::MAX - 16] {
            for fill in [0, 0x10, 0xff] {
                let copy = Copy {
                    registers: Registers {
                        ip: 0x5000,
                        sp,
                        fp: sp.wrapping_add(8),
                        link: 3,
                    },
                    bytes: vec![fill; 4096].into(),
                };
                let addresses = unwinding.unwind(&copy, |_| None);
                assert!((1..=FRAMES_MAX).contains(&addresses.len()));
            }
        }
    }
}
