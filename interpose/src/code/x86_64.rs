//! The body of a function on x86-64.
//!
//! A full decoder builds tables when it is used for the first time, which takes longer (0.4 ms) than all
//! else that is done here. Functions that begin as the driver's do and hold no byte that could be a
//! branch to their start are passed without it.

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, OpKind};

use super::Refusal;

/// See [`super::check`]; `body` is the whole function, mapped at `address`.
pub(super) fn check_body(body: &[u8], address: u64, need: usize) -> Result<(), Refusal> {
    if let Some(end) = known_start(body, need)
        && !may_branch_into(body, end)
    {
        return Ok(());
    }
    let end = replaced(body, address, need)?;
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let near = matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        );
        if !near {
            continue;
        }
        let target = instruction.near_branch_target();
        // A call of its own entry is recursion and comes through the hook.
        let recursion = instruction.flow_control() == FlowControl::Call && target == address;
        if (address..end).contains(&target) && !recursion {
            return Err(Refusal::BranchIntoStart);
        }
    }
    Ok(())
}

/// push rbp; mov rbp, rsp; push r12; sub rsp, imm8; cmp dword [rip + x], imm32
const DRIVER_START: [Option<u8>; 20] = {
    let mut bytes = [None; 20];
    let fixed = [
        0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0, 0x81, 0x3d,
    ];
    let mut i = 0;
    while i < fixed.len() {
        // The size of the frame is anything.
        bytes[i] = if i == 9 { None } else { Some(fixed[i]) };
        i += 1;
    }
    bytes
};

/// Length of the instructions at the start of a function of the driver, if they cover `need` bytes.
fn known_start(body: &[u8], need: usize) -> Option<usize> {
    let start = body.get(..DRIVER_START.len())?;
    let mut pairs = start.iter().zip(&DRIVER_START);
    let same = pairs.all(|(byte, known)| known.is_none_or(|known| known == *byte));
    (same && need <= start.len()).then_some(start.len())
}

/// Whether some byte, taken for a branch wherever it stands, would lead into the first `len` bytes.
/// What is no instruction may say so too; what is one never goes unnoticed.
fn may_branch_into(body: &[u8], len: usize) -> bool {
    let lands = |from: usize, distance: i64| (0..len as i64).contains(&(from as i64 + distance));
    (0..body.len()).any(|at| {
        let rest = &body[at..];
        let short = |skip: usize| {
            rest.get(skip)
                .is_some_and(|d| lands(at + skip + 1, i64::from(*d as i8)))
        };
        let near = |skip: usize| {
            rest.get(skip..skip + 4).is_some_and(|d| {
                let distance = i32::from_le_bytes([d[0], d[1], d[2], d[3]]);
                lands(at + skip + 4, i64::from(distance))
            })
        };
        match rest[0] {
            // jcc, loop and jrcxz, jmp
            0x70..=0x7f | 0xe0..=0xe3 | 0xeb => short(1),
            // call, jmp
            0xe8 | 0xe9 => near(1),
            // jcc
            0x0f if rest.get(1).is_some_and(|b| (0x80..=0x8f).contains(b)) => near(2),
            _ => false,
        }
    })
}

/// End of the whole instructions that cover the first `need` bytes.
fn replaced(body: &[u8], address: u64, need: usize) -> Result<u64, Refusal> {
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    let mut first = true;
    while decoder.ip() < address + need as u64 {
        if !decoder.can_decode() {
            return Err(Refusal::TooShort(body.len()));
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(match decoder.last_error() {
                DecoderError::NoMoreBytes => Refusal::TooShort(body.len()),
                _ => Refusal::Unreadable,
            });
        }
        if instruction.code() == Code::Endbr64 {
            continue;
        }
        let jump = matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
        if first && jump {
            return Err(Refusal::JumpAtStart);
        }
        first = false;
    }
    Ok(decoder.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0000_1000;

    fn check(code: &[u8]) -> Result<(), Refusal> {
        check_body(code, AT, 5)
    }

    #[test]
    fn driver_prologues_pass() {
        // push rbp; mov rbp,rsp; push r12; sub rsp,16; ret
        check(&[
            0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x10, 0xc3,
        ])
        .expect("ok");
        // cmp dword [rip+x], imm32; je +6; jmp [rip+y]; ret
        check(&[
            0x81, 0x3d, 1, 2, 3, 4, 5, 6, 7, 8, 0x74, 0x06, 0xff, 0x25, 1, 0, 0, 0, 0xc3,
        ])
        .expect("ok");
        // endbr64 first
        check(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xc3]).expect("ok");
    }

    /// The driver's start and what follows.
    fn driver(rest: &[u8]) -> Vec<u8> {
        let mut body: Vec<u8> = DRIVER_START.iter().map(|b| b.unwrap_or(8)).collect();
        body.extend_from_slice(rest);
        body
    }

    #[test]
    fn functions_of_the_driver_pass_without_a_decoder() {
        let body = driver(&[0x75, 0x06, 0xb8, 0, 0, 0, 0, 0xc3]);
        assert_eq!(known_start(&body, 16), Some(20));
        assert!(!may_branch_into(&body, 20));
        assert_eq!(check_body(&body, AT, 16), Ok(()));
        assert_eq!(known_start(&body[..19], 5), None);
        assert_eq!(known_start(&body, 21), None);
    }

    #[test]
    fn branches_into_a_start_of_the_drivers_are_refused() {
        for back in [
            // jne to offset 10; jmp and jcc with four bytes to offset 4
            &[0x75, 0xf4, 0xc3][..],
            &[0xe9, 0xeb, 0xff, 0xff, 0xff],
            &[0x0f, 0x84, 0xea, 0xff, 0xff, 0xff],
        ] {
            let body = driver(back);
            assert!(may_branch_into(&body, 20), "{back:x?}");
            assert_eq!(check_body(&body, AT, 16), Err(Refusal::BranchIntoStart));
        }
        // The same bytes as data of another instruction are looked at again, and pass.
        let data = driver(&[0xb8, 0x75, 0xf4, 0, 0, 0xc3]);
        assert!(may_branch_into(&data, 20));
        assert_eq!(check_body(&data, AT, 16), Ok(()));
    }

    #[test]
    fn jumps_at_the_start_are_refused() {
        for code in [
            &[0xe9, 0, 1, 0, 0, 0xc3][..],
            &[0xeb, 0x10, 0x90, 0x90, 0x90, 0xc3],
            &[0xff, 0x25, 0, 0, 0, 0, 0xc3],
            &[0xf3, 0x0f, 0x1e, 0xfa, 0xe9, 0, 1, 0, 0, 0xc3],
        ] {
            assert_eq!(check(code), Err(Refusal::JumpAtStart), "{code:x?}");
        }
    }

    #[test]
    fn branches_into_the_start_are_refused() {
        // dec edi; mov eax, 1; jnz -> offset 2; ret
        let middle = [0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0x75, 0xf9, 0xc3];
        assert_eq!(check(&middle), Err(Refusal::BranchIntoStart));
        // the same back to the entry itself
        let entry = [0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0x75, 0xf7, 0xc3];
        assert_eq!(check(&entry), Err(Refusal::BranchIntoStart));
        // behind the replaced bytes is fine
        let behind = [0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0x75, 0xfe, 0xc3];
        assert_eq!(check(&behind), Ok(()));
        // recursion is a call
        let recursion = [
            0xff, 0xcf, 0xb8, 1, 0, 0, 0, 0xe8, 0xf4, 0xff, 0xff, 0xff, 0xc3,
        ];
        assert_eq!(check(&recursion), Ok(()));
    }

    #[test]
    fn an_instruction_cut_by_the_end_is_too_short() {
        assert_eq!(
            check(&[0x55, 0x48, 0x89, 0xe5, 0x48]),
            Err(Refusal::TooShort(5))
        );
    }
}
