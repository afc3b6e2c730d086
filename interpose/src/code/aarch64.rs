//! The body of a function on aarch64 (fixed four-byte instructions).
//!
//! Built everywhere so that its tests run everywhere.

#![cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]

use super::Refusal;

/// See [`super::check`]; `body` is the whole function, mapped at `address`.
pub(super) fn check_body(body: &[u8], address: u64, need: usize) -> Result<(), Refusal> {
    let words = body
        .chunks_exact(4)
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let first = words.clone().find(|&w| !is_landing_pad(w));
    if first.is_some_and(is_jump) {
        return Err(Refusal::JumpAtStart);
    }
    let end = address + need.next_multiple_of(4) as u64;
    for (index, word) in words.enumerate() {
        let at = address + 4 * index as u64;
        let target = branch_offset(word).map(|o| at.wrapping_add_signed(o));
        if target.is_some_and(|t| (address..end).contains(&t)) {
            return Err(Refusal::BranchIntoStart);
        }
    }
    Ok(())
}

/// `bti` in its four forms, and `nop`.
fn is_landing_pad(word: u32) -> bool {
    word & 0xffff_ff3f == 0xd503_241f || word == 0xd503_201f
}

/// `b` and `br`.
fn is_jump(word: u32) -> bool {
    word & 0xfc00_0000 == 0x1400_0000 || word & 0xffff_fc1f == 0xd61f_0000
}

/// Distance of a jump or conditional branch (not of a call).
fn branch_offset(word: u32) -> Option<i64> {
    let signed = |low: u32, bits: u32| {
        let field = (word >> low) & ((1 << bits) - 1);
        let shift = 64 - bits;
        (((u64::from(field) << shift) as i64) >> shift) * 4
    };
    if word & 0xfc00_0000 == 0x1400_0000 {
        Some(signed(0, 26)) // b
    } else if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        Some(signed(5, 19)) // b.cond, bc.cond, cbz, cbnz
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        Some(signed(5, 14)) // tbz, tbnz
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[u32]) -> Result<(), Refusal> {
        let body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        check_body(&body, 0x1_0000, 16)
    }

    const NOP: u32 = 0xd503_201f;
    const RET: u32 = 0xd65f_03c0;
    const STP: u32 = 0xa9bf_7bfd; // stp x29, x30, [sp, #-16]!

    #[test]
    fn branches_are_told_by_their_distance() {
        let mut body = [STP, NOP, NOP, NOP, NOP, 0, RET];
        // At offset 20, so -4 words reach offset 4 and -1 reaches offset 16.
        for (word, refused) in [
            (0x17ff_fffc_u32, true), // b .-16
            (0x17ff_ffff, false),    // b .-4
            (0x54ff_ff81, true),     // b.ne .-16
            (0xb4ff_ff80, true),     // cbz x0, .-16
            (0x3707_ff80, true),     // tbnz w0, #0, .-16
            (0x97ff_fffb, false),    // bl .-20: recursion
        ] {
            body[5] = word;
            assert_eq!(check(&body).is_err(), refused, "{word:x}");
        }
    }

    #[test]
    fn jumps_at_the_start_are_refused() {
        let bti = 0xd503_245f;
        assert_eq!(
            check(&[0x1400_0100, NOP, NOP, NOP]),
            Err(Refusal::JumpAtStart)
        );
        assert_eq!(
            check(&[bti, 0xd61f_0200, NOP, NOP]),
            Err(Refusal::JumpAtStart)
        );
        assert_eq!(check(&[bti, STP, NOP, RET]), Ok(()));
    }
}
